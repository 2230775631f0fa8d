//! Who gets which rows: decisions that are functions of numbers and pipelines, apart from the data they are applied to.
//!
//! [`policy`] decides how a pipeline is parted over workers; [`split`] cuts one batch into pieces, one a replica;
//! [`shares`] cuts a worker's own batches so that all workers together make global batches; [`recut`] cuts a stream of
//! batches anew into pieces of given sizes; [`ends`] says what becomes of a step that not everybody has data for.

pub mod ends;
pub mod layout;
pub mod policy;
pub mod recut;
pub mod shares;
pub mod split;
