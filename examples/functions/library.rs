//! Remote functions of a library: nothing in the program that is linked with it calls them.

#![forbid(unsafe_code)]

use distribute::Result;
use distribute::remote::WorkerContext;

/// A module that nothing refers to.
pub mod alone {
    use super::{Result, WorkerContext};

    /// The number of the worker.
    ///
    /// # Errors
    /// None.
    #[distribute::remote]
    pub fn index(worker: &WorkerContext) -> Result<usize> {
        Ok(worker.index())
    }
}

/// How many workers there are.
///
/// # Errors
/// None.
#[distribute::remote]
pub fn workers(worker: &WorkerContext) -> Result<usize> {
    Ok(worker.workers())
}
