//! [`Program`]: the functions of a program, which workers call.

use crate::call::{Call, FunctionId, Origin, ResourceId};
use crate::failure::{Failure, FailureKind};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The functions of a program. All tasks of a job run the same program.
pub trait Program: Send + Sync {
    /// Returns the functions of the program, in any order.
    fn functions(&self) -> Vec<FunctionId>;

    /// Starts the executor of worker `worker` of `workers` workers for a coordinator. `settings` come from the
    /// coordinator's program, which sends the same to all workers. The resources of an earlier executor are no longer
    /// used, although one of its calls may still be running.
    ///
    /// # Errors
    /// Returns a [`Failure`], which is sent to the coordinator, if the executor cannot be started.
    fn start(&self, worker: usize, workers: usize, settings: &Bytes) -> Result<Arc<dyn Executor>, Failure>;
}

/// An executor of the calls of one coordinator on one worker, which also stores the resources. One call runs at a time.
pub trait Executor: Send + Sync {
    /// Calls a function, and returns its encoded result.
    ///
    /// # Errors
    /// Returns a [`Failure`] if the function fails or panics.
    fn call(&self, context: &CallContext, call: &Call) -> Result<Bytes, Failure>;

    /// Creates a resource, which continues at `position` if there is one.
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
    /// that has moved them will be retried.
    fn rewind(&self);

    /// Drops a resource.
    fn forget(&self, resource: ResourceId);
}

/// The context of a call: its origin and its cancellation.
#[derive(Clone, Debug)]
pub struct CallContext {
    /// The origin of the closure's changes; `None` if a resource is created.
    pub origin: Option<Origin>,
    /// Whether missing variables may be created. While one worker creates a resource and its variables, the others wait
    /// until these variables exist.
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

    /// Returns the cancellation flag, which other threads can check as well.
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
