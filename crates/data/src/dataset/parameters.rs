//! The parameter types of operations: [`Numbers`] of a range, [`Padding`] of batches, [`Interleave`] for reading
//! several datasets in turn, [`AtDatasetEnd`] for taking elements from several.

use distribute_tensor::{Leaf, Nest};
use std::ops::Range;
use std::sync::Arc;

/// The numbers of a [`Dataset::range`](super::Dataset::range): `10` means 0 to 9, and `3..10` means 3 to 9.
#[derive(Clone, Debug)]
pub struct Numbers(pub(crate) Range<i64>);

impl From<i64> for Numbers {
    fn from(end: i64) -> Self {
        Numbers(0..end)
    }
}

/// Converts an integer literal, whose default type is `i32`.
impl From<i32> for Numbers {
    fn from(end: i32) -> Self {
        Numbers(0..i64::from(end))
    }
}

/// Converts a size, such as the length of a `Vec`. A size beyond `i64::MAX` becomes `i64::MAX`.
impl From<usize> for Numbers {
    fn from(end: usize) -> Self {
        Numbers(0..number(end))
    }
}

impl From<Range<i32>> for Numbers {
    fn from(Range { start, end }: Range<i32>) -> Self {
        Numbers(i64::from(start)..i64::from(end))
    }
}

impl From<Range<usize>> for Numbers {
    fn from(Range { start, end }: Range<usize>) -> Self {
        Numbers(number(start)..number(end))
    }
}

impl From<Range<i64>> for Numbers {
    fn from(range: Range<i64>) -> Self {
        Numbers(range)
    }
}

fn number(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// The sizes to which elements are padded, and the padding values. By default, each axis is padded to its longest
/// size in the batch, with zeros.
///
/// ```
/// use distribute_data::{Dataset, Padding};
/// use distribute_tensor::HostTensor;
///
/// let words = Dataset::range(1..4).map(|n| HostTensor::vector(vec![n; n as usize]));
/// let batch = words.padded_batch(3, Padding::new().values(-1i64)).iter().next().unwrap()?;
/// assert_eq!(batch, HostTensor::new(vec![1i64, -1, -1, 2, 2, -1, 3, 3, 3], [3, 3])?);
/// # Ok::<(), distribute_data::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Padding {
    pub(crate) sizes: Option<Arc<[Vec<Option<usize>>]>>,
    pub(crate) values: Option<Arc<[Leaf]>>,
}

impl Padding {
    /// Creates the default padding: to the longest element of the batch, with zeros, `false` or empty strings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the sizes to which elements are padded: for each tensor of an element, in order, one size for each
    /// axis. `None` means the longest size in the batch.
    #[doc(alias = "padded_shapes")]
    pub fn sizes(self, sizes: impl IntoIterator<Item = Vec<Option<usize>>>) -> Self {
        Self { sizes: Some(sizes.into_iter().collect()), ..self }
    }

    /// Sets the padding values: a nest with one scalar for each tensor of an element, of the tensor's dtype.
    #[doc(alias = "padding_values")]
    pub fn values(self, values: impl Nest) -> Self {
        Self { values: Some(values.into_tree().flatten().0.into()), ..self }
    }
}

/// The parameters of [`Dataset::interleave`](super::Dataset::interleave), which reads several datasets in turn.
///
/// ```
/// # use distribute_data::{Dataset, Interleave};
/// let files = Dataset::range(3);
/// let lines = files.interleave(
///     |file| Dataset::range(10 * file..10 * file + 3),
///     Interleave { cycle_length: 2, block_length: 2, ..Interleave::default() },
/// );
/// let lines = lines.iter().collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(lines, [0, 1, 10, 11, 2, 12, 20, 21, 22]);
/// # Ok::<(), distribute_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interleave {
    /// The number of datasets that are read at the same time. It must be at least 1; the default is 4.
    pub cycle_length: usize,
    /// The number of consecutive elements that are taken from a dataset in each turn. It must be at least 1, which is
    /// the default.
    pub block_length: usize,
    /// The number of elements of each open dataset that are prepared early, on one thread per dataset, so
    /// `cycle_length` must be at most 1024. The order of elements does not change. With 0, the default, no thread is
    /// started.
    #[doc(alias = "num_parallel_calls")]
    pub ahead: usize,
}

impl Default for Interleave {
    fn default() -> Self {
        Self { cycle_length: 4, block_length: 1, ahead: 0 }
    }
}

/// The behavior of [`Dataset::sample_from_datasets`](super::Dataset::sample_from_datasets) and
/// [`Dataset::choose_from_datasets`](super::Dataset::choose_from_datasets) after one of the datasets has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtDatasetEnd {
    /// The pass ends when an element of a dataset that has ended is requested, so the mixture stays the same until the
    /// end.
    Stop,
    /// The pass continues with the other datasets, until all have ended or there are no more choices.
    Skip,
}

impl AtDatasetEnd {
    pub(crate) fn describe(self) -> &'static str {
        match self {
            AtDatasetEnd::Stop => "until a chosen one has ended",
            AtDatasetEnd::Skip => "until all have ended",
        }
    }
}
