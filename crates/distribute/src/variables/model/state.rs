//! A model's variables as a part of a checkpoint.

use super::{Kind, Variables};
use crate::Result;
use crate::checkpoint::{Checkpointed, Reader, Restore, Writer, read_as, require_names};
use candle_core::Device;
use distribute_tensor::HostTensor;
use serde_json::json;

impl Variables {
    /// The seed from which initial values are drawn.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    fn kinds(&self) -> Vec<(String, Kind)> {
        self.entries().iter().map(|(name, entry)| (name.clone(), entry.kind.clone())).collect()
    }
}

/// Each variable by its name, as a [`Variable`](crate::Variable) is; running statistics as the mean over the replicas that
/// have seen rows, and what all last had in common.
impl Checkpointed for Variables {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        for (name, kind) in self.kinds() {
            let entry = format!("{prefix}/{name}");
            match &kind {
                Kind::Mirrored(variable) => variable.save(&entry, writer)?,
                Kind::Running(running) => {
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
        let names: Vec<_> = kinds.iter().map(|(name, _)| format!("{prefix}/{name}")).collect();
        require_names(from, &names)?;
        let mut changes: Vec<Restore<'a>> = Vec::new();
        for ((name, kind), entry) in kinds.into_iter().zip(names) {
            let variable = self.variable(&name)?;
            let (dtype, dims) = (variable.dtype(), variable.dims());
            let value = read_as(from, &entry, dtype, dims)?.to_candle(&Device::Cpu)?;
            let copies = match &kind {
                Kind::Mirrored(_) => None,
                Kind::Running(running) => {
                    variable.saved_copies(&entry, from)?.map(|copies| (running.clone(), copies))
                }
            };
            changes.push(match copies {
                None => Box::new(move || self.set(&name, &value)),
                Some((running, copies)) => {
                    let common = read_as(from, &in_common(&entry), dtype, dims)?.to_candle(&Device::Cpu)?;
                    Box::new(move || {
                        variable.set_copies(&copies)?;
                        running.set_common(common);
                        Ok(())
                    })
                }
            });
        }
        Ok(Box::new(move || changes.into_iter().try_for_each(|change| change())))
    }
}

/// Where that is what the copies of running statistics last had in common.
fn in_common(entry: &str) -> String {
    format!("{entry}/common")
}
