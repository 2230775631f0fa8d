//! TensorFlow's `tf.distribute` for Rust, on candle: write a training step once, and run it on one core or on all.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use candle_nn::{Linear, Module, VarBuilder, linear};
//! use distribute::{nn::loss, prelude::*};
//!
//! struct Mlp(Linear, Linear);
//!
//! impl Mlp {
//!     fn new(vb: VarBuilder) -> candle_core::Result<Self> {
//!         Ok(Self(linear(2, 16, vb.pp("hidden"))?, linear(16, 2, vb.pp("out"))?))
//!     }
//!     fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
//!         self.1.forward(&self.0.forward(x)?.relu()?)
//!     }
//! }
//!
//! #[distribute::main]                                          // tames candle's threads before any starts
//! fn main() -> distribute::Result<()> {
//!     let strategy = MirroredStrategy::cpus(2)?;                               // the line that changes
//!     let model = strategy.replicate(Mlp::new)?;                               // variables are mirrored
//!     let optimizer = Adam::new(&model.variables, 1e-2)?;
//!
//!     let x = Tensor::arange(0f32, 200., &Device::Cpu)?.sin()?.reshape((100, 2))?;
//!     let y = x.argmax(1)?;
//!     let batches = strategy.distribute_dataset(Dataset::from_slices((x, y))?.shuffle(100, 42).batch(16))?;
//!
//!     let mut last = f32::NAN;
//!     for _epoch in 0..10 {
//!         for batch in &batches {
//!             let loss = strategy.run((&model, batch?), |ctx, (model, (x, y))| {
//!                 let loss = loss::cross_entropy(&model.forward(&x)?, &y)?;
//!                 optimizer.minimize(ctx, loss, y.dim(0)?)                     // reduce, update; the global mean loss
//!             })?;
//!             last = loss.to_scalar()?;
//!         }
//!     }
//!     assert!(last < 0.2, "the loss of the last batch is {last}");
//!     Ok(())
//! }
//! ```
//!
//! In reading order:
//!
//! | module | what it is |
//! |---|---|
//! | [`mod@strategy`] | [`Strategy`], the handle: `run`, `reduce`, `reduce_to`, `gather`, `scope`, `replicate`; the strategies and cross-device ops behind it |
//! | [`context`] | where code is running; [`ReplicaContext`]: `all_reduce`, `all_gather`, `merge_call` |
//! | [`values`] | [`PerReplica`], [`Mirrored`]; which values can be split over replicas and reduced |
//! | `replicated` | [`Replicated`]: a model on every replica |
//! | `variables` | [`Variable`]: ON_WRITE and ON_READ; [`Variables`] of one model: initial values, safetensors, checksum |
//! | [`mod@optimizer`] | [`Optimizer`]: backward, reduce, update in one call; [`Sgd`], [`Adam`], [`AdamW`], … |
//! | [`runner`] | [`run`](runner::run): epochs, validation and backups in one call |
//! | [`checkpoint`] | [`Checkpoint`]: model, optimizer and more, saved and restored together |
//! | [`nn`] | layers that know about replicas; losses that take an empty piece of a batch |
//! | [`metrics`] | [`Mean`](metrics::Mean), accuracy, AUC, confusion matrix: counted by replicas, read outside of `run` |
//! | `input` | [`DistributedDataset`]: a piece for each replica in each step; [`InputOptions`] |
//! | `error` | [`Error`]: what went wrong, who did it, what to do |
//! | `init` | [`init`]: candle's threads and `DISTRIBUTE_LOG` |
//! | [`summary`] | scalars and histograms for TensorBoard |
//! | [`monitor`] | a page, JSON and metrics of a running job |
//! | [`trace`] | a timeline of what each replica does, for Perfetto |
//! | [`legacy`] | TensorFlow's older names |
//! | [`prelude`] | what most programs use |
//! | [`tensor`], [`data`], [`cluster`] | the crates below: nests of tensors; datasets; clusters and resolvers, deadlines and blame |
//!
//! # Parameter servers
//!
//! [`ParameterServerStrategy`] keeps variables on parameter servers, cut into shards, and workers train against them
//! without waiting for each other. [`LocalCluster`] has them all in one process; [`params`] has the partitioners;
//! [`mod@lookup`] rows by their ids; [`runner::ParameterServerStrategy`] a strategy from the environment alone.
//! [`mod@remote`]: functions that workers run for a coordinator.
//! [`between_graph`]: workers that run the whole program each, without one.
//!
//! # Several workers
//!
//! [`MultiWorkerMirroredStrategy`] trains on several workers in lock step: processes on one machine or several. What
//! takes a [`&Strategy`](Strategy) needs no change. [`Preemption`] ends a training in order when a scheduler asks for
//! it.
//!
//! # When things break
//!
//! If a replica's closure fails or panics, if a replica leaves out a collective or calls it differently, or if it is
//! late, `run` returns one [`Error`] that names step, replica, call and line. No replica hangs, and the strategy can be
//! used again. A replica that is stuck in its closure is logged with its last call; `run` returns when the closure
//! does. docs/errors.md has a row for each kind of error.

#[cfg(doctest)]
mod guides;

#[doc(inline)]
pub use distribute_core::summary;
#[doc(inline)]
pub use distribute_nn as nn;
#[doc(inline)]
pub use distribute_optimizer as optimizer;
#[doc(inline)]
pub use distribute_parameter_server::remote;
#[doc(inline)]
pub use distribute_tf1::{between_graph, legacy};
#[doc(inline)]
pub use distribute_trace as trace;
#[cfg(unix)]
#[doc(inline)]
pub use distribute_train::monitor;
#[doc(inline)]
pub use distribute_train::{metrics, runner};

#[doc(alias = "tf.VariableAggregation")]
pub use distribute_base::VariableAggregation;
#[doc(alias = "tf.VariableSynchronization")]
pub use distribute_base::VariableSynchronization;
pub use distribute_base::{ContextKind, DeviceKind, DeviceName};
pub use distribute_base::{Error, Ok, Result};
#[doc(alias = "tf.train.ClusterSpec")]
#[doc(inline)]
pub use distribute_cluster::ClusterSpec;
#[doc(alias = "task_type")]
#[doc(inline)]
pub use distribute_cluster::Job;
#[doc(inline)]
pub use distribute_cluster::Task;
#[doc(alias = "tf.distribute.cluster_resolver.ClusterResolver")]
pub use distribute_cluster::resolver::ClusterResolver;
#[doc(alias = "tf.distribute.cluster_resolver.SimpleClusterResolver")]
pub use distribute_cluster::resolver::SimpleClusterResolver;
#[doc(alias = "tf.distribute.cluster_resolver.TFConfigClusterResolver")]
#[doc(alias = "TF_CONFIG")]
pub use distribute_cluster::resolver::TfConfigClusterResolver;
#[doc(alias = "tf.distribute.DistributedDataset")]
pub use distribute_core::DistributedDataset;
#[doc(alias = "tf.distribute.DistributedIterator")]
pub use distribute_core::DistributedIterator;
#[doc(alias = "tf.distribute.InputOptions")]
pub use distribute_core::InputOptions;
#[doc(alias = "tf.distribute.InputReplicationMode")]
pub use distribute_core::InputReplicationMode;
pub use distribute_core::NewVariable;
pub use distribute_core::Replicated;
#[doc(alias = "ShardedVariable.variables")]
pub use distribute_core::Shard;
pub use distribute_core::SummaryWriter;
#[doc(alias = "tf.Variable")]
#[doc(alias = "MirroredVariable")]
#[doc(alias = "SyncOnReadVariable")]
#[doc(alias = "AggregatingVariable")]
pub use distribute_core::Variable;
#[doc(alias = "tf.Variable")]
#[doc(alias = "MirroredVariable")]
pub use distribute_core::Variables;
#[doc(hidden)]
pub use distribute_core::derived;
pub use distribute_core::init;
pub use distribute_core::lookup;
pub use distribute_core::{Axes, Distributed, Mirrored, PerReplica, Reducible};
pub use distribute_core::{Checkpoint, CheckpointManager, Checkpointed};
pub use distribute_core::{
    CommunicationImplementation, CommunicationOptions, CrossDeviceOps, Destinations,
    HierarchicalCopyAllReduce, IndependentWorker, NcclAllReduce, ReductionToOneDevice, Replicas, Strategy,
    StrategyExtended, Threads, ValueContext, VariablePlacement,
};
pub use distribute_core::{Kept, Restored, Select};
pub use distribute_core::{
    ReplicaContext, UpdateContext, get_replica_context, get_strategy, get_update_context, has_strategy,
    in_cross_replica_context, set_strategy,
};
#[doc(alias = "tf.data.Dataset")]
#[doc(inline)]
pub use distribute_data::Dataset;
pub use distribute_macros::{Nest, main, remote};
pub use distribute_optimizer::{Adagrad, Adam, AdamW, Ftrl, Momentum, Optimizer, RmsProp, Sgd};
#[doc(alias = "tf.distribute.experimental.coordinator.ClusterCoordinator")]
#[doc(alias = "tf.distribute.coordinator.ClusterCoordinator")]
#[doc(inline)]
pub use distribute_parameter_server::ClusterCoordinator;
#[doc(inline)]
pub use distribute_parameter_server::{ClusterCoordinatorBuilder, Fetch, Status, WorkerStatus};
pub use distribute_parameter_server::{LocalCluster, ParameterServerBuilder, ParameterServerStrategy};
pub use distribute_parameter_server::{Serve, serve};
pub use distribute_ps_client::{ParameterServers, RunningClosure};
pub use distribute_strategies::{
    CentralStorageStrategy, MirroredStrategy, MultiWorkerBuilder, MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
};
#[doc(alias = "tf.IndexedSlices")]
pub use distribute_tensor::IndexedSlices;
#[doc(alias = "tf.nest")]
pub use distribute_tensor::Nest;
#[doc(alias = "tf.distribute.ReduceOp")]
pub use distribute_tensor::ReduceOp;
#[doc(alias = "tf.nest")]
#[doc(alias = "nest")]
pub use distribute_tensor::Tree;
pub use distribute_tensor::{HostTensor, Leaf};
#[doc(alias = "tf.distribute.experimental.PreemptionCheckpointHandler")]
#[doc(alias = "PreemptionCheckpointHandler")]
#[doc(alias = "tf.distribute.experimental.TerminationConfig")]
#[doc(alias = "TerminationConfig")]
#[doc(alias = "tf.distribute.experimental.PreemptionWatcher")]
#[doc(alias = "PreemptionWatcher")]
pub use distribute_train::Preemption;
pub use distribute_train::Training;

/// The context of running code: the current strategy, the replica, the update.
pub mod context {
    #[doc(inline)]
    pub use distribute_core::context::{
        ContextKind, ReplicaContext, UpdateContext, get_replica_context, get_strategy, get_update_context,
        has_strategy, in_cross_replica_context, set_strategy,
    };
}

/// Checkpoints of a training: several parts, saved together and restored together.
pub mod checkpoint {
    #[doc(inline)]
    pub use distribute_core::checkpoint::{
        Checkpoint, CheckpointError, CheckpointManager, Checkpointed, Description, Kept, Metadata, Reader,
        Restore, Restored, Select, Value, Writer,
    };
}

/// Values that live on replicas: one for each, or the same on all.
pub mod values {
    #[doc(hidden)]
    pub use distribute_core::values::derived;
    #[doc(inline)]
    pub use distribute_core::values::{
        Axes, Components, Distributed, Mirrored, Parts, PerReplica, Reducible,
    };
}

/// The handle that users call, and the strategies behind it.
pub mod strategy {
    #[doc(inline)]
    pub use distribute_base::{DeviceKind, DeviceName};
    #[doc(alias = "tf.distribute.experimental.ValueContext")]
    #[doc(inline)]
    pub use distribute_core::ValueContext;
    #[doc(alias = "tf.distribute.HierarchicalCopyAllReduce")]
    #[doc(inline)]
    pub use distribute_core::strategy::HierarchicalCopyAllReduce;
    #[doc(alias = "tf.distribute.NcclAllReduce")]
    #[doc(inline)]
    pub use distribute_core::strategy::NcclAllReduce;
    #[doc(alias = "tf.distribute.ReductionToOneDevice")]
    #[doc(inline)]
    pub use distribute_core::strategy::ReductionToOneDevice;
    #[doc(inline)]
    pub use distribute_core::strategy::{
        CommunicationImplementation, CommunicationOptions, CrossDeviceOps, Group, IndependentWorker, Links,
        Reduction, Replicas, Strategy, StrategyExtended, Threads, VariablePlacement,
    };
    #[doc(inline)]
    pub use distribute_core::{Contained, Destinations};
    #[doc(alias = "tf.distribute.ParameterServerStrategy")]
    #[doc(alias = "tf.distribute.experimental.ParameterServerStrategy")]
    #[doc(inline)]
    pub use distribute_parameter_server::ParameterServerStrategy;
    #[doc(inline)]
    pub use distribute_parameter_server::{LocalCluster, LocalClusterResolver, ParameterServerBuilder};
    #[doc(alias = "tf.distribute.experimental.CentralStorageStrategy")]
    #[doc(inline)]
    pub use distribute_strategies::CentralStorageStrategy;
    #[doc(alias = "tf.distribute.MirroredStrategy")]
    #[doc(inline)]
    pub use distribute_strategies::MirroredStrategy;
    #[doc(alias = "tf.distribute.MultiWorkerMirroredStrategy")]
    #[doc(alias = "tf.distribute.experimental.MultiWorkerMirroredStrategy")]
    #[doc(alias = "CollectiveAllReduceStrategy")]
    #[doc(inline)]
    pub use distribute_strategies::MultiWorkerMirroredStrategy;
    #[doc(alias = "tf.distribute.OneDeviceStrategy")]
    #[doc(inline)]
    pub use distribute_strategies::OneDeviceStrategy;
    #[doc(inline)]
    pub use distribute_strategies::{MirroredBuilder, MultiWorkerBuilder};
}

/// Clusters, resolvers, deadlines, and blame.
pub mod cluster {
    // By items, so that these docs include them without building those of other crates.
    #[doc(alias = "tf.train.ClusterSpec")]
    #[doc(inline)]
    pub use distribute_cluster::ClusterSpec;
    #[doc(alias = "task_type")]
    #[doc(inline)]
    pub use distribute_cluster::Job;
    #[doc(inline)]
    pub use distribute_cluster::*;
}

/// Links between processes: rendezvous, identity and encryption.
pub mod net {
    #[doc(inline)]
    pub use distribute_net::{Certificates, Credentials, Identity, JoinError, Secret, SharedMemory};
}

/// Partitioners, placement on parameter servers, and the tables there.
pub mod params {
    #[doc(alias = "tfra.dynamic_embedding.Variable")]
    #[doc(inline)]
    pub use distribute_ps_tables::DynamicTable;
    #[doc(alias = "tf.distribute.experimental.partitioners.FixedShardsPartitioner")]
    #[doc(inline)]
    pub use distribute_ps_tables::FixedShardsPartitioner;
    #[doc(alias = "tf.distribute.experimental.partitioners.MaxSizePartitioner")]
    #[doc(inline)]
    pub use distribute_ps_tables::MaxSizePartitioner;
    #[doc(alias = "tf.distribute.experimental.partitioners.MinSizePartitioner")]
    #[doc(inline)]
    pub use distribute_ps_tables::MinSizePartitioner;
    #[doc(alias = "tf.distribute.experimental.partitioners.Partitioner")]
    #[doc(inline)]
    pub use distribute_ps_tables::Partitioner;
    #[doc(inline)]
    pub use distribute_ps_tables::*;
}

/// Datasets: sources, transformations, file formats, and how batches are split over replicas.
pub mod data {
    #[doc(alias = "record_defaults")]
    #[doc(alias = "column_defaults")]
    #[doc(inline)]
    pub use distribute_data::DefaultValue;
    #[doc(alias = "tf.data.Dataset.element_spec")]
    #[doc(inline)]
    pub use distribute_data::ElementSpec;
    #[doc(alias = "tf.train.Example")]
    #[doc(inline)]
    pub use distribute_data::Example;
    #[doc(alias = "tf.distribute.InputContext")]
    #[doc(inline)]
    pub use distribute_data::InputContext;
    #[doc(alias = "tf.data.Dataset.ignore_errors")]
    #[doc(alias = "tf.data.experimental.ignore_errors")]
    #[doc(alias = "ignore_errors")]
    #[doc(inline)]
    pub use distribute_data::SkippedRecords;
    #[doc(alias = "tf.TensorSpec")]
    #[doc(inline)]
    pub use distribute_data::TensorSpec;
    #[doc(alias = "tf.data.TFRecordDataset")]
    #[doc(alias = "TFRecordDataset")]
    #[doc(inline)]
    pub use distribute_data::TfRecord;
    #[doc(alias = "tf.data.TFRecordDataset")]
    #[doc(alias = "TFRecordDataset")]
    #[doc(inline)]
    pub use distribute_data::TfRecordReader;
    #[doc(alias = "tf.io.TFRecordWriter")]
    #[doc(inline)]
    pub use distribute_data::TfRecordWriter;
    #[doc(alias = "tf.data.TextLineDataset")]
    #[doc(alias = "TextLineDataset")]
    #[doc(inline)]
    pub use distribute_data::text_lines;
    #[doc(inline)]
    pub use distribute_data::*;
}

/// Tensors in host memory, and nests of tensors.
pub mod tensor {
    #[doc(alias = "slice")]
    #[doc(inline)]
    pub use distribute_tensor::Index;
    #[doc(inline)]
    pub use distribute_tensor::*;
}

/// The names that most programs use.
///
/// Traits with methods of common names, like `split`, are left out, because they would shadow those of `String`.
pub mod prelude {
    pub use crate::{
        Adam, AdamW, ClusterResolver, ClusterSpec, Dataset, HostTensor, IndexedSlices, Mirrored,
        MirroredStrategy, MultiWorkerMirroredStrategy, Nest, OneDeviceStrategy, Optimizer, PerReplica,
        ReduceOp, ReplicaContext, Replicated, Sgd, SimpleClusterResolver, Strategy, TfConfigClusterResolver,
        Variables,
    };
}
