//! The number of steps that a strategy has made, which is a part of checkpoints.

use super::Strategy;
use crate::{
    checkpoint::Checkpointed, checkpoint::Reader, checkpoint::Restore, checkpoint::Value, checkpoint::Writer,
};
use distribute_base::{Error, Result};
use std::sync::atomic::Ordering;

impl Strategy {
    /// How many times [`run`](Strategy::run) has been called: the number of its last step.
    pub fn steps(&self) -> u64 {
        self.0.steps.load(Ordering::Relaxed)
    }

    /// Continues counting after step `steps`. A resumed training then has the same step numbers, in errors and in the masks
    /// of `Dropout`, as without an interruption.
    ///
    /// # Errors
    /// [`Error::WrongContext`] inside of `run`.
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
}

/// Saves the number of steps as metadata. A resumed training has the same step numbers, and so the same masks of
/// `Dropout`, as without an interruption.
impl Checkpointed for Strategy {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        writer.metadata(format!("{prefix}:steps"), self.steps());
        Ok(())
    }

    fn restore<'a>(&'a self, prefix: &str, from: &Reader) -> Result<Restore<'a>> {
        let steps = from.metadata(&format!("{prefix}:steps")).and_then(Value::as_u64);
        let missing = || {
            let reason = format!("{} has no number of steps named {prefix:?}", from.path().display());
            Error::invalid("Checkpoint::restore", reason)
        };
        let steps = steps.ok_or_else(missing)?;
        Ok(Box::new(move || {
            self.0.steps.store(steps, Ordering::Relaxed);
            Ok(())
        }))
    }

    fn strategy(&self) -> Option<&Strategy> {
        Some(self)
    }
}
