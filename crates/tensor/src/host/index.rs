//! Indexing as in Python: `t[3]`, `t[2:8:3]`, `t[..., 0]`.

use super::{HostTensor, count};
use crate::{Element, Error, Result, with_buffer};
use std::ops::{Range, RangeFrom, RangeFull, RangeTo};

const OPERATION: &str = "index";

/// An index for one axis of a tensor, with Python's rules. Negative positions count from the end, and slices are
/// clamped to the axis.
///
/// ```
/// use distribute_tensor::{HostTensor, Index};
///
/// let numbers = HostTensor::vector((0..10).collect::<Vec<i32>>());
/// let of = |index: Index| numbers.index(&[index]);
/// assert_eq!(of(Index::At(-1))?, HostTensor::scalar(9));
/// assert_eq!(of((3..100).into())?.len(), 7);
/// assert_eq!(of(Index::slice(Some(9), Some(3), -2))?, HostTensor::vector(vec![9, 7, 5]));
/// # Ok::<(), distribute_tensor::Error>(())
/// ```
#[doc(alias = "slice")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// A single position. The axis is removed.
    At(i64),
    /// Every `step`-th position from `start` up to, but not including, `stop`. If `step` is negative, positions are in
    /// descending order.
    Slice {
        /// The first position. `None` means the first or, with a negative step, the last position of the axis.
        start: Option<i64>,
        /// The position before which the slice stops. `None` means that the slice extends to the end or, with a
        /// negative step, to the beginning of the axis.
        stop: Option<i64>,
        /// The distance between positions. It must not be 0.
        step: i64,
    },
    /// All axes that no other index selects. A list of indices may contain only one ellipsis.
    #[doc(alias = "...")]
    Ellipsis,
    /// A new axis of size 1.
    #[doc(alias = "tf.newaxis")]
    NewAxis,
}

impl Index {
    /// Creates the index `start:stop:step`.
    pub fn slice(start: Option<i64>, stop: Option<i64>, step: i64) -> Self {
        Index::Slice { start, stop, step }
    }
}

impl From<i64> for Index {
    fn from(position: i64) -> Self {
        Index::At(position)
    }
}

impl From<Range<i64>> for Index {
    fn from(range: Range<i64>) -> Self {
        Self::slice(Some(range.start), Some(range.end), 1)
    }
}

impl From<RangeFrom<i64>> for Index {
    fn from(range: RangeFrom<i64>) -> Self {
        Self::slice(Some(range.start), None, 1)
    }
}

impl From<RangeTo<i64>> for Index {
    fn from(range: RangeTo<i64>) -> Self {
        Self::slice(None, Some(range.end), 1)
    }
}

impl From<RangeFull> for Index {
    fn from(_: RangeFull) -> Self {
        Self::slice(None, None, 1)
    }
}

/// A selection of elements by indices, for a tensor with a given shape. If the tensor is stored elsewhere, the
/// selection allows fetching only the necessary rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The selected positions along each axis.
    picks: Vec<Vec<usize>>,
    /// The shape of the result.
    shape: Vec<usize>,
    dims: Vec<usize>,
}

impl Selection {
    /// Creates the selection of `indices` from a tensor of shape `dims`. Axes without an index are selected completely.
    ///
    /// # Errors
    /// - [`Error::Index`]: a position is outside its axis.
    /// - [`Error::Indices`]: there are more indices than axes, more than one ellipsis, or a slice with step 0.
    /// - [`Error::TooLarge`]: the number of selected elements overflows.
    pub fn new(indices: &[Index], dims: &[usize]) -> Result<Self> {
        let wrong = |what| Error::Indices { operation: OPERATION, what, shape: dims.to_vec() };
        let ellipses = indices.iter().filter(|index| **index == Index::Ellipsis).count();
        let used = indices.iter().filter(|index| matches!(index, Index::At(_) | Index::Slice { .. })).count();
        if ellipses > 1 {
            return Err(wrong("there are two ellipses"));
        }
        let rest = dims.len().checked_sub(used).ok_or_else(|| wrong("there are more indices than axes"))?;
        let (mut picks, mut shape) = (Vec::with_capacity(dims.len()), Vec::new());
        let whole = |picks: &mut Vec<Vec<usize>>, shape: &mut Vec<usize>| {
            for size in dims.iter().skip(picks.len()).take(rest) {
                picks.push((0..*size).collect());
                shape.push(*size);
            }
        };
        for index in indices {
            let size = dims.get(picks.len()).copied().unwrap_or(0);
            match *index {
                Index::NewAxis => shape.push(1),
                Index::Ellipsis => whole(&mut picks, &mut shape),
                Index::At(at) => {
                    let from_start = if at < 0 { at.saturating_add_unsigned(size as u64) } else { at };
                    let found = usize::try_from(from_start).ok().filter(|at| *at < size);
                    let outside = || Error::Index { operation: OPERATION, index: at, len: size };
                    picks.push(vec![found.ok_or_else(outside)?]);
                }
                Index::Slice { step: 0, .. } => return Err(wrong("the step of a slice is 0")),
                Index::Slice { start, stop, step } => {
                    let positions = positions(start, stop, step, size);
                    shape.push(positions.len());
                    picks.push(positions);
                }
            }
        }
        if ellipses == 0 {
            whole(&mut picks, &mut shape);
        }
        if count(&shape).is_none() {
            return Err(Error::TooLarge { operation: OPERATION, shape });
        }
        Ok(Self { picks, shape, dims: dims.to_vec() })
    }

    /// Returns the selected rows (positions along axis 0), in order. The list is empty for a scalar.
    pub fn rows(&self) -> &[usize] {
        self.picks.first().map_or(&[], Vec::as_slice)
    }

    /// Computes the result from the selected [`rows`](Self::rows), which must be in the same order.
    ///
    /// # Errors
    /// - [`Error::ShapeMismatch`]: `rows` has a different shape.
    pub fn of_rows(&self, rows: &HostTensor) -> Result<HostTensor> {
        let (mut picks, mut dims) = (self.picks.clone(), self.dims.clone());
        if let (Some(pick), Some(size)) = (picks.first_mut(), dims.first_mut()) {
            *size = pick.len();
            *pick = (0..*size).collect();
        }
        Self { picks, dims, shape: self.shape.clone() }.of(rows)
    }

    /// Computes the result from the complete tensor.
    ///
    /// # Errors
    /// - [`Error::ShapeMismatch`]: `whole` has a different shape.
    pub fn of(&self, whole: &HostTensor) -> Result<HostTensor> {
        if whole.dims() != self.dims {
            let (expected, found) = (self.dims.clone(), whole.dims().to_vec());
            return Err(Error::ShapeMismatch { operation: OPERATION, expected, found });
        }
        // Trailing axes that are selected completely are contiguous.
        let is_whole = |axis: &usize| self.picks[*axis].iter().copied().eq(0..self.dims[*axis]);
        let axes = self.dims.len();
        let picked = axes - (0..axes).rev().take_while(is_whole).count();
        let inner: usize = self.dims[picked..].iter().product();
        let mut starts = vec![0];
        let mut stride = inner;
        for axis in (0..picked).rev() {
            let offsets = self.picks[axis].iter().map(|at| at * stride);
            starts = offsets.flat_map(|offset| starts.iter().map(move |start| offset + start)).collect();
            stride *= self.dims[axis];
        }
        fn take<T: Element>(all: &[T], starts: &[usize], inner: usize) -> Vec<T> {
            let mut taken = Vec::with_capacity(starts.len() * inner);
            starts.iter().for_each(|start| taken.extend_from_slice(&all[*start..start + inner]));
            taken
        }
        with_buffer!(whole.buffer(), all => HostTensor::new(take(all, &starts, inner), self.shape.clone()))
    }
}

/// Returns the positions of a slice of an axis of the given size. `step` must not be 0.
fn positions(start: Option<i64>, stop: Option<i64>, step: i64, size: usize) -> Vec<usize> {
    let size = i64::try_from(size).unwrap_or(i64::MAX);
    // The positions before the first and after the last, in the direction of the step.
    let (low, high) = if step > 0 { (0, size) } else { (-1, size - 1) };
    let clamp = |at: i64| (if at < 0 { at.saturating_add(size) } else { at }).clamp(low, high);
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    let (mut at, stop) = (start.map_or(first, clamp), stop.map_or(last, clamp));
    let mut positions = Vec::new();
    while if step > 0 { at < stop } else { at > stop } {
        positions.push(at as usize);
        at = at.saturating_add(step);
    }
    positions
}

impl HostTensor {
    /// Returns the elements that `indices` select, with Python's rules. Axes without an index are selected completely.
    ///
    /// # Errors
    /// Returns the errors of [`Selection::new`].
    ///
    /// ```
    /// use distribute_tensor::{HostTensor, Index};
    /// let t = HostTensor::new((0..6).collect::<Vec<i32>>(), [3, 2])?;
    /// assert_eq!(t.index(&[Index::Ellipsis, Index::At(1)])?, HostTensor::vector(vec![1, 3, 5]));
    /// assert_eq!(t.index(&[Index::NewAxis, (..1).into()])?.dims(), [1, 1, 2]);
    /// # Ok::<(), distribute_tensor::Error>(())
    /// ```
    #[doc(alias = "__getitem__")]
    #[doc(alias = "tf.strided_slice")]
    pub fn index(&self, indices: &[Index]) -> Result<HostTensor> {
        Selection::new(indices, self.dims())?.of(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numbers(shape: &[usize]) -> HostTensor {
        HostTensor::new((0..shape.iter().product::<usize>() as i64).collect::<Vec<_>>(), shape).unwrap()
    }

    // SV-2
    #[test]
    fn slices_are_those_of_python() {
        let ten = numbers(&[10]);
        let of = |start, stop, step| {
            ten.index(&[Index::slice(start, stop, step)]).unwrap().to_vec::<i64>().unwrap()
        };
        assert_eq!(of(Some(2), Some(8), 3), [2, 5]);
        assert_eq!(of(None, None, -1), [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]);
        assert_eq!(of(Some(-13), Some(5), 2), [0, 2, 4]);
        assert_eq!(of(Some(14), Some(2), -3), [9, 6, 3]);
        assert_eq!(of(Some(i64::MIN), Some(i64::MAX), i64::MAX), [0]);
        assert_eq!(of(Some(3), Some(3), i64::MIN), [0; 0]);
        assert_eq!(numbers(&[0, 2]).index(&[Index::slice(None, None, -1)]).unwrap().dims(), [0, 2]);
    }

    // SV-2, SV-3
    #[test]
    fn an_invalid_index_is_refused() {
        let t = numbers(&[2, 2]);
        for outside in [2, -3, i64::MIN, i64::MAX] {
            let error = t.index(&[Index::At(outside)]).unwrap_err();
            assert!(matches!(error, Error::Index { index, len: 2, .. } if index == outside), "{error}");
        }
        let refused = |indices: &[Index]| matches!(t.index(indices), Err(Error::Indices { .. }));
        assert!(refused(&[Index::slice(None, None, 0)]));
        assert!(refused(&[Index::At(0); 3]));
        assert!(refused(&[Index::Ellipsis, Index::Ellipsis]));
        assert_eq!(numbers(&[]).index(&[Index::Ellipsis, Index::NewAxis]).unwrap().dims(), [1]);
    }

    fn indices() -> impl Strategy<Value = Index> {
        let number = || prop::option::of(-6i64..6);
        prop_oneof![
            (-3i64..3).prop_map(Index::At),
            (number(), number(), prop_oneof![-3i64..0, 1i64..4])
                .prop_map(|(start, stop, step)| Index::slice(start, stop, step)),
            Just(Index::Ellipsis),
            Just(Index::NewAxis),
        ]
    }

    proptest! {
        #[test]
        fn separate_rows_give_the_result_of_the_complete_tensor(
            shape in prop::collection::vec(1usize..5, 1..4),
            indices in prop::collection::vec(indices(), 0..4),
        ) {
            let whole = numbers(&shape);
            if let Ok(selection) = Selection::new(&indices, &shape) {
                let rows = whole.take_rows(selection.rows()).unwrap();
                let taken = selection.of(&whole).unwrap();
                prop_assert_eq!(&selection.of_rows(&rows).unwrap(), &taken);
                // Every element of the result is at its position in each axis.
                let ats: Vec<usize> = selection.picks.iter().map(Vec::len).collect();
                prop_assert_eq!(taken.len(), ats.iter().product::<usize>());
            }
        }
    }
}
