//! The optimizer as a component of a checkpoint.

use crate::progress::Change;
use crate::{Optimizer, rate};
use distribute_base::{Error, Result};
use distribute_checkpoint::{Reader, Writer};
use distribute_collective::recovery::shards::Version;
use distribute_core::internal::{ShardedState, require_names};
use distribute_core::{Checkpointed, Restore, Strategy};
use distribute_optim::Rule;
use serde_json::json;

/// Saves each slot under the names of the slot and the variable, such as `optimizer/m/fc.weight`. The rule, the number
/// of finished steps, a constant learning rate and the loss scale are saved as metadata. The hyper-parameters of the
/// rule are saved but not restored: the optimizer keeps those with which it was created. A schedule is not restored
/// either, and continues at the saved step.
///
/// If gradients are compressed with error feedback, the residual of each replica is saved, under names such as
/// `optimizer/compression/residual/3/fc.weight`. Each replica restores its own residual; with fewer replicas, the
/// residuals of the missing ones are added to those of the others in turn. After local steps, each worker has one
/// residual, as if it were a replica. Residuals of gradients are not restored after local steps, nor the other way
/// round.
///
/// If the workers make [local steps](distribute_core::strategy::LocalSteps), the slots of each worker are saved: those
/// of the first one as usual, and those of others under names such as `optimizer/local_steps/worker/1/m/fc.weight`. The
/// momentum of outer steps is saved under names such as `optimizer/local_steps/momentum/fc.weight`.
///
/// Sharded slots are saved in the same format as unsharded ones. Each worker writes its own ones, if all workers can
/// write to the folder and wait for the save. Otherwise the chief gathers them one after another.
impl<R: Rule> Checkpointed for Optimizer<R> {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        let optimizer = &self.inner;
        // The state that one worker sends to another has no slots. Those follow from the workers with the copies.
        let sent = optimizer.sent_version();
        if sent.is_none() {
            optimizer.backend.save(optimizer, prefix, writer)?;
        }
        optimizer.parameters.feedback.save(optimizer, prefix, writer)?;
        optimizer.local.as_ref().map_or(Ok(()), |local| local.save(optimizer, prefix, writer))?;
        let rule = optimizer.groups.rule();
        let mut state = json!({
            "rule": rule.name(),
            "hyperparameters": format!("{rule:?}"),
            "finished_steps": optimizer.finished_steps(),
            "learning_rate": optimizer.rate.constant(),
            "loss_scale": optimizer.loss_scaling.state(),
        });
        if let Some(version) = sent {
            state[GENERATION] = version.generation.into();
        }
        writer.metadata(metadata_key(prefix), state);
        Ok(())
    }

    /// Returns an error if the workers shard the state without copies, or store tables together: a shard of the state
    /// is then lost with a failed worker, or tables may already be those of a later step.
    fn rewind(&self) -> Result<()> {
        self.inner.backend.rewind(&self.inner)
    }

    fn sharded_state(&self) -> Option<&dyn ShardedState> {
        self.inner.backend.replicated().map(|_| &self.inner as &dyn ShardedState)
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
            finished.ok_or_else(|| wrong(format!("has no number of steps of {prefix:?}: {saved}")))?;
        // A scheduled rate depends on the finished steps alone.
        let learning_rate = saved["learning_rate"].as_f64().filter(|_| self.inner.rate.constant().is_some());
        if let Some(learning_rate) = learning_rate {
            rate::require(learning_rate, "Checkpoint::restore")?;
        }
        // Optimizers without a loss scale, and those of earlier versions, have saved none.
        let loss_scale =
            serde_json::from_value::<Option<(f64, u64)>>(saved["loss_scale"].clone()).ok().flatten();
        drop(self.inner.progress.read("Checkpoint::restore")?);
        let local = self.inner.local.as_ref();
        let local =
            local.map(|local| Ok::<_, Error>((local, local.read(&self.inner.parameters, prefix, from)?)));
        let local = local.transpose()?;
        let own = local.as_ref().and_then(|(_, restored)| restored.own);
        let (finished, loss_scale) = own.map_or((finished, loss_scale), |own| (own.finished, own.loss_scale));
        let from_worker = local.as_ref().map_or(prefix, |(_, restored)| &restored.slots);
        let slots: Vec<_> = self.slot_names().collect();
        let names =
            |variable: &str| slots.iter().map(|slot| format!("{from_worker}/{slot}/{variable}")).collect();
        let optimizer = &self.inner;
        let sent = saved[GENERATION].as_u64().map(|generation| Version { step: finished, generation });
        let slots = match sent {
            Some(_) if !from.is_image() => {
                return Err(wrong(format!(
                    "has no slots of {prefix:?}: a worker saved it before it had received the state of the others; \
                     restore another checkpoint"
                )));
            }
            Some(version) => optimizer.adopt_shards(version)?,
            None => {
                let all: Vec<Vec<String>> = self.variable_names().map(names).collect();
                require_names(from, &all.concat())?;
                let slots = optimizer.backend.restore(optimizer, prefix, &all, from)?;
                Box::new(move |change: &Change<'_>| {
                    slots(change)?;
                    change.copies().complete(Version { step: finished, generation: 0 });
                    Ok(())
                })
            }
        };
        let feedback = optimizer.parameters.feedback.restore(&optimizer.parameters, prefix, from)?;
        Ok(Box::new(move || {
            let change = optimizer.progress.change("Checkpoint::restore")?;
            learning_rate.map_or(Ok(()), |learning_rate| optimizer.rate.set(learning_rate))?;
            slots(&change)?;
            loss_scale.into_iter().for_each(|state| optimizer.loss_scaling.restore(state));
            // A worker may have skipped local steps that others have made.
            feedback(local.as_ref().map_or(finished, |(_, restored)| restored.outer));
            change.set_finished(finished);
            local.into_iter().for_each(|(local, restored)| local.set(restored));
            Ok(())
        }))
    }
}

/// The field of the metadata with the generation of slots that are not part of the state.
const GENERATION: &str = "generation_of_shards";

fn metadata_key(prefix: &str) -> String {
    format!("{prefix}:optimizer")
}
