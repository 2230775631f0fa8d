//! The step counter of a strategy.

use super::Strategy;
use distribute_base::Result;
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

    /// Sets the number of steps that have been run, without checking the context.
    pub(crate) fn store_steps(&self, steps: u64) {
        self.0.steps.store(steps, Ordering::Relaxed);
    }
}
