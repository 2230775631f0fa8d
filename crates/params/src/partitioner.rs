//! Into how many shards a variable is cut: functions of its shape and dtype.

use crate::{Error, Result, RowPartition};
use distribute_tensor::DType;
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use std::sync::Arc;

/// Says into how many parts a variable is cut along each of its axes.
///
/// Variables are cut along axis 0 alone, so where the answer is used ([`partition`]), that for every other axis has to be 1.
///
/// ```
/// use distribute_params::{FixedShardsPartitioner, Partitioner};
/// use distribute_tensor::DType;
///
/// let two = FixedShardsPartitioner::new(2)?;
/// assert_eq!(two.partitions(&[10, 3], DType::F32, 0)?, [2, 1]);
/// # Ok::<(), distribute_params::Error>(())
/// ```
#[doc(alias = "tf.distribute.experimental.partitioners.Partitioner")]
pub trait Partitioner: Debug + Send + Sync + 'static {
    /// The number of parts along each axis of a variable, of which `axis` is the one that is cut.
    ///
    /// # Errors
    /// [`Error::PartitionAxis`] if the shape has no such axis; a scalar has none.
    fn partitions(&self, shape: &[usize], dtype: DType, axis: usize) -> Result<Vec<usize>>;

    /// The partitioner as data, by which other tasks make the same; `None` for one that can't be sent.
    fn spec(&self) -> Option<PartitionerSpec> {
        None
    }
}

/// One of the three partitioners of this crate, as data.
///
/// ```
/// use distribute_params::{MinSizePartitioner, Partitioner};
///
/// let spec = MinSizePartitioner::new(256 << 10, 3)?.spec();
/// let same = spec.as_ref().map(|spec| spec.make()).transpose()?;
/// assert_eq!(same.and_then(|same| same.spec()), spec);
/// # Ok::<(), distribute_params::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PartitionerSpec {
    /// A [`FixedShardsPartitioner`].
    FixedShards {
        /// How many shards.
        num_shards: usize,
    },
    /// A [`MinSizePartitioner`].
    MinSize {
        /// How many bytes a shard has at least.
        min_shard_bytes: usize,
        /// How many shards there are at most.
        max_shards: usize,
        /// What a string is taken for.
        bytes_per_string: usize,
    },
    /// A [`MaxSizePartitioner`].
    MaxSize {
        /// How many bytes a shard has at most.
        max_shard_bytes: usize,
        /// How many shards there are at most; 0 is no limit.
        max_shards: usize,
        /// What a string is taken for.
        bytes_per_string: usize,
    },
}

impl PartitionerSpec {
    /// The partitioner.
    ///
    /// # Errors
    /// [`Error::PartitionerParameter`] for a number that it cannot take.
    pub fn make(&self) -> Result<Arc<dyn Partitioner>> {
        Ok(match *self {
            Self::FixedShards { num_shards } => Arc::new(FixedShardsPartitioner::new(num_shards)?),
            Self::MinSize { min_shard_bytes, max_shards, bytes_per_string } => {
                let made = MinSizePartitioner::new(min_shard_bytes, max_shards)?;
                Arc::new(made.bytes_per_string(bytes_per_string)?)
            }
            Self::MaxSize { max_shard_bytes, max_shards, bytes_per_string } => {
                let made = MaxSizePartitioner::new(max_shard_bytes)?.max_shards(max_shards);
                Arc::new(made.bytes_per_string(bytes_per_string)?)
            }
        })
    }
}

/// Always so many shards, or one a row where there are fewer rows.
#[doc(alias = "tf.distribute.experimental.partitioners.FixedShardsPartitioner")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedShardsPartitioner {
    num_shards: usize,
}

/// As many shards as keep each at about `min_shard_bytes` or more, up to `max_shards`.
///
/// The number is rounded up, so that shards can be a little smaller: of 65,537 `f32` and 256 KiB, there are two.
/// By default there is at most one shard: nothing is cut.
///
/// ```
/// use distribute_params::{MinSizePartitioner, Partitioner};
/// use distribute_tensor::DType;
///
/// let partitioner = MinSizePartitioner::new(256 << 10, 3)?;
/// assert_eq!(partitioner.partitions(&[1000, 1000], DType::F32, 0)?, [3, 1]);
/// assert_eq!(partitioner.partitions(&[100, 10], DType::F32, 0)?, [1, 1]);
/// # Ok::<(), distribute_params::Error>(())
/// ```
#[doc(alias = "tf.distribute.experimental.partitioners.MinSizePartitioner")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinSizePartitioner {
    min_shard_bytes: usize,
    max_shards: usize,
    bytes_per_string: usize,
}

/// As few shards as keep each at `max_shard_bytes` or less, or of one row where a row has more.
#[doc(alias = "tf.distribute.experimental.partitioners.MaxSizePartitioner")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxSizePartitioner {
    max_shard_bytes: usize,
    max_shards: Option<usize>,
    bytes_per_string: usize,
}

/// What a string is taken for, whose length nobody knows before it is there.
const BYTES_PER_STRING: usize = 16;

impl FixedShardsPartitioner {
    const NAME: &'static str = "FixedShardsPartitioner";

    /// Cuts into `num_shards`, 1 or more.
    pub fn new(num_shards: usize) -> Result<Self> {
        Ok(Self { num_shards: positive(Self::NAME, "num_shards", num_shards)? })
    }
}

impl Partitioner for FixedShardsPartitioner {
    fn partitions(&self, shape: &[usize], _: DType, axis: usize) -> Result<Vec<usize>> {
        let size = size(Self::NAME, shape, axis)?;
        Ok(along(shape, axis, self.num_shards.min(size)))
    }

    fn spec(&self) -> Option<PartitionerSpec> {
        Some(PartitionerSpec::FixedShards { num_shards: self.num_shards })
    }
}

impl MinSizePartitioner {
    const NAME: &'static str = "MinSizePartitioner";

    /// Shards of `min_shard_bytes` or more, at most `max_shards`; 1 or more both.
    pub fn new(min_shard_bytes: usize, max_shards: usize) -> Result<Self> {
        Ok(Self {
            min_shard_bytes: positive(Self::NAME, "min_shard_bytes", min_shard_bytes)?,
            max_shards: positive(Self::NAME, "max_shards", max_shards)?,
            bytes_per_string: BYTES_PER_STRING,
        })
    }

    /// What a string is taken for: 16 bytes by default, 1 or more.
    pub fn bytes_per_string(self, bytes: usize) -> Result<Self> {
        Ok(Self { bytes_per_string: positive(Self::NAME, "bytes_per_string", bytes)?, ..self })
    }
}

impl Default for MinSizePartitioner {
    /// Shards of 256 KiB or more, and at most one.
    fn default() -> Self {
        Self { min_shard_bytes: 256 << 10, max_shards: 1, bytes_per_string: BYTES_PER_STRING }
    }
}

impl Partitioner for MinSizePartitioner {
    fn partitions(&self, shape: &[usize], dtype: DType, axis: usize) -> Result<Vec<usize>> {
        let size = size(Self::NAME, shape, axis)?;
        let bytes = elements(shape) * bytes_of(dtype, self.bytes_per_string);
        let shards = bytes.div_ceil(self.min_shard_bytes as u128);
        let shards = usize::try_from(shards).unwrap_or(usize::MAX).min(self.max_shards).min(size).max(1);
        Ok(along(shape, axis, shards))
    }

    fn spec(&self) -> Option<PartitionerSpec> {
        let Self { min_shard_bytes, max_shards, bytes_per_string } = *self;
        Some(PartitionerSpec::MinSize { min_shard_bytes, max_shards, bytes_per_string })
    }
}

impl MaxSizePartitioner {
    const NAME: &'static str = "MaxSizePartitioner";

    /// Shards of `max_shard_bytes` or less; 1 or more.
    pub fn new(max_shard_bytes: usize) -> Result<Self> {
        Ok(Self {
            max_shard_bytes: positive(Self::NAME, "max_shard_bytes", max_shard_bytes)?,
            max_shards: None,
            bytes_per_string: BYTES_PER_STRING,
        })
    }

    /// At most so many shards, which are larger then; 0 is no limit, as by default.
    pub fn max_shards(self, shards: usize) -> Self {
        Self { max_shards: Some(shards).filter(|shards| *shards > 0), ..self }
    }

    /// What a string is taken for: 16 bytes by default, 1 or more.
    pub fn bytes_per_string(self, bytes: usize) -> Result<Self> {
        Ok(Self { bytes_per_string: positive(Self::NAME, "bytes_per_string", bytes)?, ..self })
    }
}

impl Partitioner for MaxSizePartitioner {
    fn partitions(&self, shape: &[usize], dtype: DType, axis: usize) -> Result<Vec<usize>> {
        let size = size(Self::NAME, shape, axis)? as u128;
        // Of nothing there is one part, where TensorFlow divides by zero.
        let slice = elements(shape).checked_div(size).unwrap_or(0) * bytes_of(dtype, self.bytes_per_string);
        let shards = match (self.max_shard_bytes as u128).checked_div(slice) {
            Some(slices_per_shard) => size.div_ceil(slices_per_shard.max(1)),
            None => 1,
        };
        let shards = usize::try_from(shards).unwrap_or(usize::MAX);
        Ok(along(shape, axis, shards.min(self.max_shards.unwrap_or(usize::MAX))))
    }

    fn spec(&self) -> Option<PartitionerSpec> {
        let Self { max_shard_bytes, max_shards, bytes_per_string } = *self;
        Some(PartitionerSpec::MaxSize {
            max_shard_bytes,
            max_shards: max_shards.unwrap_or(0),
            bytes_per_string,
        })
    }
}

/// How the rows of a new variable are cut, or `None` if it stays whole: because there is no partitioner, because it is a scalar,
/// or because one shard would have all of it.
///
/// # Errors
/// The partitioner's own, and [`Error::Partitions`] if it does not give one number for each axis, cuts another axis than the
/// first, or into no part.
pub fn partition(
    partitioner: Option<&dyn Partitioner>,
    shape: &[usize],
    dtype: DType,
) -> Result<Option<RowPartition>> {
    let (Some(partitioner), Some(rows)) = (partitioner, shape.first()) else { return Ok(None) };
    let partitions = partitioner.partitions(shape, dtype, 0)?;
    match partitions.as_slice() {
        [shards, rest @ ..] if *shards > 0 && rest.iter().all(|parts| *parts == 1) => {
            let partition = RowPartition::div(*rows, *shards);
            Ok(Some(partition).filter(|partition| partition.shards() > 1))
        }
        _ => Err(Error::Partitions { partitions, shape: shape.to_vec() }),
    }
}

fn positive(partitioner: &'static str, parameter: &'static str, value: usize) -> Result<usize> {
    if value > 0 { Ok(value) } else { Err(Error::PartitionerParameter { partitioner, parameter }) }
}

/// The size of the axis that is cut.
fn size(partitioner: &'static str, shape: &[usize], axis: usize) -> Result<usize> {
    let no_axis = || Error::PartitionAxis { partitioner, axis, shape: shape.to_vec() };
    shape.get(axis).copied().ok_or_else(no_axis)
}

/// Saturates: a variable of so many elements cannot be.
fn elements(shape: &[usize]) -> u128 {
    shape.iter().fold(1u128, |n, size| n.saturating_mul(*size as u128)).min(u128::from(u64::MAX))
}

fn bytes_of(dtype: DType, of_string: usize) -> u128 {
    dtype.bytes().unwrap_or(of_string) as u128
}

/// One part along each axis, but `parts` along one.
fn along(shape: &[usize], axis: usize, parts: usize) -> Vec<usize> {
    let mut partitions = vec![1; shape.len()];
    if let Some(along) = partitions.get_mut(axis) {
        *along = parts;
    }
    partitions
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Answers what it was made with.
    #[derive(Debug)]
    struct Answers(Vec<usize>);

    impl Partitioner for Answers {
        fn partitions(&self, _: &[usize], _: DType, _: usize) -> Result<Vec<usize>> {
            Ok(self.0.clone())
        }
    }

    fn shards(partitioner: &dyn Partitioner, shape: &[usize], dtype: DType) -> usize {
        partitioner.partitions(shape, dtype, 0).unwrap()[0]
    }

    #[test]
    fn part_2_and_3_by_number_and_by_least_size() {
        let fixed = FixedShardsPartitioner::new(5).unwrap();
        assert_eq!((shards(&fixed, &[13], DType::F32), shards(&fixed, &[2, 9], DType::F32)), (5, 2));
        assert_eq!(shards(&MinSizePartitioner::default(), &[100_000, 16], DType::F32), 1);
        let min = MinSizePartitioner::new(256 << 10, 100).unwrap();
        assert_eq!(shards(&min, &[65_536], DType::F32), 1);
        assert_eq!(shards(&min, &[65_537], DType::F32), 2);
        assert_eq!(shards(&min, &[0, 3], DType::F32), 1);
        assert_eq!(shards(&min, &[1 << 20], DType::Bool), 4);
        assert_eq!(shards(&min.bytes_per_string(1).unwrap(), &[1 << 20], DType::String), 4);
    }

    #[test]
    fn part_4_by_greatest_size() {
        let max = |bytes| MaxSizePartitioner::new(bytes).unwrap();
        for (bytes, shape, expected) in
            [(8, [6, 1], 3), (4, [6, 1], 6), (1024, [6, 1], 1), (20, [6, 2], 3), (1, [6, 1], 6)]
        {
            assert_eq!(shards(&max(bytes), &shape, DType::F32), expected, "{bytes} {shape:?}");
        }
        assert_eq!(shards(&max(4).max_shards(2), &[6, 1], DType::F32), 2);
        assert_eq!(shards(&max(4).max_shards(0), &[6, 1], DType::F32), 6);
        assert_eq!((shards(&max(4), &[0, 3], DType::F32), shards(&max(4), &[5, 0], DType::F32)), (1, 1));
        assert_eq!(shards(&max(1), &[usize::MAX, usize::MAX], DType::C128), usize::MAX);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        assert_eq!(
            FixedShardsPartitioner::new(0).unwrap_err().to_string(),
            "FixedShardsPartitioner: num_shards is 0, but must be at least 1"
        );
        assert!(MinSizePartitioner::new(1, 0).is_err() && MaxSizePartitioner::new(0).is_err());
        assert_eq!(
            MinSizePartitioner::default().partitions(&[], DType::F32, 0).unwrap_err().to_string(),
            "MinSizePartitioner: there is no axis 0 to cut along in shape []"
        );
    }

    #[test]
    fn shard_1_and_2_only_the_first_axis_is_cut_and_one_shard_is_none() {
        let of =
            |answer: &[usize], shape: &[usize]| partition(Some(&Answers(answer.to_vec())), shape, DType::F32);
        assert_eq!(of(&[2, 1], &[4, 4]).unwrap(), Some(RowPartition::div(4, 2)));
        // SHARD-3
        assert_eq!(of(&[3], &[2]).unwrap(), Some(RowPartition::div(2, 2)));
        assert_eq!(of(&[1, 1], &[4, 4]).unwrap(), None);
        assert_eq!(of(&[7], &[]).unwrap(), None);
        assert_eq!(partition(None, &[4], DType::F32).unwrap(), None);
        for answer in [&[1, 2][..], &[2, 2], &[0, 1], &[]] {
            assert!(matches!(of(answer, &[4, 4]), Err(Error::Partitions { .. })), "{answer:?}");
        }
    }

    proptest! {
        #[test]
        fn part_3_and_4_shards_keep_their_sizes(
            rows in 1usize..500,
            width in 1usize..40,
            bytes in 1usize..5000,
            limit in 1usize..60,
        ) {
            let (shape, row) = ([rows, width], width * 4);
            let most = shards(&MaxSizePartitioner::new(bytes).unwrap(), &shape, DType::F32);
            let partition = RowPartition::div(rows, most);
            let largest = (0..partition.shards()).map(|shard| partition.len(shard)).max().unwrap();
            prop_assert!(largest * row <= bytes || largest == 1);
            // One fewer would not do.
            prop_assert!(most == 1 || rows.div_ceil(most - 1) * row > bytes);

            let least = shards(&MinSizePartitioner::new(bytes, limit).unwrap(), &shape, DType::F32);
            prop_assert!((1..=limit.min(rows)).contains(&least));
            prop_assert!(least == limit || least == rows || least * bytes >= rows * row);
            prop_assert!(least == 1 || (least - 1) * bytes < rows * row);
        }
    }
}
