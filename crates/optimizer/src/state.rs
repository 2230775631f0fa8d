//! An optimizer as a part of a checkpoint.

use crate::slots::Slots;
use crate::update::sharded::cuts::Shards;
use crate::{Optimizer, rate};
use candle_core::Var;
use distribute_base::{Error, Result};
use distribute_checkpoint::{Reader, Writer};
use distribute_core::internal::{read_as, read_elements, require_names};
use distribute_core::{Checkpointed, Restore, Strategy};
use distribute_optim::Rule;
use distribute_tensor::{DType, Element, HostTensor};
use serde_json::json;
use std::ops::Range;
use std::panic::Location;

const SAVE: &str = "Checkpoint::save";

/// Slots by the name of slot and variable, `optimizer/m/fc.weight`; rule, finished steps and learning rate, where it was
/// set by hand, as metadata. The rule's hyper-parameters are noted, but not restored: they are those that the optimizer
/// was made with. So is a schedule, which goes on at the step that was saved.
///
/// Slots that the workers share are the same in a checkpoint as those of one. The chief gathers them one after another, so
/// that no other worker ever has more than its own.
impl<R: Rule> Checkpointed for Optimizer<R> {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        match &self.trained.shards {
            Some(shards) => self.save_shared(shards, prefix, writer)?,
            None if self.trained.remote.is_some() => {
                drop(self.progress.read(SAVE)?);
                self.trained
                    .remote
                    .iter()
                    .try_for_each(|remote| self.save_from_servers(remote, prefix, writer))?;
            }
            None => {
                let slots = self.progress.read(SAVE)?;
                for (index, slot) in self.slot_names().enumerate() {
                    for ((name, variable), slots) in self.trained.variables.iter().zip(&*slots) {
                        let value = HostTensor::from_candle(&slots.tensor(index, variable)?)?;
                        writer.insert(format!("{prefix}/{slot}/{name}"), value)?;
                    }
                }
            }
        }
        let state = json!({
            "rule": self.rule.name(),
            "hyperparameters": format!("{:?}", self.rule),
            "finished_steps": self.finished_steps(),
            "learning_rate": self.rate.by_hand(),
        });
        writer.metadata(metadata_key(prefix), state);
        Ok(())
    }

    /// Nothing, but where workers share the state: then no worker has all of it, and that of one that was lost is nowhere.
    fn rewind(&self) -> Result<()> {
        if self.trained.shards.is_none() {
            return Ok(());
        }
        let reason = "the workers share the state of the optimizer (sharded_state), and that of one that is lost is lost with it";
        Err(Error::invalid("Training::recover", reason))
    }

    fn strategy(&self) -> Option<&Strategy> {
        Some(&self.trained.strategy)
    }

    fn restore<'a>(&'a self, prefix: &str, from: &Reader) -> Result<Restore<'a>> {
        let wrong = |reason: String| {
            Error::invalid("Checkpoint::restore", format!("{} {reason}", from.path().display()))
        };
        let saved = from.metadata(&metadata_key(prefix));
        let saved = saved.ok_or_else(|| wrong(format!("has no optimizer named {prefix:?}")))?;
        let (rule, mine) = (saved["rule"].as_str().unwrap_or_default(), self.rule.name());
        if rule != mine {
            return Err(wrong(format!(
                "has the optimizer {prefix:?} of rule {rule}, but here it is of {mine}"
            )));
        }
        let finished = saved["finished_steps"].as_u64();
        let finished =
            finished.ok_or_else(|| wrong(format!("does not say the steps of {prefix:?}: {saved}")))?;
        // One that follows a schedule follows from the finished steps.
        let learning_rate = saved["learning_rate"].as_f64().filter(|_| self.rate.by_hand().is_some());
        if let Some(learning_rate) = learning_rate {
            rate::require(learning_rate, "Checkpoint::restore")?;
        }
        drop(self.progress.read("Checkpoint::restore")?);
        let slots: Vec<_> = self.slot_names().collect();
        let names = |variable: &str| slots.iter().map(|slot| format!("{prefix}/{slot}/{variable}")).collect();
        let all: Vec<Vec<String>> = self.variable_names().map(names).collect();
        require_names(from, &all.concat())?;
        if let Some(remote) = &self.trained.remote {
            let slots = self.saved_slots(remote, prefix, &all, from)?;
            return Ok(Box::new(move || {
                let change = self.progress.change("Checkpoint::restore")?;
                learning_rate.map_or(Ok(()), |learning_rate| self.rate.set(learning_rate))?;
                self.set_slots_on_servers(remote, slots)?;
                change.set_finished(finished);
                Ok(())
            }));
        }
        let of_variable = |(number, names): (usize, Vec<String>)| {
            let (_, variable) = &self.trained.variables[number];
            let mine = self.trained.shards.as_ref().map(|shards| shards.mine(number));
            Ok::<_, Error>(match variable.dtype() {
                candle_core::DType::F64 => Slots::F64(of_names(from, &names, DType::F64, variable, &mine)?),
                _ => Slots::F32(of_names(from, &names, DType::F32, variable, &mine)?),
            })
        };
        let slots = all.into_iter().enumerate().map(of_variable).collect::<Result<Vec<_>>>()?;
        Ok(Box::new(move || {
            let change = self.progress.change("Checkpoint::restore")?;
            learning_rate.map_or(Ok(()), |learning_rate| self.rate.set(learning_rate))?;
            *change.slots() = slots;
            change.set_finished(finished);
            Ok(())
        }))
    }
}

impl<R: Rule> Optimizer<R> {
    #[track_caller]
    fn save_shared(&self, shards: &Shards, prefix: &str, writer: &mut Writer) -> Result<()> {
        let at = Location::caller();
        self.require_complete(SAVE, at)?;
        for (index, slot) in self.slot_names().enumerate() {
            for (number, (name, _)) in self.trained.variables.iter().enumerate() {
                if let Some(value) = self.slot_on_chief(shards, number, index, at)? {
                    writer.insert(format!("{prefix}/{slot}/{name}"), value)?;
                }
            }
        }
        Ok(())
    }
}

/// Slots of a variable, or of those of its elements that are this worker's.
fn of_names<F: Element>(
    from: &Reader,
    names: &[String],
    dtype: DType,
    variable: &Var,
    mine: &Option<Range<usize>>,
) -> Result<Vec<Vec<F>>> {
    let one = |name: &String| match mine {
        None => Ok(read_as(from, name, dtype, variable.dims())?.into_vec()?),
        Some(mine) => read_elements(from, name, dtype, variable.dims(), mine),
    };
    names.iter().map(one).collect()
}

fn metadata_key(prefix: &str) -> String {
    format!("{prefix}:optimizer")
}
