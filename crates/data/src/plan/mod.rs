//! The assignment of rows to workers and replicas: pure functions of numbers, independent of the data.
//!
//! [`policy`] names the ways to shard a pipeline over workers. [`split`] splits one batch into per-replica
//! batches. [`shares`] splits a worker's own batches so that all workers together make global batches.
//! [`recut`] cuts a stream of batches into pieces of given sizes. [`ends`] decides about steps for which some
//! replicas have no data.

pub mod ends;
pub mod layout;
pub mod policy;
pub mod recut;
pub mod shares;
pub mod split;
