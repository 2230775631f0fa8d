//! The operations, one in each file: its public method, its data and its stage.
//!
//! Building blocks have their own files: `ahead` (a stage on a thread), `cycle` (datasets read in turn),
//! `cache_contents` (the identity of a cache), `pairing` (zipped chunks), `pad` (tensors of different sizes
//! in one), `encoding` (elements as bytes). Tests of all operations: `model` compares them with the same on a
//! `Vec`, `walk` reads and skips in any order.

pub(crate) mod ahead;
pub(crate) mod assert_cardinality;
pub(crate) mod assert_element_spec;
pub(crate) mod batch;
pub(crate) mod cache;
mod cache_contents;
pub(crate) mod cache_file;
pub(crate) mod concatenate;
mod cycle;
mod encoding;
pub(crate) mod enumerate;
mod file_names;
pub(crate) mod filter;
pub(crate) mod flat_map;
pub(crate) mod generator;
pub(crate) mod interleave;
pub(crate) mod map;
pub(crate) mod map_parallel;
pub(crate) mod memory;
#[cfg(test)]
mod model;
mod pad;
pub(crate) mod padded_batch;
mod pairing;
pub(crate) mod parse_examples;
pub(crate) mod prefetch;
pub(crate) mod rebatch;
pub(crate) mod repeat;
pub(crate) mod shard;
pub(crate) mod shuffle;
pub(crate) mod take;
pub(crate) mod take_while;
pub(crate) mod unbatch;
#[cfg(test)]
mod walk;
pub(crate) mod zip;
