//! Workers that meet again after one was lost, and processes that take the places of others in a training that goes on.

use super::Strategy;
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_collective::group::{Group, Session};
use distribute_collective::recovery::{Numbers, Updates};
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Strategy {
    /// How often the workers of this strategy have met: 1 at first, and one more each time they have met again after one was
    /// lost; 1 for strategies of one process.
    #[doc(hidden)]
    pub fn generation(&self) -> u64 {
        self.extended().group().map_or(1, Group::generation)
    }

    /// How many updates of the weights have been made. It is the same on all workers between steps.
    #[doc(hidden)]
    pub fn updates(&self) -> u64 {
        lock(&self.0.updates).made()
    }

    /// An optimizer has made an update, on all replicas of this process.
    #[doc(hidden)]
    pub fn count_update(&self) {
        lock(&self.0.updates).count();
    }

    /// The program has written a variable that is the same on all workers, in a call that all make alike.
    pub(crate) fn count_write(&self) {
        lock(&self.0.updates).count_write(self.0.optimizers.load(Ordering::Relaxed));
    }

    /// A step begins. It is made again after a loss alone, which there is among workers.
    pub(crate) fn begin_updates(&self) {
        if !self.0.has_group {
            return;
        }
        lock(&self.0.updates).begin(self.steps());
    }

    /// The step has ended well.
    pub(crate) fn end_updates(&self) {
        if !self.0.has_group {
            return;
        }
        lock(&self.0.updates).end();
    }

    /// To the number of steps that there were when the last update was made: those after it are made again.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if some of the updates that belong together have been made, and others have not.
    #[doc(hidden)]
    pub fn rewind_steps(&self) -> Result<()> {
        let rewound = lock(&self.0.updates).rewind();
        let steps = rewound.map_err(|torn| Error::invalid("Training::recover", torn.to_string()))?;
        if let Some(steps) = steps {
            self.0.steps.store(steps, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What is counted alike on all workers.
    #[doc(hidden)]
    pub fn numbers(&self) -> Numbers {
        let (variables, optimizers) =
            (self.0.created.load(Ordering::Relaxed), self.0.optimizers.load(Ordering::Relaxed));
        Numbers { steps: self.steps(), variables, optimizers, ..lock(&self.0.updates).numbers() }
    }

    /// Counts on from other numbers.
    pub(crate) fn store_numbers(&self, numbers: Numbers) {
        *lock(&self.0.updates) = Updates::after(numbers);
        self.0.steps.store(numbers.steps, Ordering::Relaxed);
        self.0.created.store(numbers.variables, Ordering::Relaxed);
        self.0.optimizers.store(numbers.optimizers, Ordering::Relaxed);
    }

    /// This process has taken a place in a training that goes on: from here until it is [settled](Self::settle), it builds what
    /// the others have built already, and makes no calls with them.
    pub(super) fn unsettle(&self) {
        self.0.workers.unsettle();
    }

    /// From here on calls are made with the others.
    #[doc(hidden)]
    pub fn settle(&self) {
        self.0.workers.settle();
    }

    /// Whether this process builds alone what the others have built already.
    pub(crate) fn is_settling(&self) -> bool {
        self.0.workers.is_settling()
    }

    /// Leaves the training, with which the others go on. From here on this process makes no calls with them.
    #[doc(hidden)]
    pub fn leave(&self) {
        self.0.workers.leave();
        self.extended().group().into_iter().for_each(Group::end);
    }

    /// Whether this process has left a training that the others go on with.
    #[doc(hidden)]
    pub fn has_left(&self) -> bool {
        self.0.workers.has_left()
    }

    /// Whether there is a training that goes on when a worker is lost: the same on all workers.
    #[doc(hidden)]
    pub fn set_survives(&self, survives: bool) {
        self.0.workers.set_survives(survives);
    }

    /// With how many workers the training goes on when others leave; `None` if it needs all.
    pub(crate) fn least_that_go_on(&self) -> Option<usize> {
        let range = self.extended().elastic().filter(|_| self.0.workers.survives())?;
        Some(*range.start())
    }

    /// Refuses what needs the others while this process has not taken over their state, and when it has left them.
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

    /// Leaves the world in which a worker was lost, and meets those of the next one; calls are made with them once this is
    /// [settled](Self::settle). Nobody waits for those that are known to leave. `None` if workers can't meet again.
    ///
    /// # Errors
    /// [`Error::Join`] of workers that have not come after `patience`.
    #[doc(hidden)]
    pub fn rejoin(&self, patience: Duration, once_more: bool) -> Option<Result<()>> {
        let met = self.extended().rejoin(patience, &self.notice().leaving(), once_more)?;
        if met.is_ok() {
            self.unsettle();
        }
        // What one of the others has heard, and those that have come have not, is said again.
        self.notice().forget();
        Some(met)
    }

    /// Whether the training has ended on all workers, so that they don't meet again: a process that comes in another's place is told
    /// so.
    #[doc(hidden)]
    pub fn set_over(&self, over: bool) {
        // Also of one that is the only one left.
        self.extended().group().into_iter().for_each(|group| group.set_over(over));
    }

    /// The traffic in which the workers agree on where the training stands; `None` if there is only one.
    #[doc(hidden)]
    pub fn recovery(&self) -> Option<Session> {
        Some(self.all_workers()?.open("recovery", self.steps()))
    }
}
