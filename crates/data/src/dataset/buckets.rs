//! [`Buckets`]: the ranges of lengths whose elements are batched together.

use crate::Padding;
use std::sync::Arc;

/// The buckets of [`Dataset::bucket_by_sequence_length`](super::Dataset::bucket_by_sequence_length): ranges of lengths,
/// the batch size for each range, and the padding of batches.
#[derive(Clone, Debug)]
pub struct Buckets {
    pub(crate) boundaries: Arc<[usize]>,
    pub(crate) batch_sizes: Arc<[usize]>,
    pub(crate) padding: Padding,
    pub(crate) to_boundary: bool,
    pub(crate) exact: bool,
}

impl Buckets {
    /// Creates buckets that are separated by `boundaries`, which must be in ascending order. A boundary is the smallest
    /// length of the bucket after it. There is one more bucket than there are boundaries, and `batch_sizes` must have
    /// one size for each bucket.
    #[doc(alias = "bucket_boundaries")]
    #[doc(alias = "bucket_batch_sizes")]
    pub fn new(
        boundaries: impl IntoIterator<Item = usize>,
        batch_sizes: impl IntoIterator<Item = usize>,
    ) -> Self {
        let (boundaries, batch_sizes) = (boundaries.into_iter().collect(), batch_sizes.into_iter().collect());
        Self { boundaries, batch_sizes, padding: Padding::new(), to_boundary: false, exact: false }
    }

    /// Sets the padding of batches. The default is [`Padding::new`]: to the longest element, with zeros.
    pub fn padding(self, padding: Padding) -> Self {
        Self { padding, ..self }
    }

    /// Pads to the greatest length of the bucket, rather than to the longest element, so that each bucket has one
    /// batch shape. This length, the bucket's upper boundary minus 1, is used for axis 0 of each tensor. If the
    /// padding has [sizes](Padding::sizes), the length replaces each `None` in them instead.
    ///
    /// An element in the last bucket, which has no upper boundary, gives [`Error::Pad`](crate::Error::Pad).
    #[doc(alias = "pad_to_bucket_boundary")]
    pub fn pad_to_boundary(self) -> Self {
        Self { to_boundary: true, ..self }
    }

    /// Drops the elements that remain in a bucket at the end of a pass, and are too few for a full batch.
    pub fn drop_remainder(self) -> Self {
        Self { exact: true, ..self }
    }

    /// Returns the index of the bucket of a length.
    pub(crate) fn of(&self, length: usize) -> usize {
        self.boundaries.partition_point(|boundary| *boundary <= length)
    }

    /// Returns the size of full batches of a bucket. Returns 1 if there is no such bucket.
    pub(crate) fn size(&self, bucket: usize) -> usize {
        self.batch_sizes.get(bucket).copied().unwrap_or(1)
    }
}
