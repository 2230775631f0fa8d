//! Where rows come from: tensors in memory, or the numbers of a range.

use crate::Result;
use distribute_tensor::{HostTensor, Leaf, Tree};
use std::ops::Range;

/// Rows that can be read at any place, and cut out many at a time without touching each.
#[derive(Debug)]
pub(crate) enum Rows {
    /// The rows of a nest of tensors, all of whose leaves have `len` rows.
    Memory { tree: Tree<Leaf>, len: usize },
    /// The numbers `start..start + len`, which are never stored.
    Range { start: i64, len: usize },
}

impl Rows {
    pub(crate) fn len(&self) -> usize {
        match self {
            Rows::Memory { len, .. } | Rows::Range { len, .. } => *len,
        }
    }

    /// Row `i`, without its first axis.
    pub(crate) fn row(&self, i: usize) -> Result<Tree<Leaf>> {
        match self {
            Rows::Memory { tree, .. } => Ok(tree.row(i)?),
            Rows::Range { start, .. } => Ok(leaf(HostTensor::scalar(at(*start, i)))),
        }
    }

    /// Rows next to each other: a view where the tensors can give one.
    pub(crate) fn slice(&self, range: Range<usize>) -> Result<Tree<Leaf>> {
        match self {
            Rows::Memory { tree, len } if range == (0..*len) => Ok(tree.clone()),
            Rows::Memory { tree, .. } => Ok(tree.narrow_rows(range.start, range.len())?),
            Rows::Range { start, .. } => {
                Ok(leaf(HostTensor::vector(range.map(|i| at(*start, i)).collect::<Vec<_>>())))
            }
        }
    }

    /// Any rows in any order, in one gather.
    pub(crate) fn gather(&self, indices: &[usize]) -> Result<Tree<Leaf>> {
        match self {
            Rows::Memory { tree, .. } => Ok(tree.take_rows(indices)?),
            Rows::Range { start, .. } => {
                Ok(leaf(HostTensor::vector(indices.iter().map(|i| at(*start, *i)).collect::<Vec<_>>())))
            }
        }
    }
}

/// The `i`-th number of a range; ranges of `i64` may be longer than `i64::MAX`, which wrapping gets right.
fn at(start: i64, i: usize) -> i64 {
    start.wrapping_add(i as i64)
}

fn leaf(tensor: HostTensor) -> Tree<Leaf> {
    Tree::Leaf(Leaf::Host(tensor))
}
