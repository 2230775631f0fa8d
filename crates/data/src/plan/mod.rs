//! The decision who gets which rows: pure functions of numbers, apart from the data they are applied to.
//!
//! [`policy`] names the ways to shard a pipeline over workers. [`split`] splits one batch into a piece for
//! each replica. [`shares`] splits a worker's own batches so that all workers together make global batches.
//! [`recut`] cuts a stream of batches into pieces of given sizes. [`ends`] decides about steps for which not
//! everybody has data.

pub mod ends;
pub mod layout;
pub mod policy;
pub mod recut;
pub mod shares;
pub mod split;
