//! The status of a coordinator and its workers.

use crate::call::{FunctionId, ResourceId};
use crate::dispatch::Task;
use std::fmt;
use std::time::Duration;

/// The current status of a coordinator and its workers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The number of closures that wait for a worker.
    pub queued: usize,
    /// The number of closures that have ended.
    pub ended: u64,
    /// The number of completed executions of closures. A closure may be executed more than once.
    pub run: u64,
    /// The number of other executions that ended during an execution, summed over all completed executions
    /// ([`run`](Self::run)). If each execution makes one update, this is the total number of updates that the values
    /// used by executions lacked.
    pub overlaps: u64,
    /// The status of each worker.
    pub workers: Vec<WorkerStatus>,
}

/// The current status of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStatus {
    /// The name of the worker.
    pub name: String,
    /// The reason why the worker is not connected, if it is not.
    pub disconnect_reason: Option<String>,
    /// The number of times that the worker disconnected.
    pub losses: u64,
    /// The function that the worker is running, its task, and the time since the task began; `None` if the worker is
    /// idle.
    pub running: Option<(FunctionId, Task, Duration)>,
    /// The number of closures that are assigned to the worker.
    pub closures: usize,
    /// The resources that the worker still has to create.
    pub missing: Vec<ResourceId>,
}

impl Status {
    /// Returns the average staleness of values: the number of other executions that ended during an execution, averaged
    /// over the executions that were completed since `earlier`. Returns `None` if there are none. With n workers and
    /// closures of equal duration, the average is n - 1.
    pub fn staleness_since(&self, earlier: &Self) -> Option<f64> {
        let run = self.run.saturating_sub(earlier.run);
        (run > 0).then(|| self.overlaps.saturating_sub(earlier.overlaps) as f64 / run as f64)
    }
}

impl fmt::Display for WorkerStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match (&self.disconnect_reason, &self.running, &self.missing[..]) {
            (Some(why), ..) => write!(f, "{name} is not connected ({why})"),
            (None, Some((function, task, since)), _) => {
                write!(f, "{name} has run {function} ({task}) for {:.1} s", since.as_secs_f64())
            }
            (None, None, [first, ..]) => write!(f, "{name} waits to create {first}"),
            (None, None, []) => write!(f, "{name} has nothing to do"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staleness_is_of_the_closures_that_have_ended_since_the_last_look() {
        let status = |run, overlaps| Status { queued: 0, ended: run, run, overlaps, workers: Vec::new() };
        assert_eq!(status(4, 6).staleness_since(&status(0, 0)), Some(1.5));
        assert_eq!(status(14, 36).staleness_since(&status(4, 6)), Some(3.));
        assert_eq!(status(4, 6).staleness_since(&status(4, 6)), None);
    }
}
