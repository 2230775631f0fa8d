//! An optimizer as a part of a checkpoint.

use crate::{Optimizer, rate};
use distribute_base::{Error, Result};
use distribute_checkpoint::{Reader, Writer};
use distribute_core::internal::require_names;
use distribute_core::{Checkpointed, Restore, Strategy};
use distribute_optim::Rule;
use serde_json::json;

/// Slots by the name of slot and variable, `optimizer/m/fc.weight`; rule, finished steps and learning rate, where it
/// was set by hand, as metadata. The rule's hyper-parameters are noted, but not restored: they are those that the
/// optimizer was made with. So is a schedule, which goes on at the step that was saved.
///
/// Slots that the workers share are the same in a checkpoint as those of one. The chief gathers them one after another,
/// so that no other worker ever has more than its own.
impl<R: Rule> Checkpointed for Optimizer<R> {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        let optimizer = &self.inner;
        optimizer.backend.save(optimizer, prefix, writer)?;
        let rule = optimizer.groups.rule();
        let state = json!({
            "rule": rule.name(),
            "hyperparameters": format!("{rule:?}"),
            "finished_steps": optimizer.finished_steps(),
            "learning_rate": optimizer.rate.by_hand(),
        });
        writer.metadata(metadata_key(prefix), state);
        Ok(())
    }

    /// Fails if workers share the state: no worker has all of it, and the share of a failed worker is lost.
    fn rewind(&self) -> Result<()> {
        self.inner.backend.rewind()
    }

    fn strategy(&self) -> Option<&Strategy> {
        Some(&self.inner.parameters.strategy)
    }

    fn restore<'a>(&'a self, prefix: &str, from: &Reader) -> Result<Restore<'a>> {
        let wrong = |reason: String| {
            Error::invalid("Checkpoint::restore", format!("{} {reason}", from.path().display()))
        };
        let saved = from.metadata(&metadata_key(prefix));
        let saved = saved.ok_or_else(|| wrong(format!("has no optimizer named {prefix:?}")))?;
        let (rule, mine) = (saved["rule"].as_str().unwrap_or_default(), self.inner.groups.rule().name());
        if rule != mine {
            return Err(wrong(format!(
                "has the optimizer {prefix:?} of rule {rule}, but here it is of {mine}"
            )));
        }
        let finished = saved["finished_steps"].as_u64();
        let finished =
            finished.ok_or_else(|| wrong(format!("does not say the steps of {prefix:?}: {saved}")))?;
        // One that follows a schedule follows from the finished steps.
        let learning_rate = saved["learning_rate"].as_f64().filter(|_| self.inner.rate.by_hand().is_some());
        if let Some(learning_rate) = learning_rate {
            rate::require(learning_rate, "Checkpoint::restore")?;
        }
        drop(self.inner.progress.read("Checkpoint::restore")?);
        let slots: Vec<_> = self.slot_names().collect();
        let names = |variable: &str| slots.iter().map(|slot| format!("{prefix}/{slot}/{variable}")).collect();
        let all: Vec<Vec<String>> = self.variable_names().map(names).collect();
        require_names(from, &all.concat())?;
        let optimizer = &self.inner;
        let slots = optimizer.backend.restore(optimizer, prefix, &all, from)?;
        Ok(Box::new(move || {
            let change = optimizer.progress.change("Checkpoint::restore")?;
            learning_rate.map_or(Ok(()), |learning_rate| optimizer.rate.set(learning_rate))?;
            slots(&change)?;
            change.set_finished(finished);
            Ok(())
        }))
    }
}

fn metadata_key(prefix: &str) -> String {
    format!("{prefix}:optimizer")
}
