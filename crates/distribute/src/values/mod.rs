//! Values that live on replicas: one for each, or the same on all.

mod distributed;
mod per_replica;
mod reducible;

pub use distributed::Distributed;
pub use per_replica::{Mirrored, PerReplica};
pub use reducible::{Axes, Components, Reducible};
