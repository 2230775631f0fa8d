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
//! | `look_ahead` | [`LookAhead`]: a pass that takes each step before it yields the previous one |
//! | `agreement` | the workers' agreement on how they shard a dataset |
//! | `device_placement` | the devices of per-replica batches, and the copies to them |
//! | `passes`, `state`, `deck` | positions of passes; datasets, and decks of files, as components of checkpoints |
//! | `spec` | specs of batches before the first batch is read |

mod agreement;
mod dataset;
mod deck;
mod device_placement;
mod from_function;
mod iterator;
mod look_ahead;
mod options;
mod passes;
mod plan;
mod spec;
mod state;

pub use dataset::DistributedDataset;
pub use iterator::DistributedIterator;
pub use look_ahead::LookAhead;
pub use options::{InputOptions, InputReplicationMode};

use distribute_cluster::World;
use distribute_data::{Distribution, Layout};
use distribute_tensor::Nest;

// DIST-2
/// Returns the number of workers, and of replicas per worker, over which a strategy distributes input. Logical replicas
/// count as the replicas of a single worker, so that their batches do not depend on the number of workers.
fn layout(world: World) -> Layout {
    match world.logical_replicas() {
        Some(replicas) => Layout::one_worker(replicas),
        None => Layout { workers: world.workers(), replicas: world.replicas() },
    }
}

/// Returns the index of this process's input pipeline among those of the [`layout`].
fn pipeline(world: World) -> usize {
    if world.logical_replicas().is_some() { 0 } else { world.worker() }
}

/// Returns the distribution for the replicas of this process.
///
/// # Errors
/// Returns the errors of [`Distribution::part_of`].
fn of_this_process<T: Nest>(
    plan: Distribution<T>,
    world: World,
) -> Result<Distribution<T>, distribute_data::Error> {
    if world.logical_replicas().is_some() { plan.part_of(world.local_replicas()) } else { Ok(plan) }
}
