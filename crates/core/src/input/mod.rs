//! Datasets that are distributed over replicas.
//!
//! The crate `distribute-data` plans the distribution ([`Distribution`](distribute_data::Distribution)). This
//! module adds the strategy's replicas, their devices, and the positions of passes.
//!
//! | module | contents |
//! |---|---|
//! | `options` | [`InputOptions`] |
//! | `dataset`, `from_function` | [`DistributedDataset`]; datasets that a function creates per worker |
//! | `plan` | the distribution over the current workers |
//! | `iterator` | [`DistributedIterator`]: one pass, step by step |
//! | `agreement` | the workers' agreement on how they shard a dataset |
//! | `device_placement`, `device_copier` | the devices of per-replica batches, and the copies to them |
//! | `passes`, `state`, `deck` | positions of passes; datasets, and decks of files, as components of checkpoints |
//! | `spec` | specs of batches before the first batch is read |

mod agreement;
mod dataset;
mod deck;
mod device_copier;
mod device_placement;
mod from_function;
mod iterator;
mod options;
mod passes;
mod plan;
mod spec;
mod state;

pub use dataset::DistributedDataset;
#[cfg(feature = "cuda")]
pub use device_copier::DeviceCopier;
pub use iterator::DistributedIterator;
pub use options::{InputOptions, InputReplicationMode};

use crate::strategy::Strategy;
use distribute_data::Layout;

// DIST-2
/// Returns the number of workers, and of replicas per worker, over which a strategy distributes input.
fn layout(strategy: &Strategy) -> Layout {
    let world = strategy.world();
    Layout { workers: world.workers(), replicas: world.replicas() }
}
