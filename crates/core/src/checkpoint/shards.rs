//! State that is sharded over the workers, with a copy of each shard at another worker.

use super::Checkpoint;
use bytes::Bytes;
use distribute_base::Result;
use distribute_collective::recovery::shards::Inventory;

/// The state of a component that is sharded over the workers, with a copy of each shard at another worker.
pub trait ShardedState {
    /// Returns the shards that this worker has.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): a step is in progress.
    fn inventory(&self) -> Result<Inventory>;

    /// Returns the bytes of a shard that is in the inventory.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): this worker does not have the shard, or a
    ///   step is in progress.
    fn read_shard(&self, shard: usize) -> Result<Bytes>;

    /// Adds a shard from another worker to the inventory. Its version must be that of the weights.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): its size differs, or the state is not
    ///   sharded with copies.
    fn add_shard(&self, shard: usize, bytes: &[u8]) -> Result<()>;

    /// Keeps this worker's shard and the copy that it stores of another worker's shard, by its current rank. Drops all
    /// others.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): one of them is not in the inventory, or a
    ///   step is in progress.
    fn keep_own_shards(&self) -> Result<()>;

    /// Removes all shards from the inventory, because they may be wrong.
    fn discard_shards(&self);
}

impl<'a> Checkpoint<'a> {
    /// Returns the components whose state is sharded over the workers with copies, in their order.
    #[doc(hidden)]
    pub fn sharded_states(&self) -> Vec<&'a dyn ShardedState> {
        self.parts.iter().filter_map(|(_, part)| part.sharded_state()).collect()
    }
}
