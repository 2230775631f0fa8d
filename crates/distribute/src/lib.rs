//! TensorFlow's `tf.distribute` for Rust, on candle: write a training step once, and run it on one core or on all.

pub mod context;
mod error;
mod input;
mod log;
pub mod nn;
pub mod optimizer;
mod replicated;
pub mod strategy;
pub mod values;
mod variables;

pub use context::{
    ReplicaContext, get_replica_context, get_strategy, has_strategy, in_cross_replica_context,
};
pub use distribute_cluster as cluster;
pub use distribute_data as data;
pub use distribute_macros::{Nest, main};
pub use distribute_tensor as tensor;
pub use distribute_tensor::{HostTensor, IndexedSlices, Leaf, Nest, ReduceOp, Tree};
pub use error::{ContextKind, Error, Result};
pub use input::{DistributedDataset, DistributedIterator};
pub use log::init;
pub use optimizer::{Adagrad, Adam, AdamW, Ftrl, Momentum, Optimizer, RmsProp, Sgd};
pub use replicated::Replicated;
pub use strategy::{
    DeviceKind, DeviceName, MirroredStrategy, OneDeviceStrategy, Strategy, StrategyExtended, ValueContext,
};
pub use values::{Axes, Distributed, Mirrored, PerReplica, Reducible};
pub use variables::Variables;

/// What most programs use.
pub mod prelude {
    pub use crate::{
        Adam, AdamW, HostTensor, IndexedSlices, Mirrored, MirroredStrategy, Nest, OneDeviceStrategy,
        Optimizer, PerReplica, ReduceOp, ReplicaContext, Replicated, Sgd, Strategy, Variables,
    };
}
