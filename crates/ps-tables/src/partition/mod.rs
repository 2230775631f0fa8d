//! Partitions of rows and ids over shards, and the division of a batch into requests to the shards. This module
//! contains only pure functions and values.
//!
//! | module | contents |
//! |---|---|
//! | `rows`, `hashed` | partitions of a fixed number of rows, and of 64-bit ids |
//! | `unique`, `split` | the distinct ids of a batch, and ids sorted by shard |
//! | `moves` | the moves from one partition to another |

mod hashed;
mod moves;
mod rows;
mod split;
mod unique;

pub use hashed::HashPartition;
pub use moves::{Move, Moves};
pub use rows::{PartitionStrategy, RowLocation, RowPartition};
pub use split::Split;
pub(crate) use unique::IdIndex;
pub use unique::UniqueIds;
