//! The assignment of rows to workers and replicas: pure functions of numbers, independent of the data.
//!
//! [`policy`] contains the ways to shard a pipeline over workers. [`split`] splits one batch into per-replica
//! batches. [`shares`] splits a worker's own batches so that all workers together form global batches. [`recut`]
//! splits a stream of batches into batches of other sizes. [`ends`] decides about steps for which some replicas
//! have no data. [`layout`] contains the numbers of workers and replicas.

pub mod ends;
pub mod layout;
pub mod policy;
pub mod recut;
pub mod shares;
pub mod split;
