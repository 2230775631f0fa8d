//! The sources of rows: tensors in memory, sections that are created during a pass, the numbers of a range, or two
//! zipped sources.

use crate::Result;
use crate::room::reserve;
use distribute_tensor::{HostTensor, Leaf, Tree};
use std::ops::Range;
use std::sync::Arc;

/// A source of rows with random access. Many rows can be extracted at once, without accessing each of them.
#[derive(Debug)]
pub(crate) enum Rows {
    /// The rows of a nest of tensors that the user keeps in memory. All leaves have `len` rows.
    Memory { tree: Tree<Leaf>, len: usize },
    /// The rows of tensors that were created during the pass, such as a section of a file. Usually nothing else refers
    /// to these tensors.
    Section { tree: Tree<Leaf>, len: usize },
    /// The numbers `start..start + len`, which are never stored.
    Range { start: i64, len: usize },
    /// Pairs of rows from two sources. They begin at row `first_start` of the first and row `second_start` of the
    /// second.
    Pairs { first: Arc<Rows>, first_start: usize, second: Arc<Rows>, second_start: usize, len: usize },
}

impl Rows {
    pub(crate) fn len(&self) -> usize {
        match self {
            Rows::Memory { len, .. }
            | Rows::Section { len, .. }
            | Rows::Range { len, .. }
            | Rows::Pairs { len, .. } => *len,
        }
    }

    /// Returns whether the memory of the rows is freed as soon as no element refers to it.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Rows::Section { .. } => true,
            Rows::Memory { .. } | Rows::Range { .. } => false,
            Rows::Pairs { first, second, .. } => first.is_transient() || second.is_transient(),
        }
    }

    /// Returns row `i` as a single element, without axis 0.
    pub(crate) fn row(&self, i: usize) -> Result<Tree<Leaf>> {
        match self {
            Rows::Memory { tree, .. } | Rows::Section { tree, .. } => Ok(tree.row(i)?),
            Rows::Range { start, .. } => Ok(leaf(HostTensor::scalar(at(*start, i)))),
            Rows::Pairs { first, first_start, second, second_start, .. } => {
                Ok(pair(first.row(first_start + i)?, second.row(second_start + i)?))
            }
        }
    }

    /// Returns a contiguous range of rows as one batch, as a view if possible.
    pub(crate) fn slice(&self, range: Range<usize>) -> Result<Tree<Leaf>> {
        match self {
            Rows::Memory { tree, len } | Rows::Section { tree, len } if range == (0..*len) => {
                Ok(tree.clone())
            }
            Rows::Memory { tree, .. } | Rows::Section { tree, .. } => {
                Ok(tree.narrow_rows(range.start, range.len())?)
            }
            Rows::Range { start, .. } => numbers(range.len(), range.map(|i| at(*start, i))),
            Rows::Pairs { first, first_start, second, second_start, .. } => {
                let from = |start: usize| start + range.start..start + range.end;
                Ok(pair(first.slice(from(*first_start))?, second.slice(from(*second_start))?))
            }
        }
    }

    /// Returns the rows with the given indices, in the given order, as one batch. Uses a single gather.
    pub(crate) fn gather(&self, indices: &[usize]) -> Result<Tree<Leaf>> {
        match self {
            Rows::Memory { tree, .. } | Rows::Section { tree, .. } => Ok(tree.take_rows(indices)?),
            Rows::Range { start, .. } => numbers(indices.len(), indices.iter().map(|i| at(*start, *i))),
            Rows::Pairs { first, first_start, second, second_start, .. } => {
                let from = |start: usize| indices.iter().map(|i| start + i).collect::<Vec<_>>();
                Ok(pair(first.gather(&from(*first_start))?, second.gather(&from(*second_start))?))
            }
        }
    }
}

/// Returns the number at index `i` of a range. Ranges of `i64` may be longer than `i64::MAX`, but wrapping gives
/// the correct number.
fn at(start: i64, i: usize) -> i64 {
    start.wrapping_add(i as i64)
}

/// Returns two values as one element, a tuple.
pub(crate) fn pair(first: Tree<Leaf>, second: Tree<Leaf>) -> Tree<Leaf> {
    Tree::Tuple(vec![first, second])
}

/// Returns `len` numbers as one tensor.
fn numbers(len: usize, numbers: impl Iterator<Item = i64>) -> Result<Tree<Leaf>> {
    let mut all = Vec::new();
    reserve("a batch of numbers", &mut all, len)?;
    all.extend(numbers);
    Ok(leaf(HostTensor::vector(all)))
}

fn leaf(tensor: HostTensor) -> Tree<Leaf> {
    Tree::Leaf(Leaf::Host(tensor))
}
