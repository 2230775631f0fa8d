//! The operations, one a file: what users call, what it is as data, how it runs.

pub(crate) mod ahead;
pub(crate) mod batch;
pub(crate) mod concatenate;
pub(crate) mod enumerate;
pub(crate) mod filter;
pub(crate) mod flat_map;
pub(crate) mod generator;
pub(crate) mod interleave;
pub(crate) mod map;
pub(crate) mod memory;
pub(crate) mod prefetch;
pub(crate) mod rebatch;
pub(crate) mod repeat;
pub(crate) mod shard;
pub(crate) mod shuffle;
pub(crate) mod take;
pub(crate) mod zip;
