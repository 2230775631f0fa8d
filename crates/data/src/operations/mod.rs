//! The operations. Each file contains the public method of one operation, its data and its stage.
//!
//! Building blocks have separate files: `ahead` (a stage on a thread), `cycle` (datasets that are read in turn), `kept`
//! (datasets of groups of elements), `window_stage` (windows before they are assembled), `cache_contents` (the
//! identification of a cache), `pairing` (pairs of chunks), `rounds` (passes of datasets in any order), `pad` (stacking
//! tensors of different sizes), `encoding` (elements as bytes). Tests of all operations: `model` compares them with the
//! same operations on a `Vec`, `walk` reads and skips in any order.
//!
//! A new operation is a file here, and a `Step` in `model`. Three decisions need care. The first is `sharding` and
//! `repeatable`. The second is the `identity`: it must cover everything that determines the elements, because otherwise
//! an older position could refer to a different element. The third is the `passes` of its stage, with which a later
//! filter detects an empty dataset.

pub(crate) mod ahead;
pub(crate) mod assert_cardinality;
pub(crate) mod assert_element_spec;
pub(crate) mod batch;
pub(crate) mod bucket_by_sequence_length;
pub(crate) mod cache;
mod cache_contents;
pub(crate) mod cache_file;
pub(crate) mod choose_from_datasets;
pub(crate) mod concatenate;
mod cycle;
mod encoding;
pub(crate) mod enumerate;
mod file_names;
pub(crate) mod filter;
mod first_elements;
pub(crate) mod flat_map;
pub(crate) mod generator;
pub(crate) mod group_by_window;
pub(crate) mod interleave;
mod kept;
pub(crate) mod map;
pub(crate) mod map_parallel;
pub(crate) mod memory;
#[cfg(test)]
mod model;
pub(crate) mod pack_sequences;
mod pad;
pub(crate) mod padded_batch;
mod pairing;
pub(crate) mod parse_examples;
pub(crate) mod prefetch;
pub(crate) mod rebatch;
pub(crate) mod repeat;
mod rounds;
pub(crate) mod sample_from_datasets;
pub(crate) mod scan;
pub(crate) mod shard;
pub(crate) mod shuffle;
pub(crate) mod take;
pub(crate) mod take_while;
pub(crate) mod unbatch;
#[cfg(test)]
mod walk;
pub(crate) mod window;
mod window_stage;
pub(crate) mod zip;
