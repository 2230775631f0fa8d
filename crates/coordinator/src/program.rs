//! What workers run: the functions of a program, behind calls as bytes.

use crate::call::{Call, FunctionId, Origin, ResourceId};
use crate::failure::{Failure, FailureKind};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The functions that a program has, which every task of a job runs.
pub trait Program: Send + Sync {
    /// The functions, in any order.
    fn functions(&self) -> Vec<FunctionId>;

    /// Begins to work as one of the workers of a coordinator, with the settings that its program sends to all of them. What an earlier
    /// executor has made is not used any more, though a call of it may still run.
    ///
    /// # Errors
    /// [`Failure`]: the worker is refused, with this text.
    fn start(&self, worker: usize, workers: usize, settings: &Bytes) -> Result<Arc<dyn Executor>, Failure>;
}

/// What carries out the calls of one coordinator on one worker, and keeps the resources that it has made there. One call runs at a time.
pub trait Executor: Send + Sync {
    /// Calls a function; gives the bytes of its result.
    ///
    /// # Errors
    /// [`Failure`]. A panic is one, too.
    fn call(&self, context: &CallContext, call: &Call) -> Result<Bytes, Failure>;

    /// Makes a resource, where it has a position from there on.
    ///
    /// # Errors
    /// [`Failure`]. A panic is one, too.
    fn make(
        &self,
        context: &CallContext,
        resource: ResourceId,
        call: &Call,
        position: Option<&Bytes>,
    ) -> Result<(), Failure>;

    /// The positions of those resources that have moved since this was asked last: of datasets, of which elements were taken.
    fn positions(&self) -> Vec<(ResourceId, Bytes)>;

    /// Puts resources back to where they were when [`positions`](Self::positions) was asked last: the call that has moved them is run
    /// again.
    fn rewind(&self);

    /// Lets go of a resource.
    fn forget(&self, resource: ResourceId);
}

/// What a call is told beside its arguments.
#[derive(Clone, Debug)]
pub struct CallContext {
    /// Which closure it is; none where a resource is made.
    pub origin: Option<Origin>,
    /// Whether variables may be made that are not there yet. Others that make the same resource wait until it has been made once.
    pub makes_variables: bool,
    cancellation: Cancellation,
}

impl CallContext {
    /// The context of a call that ends early where this says so.
    pub fn new(origin: Option<Origin>, makes_variables: bool, cancellation: Cancellation) -> Self {
        Self { origin, makes_variables, cancellation }
    }

    /// Whether nobody wants the result any more. A function that runs for long looks from time to time.
    pub fn is_cancelled(&self) -> bool {
        self.cancellation.is_cancelled()
    }

    /// What says so, for other threads.
    pub fn cancellation(&self) -> &Cancellation {
        &self.cancellation
    }
}

/// Says whether a call was cancelled.
#[derive(Clone, Debug, Default)]
pub struct Cancellation(Arc<AtomicBool>);

impl Cancellation {
    /// Cancels the call.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// The error of a call that saw that it was.
    ///
    /// # Errors
    /// [`FailureKind::Cancelled`].
    pub fn check(&self) -> Result<(), Failure> {
        if self.is_cancelled() {
            return Err(Failure::new(FailureKind::Cancelled, "it was cancelled; schedule it again"));
        }
        Ok(())
    }
}
