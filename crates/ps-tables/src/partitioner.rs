//! Partitioners, which decide the number of shards of a variable from its shape and dtype.

use crate::{Error, Result, RowPartition};
use distribute_tensor::DType;
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use std::sync::Arc;

/// A partitioner: it decides the number of parts of a variable along each axis.
///
/// Variables are only split along axis 0, so [`partition`] requires that all other axes have one part.
///
/// ```
/// use distribute_ps_tables::{FixedShardsPartitioner, Partitioner};
/// use distribute_tensor::DType;
///
/// let two = FixedShardsPartitioner::new(2)?;
/// assert_eq!(two.partitions(&[10, 3], DType::F32, 0)?, [2, 1]);
/// # Ok::<(), distribute_ps_tables::Error>(())
/// ```
#[doc(alias = "tf.distribute.experimental.partitioners.Partitioner")]
pub trait Partitioner: Debug + Send + Sync + 'static {
    /// Returns the number of parts along each axis of a variable that is to be split along `axis`.
    ///
    /// # Errors
    /// - [`Error::PartitionAxis`]: the shape has no such axis; a scalar has none.
    fn partitions(&self, shape: &[usize], dtype: DType, axis: usize) -> Result<Vec<usize>>;

    /// Returns the partitioner as data, so that other tasks can create the same one; `None`, the default, if it cannot
    /// be represented as data.
    fn spec(&self) -> Option<PartitionerSpec> {
        None
    }
}

/// One of the three partitioners of this crate, as data.
///
/// ```
/// use distribute_ps_tables::{MinSizePartitioner, Partitioner};
///
/// let spec = MinSizePartitioner::new(256 << 10, 3)?.spec();
/// let same = spec.as_ref().map(|spec| spec.make()).transpose()?;
/// assert_eq!(same.and_then(|same| same.spec()), spec);
/// # Ok::<(), distribute_ps_tables::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PartitionerSpec {
    /// A [`FixedShardsPartitioner`].
    FixedShards {
        /// The number of shards.
        num_shards: usize,
    },
    /// A [`MinSizePartitioner`].
    MinSize {
        /// The minimum size of a shard in bytes.
        min_shard_bytes: usize,
        /// The maximum number of shards.
        max_shards: usize,
        /// The assumed size of a string in bytes.
        bytes_per_string: usize,
    },
    /// A [`MaxSizePartitioner`].
    MaxSize {
        /// The maximum size of a shard in bytes.
        max_shard_bytes: usize,
        /// The maximum number of shards; 0 means no limit.
        max_shards: usize,
        /// The assumed size of a string in bytes.
        bytes_per_string: usize,
    },
}

impl PartitionerSpec {
    /// Creates the partitioner.
    ///
    /// # Errors
    /// - [`Error::PartitionerParameter`]: a parameter is out of range.
    pub fn make(&self) -> Result<Arc<dyn Partitioner>> {
        Ok(match *self {
            Self::FixedShards { num_shards } => Arc::new(FixedShardsPartitioner::new(num_shards)?),
            Self::MinSize { min_shard_bytes, max_shards, bytes_per_string } => {
                let created = MinSizePartitioner::new(min_shard_bytes, max_shards)?;
                Arc::new(created.bytes_per_string(bytes_per_string)?)
            }
            Self::MaxSize { max_shard_bytes, max_shards, bytes_per_string } => {
                let created = MaxSizePartitioner::new(max_shard_bytes)?.max_shards(max_shards);
                Arc::new(created.bytes_per_string(bytes_per_string)?)
            }
        })
    }
}

/// A partitioner with a fixed number of shards. If the variable has fewer rows, each row is a shard.
#[doc(alias = "tf.distribute.experimental.partitioners.FixedShardsPartitioner")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedShardsPartitioner {
    num_shards: usize,
}

/// A partitioner with the highest number of shards, up to `max_shards`, for which each shard takes at least about
/// `min_shard_bytes` bytes.
///
/// The number of shards is rounded up, so shards can be smaller: 65,537 elements of `f32` and 256 KiB give two shards
/// of about 128 KiB. With the default of one shard, variables are not split.
///
/// ```
/// use distribute_ps_tables::{MinSizePartitioner, Partitioner};
/// use distribute_tensor::DType;
///
/// let partitioner = MinSizePartitioner::new(256 << 10, 3)?;
/// assert_eq!(partitioner.partitions(&[1000, 1000], DType::F32, 0)?, [3, 1]);
/// assert_eq!(partitioner.partitions(&[100, 10], DType::F32, 0)?, [1, 1]);
/// # Ok::<(), distribute_ps_tables::Error>(())
/// ```
#[doc(alias = "tf.distribute.experimental.partitioners.MinSizePartitioner")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinSizePartitioner {
    min_shard_bytes: usize,
    max_shards: usize,
    bytes_per_string: usize,
}

/// A partitioner with the lowest number of shards for which each shard takes at most `max_shard_bytes` bytes. If a
/// single row is larger, each shard has one row.
#[doc(alias = "tf.distribute.experimental.partitioners.MaxSizePartitioner")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxSizePartitioner {
    max_shard_bytes: usize,
    max_shards: Option<usize>,
    bytes_per_string: usize,
}

/// The default assumed size of a string in bytes. The actual size is not known in advance.
const BYTES_PER_STRING: usize = 16;

impl FixedShardsPartitioner {
    const NAME: &'static str = "FixedShardsPartitioner";

    /// Creates a partitioner with `num_shards` shards, which must be at least 1.
    ///
    /// # Errors
    /// - [`Error::PartitionerParameter`]: `num_shards` is 0.
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

    /// Creates a partitioner with shards of at least `min_shard_bytes`, and at most `max_shards` shards. Both must be
    /// at least 1.
    ///
    /// # Errors
    /// - [`Error::PartitionerParameter`]: a parameter is 0.
    pub fn new(min_shard_bytes: usize, max_shards: usize) -> Result<Self> {
        Ok(Self {
            min_shard_bytes: positive(Self::NAME, "min_shard_bytes", min_shard_bytes)?,
            max_shards: positive(Self::NAME, "max_shards", max_shards)?,
            bytes_per_string: BYTES_PER_STRING,
        })
    }

    /// Sets the assumed size of a string in bytes, which must be at least 1; 16 by default.
    ///
    /// # Errors
    /// - [`Error::PartitionerParameter`]: `bytes` is 0.
    pub fn bytes_per_string(self, bytes: usize) -> Result<Self> {
        Ok(Self { bytes_per_string: positive(Self::NAME, "bytes_per_string", bytes)?, ..self })
    }
}

impl Default for MinSizePartitioner {
    /// Creates a partitioner with shards of at least 256 KiB, and at most one shard.
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

    /// Creates a partitioner with shards of at most `max_shard_bytes`, which must be at least 1.
    ///
    /// # Errors
    /// - [`Error::PartitionerParameter`]: `max_shard_bytes` is 0.
    pub fn new(max_shard_bytes: usize) -> Result<Self> {
        Ok(Self {
            max_shard_bytes: positive(Self::NAME, "max_shard_bytes", max_shard_bytes)?,
            max_shards: None,
            bytes_per_string: BYTES_PER_STRING,
        })
    }

    /// Limits the number of shards; shards may then be larger. 0 means no limit, which is the default.
    pub fn max_shards(self, shards: usize) -> Self {
        Self { max_shards: Some(shards).filter(|shards| *shards > 0), ..self }
    }

    /// Sets the assumed size of a string in bytes, which must be at least 1; 16 by default.
    ///
    /// # Errors
    /// - [`Error::PartitionerParameter`]: `bytes` is 0.
    pub fn bytes_per_string(self, bytes: usize) -> Result<Self> {
        Ok(Self { bytes_per_string: positive(Self::NAME, "bytes_per_string", bytes)?, ..self })
    }
}

impl Partitioner for MaxSizePartitioner {
    fn partitions(&self, shape: &[usize], dtype: DType, axis: usize) -> Result<Vec<usize>> {
        let size = size(Self::NAME, shape, axis)? as u128;
        // An empty variable has one part; TensorFlow divides by zero here.
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

/// Returns the partition of a new variable's rows; `None` if the variable is not split, because there is no
/// partitioner, because the variable is a scalar, or because there would be only one shard.
///
/// # Errors
/// Returns the partitioner's own errors, and:
/// - [`Error::Partitions`]: the partitioner's result does not contain one number for each axis, splits an axis other
///   than the first, or contains a zero although the variable has rows.
pub fn partition(
    partitioner: Option<&dyn Partitioner>,
    shape: &[usize],
    dtype: DType,
) -> Result<Option<RowPartition>> {
    let (Some(partitioner), Some(rows)) = (partitioner, shape.first()) else { return Ok(None) };
    let partitions = partitioner.partitions(shape, dtype, 0)?;
    match partitions.as_slice() {
        // Without rows, a fixed number of shards gives 0.
        [shards, rest @ ..] if (*shards > 0 || *rows == 0) && rest.iter().all(|parts| *parts == 1) => {
            let partition = RowPartition::div(*rows, *shards);
            Ok(Some(partition).filter(|partition| partition.shards() > 1))
        }
        _ => Err(Error::Partitions { partitions, shape: shape.to_vec() }),
    }
}

fn positive(partitioner: &'static str, parameter: &'static str, value: usize) -> Result<usize> {
    if value > 0 { Ok(value) } else { Err(Error::PartitionerParameter { partitioner, parameter }) }
}

/// Returns the size of axis `axis`.
fn size(partitioner: &'static str, shape: &[usize], axis: usize) -> Result<usize> {
    let no_axis = || Error::PartitionAxis { partitioner, axis, shape: shape.to_vec() };
    shape.get(axis).copied().ok_or_else(no_axis)
}

/// Returns the number of elements, but at most `u64::MAX`.
fn elements(shape: &[usize]) -> u128 {
    shape.iter().fold(1u128, |n, size| n.saturating_mul(*size as u128)).min(u128::from(u64::MAX))
}

fn bytes_of(dtype: DType, of_string: usize) -> u128 {
    dtype.bytes().unwrap_or(of_string) as u128
}

/// Returns `parts` for axis `axis`, and one part for every other axis.
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

    /// A partitioner that returns a fixed result.
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
        assert_eq!(shards(&fixed, &[0, 3], DType::F32), 0);
        assert_eq!(partition(Some(&fixed), &[0, 3], DType::F32).unwrap(), None);
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
    fn impossible_settings_are_refused_by_name() {
        assert_eq!(
            FixedShardsPartitioner::new(0).unwrap_err().to_string(),
            "FixedShardsPartitioner: num_shards is 0, but must be at least 1"
        );
        assert!(MinSizePartitioner::new(1, 0).is_err() && MaxSizePartitioner::new(0).is_err());
        assert_eq!(
            MinSizePartitioner::default().partitions(&[], DType::F32, 0).unwrap_err().to_string(),
            "MinSizePartitioner: there is no axis 0 to partition in shape []"
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
            // One shard fewer would not be enough.
            prop_assert!(most == 1 || rows.div_ceil(most - 1) * row > bytes);

            let least = shards(&MinSizePartitioner::new(bytes, limit).unwrap(), &shape, DType::F32);
            prop_assert!((1..=limit.min(rows)).contains(&least));
            prop_assert!(least == limit || least == rows || least * bytes >= rows * row);
            prop_assert!(least == 1 || (least - 1) * bytes < rows * row);
        }
    }
}
