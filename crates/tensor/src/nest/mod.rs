//! Rust structures of tensors that can be converted to a [`Tree`] and back.

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

/// A nested structure of tensors: a tensor, a number, a tuple, an array, a `Vec`, an `Option`, a map by name,
/// a struct with `#[derive(Nest)]`, or a [`Tree`] itself.
///
/// Functions that move data between replicas take and return nests. They process the leaves in the common
/// form, [`Tree<Leaf>`].
#[doc(alias = "tf.nest")]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no nest of tensors",
    label = "neither a tensor, a number, nor a structure of these",
    note = "a struct is one with `#[derive(Nest)]`",
    note = "a function of a dataset that can fail, as with `?`, goes to the method with `try_` before its name: `try_map` instead of `map`"
)]
pub trait Nest: Sized {
    /// A batch of such values, the result of stacking them along a new axis 0. Tensors get one more axis.
    /// Numbers become a tensor of rank 1. Containers become the same container of batches.
    type Batch: Nest;

    /// Converts the value to a tree.
    fn into_tree(self) -> Tree<Leaf>;

    /// Converts a tree to a value.
    ///
    /// # Errors
    /// [`Error::Structure`](crate::Error::Structure) if the tree does not have the structure of the type.
    fn from_tree(tree: Tree<Leaf>) -> Result<Self>;

    /// Returns the dtypes of the leaves, if all values of the type have one structure and their leaves are
    /// scalars: numbers, text, and tuples, arrays and structs of these. `None` for other types, such as
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

/// Returns the error of a `from_tree` that found another structure.
pub(crate) fn mismatch(expected: &str, found: &str) -> crate::Error {
    crate::Error::Structure { path: "value".into(), expected: expected.into(), found: found.into() }
}
