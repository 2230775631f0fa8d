//! [`Layout`]: how many take part.

use crate::{Error, Result};
use std::fmt;

/// How many workers read a dataset, and for how many replicas each: all have as many.
///
/// Global replica `worker * replicas + r` is replica `r` of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Layout {
    /// The workers, each with a pipeline of its own.
    pub workers: usize,
    /// The replicas of each worker.
    pub replicas: usize,
}

impl Layout {
    /// One worker with these replicas.
    pub fn one_worker(replicas: usize) -> Self {
        Self { workers: 1, replicas }
    }

    /// The replicas of all workers together.
    pub fn total(&self) -> usize {
        self.workers.saturating_mul(self.replicas)
    }

    /// Whether there are workers and replicas at all.
    ///
    /// # Errors
    /// [`Error::Parameter`] names what is 0, or more than can be.
    pub fn check(&self) -> Result<()> {
        crate::operations::batch::at_least_one("distribute", "the number of workers", self.workers)?;
        crate::operations::batch::at_least_one(
            "distribute",
            "the number of replicas of a worker",
            self.replicas,
        )?;
        check_replicas("distribute", "the number of replicas of all workers", self.total())
    }

    /// Whether there is such a worker.
    ///
    /// # Errors
    /// [`Error::Worker`].
    pub fn check_worker(&self, worker: usize) -> Result<()> {
        if worker < self.workers { Ok(()) } else { Err(Error::Worker { worker, workers: self.workers }) }
    }
}

/// Refuses more replicas than there can be: there is a pipeline for each worker, and a piece of each batch for each
/// replica.
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
