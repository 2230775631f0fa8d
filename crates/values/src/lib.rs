//! Values of replicas: one value per replica, or a single value that is equal on all replicas.
//!
//! Programs use [`distribute`](https://docs.rs/distribute), which exports the public items of this crate in its module
//! `values`.
//!
//! | module | contents |
//! |---|---|
//! | `per_replica` | [`PerReplica`], [`Mirrored`] |
//! | `distributed` | [`Distributed`]: values that are split between replicas, such as arguments of `run` |
//! | `reducible` | [`Reducible`]: values that `reduce` and `gather` accept |
//! | `tuples`, `containers`, [`derived`] | tuples, containers and structs, whose items are handled separately |
//!
//! This crate does not depend on strategies: `distribute-core` implements these traits for variables and models.

mod containers;
#[doc(hidden)]
pub mod derived;
mod distributed;
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
pub use reducible::{Axes, Components, Parts, Reducible};

/// Items for the other crates of `distribute`. They are not part of the public interface and may change at any time.
#[doc(hidden)]
pub mod internal {
    pub use crate::distributed::{require_one_each, short_name};
    pub use crate::reducible::{parts_of, plain};
}
