//! The processes of all tasks of a job, which several threads share.

use crate::process::Process;
use crate::{Error, Result, Signal, Task};
use parking_lot::Mutex;
use std::sync::Arc;

/// The processes of a job's tasks, each with the task's number of restarts so far.
pub(crate) struct Shared {
    pub names: Vec<Task>,
    pub processes: Vec<Mutex<(Option<Arc<Process>>, u32)>>,
}

impl Shared {
    pub(crate) fn process(&self, index: usize) -> (Option<Arc<Process>>, u32) {
        self.processes[index].lock().clone()
    }

    pub(crate) fn find(&self, task: &Task) -> Result<(Arc<Process>, u32)> {
        let not_running = || Error::NotRunning { task: task.clone() };
        let index = self.names.iter().position(|name| name == task).ok_or_else(not_running)?;
        let (process, restart) = self.process(index);
        Ok((process.ok_or_else(not_running)?, restart))
    }

    pub(crate) fn kill_all(&self) {
        (0..self.names.len()).filter_map(|index| self.process(index).0).for_each(|process| {
            process.send(Signal::Kill);
        });
    }
}
