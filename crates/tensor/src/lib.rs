//! Host tensors, nested structures of them, and the kernels that reduce, gather and slice them.
//!
//! This crate does no I/O and starts no thread. The crates above it move data as [`Nest`]s: nested structures
//! whose leaves are [`HostTensor`]s, [`IndexedSlices`] or (feature `candle`) candle tensors.
//!
//! In reading order:
//!
//! | module | contents |
//! |---|---|
//! | [`dtype`] | the 16 element types and their Rust types |
//! | [`host`] | [`HostTensor`]: dtype, shape, elements |
//! | [`slices`] | [`IndexedSlices`]: rows of a larger tensor and their indices |
//! | [`leaf`] | [`Leaf`]: the leaves of a nest |
//! | [`fold`] | the computation of the elements of a sum, on one thread or several |
//! | [`pack`] | buckets of leaves for a reduction |
//! | [`partition`] | the partition of a vector for threads, workers and groups |
//! | [`tree`] | [`Tree`]: a nest whose structure is a runtime value |
//! | [`nest`] | [`Nest`]: any Rust structure that can be converted to a tree and back |
//! | [`op`] | [`ReduceOp`] |
//! | `parse` | dtypes and reduce operations from text |
//! | [`random`] | random numbers by position |
//! | [`kernel`] | sums, joins and slices of plain slices |

#![forbid(unsafe_code)]

pub mod codec;
pub mod dtype;
pub mod error;
pub mod flat;
pub mod fold;
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
pub use dtype::{DType, Element};
pub use error::{Error, Result};
pub use fold::Folder;
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
