//! Datasets over replicas: each step, each replica's piece.
//!
//! Who gets what is a plan of the crate `data` ([`Distribution`](crate::data::Distribution)). Here are the strategy's
//! replicas, their devices, and where a pass stands.

mod agree;
mod bring;
mod dataset;
mod from_function;
mod iterator;
mod legacy;
mod options;
mod passes;
mod spec;
mod state;

pub use dataset::DistributedDataset;
pub use iterator::DistributedIterator;
pub use legacy::{InputIterator, InputSource};
pub use options::{InputOptions, InputReplicationMode};

use crate::Strategy;
use distribute_data::Layout;

// DIST-2
/// Who takes part in a strategy's input.
fn layout(strategy: &Strategy) -> Layout {
    let world = strategy.world();
    Layout { workers: world.workers(), replicas: world.replicas() }
}
