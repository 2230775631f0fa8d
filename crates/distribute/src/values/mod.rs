//! Values that live on replicas: one for each, or the same on all.

mod containers;
#[doc(hidden)]
pub mod derived;
mod distributed;
mod per_replica;
mod reducible;
mod tuples;

pub use distributed::Distributed;
pub use per_replica::{Mirrored, PerReplica};
pub use reducible::{Axes, Components, Parts, Reducible};
