//! Re-forming the group after a worker failed, and replacing failed processes in a training run.

use super::Strategy;
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_collective::group::{Group, Session};
use distribute_collective::recovery::{Counters, Updates};
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Strategy {
    /// Returns the generation of the group: 1 after the job's first rendezvous, and one more after each later one.
    /// Always 1 for strategies without a group.
    #[doc(hidden)]
    pub fn generation(&self) -> u64 {
        self.extended().group().map_or(1, Group::generation)
    }

    /// Resets the step counter to the step of the last update, so that the steps after it are repeated. Changes nothing
    /// if there are no such steps.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: only some of the updates of one step, or of those between two steps, were applied.
    #[doc(hidden)]
    pub fn rewind_steps(&self) -> Result<()> {
        let rewound = lock(&self.0.updates).rewind();
        let steps = rewound.map_err(|torn| Error::invalid("Training::recover", torn.to_string()))?;
        if let Some(steps) = steps {
            self.0.steps.store(steps, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the counters that must be equal on all workers.
    #[doc(hidden)]
    pub fn counters(&self) -> Counters {
        let (variables, optimizers) =
            (self.0.created.load(Ordering::Relaxed), self.0.optimizers.load(Ordering::Relaxed));
        Counters { steps: self.steps(), variables, optimizers, ..lock(&self.0.updates).counters() }
    }

    /// Sets all counters. Counting continues from these values.
    pub(crate) fn store_counters(&self, counters: Counters) {
        *lock(&self.0.updates) = Updates::after(counters);
        self.0.steps.store(counters.steps, Ordering::Relaxed);
        self.0.created.store(counters.variables, Ordering::Relaxed);
        self.0.optimizers.store(counters.optimizers, Ordering::Relaxed);
    }

    /// Marks this process as one that has joined, or may have joined, a training run in progress. Until
    /// [`finish_catching_up`](Self::finish_catching_up), the process makes no calls with the other workers, and builds
    /// alone what they have already built.
    #[doc(hidden)]
    pub fn begin_catching_up(&self) {
        self.0.workers.begin_catching_up();
    }

    /// Allows calls with the other workers again.
    #[doc(hidden)]
    pub fn finish_catching_up(&self) {
        self.0.workers.finish_catching_up();
    }

    /// Returns `true` while this process builds alone what the other workers have already built.
    #[doc(hidden)]
    pub fn is_catching_up(&self) -> bool {
        self.0.workers.is_catching_up()
    }

    /// Leaves the training run, which the other workers continue. From now on, this process makes no calls with them.
    #[doc(hidden)]
    pub fn leave(&self) {
        self.0.workers.leave();
        self.extended().group().into_iter().for_each(Group::end);
    }

    /// Returns `true` if this process has left a training run that the other workers continue.
    #[doc(hidden)]
    pub fn has_left(&self) -> bool {
        self.0.workers.has_left()
    }

    /// Sets whether training continues if a worker fails. The setting must be equal on all workers.
    #[doc(hidden)]
    pub fn set_survives(&self, survives: bool) {
        self.0.workers.set_survives(survives);
    }

    /// Returns `true` if this process is a spare that has not taken part in training yet.
    #[doc(hidden)]
    pub fn is_spare(&self) -> bool {
        self.extended().group().is_some_and(Group::is_spare)
    }

    /// Checks that the program has a `Training` if there are spares, which wait in it.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: there are spares, but the program has no `Training`.
    pub(crate) fn require_training_for_spares(&self, operation: &'static str) -> Result<()> {
        let spares = self.extended().spares();
        if spares == 0 || self.0.workers.has_training() {
            return Ok(());
        }
        let reason = format!(
            "the cluster has {spares} spare{} (spares, DISTRIBUTE_SPARES), which can only take part in a Training: create \
             one before the first step, or leave out the spares",
            if spares == 1 { "" } else { "s" }
        );
        Err(Error::invalid(operation, reason))
    }

    /// Returns the minimum number of workers with which training can continue if others leave; `None` if all are
    /// needed.
    pub(crate) fn min_remaining_workers(&self) -> Option<usize> {
        let range = self.extended().elastic().filter(|_| self.0.workers.survives())?;
        Some(*range.start())
    }

    /// Checks that this process may take part in steps.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: this process has not yet received the state of the other workers, or has left the
    ///   training run.
    #[doc(hidden)]
    pub fn require_caught_up(&self, operation: &'static str) -> Result<()> {
        if self.has_left() {
            let reason = "this worker was notified to exit and has left the training, which the others continue: \
                          return from the closure of Training::run when Preemption::requested returns true";
            return Err(Error::invalid(operation, reason));
        }
        if !self.is_catching_up() {
            return Ok(());
        }
        let reason = "this process replaces a worker in a running training, or is a spare: create a Training, which \
                      receives the state of the others, before the first step";
        Err(Error::invalid(operation, reason))
    }

    /// Leaves the world in which a worker failed, and waits for the next rendezvous. Does not wait for workers that are
    /// known to exit or, if spares may replace them, for the workers in `lost`, even if this process is still connected
    /// to these. If a spare takes the place of this worker, waits until it is needed again. Discards the workers'
    /// decision about a notice. Calls with the new workers are possible after this
    /// process [has caught up](Self::finish_catching_up). See
    /// [`StrategyExtended::rejoin`](super::StrategyExtended::rejoin) for `once_more`. Returns `None` if the group
    /// cannot re-form.
    ///
    /// # Errors
    /// - [`Error::Join`]: workers have not joined within `patience`.
    #[doc(hidden)]
    pub fn rejoin(&self, patience: Duration, lost: &[usize], once_more: bool) -> Option<Result<()>> {
        let (extended, mut leaving) = (self.extended(), self.notice().leaving());
        let is_fixed = extended.elastic().is_none_or(|range| range.start() == range.end());
        if extended.spares() > 0 && is_fixed {
            leaving.extend_from_slice(lost);
        }
        self.follow_remedy(&mut leaving);
        let met = extended.rejoin(patience, &leaving, once_more)?;
        if met.is_ok() {
            self.begin_catching_up();
            // A decision that only the remaining workers have received is made again, for the new ones.
            self.notice().forget();
            self.forget_times();
        }
        Some(met)
    }

    /// Sets whether training has finished on all workers, so that there is no further rendezvous. A
    /// replacement process that starts later gets an error.
    #[doc(hidden)]
    pub fn set_finished(&self, finished: bool) {
        // This includes the only worker that is left.
        self.extended().group().into_iter().for_each(|group| group.set_finished(finished));
    }

    /// Opens a session in which the workers agree on the state of the training run. Returns `None` if there
    /// is only one worker.
    #[doc(hidden)]
    pub fn recovery(&self) -> Option<Session> {
        Some(self.all_workers()?.open("recovery", self.steps()))
    }
}
