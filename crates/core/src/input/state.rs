//! A distributed dataset as a component of a checkpoint.

use super::DistributedDataset;
use crate::checkpoint::{Checkpointed, Reader, Restore, Writer};
use crate::strategy::Strategy;
use distribute_base::{Error, Result};
use distribute_data::Position;
use distribute_tensor::Nest;

/// Saves the position of the latest pass as metadata. After the dataset is restored, its next pass continues at this
/// position, with any number of replicas.
impl<T: Nest> Checkpointed for DistributedDataset<T> {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        let position = serde_json::to_value(self.position());
        let position = position.map_err(|error| Error::invalid("Checkpoint::save", error.to_string()))?;
        writer.metadata(metadata_key(prefix), position);
        Ok(())
    }

    fn restore<'a>(&'a self, prefix: &str, from: &Reader) -> Result<Restore<'a>> {
        let path = from.path().display();
        let wrong = |reason: String| Error::invalid("Checkpoint::restore", format!("{path} {reason}"));
        let saved = from.metadata(&metadata_key(prefix));
        let saved = saved.ok_or_else(|| wrong(format!("has no position of a dataset named {prefix:?}")))?;
        let position: Position = serde_json::from_value(saved.clone())
            .map_err(|error| wrong(format!("has no position in {:?}: {error}", metadata_key(prefix))))?;
        self.check_position(&position)?;
        Ok(Box::new(move || self.resume(position)))
    }

    /// Rolls back to the position after the last step that is included in the weights.
    fn rewind(&self) -> Result<()> {
        self.rewind_passes();
        Ok(())
    }

    fn strategy(&self) -> Option<&Strategy> {
        Some(&self.strategy)
    }
}

fn metadata_key(prefix: &str) -> String {
    format!("{prefix}:position")
}
