//! The core of `distribute`: strategies, contexts, variables, input and checkpoints.
//!
//! Programs use [`distribute`](https://docs.rs/distribute), which exports the public items of this crate.
//! Start at [`Strategy`]; authors of strategies implement [`StrategyExtended`].
//!
//! | module | contents |
//! |---|---|
//! | [`strategy`] | the handle, the trait for authors of strategies, and the counters that are equal on all workers |
//! | [`context`] | the context of a thread; a replica and its collectives; calls between workers |
//! | [`checkpoint`] | saving and restoring a training run |
//! | `variables` | variables, their storage, and the variables of a model |
//! | `replicated` | a model on every replica |
//! | `input` | a dataset that is distributed over the replicas |
//! | `ops` | the operations of a strategy: `run`, `reduce`, `gather`, `update`, `merge_call` |
//! | [`summary`], `init`, `end` | writing summaries; limiting candle's threads; the end of the main function |
//! | `failure` | failures of collectives as errors |
//!
//! This crate never opens a socket. A strategy gives it a group of workers or a client of parameter servers.

pub mod checkpoint;
pub mod context;
mod end;
mod failure;
mod init;
mod input;
mod ops;
mod replicated;
pub mod strategy;
pub mod summary;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod testing;
mod variables;

pub use checkpoint::{
    Checkpoint, CheckpointManager, Checkpointed, PendingSave, Restore, RestoreFilter, RestoreReport,
    Unrestored,
};
pub use context::{
    ReplicaContext, UpdateContext, get_replica_context, get_strategy, get_update_context, has_strategy,
    in_cross_replica_context, set_strategy,
};
pub use end::end_main;
pub use init::init;
pub use input::{DistributedDataset, DistributedIterator, InputOptions, InputReplicationMode, LookAhead};
pub use ops::{Contained, Destinations, ValueContext};
pub use replicated::Replicated;
pub use strategy::{
    CommunicationImplementation, CommunicationOptions, CrossDeviceOps, HierarchicalCopyAllReduce,
    IndependentWorker, NcclAllReduce, ReductionToOneDevice, Replicas, Strategy, StrategyExtended, Threads,
    VariablePlacement,
};
pub use summary::SummaryWriter;
pub use variables::{Shard, Variable, VariableBuilder, Variables, lookup};

/// Items for the other crates of `distribute`. They are not part of the public interface and may change at any time.
#[doc(hidden)]
pub mod internal {
    pub use crate::checkpoint::{ShardedState, read_as, read_elements, require_names, verify_as};
    pub use crate::context::{
        Mode, current_kind, current_strategy, default_context, enter, mixed, require_outside_of_run,
        to_candle_error, unwrap_candle_error,
    };
    pub use crate::failure::failure;
    pub use crate::init::prepare;
    pub use crate::strategy::{CHECK_DRIFT_EVERY, WeakStrategy, check_count, exchange_in_call, resolve};
    pub use crate::variables::{
        OwnSlot, RowSource, SavedIds, UnchangedNorm, rebuild, request_ids, request_rows, row_of_id,
    };
    pub mod warn_single {
        pub use crate::strategy::warn_single::{suppress, warn, warn_without_srun};
    }
    pub mod wire {
        pub use crate::strategy::wire::{decode_all, encode};
    }
}
