//! A model's variables as a component of a checkpoint.

use super::{ModelVariable, Variables};
use crate::checkpoint::{
    Checkpointed, Reader, Restore, RestoreFilter, RestoreReport, Writer, decide, read_as, read_cast,
    require_names,
};
use crate::strategy::Strategy;
use candle_core::Device;
use distribute_base::{Error, Result};
use distribute_decisions::internal::{common_name, copies_name};
use distribute_tensor::{DType, HostTensor};
use serde_json::json;

impl Variables {
    /// Returns the seed for the initial values.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    pub(super) fn kinds(&self) -> Vec<(String, ModelVariable)> {
        self.entries().iter().map(|(name, entry)| (name.clone(), entry.kind.clone())).collect()
    }
}

/// Each variable is saved under its name, like a [`Variable`](crate::Variable). Running statistics are saved as the
/// mean over the replicas that have processed rows, together with the replicas' copies and the last common value.
impl Checkpointed for Variables {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        let kinds = self.kinds();
        for (name, kind) in &kinds {
            let entry = format!("{prefix}/{name}");
            match kind {
                ModelVariable::Mirrored(variable) => variable.save(&entry, writer)?,
                ModelVariable::Running(running) => {
                    require_free(&kinds, name)?;
                    writer.insert(common_name(&entry), HostTensor::from_candle(&running.common())?)?;
                    running.variable().save_copies(&entry, writer)?;
                    writer.insert(entry, HostTensor::from_candle(&running.mean()?)?)?;
                }
            }
        }
        writer.metadata(format!("{prefix}:variables"), json!({ "seed": self.seed() }));
        Ok(())
    }

    fn restore<'a>(&'a self, prefix: &str, from: &Reader) -> Result<Restore<'a>> {
        let kinds = self.kinds();
        let entries: Vec<_> = kinds.iter().map(|(name, _)| format!("{prefix}/{name}")).collect();
        require_names(from, &entries)?;
        let mut changes = Vec::new();
        for ((name, kind), entry) in kinds.into_iter().zip(entries) {
            let variable = self.variable(&name)?;
            if variable.is_dynamic() {
                changes.push(variable.restore_ids(&entry, from)?);
                continue;
            }
            if variable.saved_by_range().is_some() {
                changes.push(variable.restore_ranges(&entry, from)?);
                continue;
            }
            let value = read_as(from, &entry, variable.dtype(), variable.dims())?;
            changes.push(self.change(name, &kind, value, &entry, from)?);
        }
        Ok(Box::new(move || changes.into_iter().try_for_each(|change| change())))
    }

    fn restore_some<'a>(
        &'a self,
        prefix: &str,
        from: &Reader,
        select: &RestoreFilter<'_>,
    ) -> Result<(Restore<'a>, RestoreReport)> {
        let entry = |name: &str| format!("{prefix}/{name}");
        let here = self.described()?.into_iter().map(|(name, dtype, dims)| (entry(&name), dtype, dims));
        let restored = decide(select, from, here)?;
        let mut changes = Vec::new();
        for (name, kind) in self.kinds() {
            if let Some(source) = restored.restored.get(&entry(&name)) {
                let value = read_cast(from, source, self.variable(&name)?.dtype())?;
                changes.push(self.change(name, &kind, value, source, from)?);
            }
        }
        Ok((Box::new(move || changes.into_iter().try_for_each(|change| change())), restored))
    }

    fn strategy(&self) -> Option<&Strategy> {
        Some(Variables::strategy(self))
    }
}

impl Variables {
    /// Returns the name, dtype and shape of each variable that is not a dynamic embedding.
    pub(super) fn described(&self) -> Result<Vec<(String, DType, Vec<usize>)>> {
        let describe = |name: String| match self.variable(&name) {
            Ok(variable) if variable.is_dynamic() => None,
            Ok(variable) => Some(Ok((name, variable.dtype(), variable.dims().to_vec()))),
            Err(error) => Some(Err(error)),
        };
        self.names().into_iter().filter_map(describe).collect()
    }

    /// Returns a closure that restores a variable. For running statistics that were saved with the same dtype and
    /// number of copies, the closure sets each copy and the common value to what was saved. Otherwise it sets the
    /// variable to `value`.
    fn change<'a>(
        &'a self,
        name: String,
        kind: &ModelVariable,
        value: HostTensor,
        source: &str,
        from: &Reader,
    ) -> Result<Restore<'a>> {
        let variable = self.variable(&name)?;
        let (dtype, dims) = (variable.dtype(), variable.dims());
        let same_dtype = from.describe(source)?.dtype == dtype;
        let copies = match kind {
            // A saved `Variable` has copies but no common value. It is unknown which of them have seen rows, so
            // all start with the value.
            ModelVariable::Running(running) if same_dtype && from.contains(&common_name(source)) => {
                variable.saved_copies(source, from)?.map(|copies| (running.clone(), copies))
            }
            _ => None,
        };
        Ok(match copies {
            None => {
                let value = value.to_candle(&Device::Cpu)?;
                Box::new(move || variable.restoring(|| self.set(&name, &value)))
            }
            Some((running, copies)) => {
                let common = read_as(from, &common_name(source), dtype, dims)?.to_candle(&Device::Cpu)?;
                Box::new(move || {
                    variable.set_copies(&copies)?;
                    running.set_common(common);
                    Ok(())
                })
            }
        })
    }
}

/// Returns an error if a running statistic would be saved under the name of another variable.
fn require_free(kinds: &[(String, ModelVariable)], name: &str) -> Result<()> {
    let beside = [common_name(name), copies_name(name)];
    match kinds.iter().find(|(other, _)| beside.contains(other)) {
        None => Ok(()),
        Some((other, _)) => Err(Error::invalid(
            "Checkpoint::save",
            format!(
                "variable {other} has a name under which the running statistic {name} is saved; rename it"
            ),
        )),
    }
}
