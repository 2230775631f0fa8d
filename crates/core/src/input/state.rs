//! A distributed dataset as a component of a checkpoint.

use super::DistributedDataset;
use crate::checkpoint::{Checkpointed, Reader, Restore, Writer, read_state, write_state};
use crate::strategy::Strategy;
use distribute_base::Result;
use distribute_data::Position;
use distribute_tensor::Nest;

/// The name of the position in metadata.
const POSITION: &str = "position";

/// Saves the position of the latest pass as metadata. After the dataset is restored, its next pass continues at this
/// position, with any number of replicas.
impl<T: Nest> Checkpointed for DistributedDataset<T> {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        write_state(writer, prefix, POSITION, &self.position())
    }

    fn restore<'a>(&'a self, prefix: &str, from: &Reader) -> Result<Restore<'a>> {
        let position: Position = read_state(from, prefix, POSITION, "a dataset")?;
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
