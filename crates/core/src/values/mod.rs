//! Values that live on replicas: one for each, or the same on all.

mod containers;
#[doc(hidden)]
pub mod derived;
mod distributed;
mod of_strategy;
mod per_replica;
mod reducible;
mod tuples;

#[doc(alias = "tf.distribute.DistributedValues")]
#[doc(alias = "DistributedValues")]
pub use distributed::Distributed;
pub(crate) use distributed::{a_model, counted};
pub use of_strategy::ValueContext;
#[doc(alias = "tf.distribute.DistributedValues")]
#[doc(alias = "DistributedValues")]
pub use per_replica::Mirrored;
#[doc(alias = "tf.distribute.DistributedValues")]
#[doc(alias = "DistributedValues")]
pub use per_replica::PerReplica;
pub use reducible::{Axes, Components, Parts, Reducible};
pub(crate) use reducible::{parts_of, plain};
