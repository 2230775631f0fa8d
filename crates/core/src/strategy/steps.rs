//! The counters of a strategy: its steps, the updates of weights, the steps that this worker has trained alone since
//! the workers last agreed on their weights, and statistics of optimizers' steps.

use super::Strategy;
use distribute_base::Result;
use distribute_base::internal::lock;
use distribute_decisions::LocalSteps;
use distribute_decisions::internal::Alone;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

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

    /// Returns `true` if this worker has trained alone since the workers last agreed on their weights.
    #[doc(hidden)]
    pub fn is_apart(&self) -> bool {
        self.0.apart.load(Ordering::Relaxed) > 0
    }

    /// Records that the number of an optimizer's local steps since its last outer step has changed from `before` to
    /// `after`.
    #[doc(hidden)]
    pub fn record_local_steps(&self, before: u64, after: u64) {
        self.0.apart.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Records that the number of an optimizer's outer steps has changed from `before` to `after`.
    #[doc(hidden)]
    pub fn record_outer_steps(&self, before: u64, after: u64) {
        self.0.outer_steps.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Records that all workers have restored the state of optimizers. From now on, they count outer steps from 0.
    #[doc(hidden)]
    pub fn forget_outer_steps(&self) {
        self.0.outer_steps.store(0, Ordering::Relaxed);
    }

    /// Records that a worker's state has been transferred to others after a rendezvous. `all_received` is `true` if all
    /// other workers have received it, so that all have the same weights.
    #[doc(hidden)]
    pub fn record_transfer(&self, all_received: bool) {
        self.forget_outer_steps();
        if all_received {
            self.forget_abandoned_steps();
        }
    }

    /// Returns an error if the workers currently have different weights. Returns `Ok` if there are no other workers, or
    /// if this worker makes no calls with them.
    ///
    /// # Errors
    /// - [`Error::Failed`](distribute_base::Error::Failed) of the kind `Usage`: the workers have trained alone since
    ///   the last outer step.
    pub(crate) fn require_agreement(&self, operation: &'static str) -> Result<()> {
        let Some(alone) = self.alone().filter(|_| self.group().is_some()) else { return Ok(()) };
        alone.own_weights(operation).map_or(Ok(()), Err)
    }

    /// Returns the progress of this worker's local steps; `None` in lock step.
    pub(crate) fn alone(&self) -> Option<Alone> {
        let settings = self.0.local_steps?;
        let [since, outer] = [&self.0.apart, &self.0.outer_steps].map(|count| count.load(Ordering::Relaxed));
        Some(Alone { settings, since, outer, abandoned: self.abandoned_steps() })
    }
}

/// Statistics of optimizers' steps: the total number of examples, the number of steps, and the last loss that was read.
/// Only one thread at a time may write. A reader may see values of two adjacent steps.
#[derive(Debug, Default)]
pub struct StepStats {
    examples: AtomicU64,
    loss: AtomicU64,
    has_loss: AtomicBool,
    steps: AtomicU64,
}

impl StepStats {
    /// Records a step with `examples` examples. `loss` is the loss of the step, if it can be read without waiting.
    pub fn record_step(&self, examples: f64, loss: Option<f64>) {
        let before = f64::from_bits(self.examples.load(Ordering::Relaxed));
        loss.into_iter().for_each(|loss| self.record_loss(loss));
        self.steps.fetch_add(1, Ordering::Relaxed);
        // Last, so that a reader of the examples sees a loss that is at least as recent.
        self.examples.store((before + examples).to_bits(), Ordering::Release);
    }

    /// Records the loss of an earlier step that could not be read immediately.
    pub fn record_loss(&self, loss: f64) {
        self.loss.store(loss.to_bits(), Ordering::Relaxed);
        self.has_loss.store(true, Ordering::Relaxed);
    }

    /// Returns the total number of examples.
    pub fn examples(&self) -> f64 {
        f64::from_bits(self.examples.load(Ordering::Acquire))
    }

    /// Returns the last recorded loss, if there is one.
    pub fn loss(&self) -> Option<f64> {
        self.has_loss.load(Ordering::Relaxed).then(|| f64::from_bits(self.loss.load(Ordering::Relaxed)))
    }

    /// Returns the number of recorded steps.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }
}
