//! What workers are called.

use distribute_cluster::{Job, Task};
use std::sync::Arc;

/// What the workers of a world are called in what is said of them: `chief 0`, `worker 0`, … Those that have been given no
/// task are called `worker` and their number.
#[derive(Clone, Debug, Default)]
pub struct Names(Arc<[Task]>);

impl Names {
    /// The names of workers that have these tasks, by number.
    pub fn new(tasks: impl IntoIterator<Item = Task>) -> Self {
        Self(tasks.into_iter().collect())
    }

    /// What the worker of this number is called.
    pub fn of(&self, worker: usize) -> Task {
        self.0.get(worker).cloned().unwrap_or_else(|| Job::Worker.task(worker))
    }
}
