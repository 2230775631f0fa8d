//! A model's variables as a component of a checkpoint.

use super::{Kind, Variables};
use crate::checkpoint::{
    Checkpointed, Reader, Restore, Restored, Select, Writer, decide, in_common, of_replicas, read_as,
    read_cast, require_names,
};
use crate::strategy::Strategy;
use candle_core::Device;
use distribute_base::{Error, Result};
use distribute_tensor::{DType, HostTensor};
use serde_json::json;

impl Variables {
    /// Returns the seed of the initial values.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    pub(super) fn kinds(&self) -> Vec<(String, Kind)> {
        self.entries().iter().map(|(name, entry)| (name.clone(), entry.kind.clone())).collect()
    }
}

/// Each variable is saved by its name, like a [`Variable`](crate::Variable). Running statistics are saved as
/// the mean over the replicas that have seen rows, with their last common value.
impl Checkpointed for Variables {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        let kinds = self.kinds();
        for (name, kind) in &kinds {
            let entry = format!("{prefix}/{name}");
            match kind {
                Kind::Mirrored(variable) => variable.save(&entry, writer)?,
                Kind::Running(running) => {
                    require_free(&kinds, name)?;
                    writer.insert(in_common(&entry), HostTensor::from_candle(&running.common())?)?;
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
            let value = read_as(from, &entry, variable.dtype(), variable.dims())?;
            changes.push(self.change(name, &kind, value, &entry, from)?);
        }
        Ok(Box::new(move || changes.into_iter().try_for_each(|change| change())))
    }

    fn restore_some<'a>(
        &'a self,
        prefix: &str,
        from: &Reader,
        select: &Select<'_>,
    ) -> Result<(Restore<'a>, Restored)> {
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
    /// Returns name, dtype and shape of each variable that has a single value.
    pub(super) fn described(&self) -> Result<Vec<(String, DType, Vec<usize>)>> {
        let describe = |name: String| match self.variable(&name) {
            Ok(variable) if variable.is_dynamic() => None,
            Ok(variable) => Some(Ok((name, variable.dtype(), variable.dims().to_vec()))),
            Err(error) => Some(Err(error)),
        };
        self.names().into_iter().filter_map(describe).collect()
    }

    /// Returns the change that sets a variable to a value, and its copies to the saved ones if their number is
    /// the same.
    fn change<'a>(
        &'a self,
        name: String,
        kind: &Kind,
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
            Kind::Running(running) if same_dtype && from.contains(&in_common(source)) => {
                variable.saved_copies(source, from)?.map(|copies| (running.clone(), copies))
            }
            _ => None,
        };
        Ok(match copies {
            None => {
                let value = value.to_candle(&Device::Cpu)?;
                Box::new(move || self.set(&name, &value))
            }
            Some((running, copies)) => {
                let common = read_as(from, &in_common(source), dtype, dims)?.to_candle(&Device::Cpu)?;
                Box::new(move || {
                    variable.set_copies(&copies)?;
                    running.set_common(common);
                    Ok(())
                })
            }
        })
    }
}

/// Returns an error if another variable has a name under which running statistics are saved.
fn require_free(kinds: &[(String, Kind)], name: &str) -> Result<()> {
    let beside = [in_common(name), of_replicas(name)];
    match kinds.iter().find(|(other, _)| beside.contains(other)) {
        None => Ok(()),
        Some((other, _)) => Err(Error::invalid(
            "Checkpoint::save",
            format!(
                "variable {other} has the name under which part of the running statistic {name} is saved; rename it"
            ),
        )),
    }
}
