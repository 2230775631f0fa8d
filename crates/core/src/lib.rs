//! The core of `distribute`: the handle of a strategy, contexts, values, variables, input and checkpoints.
//!
//! Programs use [`distribute`](https://docs.rs/distribute), which exports the public part of this crate.
//!
//! | module | contents |
//! |---|---|
//! | [`strategy`] | the handle, the trait for authors of strategies, and the counters that are equal on all workers |
//! | [`context`] | the context of a thread; a replica and its collectives; calls among workers |
//! | [`values`] | values for each replica; splitting and reducing values |
//! | [`checkpoint`] | saving and restoring a training |
//! | `variables` | a variable, its memory, the variables of a model |
//! | `replicated` | a model on every replica |
//! | `input` | a dataset that is distributed over the replicas |
//! | `ops` | the operations of a strategy: `run`, `reduce`, `gather`, `update`, `merge_call` |
//! | [`summary`], `init` | the writer of summaries; the threads of candle |

pub mod checkpoint;
pub mod context;
mod init;
mod input;
mod ops;
mod replicated;
pub mod strategy;
pub mod summary;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod testing;
pub mod values;
mod variables;

pub use checkpoint::{Checkpoint, CheckpointManager, Checkpointed, Kept, Restore, Restored, Select};
pub use context::{
    ReplicaContext, UpdateContext, get_replica_context, get_strategy, get_update_context, has_strategy,
    in_cross_replica_context, set_strategy,
};
pub use init::init;
pub use input::{DistributedDataset, DistributedIterator, InputOptions, InputReplicationMode};
pub use ops::{Contained, Destinations};
pub use replicated::Replicated;
pub use strategy::{
    CommunicationImplementation, CommunicationOptions, CrossDeviceOps, HierarchicalCopyAllReduce,
    IndependentWorker, NcclAllReduce, ReductionToOneDevice, Replicas, Strategy, StrategyExtended, Threads,
    VariablePlacement,
};
pub use summary::SummaryWriter;
#[doc(hidden)]
pub use values::derived;
pub use values::{Axes, Distributed, Mirrored, PerReplica, Reducible, ValueContext};
pub use variables::{NewVariable, Shard, Variable, Variables, lookup};

/// The interface for the other crates of `distribute`. It is not public: anything in it may change.
#[doc(hidden)]
pub mod internal {
    pub use crate::checkpoint::{read_as, read_elements, require_names};
    pub use crate::context::{
        Mode, current_kind, current_strategy, default_context, enter, failure, mixed, raise, raised,
        require_outside_of_run,
    };
    pub use crate::init::prepare;
    #[cfg(feature = "cuda")]
    pub use crate::input::Carrier;
    pub use crate::strategy::{
        CHECK_DRIFT_EVERY, Departure, Heard, Notice, Settings, WeakStrategy, check_count, differences,
        digest, resolve,
    };
    pub use crate::variables::{BagMode, Evaluated, RowSource, again, for_ids, for_rows, row_of_id};
    pub use distribute_base::Result;
    pub mod alone {
        pub use crate::strategy::alone::{joined, warn, warn_without_srun};
    }
    pub mod record {
        pub use crate::strategy::record::encode;
    }
}
