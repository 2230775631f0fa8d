//! The context in which code runs: the current strategy, replica and update.

#[doc(inline)]
pub use distribute_core::context::{
    ContextKind, ReplicaContext, UpdateContext, get_replica_context, get_strategy, get_update_context,
    has_strategy, in_cross_replica_context, set_strategy,
};
