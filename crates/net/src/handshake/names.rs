//! The names of workers in messages.

use distribute_cluster::{Job, Task};
use std::sync::Arc;

/// The names of the workers of a world in messages: `chief 0`, `worker 0`, … A worker without a task is named `worker`,
/// followed by its rank.
#[derive(Clone, Debug, Default)]
pub struct Names(Arc<[Task]>);

impl Names {
    /// Creates the names of workers with the given tasks, by rank.
    pub fn new(tasks: impl IntoIterator<Item = Task>) -> Self {
        Self(tasks.into_iter().collect())
    }

    /// Returns the name of a worker.
    pub fn task(&self, worker: usize) -> Task {
        self.0.get(worker).cloned().unwrap_or_else(|| Job::Worker.task(worker))
    }
}
