//! Who gets which rows: decisions that are functions of numbers, apart from the data they are applied to.
//!
//! [`split`] cuts one batch into pieces, one a replica; [`recut`] cuts a stream of batches anew into pieces of given
//! sizes, over the borders of the batches.

pub mod recut;
pub mod split;
