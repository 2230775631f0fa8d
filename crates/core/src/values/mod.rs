//! Values of replicas: one value per replica, or a single value that is equal on all replicas.
//!
//! | module | contents |
//! |---|---|
//! | `per_replica` | [`PerReplica`], [`Mirrored`] |
//! | `distributed` | [`Distributed`]: values that are split between replicas, such as arguments of `run` |
//! | `reducible` | [`Reducible`]: values that `reduce` and `gather` accept |
//! | `tuples`, `containers`, `derived` | tuples, containers and structs, whose items are handled separately |
//! | `strategy_values` | values that a strategy creates or takes apart |

mod containers;
#[doc(hidden)]
pub mod derived;
mod distributed;
mod per_replica;
mod reducible;
mod strategy_values;
mod tuples;

#[doc(alias = "tf.distribute.DistributedValues")]
#[doc(alias = "DistributedValues")]
pub use distributed::Distributed;
pub(crate) use distributed::{describe_model, require_one_each};
#[doc(alias = "tf.distribute.DistributedValues")]
#[doc(alias = "DistributedValues")]
pub use per_replica::Mirrored;
#[doc(alias = "tf.distribute.DistributedValues")]
#[doc(alias = "DistributedValues")]
pub use per_replica::PerReplica;
pub use reducible::{Axes, Components, Parts, Reducible};
pub(crate) use reducible::{parts_of, plain};
pub use strategy_values::ValueContext;
