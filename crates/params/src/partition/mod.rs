//! Which shard has which row.

mod hashed;
mod moves;
mod rows;
mod split;

pub use hashed::HashPartition;
pub use moves::{Move, Moves};
pub use rows::{PartitionStrategy, Place, RowPartition};
pub use split::Split;
