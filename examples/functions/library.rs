//! Remote functions of a library, which no code in the linked program calls.

#![forbid(unsafe_code)]

use distribute::Result;
use distribute::remote::WorkerContext;

/// A module to which nothing else refers.
pub mod alone {
    use super::{Result, WorkerContext};

    /// Returns the index of the worker.
    ///
    /// # Errors
    /// None.
    #[distribute::remote]
    pub fn index(worker: &WorkerContext) -> Result<usize> {
        Ok(worker.index())
    }
}

/// Returns the number of workers.
///
/// # Errors
/// None.
#[distribute::remote]
pub fn workers(worker: &WorkerContext) -> Result<usize> {
    Ok(worker.workers())
}
