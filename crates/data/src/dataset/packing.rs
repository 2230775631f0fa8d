//! [`Packing`] and [`Packed`]: several sequences in rows of one length.

use crate::Padding;
use distribute_tensor::{HostTensor, Leaf, Nest, Result, Tree};

/// The parameters of [`Dataset::pack_sequences`](super::Dataset::pack_sequences).
#[derive(Clone, Debug)]
pub struct Packing {
    pub(crate) length: usize,
    pub(crate) open_rows: usize,
    pub(crate) split_long: bool,
    pub(crate) padding: Padding,
}

impl Packing {
    /// Creates the parameters for rows of `length`, which must be at least 1. By default, one row is filled at a time,
    /// a longer sequence is an error, and rows are padded with zeros.
    pub fn new(length: usize) -> Self {
        Self { length, open_rows: 1, split_long: false, padding: Padding::new() }
    }

    /// Fills `count` rows at a time. Each sequence is added to the first row that has room for it. More rows result in
    /// less padding and use more memory. `count` must be at least 1.
    pub fn open_rows(self, count: usize) -> Self {
        Self { open_rows: count, ..self }
    }

    /// Splits a sequence that is longer than a row into sequences of the length of a row; the last one may be shorter.
    pub fn split_long(self) -> Self {
        Self { split_long: true, ..self }
    }

    /// Sets the values after the last sequence of a row: a nest with one scalar for each tensor of an element, of the
    /// tensor's dtype. The default is zeros.
    pub fn values(self, values: impl Nest) -> Self {
        Self { padding: self.padding.values(values), ..self }
    }
}

/// A row of several sequences, as [`Dataset::pack_sequences`](super::Dataset::pack_sequences) creates it. It is a nest,
/// so rows can be batched. In a batch, all tensors have an additional axis 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Packed<T> {
    /// The sequences one after another, and after them the padding. Each tensor has shape `[length, …]`.
    pub values: T,
    /// The number of the sequence at each position of the row, from 1; 0 for padding. Attention between different
    /// numbers must be masked. Has dtype `int64` and shape `[length]`.
    #[doc(alias = "segment_ids")]
    pub segments: HostTensor,
    /// The index of each value within its sequence, from 0; 0 for padding. Has dtype `int64` and shape `[length]`.
    pub positions: HostTensor,
}

impl<T: Nest> Nest for Packed<T> {
    type Batch = Packed<T::Batch>;

    fn into_tree(self) -> Tree<Leaf> {
        packed(self.values.into_tree(), self.segments.into_tree(), self.positions.into_tree())
    }

    fn from_tree(tree: Tree<Leaf>) -> Result<Self> {
        let mut fields = distribute_tensor::nest::Fields::named(tree, &["positions", "segments", "values"])?;
        Ok(Self {
            values: fields.take("values")?,
            segments: fields.take("segments")?,
            positions: fields.take("positions")?,
        })
    }
}

/// Combines the three components of a [`Packed`] row into a tree.
pub(crate) fn packed<L>(values: Tree<L>, segments: Tree<L>, positions: Tree<L>) -> Tree<L> {
    let names = ["values", "segments", "positions"].map(String::from);
    Tree::Dict(names.into_iter().zip([values, segments, positions]).collect())
}
