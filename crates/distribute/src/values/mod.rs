//! Values that live on replicas: one for each, or the same on all.

mod distributed;
mod per_replica;
mod reducible;

#[doc(alias = "tf.distribute.DistributedValues")]
#[doc(alias = "DistributedValues")]
pub use distributed::Distributed;
#[doc(alias = "tf.distribute.DistributedValues")]
#[doc(alias = "DistributedValues")]
pub use per_replica::Mirrored;
#[doc(alias = "tf.distribute.DistributedValues")]
#[doc(alias = "DistributedValues")]
pub use per_replica::PerReplica;
pub use reducible::{Axes, Components, Reducible};
