//! Host tensors, nested structures of them, and the kernels that reduce, join and slice them.
//!
//! This crate never does I/O, starts threads or runs collectives. The crates that use it move data as [`Nest`]s: nested
//! structures whose leaves are [`HostTensor`]s, [`IndexedSlices`] or (with the feature `candle`) candle tensors.
//!
//! In reading order:
//!
//! | module | contents |
//! |---|---|
//! | [`dtype`] | the 16 element types and their Rust types |
//! | [`host`] | [`HostTensor`]: dtype, shape, elements |
//! | [`slices`] | [`IndexedSlices`]: rows of a larger tensor and their indices |
//! | [`leaf`] | [`Leaf`]: the leaves of a nest |
//! | [`fold`] | the computation of the elements of a sum, on one thread or on several |
//! | [`pack`] | buckets of leaves for a reduction |
//! | [`partition`] | the split of a vector over threads, workers and groups |
//! | [`tree`] | [`Tree`]: a nest whose structure is a runtime value |
//! | [`nest`] | [`Nest`]: any Rust structure that can be converted to a tree and back |
//! | [`op`] | [`ReduceOp`] |
//! | `parse` | conversion of text to dtypes and reduce operations |
//! | [`random`] | random numbers that depend only on their position |
//! | [`kernel`] | sums, joins and slices of plain Rust slices |
//! | [`halves`] | [`Wire`]: the types in which numbers are sent |
//! | [`compression`] | [`Compression`]: the forms in which gradients are sent |
//! | [`flat`], [`wire`], [`codec`] | leaves as one vector; leaves as bytes; elements as bytes |
//! | `candle` | leaves that are candle tensors; feature `candle` |
//! | [`error`] | [`Error`] |

#![forbid(unsafe_code)]

pub mod codec;
pub mod compression;
pub mod dtype;
pub mod error;
pub mod flat;
pub mod fold;
pub mod halves;
pub mod host;
pub mod kernel;
pub mod leaf;
pub mod nest;
pub mod op;
pub mod pack;
mod parse;
pub mod partition;
pub mod random;
pub mod slices;
pub mod tree;
pub mod wire;

#[cfg(feature = "candle")]
mod candle;

#[cfg(feature = "candle")]
pub use candle::without_elements;
pub use compression::Compression;
pub use dtype::{DType, Element};
pub use error::{Error, Result};
pub use fold::Folder;
pub use halves::Wire;
#[doc(alias = "slice")]
pub use host::Index;
pub use host::{HostTensor, Selection};
pub use kernel::Write;
pub use leaf::Leaf;
pub use nest::Nest;
pub use op::ReduceOp;
pub use pack::Packing;
pub use slices::IndexedSlices;
pub use tree::Tree;
