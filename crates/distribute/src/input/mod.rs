//! Datasets over replicas: each step, each replica's piece.
//!
//! Who gets what is a plan of the crate `data` ([`Distribution`](crate::data::Distribution)). Here are the strategy's
//! replicas, their devices, and where a pass stands.

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

use crate::{Error, Result, Strategy};
use distribute_data::Layout;

/// Who takes part in a strategy's input (DIST-2).
fn layout(strategy: &Strategy, operation: &'static str) -> Result<Layout> {
    let extended = strategy.extended();
    let layout = Layout { workers: extended.input_workers(), replicas: extended.local_replicas() };
    match layout.total() == strategy.num_replicas_in_sync() {
        true => Ok(layout),
        false => Err(Error::invalid(
            operation,
            format!(
                "{layout} are not the {} replicas in sync: every worker needs the same number of replicas",
                strategy.num_replicas_in_sync()
            ),
        )),
    }
}
