//! Values on replicas: one per replica, or a single value that is equal on all replicas.

#[doc(inline)]
pub use distribute_core::Replicated;
#[doc(hidden)]
pub use distribute_values::derived;
#[doc(inline)]
pub use distribute_values::{Axes, Components, Distributed, Mirrored, Parts, PerReplica, Reducible};
