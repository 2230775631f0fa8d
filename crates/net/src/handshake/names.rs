//! The names of workers in error messages.

use distribute_cluster::{Job, Task};
use std::sync::Arc;

/// The tasks of a world's workers, as error messages name them: `chief 0`, `worker 0`, … A worker without a task is
/// named `worker`, followed by its rank.
#[derive(Clone, Debug, Default)]
pub struct Names(Arc<[Task]>);

impl Names {
    /// Creates the names from the tasks of the workers, in the order of their ranks.
    pub fn new(tasks: impl IntoIterator<Item = Task>) -> Self {
        Self(tasks.into_iter().collect())
    }

    /// Returns the task by which messages name the worker with this rank.
    pub fn task(&self, worker: usize) -> Task {
        self.0.get(worker).cloned().unwrap_or_else(|| Job::Worker.task(worker))
    }
}
