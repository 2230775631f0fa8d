//! Values that live on replicas: one for each, or the same on all.

mod containers;
#[doc(hidden)]
pub mod derived;
pub mod distributed;
mod per_replica;
mod reducible;
mod tuples;

#[doc(alias = "tf.distribute.DistributedValues")]
#[doc(alias = "DistributedValues")]
pub use distributed::Distributed;
#[doc(alias = "tf.distribute.DistributedValues")]
#[doc(alias = "DistributedValues")]
pub use per_replica::Mirrored;
#[doc(alias = "tf.distribute.DistributedValues")]
#[doc(alias = "DistributedValues")]
pub use per_replica::PerReplica;
pub(crate) use reducible::parts_of;
pub use reducible::{Axes, Components, Parts, Reducible};
