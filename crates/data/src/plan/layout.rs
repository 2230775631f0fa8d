//! [`Layout`]: how many workers and replicas take part.

use crate::{Error, Result};
use std::fmt;

/// How many workers read a dataset, and how many replicas each of them has.
///
/// Replica `r` of a worker is global replica `worker * replicas + r`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Layout {
    /// The workers, each with a pipeline of its own.
    pub workers: usize,
    /// The replicas of each worker.
    pub replicas: usize,
}

impl Layout {
    /// One worker with this many replicas.
    pub fn one_worker(replicas: usize) -> Self {
        Self { workers: 1, replicas }
    }

    /// Returns the number of replicas of all workers together.
    pub fn total(&self) -> usize {
        self.workers.saturating_mul(self.replicas)
    }

    /// Checks that there are workers and replicas.
    ///
    /// # Errors
    /// [`Error::Parameter`] names the number that is 0 or too large.
    pub fn check(&self) -> Result<()> {
        crate::error::at_least_one("distribute", "the number of workers", self.workers)?;
        crate::error::at_least_one("distribute", "the number of replicas of a worker", self.replicas)?;
        check_replicas("distribute", "the number of replicas of all workers", self.total())
    }

    /// Checks that there is such a worker.
    ///
    /// # Errors
    /// [`Error::Worker`].
    pub fn check_worker(&self, worker: usize) -> Result<()> {
        if worker < self.workers { Ok(()) } else { Err(Error::Worker { worker, workers: self.workers }) }
    }
}

/// Refuses too many replicas, since there is a pipeline for each worker, and a piece of each batch for each replica.
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
    /// `2 workers of 3 replicas`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |n| if n == 1 { "" } else { "s" };
        let (w, r) = (self.workers, self.replicas);
        write!(f, "{w} worker{} of {r} replica{}", plural(w), plural(r))
    }
}
