//! Variables as a part of a checkpoint.

use super::{Kind, Variables};
use crate::Result;
use crate::checkpoint::{Checkpointed, Reader, Restore, Writer, read_as, read_like, require_names, to_candle};
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

/// The names beside that of a running statistic: one row for each replica, and what all last had in common.
fn beside(entry: &str) -> [String; 2] {
    [format!("{entry}/per_replica"), format!("{entry}/common")]
}

/// Each variable once by its name (CKPT-1); running statistics as the mean over the replicas (CKPT-2), and beside it what
/// each replica has.
impl Checkpointed for Variables {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        for (name, kind) in self.kinds() {
            let entry = format!("{prefix}/{name}");
            if let Kind::Running(running) = &kind {
                let (components, common) = running.state();
                let [of_replicas, in_common] = beside(&entry);
                let components =
                    components.iter().map(HostTensor::from_candle).collect::<Result<Vec<_>, _>>()?;
                writer.insert(of_replicas, HostTensor::stack(&components.iter().collect::<Vec<_>>())?)?;
                writer.insert(in_common, HostTensor::from_candle(&common)?)?;
            }
            writer.insert(entry, HostTensor::from_candle(&kind.read()?)?)?;
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
            let value = to_candle(&read_like(from, &entry, kind.any()?)?)?;
            let [of_replicas, in_common] = beside(&entry);
            let change: Restore<'a> = match &kind {
                Kind::Running(running) if from.contains(&of_replicas) => {
                    let (mine, _) = running.state();
                    let running = running.clone();
                    let mut shape = from.describe(&of_replicas)?.shape;
                    // On another number of replicas, each goes on with the mean.
                    if shape.first() != Some(&mine.len()) {
                        Box::new(move || self.set(&name, &value))
                    } else {
                        shape = [mine.len()].iter().chain(value.dims()).copied().collect();
                        let rows = read_as(from, &of_replicas, &value, &shape)?;
                        let components = (0..mine.len()).map(|replica| to_candle(&rows.row(replica)?));
                        let components = components.collect::<Result<Vec<_>>>()?;
                        let common = to_candle(&read_like(from, &in_common, &value)?)?;
                        Box::new(move || running.set_state(&components, common))
                    }
                }
                _ => Box::new(move || self.set(&name, &value)),
            };
            changes.push(change);
        }
        Ok(Box::new(move || changes.into_iter().try_for_each(|change| change())))
    }
}
