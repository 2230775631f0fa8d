//! [`Layout`]: the numbers of workers and replicas.

use crate::{Error, Result};
use std::fmt;

/// The numbers of workers that read a dataset, and of replicas on each worker.
///
/// The replica `r` of a worker is the global replica `worker * replicas + r`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Layout {
    /// The number of workers. Each worker has a separate pipeline.
    pub workers: usize,
    /// The number of replicas of each worker.
    pub replicas: usize,
}

impl Layout {
    /// Creates a layout of one worker with `replicas` replicas.
    pub fn one_worker(replicas: usize) -> Self {
        Self { workers: 1, replicas }
    }

    /// Returns the total number of replicas of all workers.
    pub fn total(&self) -> usize {
        self.workers.saturating_mul(self.replicas)
    }

    /// Checks that the numbers of workers and replicas are in range.
    ///
    /// # Errors
    /// - [`Error::Parameter`]: `workers` or `replicas` is 0, or there are more than 65536 replicas in total.
    pub fn check(&self) -> Result<()> {
        crate::error::at_least_one("distribute", "the number of workers", self.workers)?;
        crate::error::at_least_one("distribute", "the number of replicas of a worker", self.replicas)?;
        check_replicas("distribute", "the number of replicas of all workers", self.total())
    }

    /// Checks that `worker` is the index of a worker.
    ///
    /// # Errors
    /// - [`Error::Worker`]: `worker` is not less than the number of workers.
    pub fn check_worker(&self, worker: usize) -> Result<()> {
        if worker < self.workers { Ok(()) } else { Err(Error::Worker { worker, workers: self.workers }) }
    }
}

/// Checks that there are at most 65,536 replicas, because each worker has a pipeline, and each replica a batch.
pub(crate) fn check_replicas(
    operation: &'static str,
    parameter: &'static str,
    replicas: usize,
) -> Result<()> {
    if replicas > 1 << 16 {
        let (found, expected) = (replicas.to_string(), "at most 65536");
        Err(Error::Parameter { operation, parameter, found, expected })
    } else {
        Ok(())
    }
}

impl fmt::Display for Layout {
    /// Formats the layout, as in `2 workers of 3 replicas`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |n| if n == 1 { "" } else { "s" };
        let (w, r) = (self.workers, self.replicas);
        write!(f, "{w} worker{} of {r} replica{}", plural(w), plural(r))
    }
}
