//! The number of steps that a strategy has run, as a component of checkpoints.

use super::{Checkpointed, Reader, Restore, Value, Writer};
use crate::strategy::Strategy;
use distribute_base::{Error, Result};

/// Saves the number of steps as metadata. A resumed training run continues with the next step number, so
/// `Dropout` uses the same masks as without an interruption.
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
            self.store_steps(steps);
            Ok(())
        }))
    }

    fn strategy(&self) -> Option<&Strategy> {
        Some(self)
    }
}
