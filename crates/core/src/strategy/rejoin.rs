//! Re-forming the group after a worker failed, and processes that replace failed ones in a running training.

use super::Strategy;
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_collective::group::{Group, Session};
use distribute_collective::recovery::{Numbers, Updates};
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Strategy {
    /// Returns the number of times the group of this strategy has formed: 1 at first, and one more after each
    /// rendezvous that followed a failure; 1 for strategies of one process.
    #[doc(hidden)]
    pub fn generation(&self) -> u64 {
        self.extended().group().map_or(1, Group::generation)
    }

    /// Returns the number of updates of the weights. It is the same on all workers between steps.
    #[doc(hidden)]
    pub fn updates(&self) -> u64 {
        lock(&self.0.updates).made()
    }

    /// Counts an update that an optimizer has made on all replicas of this process.
    #[doc(hidden)]
    pub fn count_update(&self) {
        lock(&self.0.updates).count();
    }

    /// Counts a write of the program to a variable that is the same on all workers, in a call that all make
    /// alike.
    pub(crate) fn count_write(&self) {
        lock(&self.0.updates).count_write(self.0.optimizers.load(Ordering::Relaxed));
    }

    /// Begins a step. Only a strategy with a group repeats steps after a failure, so others skip this.
    pub(crate) fn begin_updates(&self) {
        if !self.0.has_group {
            return;
        }
        lock(&self.0.updates).begin(self.steps());
    }

    /// Ends a step that succeeded.
    pub(crate) fn end_updates(&self) {
        if !self.0.has_group {
            return;
        }
        lock(&self.0.updates).end();
    }

    /// Sets the number of steps to the number at the last update. The steps after it are repeated.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: only some of the updates that
    ///   belong together have been made.
    #[doc(hidden)]
    pub fn rewind_steps(&self) -> Result<()> {
        let rewound = lock(&self.0.updates).rewind();
        let steps = rewound.map_err(|torn| Error::invalid("Training::recover", torn.to_string()))?;
        if let Some(steps) = steps {
            self.0.steps.store(steps, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the counters that are equal on all workers.
    #[doc(hidden)]
    pub fn numbers(&self) -> Numbers {
        let (variables, optimizers) =
            (self.0.created.load(Ordering::Relaxed), self.0.optimizers.load(Ordering::Relaxed));
        Numbers { steps: self.steps(), variables, optimizers, ..lock(&self.0.updates).numbers() }
    }

    /// Continues counting from other numbers.
    pub(crate) fn store_numbers(&self, numbers: Numbers) {
        *lock(&self.0.updates) = Updates::after(numbers);
        self.0.steps.store(numbers.steps, Ordering::Relaxed);
        self.0.created.store(numbers.variables, Ordering::Relaxed);
        self.0.optimizers.store(numbers.optimizers, Ordering::Relaxed);
    }

    /// Marks this process as one that replaces another in a running training. Until [`settle`](Self::settle) it
    /// builds what the others have built already, and makes no calls with them.
    pub(super) fn unsettle(&self) {
        self.0.workers.unsettle();
    }

    /// Allows calls with the others.
    #[doc(hidden)]
    pub fn settle(&self) {
        self.0.workers.settle();
    }

    /// Whether this process builds alone what the others have built already.
    pub(crate) fn is_settling(&self) -> bool {
        self.0.workers.is_settling()
    }

    /// Leaves the training, which the others continue. This process makes no more calls with them.
    #[doc(hidden)]
    pub fn leave(&self) {
        self.0.workers.leave();
        self.extended().group().into_iter().for_each(Group::end);
    }

    /// Whether this process has left a training that the others continue.
    #[doc(hidden)]
    pub fn has_left(&self) -> bool {
        self.0.workers.has_left()
    }

    /// Sets whether the training continues if a worker fails. It is the same on all workers.
    #[doc(hidden)]
    pub fn set_survives(&self, survives: bool) {
        self.0.workers.set_survives(survives);
    }

    /// Returns the number of workers that suffices to continue if others leave; `None` if all are needed.
    pub(crate) fn least_that_go_on(&self) -> Option<usize> {
        let range = self.extended().elastic().filter(|_| self.0.workers.survives())?;
        Some(*range.start())
    }

    /// Returns an error if this process has not received the state of the others yet, or has left them.
    pub(crate) fn require_settled(&self, operation: &'static str) -> Result<()> {
        if self.has_left() {
            let reason = "this worker was told to end and has left the training, with which the others go on: return from the \
                          closure of Training::run where Preemption::requested says so";
            return Err(Error::invalid(operation, reason));
        }
        if !self.is_settling() {
            return Ok(());
        }
        let reason = "this process takes the place of a worker in a training that goes on: make a Training of it, which takes \
                      over the state of the others, before the first step";
        Err(Error::invalid(operation, reason))
    }

    /// Leaves the world in which a worker failed, and waits for the rendezvous of the next one. Calls are made
    /// with its workers once this process is [settled](Self::settle). Workers that are known to leave are not
    /// waited for. Returns `None` if the group cannot re-form.
    ///
    /// # Errors
    /// - [`Error::Join`]: workers have not come within `patience`.
    #[doc(hidden)]
    pub fn rejoin(&self, patience: Duration, once_more: bool) -> Option<Result<()>> {
        let met = self.extended().rejoin(patience, &self.notice().leaving(), once_more)?;
        if met.is_ok() {
            self.unsettle();
        }
        // A decision that only the remaining workers have received is made again, for the new ones.
        self.notice().forget();
        Some(met)
    }

    /// Sets whether the training has finished on all workers, so that there is no further rendezvous. A
    /// replacement that starts later gets an error.
    #[doc(hidden)]
    pub fn set_over(&self, over: bool) {
        // This includes the only worker that is left.
        self.extended().group().into_iter().for_each(|group| group.set_over(over));
    }

    /// Returns the session in which the workers agree on the state of the training; `None` if there is only one
    /// worker.
    #[doc(hidden)]
    pub fn recovery(&self) -> Option<Session> {
        Some(self.all_workers()?.open("recovery", self.steps()))
    }
}
