//! The number of steps that a strategy has run, and the latest agreement of its workers, as a component of checkpoints.

use super::{Checkpointed, Reader, Restore, Value, Writer};
use crate::strategy::Strategy;
use distribute_base::{Error, Result};

/// Saves the number of steps as metadata. A resumed training run continues with the next step number, so
/// `Dropout` uses the same masks as without an interruption. With spares, or if the group has re-formed, also saves the
/// generation in which the workers have agreed on the state. By that generation they recognize that the state is later
/// than that of a process that was cut off before.
impl Checkpointed for Strategy {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        writer.metadata(format!("{prefix}:steps"), self.steps());
        // Otherwise the files do not depend on the number of workers.
        if self.agreement() > 1 || self.extended().spares() > 0 {
            writer.metadata(format!("{prefix}:generation"), self.agreement());
        }
        Ok(())
    }

    fn restore<'a>(&'a self, prefix: &str, from: &Reader) -> Result<Restore<'a>> {
        let steps = from.metadata(&format!("{prefix}:steps")).and_then(Value::as_u64);
        let missing = || {
            let reason = format!("{} has no number of steps named {prefix:?}", from.path().display());
            Error::invalid("Checkpoint::restore", reason)
        };
        let steps = steps.ok_or_else(missing)?;
        let agreement = from.metadata(&format!("{prefix}:generation")).and_then(Value::as_u64);
        Ok(Box::new(move || {
            self.store_steps(steps);
            self.set_restored_agreement(agreement.unwrap_or(0));
            Ok(())
        }))
    }

    fn strategy(&self) -> Option<&Strategy> {
        Some(self)
    }
}
