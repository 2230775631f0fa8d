//! Partitions of rows and ids over shards, and the requests that a batch sends to each shard.

mod hashed;
mod moves;
mod rows;
mod split;
mod unique;

pub use hashed::HashPartition;
pub use moves::{Move, Moves};
pub use rows::{PartitionStrategy, Place, RowPartition};
pub use split::Split;
pub use unique::UniqueIds;
