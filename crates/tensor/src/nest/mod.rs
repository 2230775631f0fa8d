//! Rust structures of tensors that can be converted to a [`Tree`] and back: numbers and strings (`numbers`), tuples
//! and containers (`containers`), and structs with `derive(Nest)` (`fields`). `rows` operates on the rows of
//! batches. `fitted` converts leaves to the kind that a type requires.

mod containers;
mod fields;
mod fitted;
mod numbers;
mod rows;

#[doc(hidden)]
pub use fields::Fields;
pub use fitted::fitted;
pub use rows::{concat, concat_rows, narrow_rows, rows, stack, take_rows};

use crate::{DType, HostTensor, IndexedSlices, Leaf, Result, Tree};

/// A nested structure of tensors: a tensor, a number, a string, a tuple, an array, a `Vec`, an `Option`, a map with
/// names as keys, a struct with `#[derive(Nest)]`, or a [`Tree`] itself.
///
/// Functions that move data between replicas take and return nests. They process the leaves in the common form
/// [`Tree<Leaf>`].
#[doc(alias = "tf.nest")]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a nest of tensors",
    label = "neither a tensor, a number, nor a structure of these",
    note = "a struct becomes one with `#[derive(Nest)]`",
    note = "a function of a dataset that can fail, as with `?`, goes to the method with `try_` before its name: \
            `try_map` instead of `map`"
)]
pub trait Nest: Sized {
    /// The type of a batch of such values, which are stacked along a new axis 0. A tensor gets an additional axis, a
    /// number becomes a tensor of rank 1, and a container becomes the same kind of container of batches.
    type Batch: Nest;

    /// Converts the value to a tree of leaves.
    fn into_tree(self) -> Tree<Leaf>;

    /// Converts a tree of leaves to a value of this type.
    ///
    /// # Errors
    /// - [`Error::Structure`](crate::Error::Structure): the tree does not have the structure of this type.
    fn from_tree(tree: Tree<Leaf>) -> Result<Self>;

    /// Returns the dtypes of the leaves if all values of this type have the same structure and all leaves are
    /// scalars: numbers, text, and tuples, arrays and structs of these. Returns `None` for other types, such as
    /// tensors and lists.
    fn scalar_dtypes() -> Option<Tree<DType>> {
        None
    }
}

impl Nest for Tree<Leaf> {
    type Batch = Self;

    fn into_tree(self) -> Tree<Leaf> {
        self
    }
    fn from_tree(tree: Tree<Leaf>) -> Result<Self> {
        Ok(tree)
    }
}

impl Nest for Leaf {
    type Batch = Self;

    fn into_tree(self) -> Tree<Leaf> {
        Tree::Leaf(self)
    }
    fn from_tree(tree: Tree<Leaf>) -> Result<Self> {
        leaf("a leaf", tree)
    }
}

impl Nest for HostTensor {
    type Batch = Self;

    fn into_tree(self) -> Tree<Leaf> {
        Tree::Leaf(Leaf::Host(self))
    }
    fn from_tree(tree: Tree<Leaf>) -> Result<Self> {
        match leaf("a host tensor", tree)? {
            Leaf::Host(tensor) => Ok(tensor),
            other => Err(mismatch("a host tensor", other.kind())),
        }
    }
}

impl Nest for IndexedSlices {
    type Batch = Self;

    fn into_tree(self) -> Tree<Leaf> {
        Tree::Leaf(Leaf::Slices(self))
    }
    fn from_tree(tree: Tree<Leaf>) -> Result<Self> {
        match leaf("indexed slices", tree)? {
            Leaf::Slices(slices) => Ok(slices),
            other => Err(mismatch("indexed slices", other.kind())),
        }
    }
}

#[cfg(feature = "candle")]
impl Nest for candle_core::Tensor {
    type Batch = Self;

    fn into_tree(self) -> Tree<Leaf> {
        Tree::Leaf(Leaf::Candle(self))
    }
    fn from_tree(tree: Tree<Leaf>) -> Result<Self> {
        match leaf("a candle tensor", tree)? {
            Leaf::Candle(tensor) => Ok(tensor),
            other => Err(mismatch("a candle tensor", other.kind())),
        }
    }
}

pub(crate) fn leaf(expected: &str, tree: Tree<Leaf>) -> Result<Leaf> {
    match tree {
        Tree::Leaf(leaf) => Ok(leaf),
        other => Err(mismatch(expected, &other.kind())),
    }
}

/// Returns the error for a `from_tree` that found a different structure than `expected`.
pub(crate) fn mismatch(expected: &str, found: &str) -> crate::Error {
    crate::Error::Structure { path: "value".into(), expected: expected.into(), found: found.into() }
}
