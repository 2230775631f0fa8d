//! The program of a worker: its functions, called with bytes.

use crate::call::{Call, FunctionId, Origin, ResourceId};
use crate::failure::{Failure, FailureKind};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The functions of a program that every task of a job runs.
pub trait Program: Send + Sync {
    /// Returns the functions of the program, in any order.
    fn functions(&self) -> Vec<FunctionId>;

    /// Starts the executor of worker `worker` of `workers` for a coordinator. `settings` are the settings that the
    /// coordinator's program sends to all workers. The resources of an earlier executor are no longer used, although
    /// one of its calls may still be running.
    ///
    /// # Errors
    /// Returns a [`Failure`] if the executor cannot be started. It is sent to the coordinator.
    fn start(&self, worker: usize, workers: usize, settings: &Bytes) -> Result<Arc<dyn Executor>, Failure>;
}

/// An executor of the calls of one coordinator on one worker. It stores the resources that it has created. One call
/// runs at a time.
pub trait Executor: Send + Sync {
    /// Calls a function, and returns its encoded result.
    ///
    /// # Errors
    /// Returns a [`Failure`] if the function fails or panics.
    fn call(&self, context: &CallContext, call: &Call) -> Result<Bytes, Failure>;

    /// Creates a resource. It continues at `position`, if there is one.
    ///
    /// # Errors
    /// Returns a [`Failure`] if the function fails or panics.
    fn create(
        &self,
        context: &CallContext,
        resource: ResourceId,
        call: &Call,
        position: Option<&Bytes>,
    ) -> Result<(), Failure>;

    /// Returns the positions of the resources that have moved since this method was last called, for example datasets
    /// from which elements were taken.
    fn positions(&self) -> Vec<(ResourceId, Bytes)>;

    /// Moves resources back to their positions at the last call of [`positions`](Self::positions), because the call
    /// that has moved them is retried.
    fn rewind(&self);

    /// Drops a resource.
    fn forget(&self, resource: ResourceId);
}

/// The context of a call, in addition to its arguments.
#[derive(Clone, Debug)]
pub struct CallContext {
    /// The origin of the closure's changes; `None` if a resource is created.
    pub origin: Option<Origin>,
    /// Whether missing variables may be created. Other workers that create the same resource wait until its variables
    /// exist.
    pub creates_variables: bool,
    cancellation: Cancellation,
}

impl CallContext {
    /// Creates the context of a call that can be cancelled.
    pub fn new(origin: Option<Origin>, creates_variables: bool, cancellation: Cancellation) -> Self {
        Self { origin, creates_variables, cancellation }
    }

    /// Returns whether the call was cancelled. Functions that take long should check this from time to time.
    pub fn is_cancelled(&self) -> bool {
        self.cancellation.is_cancelled()
    }

    /// Returns the cancellation flag, for other threads.
    pub fn cancellation(&self) -> &Cancellation {
        &self.cancellation
    }
}

/// A flag that is set when a call is cancelled.
#[derive(Clone, Debug, Default)]
pub struct Cancellation(Arc<AtomicBool>);

impl Cancellation {
    /// Cancels the call.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Returns whether the call was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Returns an error if the call was cancelled.
    ///
    /// # Errors
    /// - [`FailureKind::Cancelled`]: the call was cancelled.
    pub fn check(&self) -> Result<(), Failure> {
        if self.is_cancelled() {
            return Err(Failure::new(FailureKind::Cancelled, "it was cancelled; schedule it again"));
        }
        Ok(())
    }
}
