//! The number of steps that a strategy has made.

use super::Strategy;
use distribute_base::Result;
use std::sync::atomic::Ordering;

impl Strategy {
    /// Returns the number of calls of [`run`](Strategy::run), which is the number of its last step.
    pub fn steps(&self) -> u64 {
        self.0.steps.load(Ordering::Relaxed)
    }

    /// Continues counting after step `steps`. A resumed training then has the same step numbers, in errors and
    /// in the masks of `Dropout`, as without an interruption.
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

    /// Continues counting after step `steps`.
    pub(crate) fn store_steps(&self, steps: u64) {
        self.0.steps.store(steps, Ordering::Relaxed);
    }
}
