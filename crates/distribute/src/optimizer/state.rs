//! An optimizer as a part of a checkpoint.

use super::slots::Slots;
use super::{Optimizer, rate};
use crate::checkpoint::{Checkpointed, Reader, Restore, Writer, read_as, require_names};
use crate::{Error, Result, Strategy};
use candle_core::Var;
use distribute_optim::Rule;
use distribute_tensor::{DType, HostTensor};
use serde_json::json;

/// Slots by the name of slot and variable, `optimizer/m/fc.weight`; rule, finished steps and learning rate, where it was
/// set by hand, as metadata. The rule's hyper-parameters are noted, but not restored: they are those that the optimizer
/// was made with. So is a schedule, which goes on at the step that was saved.
impl<R: Rule> Checkpointed for Optimizer<R> {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        let slots = self.progress.read("Checkpoint::save")?;
        for (index, slot) in self.slot_names().enumerate() {
            for ((name, variable), slots) in self.trained.variables.iter().zip(&*slots) {
                let value = HostTensor::from_candle(&slots.tensor(index, variable)?)?;
                writer.insert(format!("{prefix}/{slot}/{name}"), value)?;
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
        let of_variable = |((_, variable), names): (&(String, Var), Vec<String>)| {
            let dtype = if variable.dtype() == candle_core::DType::F64 { DType::F64 } else { DType::F32 };
            let values = names.iter().map(|name| read_as(from, name, dtype, variable.dims()));
            let values = values.collect::<Result<Vec<_>>>()?.into_iter();
            Ok(match dtype {
                DType::F64 => Slots::F64(values.map(HostTensor::into_vec).collect::<Result<_, _>>()?),
                _ => Slots::F32(values.map(HostTensor::into_vec).collect::<Result<_, _>>()?),
            })
        };
        let slots = self.trained.variables.iter().zip(all).map(of_variable).collect::<Result<Vec<_>>>()?;
        Ok(Box::new(move || {
            let change = self.progress.change("Checkpoint::restore")?;
            learning_rate.map_or(Ok(()), |learning_rate| self.rate.set(learning_rate))?;
            *change.slots() = slots;
            change.set_finished(finished);
            Ok(())
        }))
    }
}

fn metadata_key(prefix: &str) -> String {
    format!("{prefix}:optimizer")
}
