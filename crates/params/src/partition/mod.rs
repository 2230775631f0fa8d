//! Which shard has which row, and what a batch asks each for.

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
