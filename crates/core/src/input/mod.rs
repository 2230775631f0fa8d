//! Datasets distributed over replicas.
//!
//! The crate `distribute-data` plans the distribution ([`Distribution`](distribute_data::Distribution)). This
//! module adds the strategy's replicas, their devices, and the position of a pass.

mod agree;
mod bring;
mod carry;
mod dataset;
mod from_function;
mod iterator;
mod options;
mod passes;
mod plan;
mod spec;
mod state;

#[cfg(feature = "cuda")]
pub use carry::Carrier;
pub use dataset::DistributedDataset;
pub use iterator::DistributedIterator;
pub use options::{InputOptions, InputReplicationMode};

use crate::strategy::Strategy;
use distribute_data::Layout;

// DIST-2
/// Returns the workers and replicas of a strategy's input.
fn layout(strategy: &Strategy) -> Layout {
    let world = strategy.world();
    Layout { workers: world.workers(), replicas: world.replicas() }
}
