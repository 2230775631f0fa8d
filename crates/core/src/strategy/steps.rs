//! The counters of a strategy: its steps, and the updates of weights.

use super::Strategy;
use distribute_base::Result;
use distribute_base::internal::lock;
use distribute_decisions::LocalSteps;
use std::sync::atomic::Ordering;

impl Strategy {
    /// Returns the number of steps that have been [run](Strategy::run), including failed ones. This is also the
    /// sequence number of the latest step, which may still be running.
    pub fn steps(&self) -> u64 {
        self.0.steps.load(Ordering::Relaxed)
    }

    /// Sets the number of steps that have been run. A resumed training run then has the same step numbers as
    /// without an interruption, in errors and for the masks of `Dropout`.
    ///
    /// # Errors
    /// - [`Error::WrongContext`](distribute_base::Error::WrongContext): called inside `run`.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let before = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// before.run((), |_, ()| Ok(()))?;
    /// let saved = before.steps();
    /// let after = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// after.set_steps(saved)?;
    /// assert_eq!(after.run((), |ctx, ()| Ok(ctx.step()))?.values(), [2, 2]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    pub fn set_steps(&self, steps: u64) -> Result<()> {
        let _scope = self.enter("set_steps", "set them between runs")?;
        self.0.steps.store(steps, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the sequence number of the next step, from 1, and increments the counter.
    pub(crate) fn next_step(&self) -> u64 {
        self.0.steps.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Sets the number of steps that have been run, without checking the context.
    pub(crate) fn store_steps(&self, steps: u64) {
        self.0.steps.store(steps, Ordering::Relaxed);
    }

    /// Returns the number of updates applied to the weights. It is equal on all workers between steps.
    #[doc(hidden)]
    pub fn updates(&self) -> u64 {
        lock(&self.0.updates).count()
    }

    /// Records an update that an optimizer has applied on all replicas of this process.
    #[doc(hidden)]
    pub fn record_update(&self) {
        lock(&self.0.updates).record_update();
    }

    /// Records that the program wrote to a variable that is equal on all workers. All workers must make this call.
    #[doc(hidden)]
    pub fn record_write(&self) {
        lock(&self.0.updates).record_write(self.0.optimizers.load(Ordering::Relaxed));
    }

    /// Begins counting the updates of a step. Does nothing without a group, because then no step is repeated
    /// after a failure.
    pub(crate) fn begin_updates(&self) {
        if !self.0.has_group {
            return;
        }
        lock(&self.0.updates).begin(self.steps());
    }

    /// Stops counting the updates of a step that has succeeded.
    pub(crate) fn end_updates(&self) {
        if !self.0.has_group {
            return;
        }
        lock(&self.0.updates).end();
    }

    /// Returns the setting of local steps; `None` if the workers train in lock step.
    pub fn local_steps(&self) -> Option<LocalSteps> {
        self.0.local_steps
    }
}
