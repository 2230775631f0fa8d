//! The operation that batches elements of similar length.

use super::batch::remainder;
use super::filter::{ElementFn, on_trees};
use super::group_by_window::{GroupStage, Grouping, grouped};
use super::kept::{Group, Groups};
use super::pad::{self, pad};
use crate::chunk::{Assembly, Chunk};
use crate::error::at_least_one;
use crate::pipeline::{Batching, Look, Operation, Pipeline, Sharding, one_input};
use crate::room::fits;
use crate::stage::Stage;
use crate::{Buckets, Cardinality, Cause, Dataset, ElementSpec, Error, Padding, Result};
use distribute_tensor::Nest;
use std::sync::Arc;

impl<T: Nest> Dataset<T> {
    /// Batches elements of similar `length`, so that batches have little padding. An element goes to the
    /// [bucket](Buckets) of its length. As soon as a bucket has enough elements, they become a padded batch, as with
    /// [`padded_batch`](Dataset::padded_batch). At the end, the remaining elements of each bucket follow as shorter
    /// batches, in the order of the buckets, unless they are [dropped](Buckets::drop_remainder).
    ///
    /// The elements of all buckets, at most the sum of the batch sizes, are in memory at the same time.
    ///
    /// Wrong boundaries or batch sizes give [`Error::Parameter`], an element that cannot be padded gives
    /// [`Error::Pad`], and a panic of `length` gives [`Error::Panicked`].
    ///
    /// ```
    /// # use distribute_data::{Buckets, Dataset};
    /// # use distribute_tensor::HostTensor;
    /// let words = Dataset::from_items([1, 5, 2, 4].map(|n| HostTensor::vector(vec![n as i64; n])));
    /// let batches = words.bucket_by_sequence_length(|word| word.dims()[0], Buckets::new([3], [2, 2]));
    /// let batches = batches.iter().collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(batches[0], HostTensor::new(vec![1i64, 0, 2, 2], [2, 2])?);
    /// assert_eq!(batches[1], HostTensor::new(vec![5i64, 5, 5, 5, 5, 4, 4, 4, 4, 0], [2, 5])?);
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    #[doc(alias = "tf.data.Dataset.bucket_by_sequence_length")]
    #[doc(alias = "element_length_func")]
    pub fn bucket_by_sequence_length<F>(&self, length: F, buckets: Buckets) -> Dataset<T::Batch>
    where
        T: 'static,
        F: Fn(&T) -> usize + Send + Sync + 'static,
    {
        let length = on_trees(OPERATION, move |value| Ok::<_, Cause>(length(value)));
        Dataset::of(BucketBySequenceLength { input: self.pipeline().clone(), length, buckets })
    }
}

const OPERATION: &str = "bucket_by_sequence_length";

#[derive(Clone)]
struct BucketBySequenceLength {
    input: Pipeline,
    length: ElementFn<usize>,
    buckets: Buckets,
}

impl BucketBySequenceLength {
    /// Returns the functions that assign elements to buckets. The keys of the groups are the indices of the buckets.
    fn grouping(&self) -> Grouping {
        let (length, buckets, sizes) = (self.length.clone(), self.buckets.clone(), self.buckets.clone());
        Grouping {
            key: Arc::new(move |tree, index| {
                let length = length(tree, index)?;
                let bucket = buckets.of(length);
                match buckets.boundaries.last() {
                    Some(last) if buckets.to_boundary && bucket == buckets.boundaries.len() => {
                        let why = format!("its length {length} is not less than the last boundary, {last}");
                        Err(Error::Pad { operation: OPERATION, path: "value".into(), index, why })
                    }
                    _ => Ok(bucket as i64),
                }
            }),
            size: Arc::new(move |key, _index| Ok(sizes.size(key as usize))),
        }
    }

    fn parameter(parameter: &'static str, found: String, expected: &'static str) -> Result<()> {
        Err(Error::Parameter { operation: OPERATION, parameter, found, expected })
    }
}

impl Operation for BucketBySequenceLength {
    one_input!();

    fn describe(&self) -> String {
        let Buckets { boundaries, batch_sizes, to_boundary, exact, .. } = &self.buckets;
        let padded = if *to_boundary { ", padded to the boundary" } else { "" };
        let remainder = if *exact { ", remainders dropped" } else { "" };
        format!("{OPERATION}, boundaries {boundaries:?}, batches of {batch_sizes:?}{padded}{remainder}")
    }

    fn identity(&self) -> String {
        self.describe() + &pad::identity(&self.buckets.padding)
    }

    fn cardinality(&self) -> Cardinality {
        grouped(self.input.cardinality())
    }

    fn batching(&self) -> Batching {
        match self.buckets.batch_sizes.as_ref() {
            [first, rest @ ..] if self.buckets.exact && rest.iter().all(|size| size == first) => {
                Batching::Batches(*first)
            }
            _ => Batching::Unknown,
        }
    }

    /// Returns the spec of batches. A size is known only if it is the same for all elements.
    fn spec(&self, look: Look) -> Option<ElementSpec> {
        let rows = match self.batching() {
            Batching::Batches(size) => Some(size),
            _ => None,
        };
        let known = self.input.spec(Look::Never);
        let varies = known.is_none() || self.buckets.to_boundary;
        let mut sizes = self.buckets.padding.sizes.iter().flat_map(|sizes| sizes.iter());
        Some(known.or_else(|| self.input.spec(look))?.map(&mut |mut spec| {
            let mut sizes = sizes.next().into_iter().flatten();
            for dim in &mut spec.dims {
                let size = sizes.next().copied().flatten();
                *dim = size.or(if varies { None } else { *dim });
            }
            spec.batched(rows)
        }))
    }

    fn check(&self) -> Result<()> {
        let Buckets { boundaries, batch_sizes, to_boundary, .. } = &self.buckets;
        if !boundaries.is_sorted_by(|a, b| a < b) {
            let found = format!("{boundaries:?}");
            return Self::parameter("the list of boundaries", found, "in ascending order");
        }
        if batch_sizes.len() != boundaries.len() + 1 {
            let found = format!("{}, with {} boundaries", batch_sizes.len(), boundaries.len());
            return Self::parameter(
                "the number of batch sizes",
                found,
                "one more than the number of boundaries",
            );
        }
        if *to_boundary && boundaries.first().is_none_or(|first| *first == 0) {
            let found = format!("{boundaries:?}");
            return Self::parameter(
                "the list of boundaries",
                found,
                "of numbers from 1 on, for pad_to_boundary",
            );
        }
        batch_sizes.iter().try_for_each(|size| at_least_one(OPERATION, "a batch size", *size))?;
        let all = batch_sizes.iter().fold(0usize, |all, size| all.saturating_add(*size));
        fits(OPERATION, "the sum of the batch sizes", all, self.input.cardinality())
    }

    fn sharding(&self) -> Sharding {
        remainder(self.buckets.exact)
    }

    fn costly(&self) -> bool {
        true
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        let groups = GroupStage::new(self.input.start(epoch), self.grouping());
        Box::new(BucketStage { groups, buckets: self.buckets.clone(), number: 0 })
    }
}

struct BucketStage {
    groups: GroupStage,
    buckets: Buckets,
    /// The index of the next batch.
    number: usize,
}

impl BucketStage {
    /// Returns the elements of the next batch, with the bucket as their key; `None` at the end.
    fn elements(&mut self) -> Result<Option<Group>> {
        while let Some(group) = self.groups.group()? {
            if !self.buckets.exact || group.elements.len() == self.buckets.size(group.key as usize) {
                self.number += 1;
                return Ok(Some(group));
            }
        }
        Ok(None)
    }

    fn batch(&mut self) -> Result<Option<Chunk>> {
        let Some(Group { key, elements, indices, .. }) = self.elements()? else { return Ok(None) };
        let padding = self.padding(key as usize, &elements)?;
        let index = |element: usize| indices.get(element).copied().unwrap_or_default();
        let batch = pad(OPERATION, &padding, elements.numbered(self.number - 1), index)?;
        Ok(Some(Chunk::one(batch)))
    }

    /// Returns the padding for a batch of a bucket: the user's padding, to the boundary of the bucket if that was
    /// requested.
    fn padding(&self, bucket: usize, elements: &Assembly) -> Result<Padding> {
        let padding = self.buckets.padding.clone();
        let longest = match self.buckets.boundaries.get(bucket) {
            Some(boundary) if self.buckets.to_boundary => boundary.saturating_sub(1),
            _ => return Ok(padding),
        };
        if let Some(sizes) = &padding.sizes {
            let to_longest =
                |sizes: &Vec<Option<usize>>| sizes.iter().map(|size| size.or(Some(longest))).collect();
            return Ok(Padding { sizes: Some(sizes.iter().map(to_longest).collect()), ..padding });
        }
        let first = elements.slice(0..1).into_values()?.pop();
        let leaves = first.iter().flat_map(|first| first.leaves());
        let sizes = leaves.map(|leaf| {
            let mut sizes = vec![None; leaf.dims().len()];
            sizes.iter_mut().take(1).for_each(|size| *size = Some(longest));
            sizes
        });
        Ok(padding.sizes(sizes))
    }
}

impl Stage for BucketStage {
    fn next(&mut self, _max: usize) -> Option<Result<Chunk>> {
        self.batch().transpose()
    }

    /// Skips batches without padding them.
    fn skip(&mut self, count: usize) -> Result<usize> {
        for skipped in 0..count {
            if self.elements()?.is_none() {
                return Ok(skipped);
            }
        }
        Ok(count)
    }

    fn passes(&self) -> usize {
        self.groups.passes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_tensor::{DType, HostTensor};

    const ELEMENTS: [&[i64]; 6] =
        [&[0], &[1, 2, 3, 4], &[5, 6, 7], &[7, 8, 9, 10, 11], &[13, 14, 15, 16, 19, 20], &[21, 22]];

    fn sequences() -> Dataset<HostTensor> {
        Dataset::from_items(ELEMENTS.map(|element| HostTensor::vector(element.to_vec())))
    }

    fn bucketed(buckets: Buckets) -> Dataset<HostTensor> {
        sequences().bucket_by_sequence_length(|element| element.dims()[0], buckets)
    }

    /// Returns the rows of all batches.
    fn rows(data: &Dataset<HostTensor>) -> Vec<Vec<Vec<i64>>> {
        let rows = |batch: HostTensor| {
            let width = batch.dims()[1];
            batch.as_slice::<i64>().unwrap().chunks(width).map(<[i64]>::to_vec).collect()
        };
        data.iter().map(|batch| rows(batch.unwrap())).collect()
    }

    /// Checks that bucket i contains the lengths that are at least boundary i - 1 and less than boundary i, that the
    /// remaining elements follow in the order of the buckets, and that a batch is padded to its longest element.
    /// TensorFlow 2.21 computed the expected values.
    #[test]
    fn batches_have_elements_of_one_bucket() {
        let data = bucketed(Buckets::new([3, 5], [2, 2, 2]));
        let expected = [
            vec![vec![1, 2, 3, 4], vec![5, 6, 7, 0]],
            vec![vec![7, 8, 9, 10, 11, 0], vec![13, 14, 15, 16, 19, 20]],
            vec![vec![0, 0], vec![21, 22]],
        ];
        assert_eq!(rows(&data), expected);
        assert_eq!(rows(&data.skip(1).repeat(2)), [&expected[1..], &expected[1..]].concat());
        let sizes = bucketed(Buckets::new([3, 5], [1, 2, 3]));
        assert_eq!(
            rows(&sizes),
            [vec![vec![0]], expected[0].clone(), vec![vec![21, 22]], expected[1].clone()]
        );
        let exact = bucketed(Buckets::new([3, 5], [1, 2, 3]).drop_remainder());
        assert_eq!(rows(&exact), rows(&sizes)[..3]);
        let one = bucketed(Buckets::new([], [2]));
        assert_eq!(rows(&one)[0], [[0, 0, 0, 0], [1, 2, 3, 4]]);
        let minus = bucketed(Buckets::new([3, 5], [2, 2, 2]).padding(Padding::new().values(-1i64)));
        assert_eq!(rows(&minus)[2], [[0, -1], [21, 22]]);
    }

    /// Checks that sequences are padded to the boundary minus 1, as in TensorFlow with `pad_to_bucket_boundary`. A
    /// sequence that is not shorter than the last boundary is an error. TensorFlow 2.21 computed the expected values.
    #[test]
    fn batches_may_be_padded_to_the_boundary() {
        let data = bucketed(Buckets::new([4, 7], [2, 2, 2]).pad_to_boundary());
        let expected = [
            vec![vec![0, 0, 0], vec![5, 6, 7]],
            vec![vec![1, 2, 3, 4, 0, 0], vec![7, 8, 9, 10, 11, 0]],
            vec![vec![21, 22, 0]],
            vec![vec![13, 14, 15, 16, 19, 20]],
        ];
        assert_eq!(rows(&data), expected);
        let sizes = Padding::new().sizes([vec![None]]);
        assert_eq!(
            rows(&bucketed(Buckets::new([4, 7], [2, 2, 2]).padding(sizes).pad_to_boundary())),
            expected
        );
        let error = bucketed(Buckets::new([4, 6], [2, 2, 2]).pad_to_boundary()).iter().find_map(Result::err);
        assert_eq!(
            error.unwrap().to_string(),
            "bucket_by_sequence_length: value of element 4 cannot be padded: its length 6 is not less than the last \
             boundary, 6"
        );
    }

    #[test]
    fn impossible_buckets_are_errors() {
        for buckets in [
            Buckets::new([3, 5], [2, 2]),
            Buckets::new([5, 3], [2, 2, 2]),
            Buckets::new([3, 3], [2, 2, 2]),
            Buckets::new([3, 5], [2, 0, 2]),
            Buckets::new([], [2]).pad_to_boundary(),
            Buckets::new([0, 3], [2, 2, 2]).pad_to_boundary(),
        ] {
            let error = bucketed(buckets).check().unwrap_err();
            assert!(matches!(error, Error::Parameter { operation: OPERATION, .. }), "{error}");
        }
    }

    // INV-13
    #[test]
    fn an_error_names_the_element_and_not_its_position_in_the_batch() {
        let pairs = sequences().map(|x| (x.clone(), HostTensor::vector(vec![1f32; x.dims()[0] / 4])));
        let padding = Padding::new().sizes([vec![Some(6)], vec![Some(0)]]);
        let buckets = Buckets::new([3, 5], [2, 2, 2]).padding(padding);
        let data = pairs.bucket_by_sequence_length(|(x, _)| x.dims()[0], buckets);
        let error = data.iter().find_map(Result::err).unwrap().to_string();
        assert!(
            error.starts_with("bucket_by_sequence_length: value[1] of element 1 cannot be padded: axis 0"),
            "{error}"
        );
        let panics =
            sequences().bucket_by_sequence_length(|x| 6 / (5 - x.dims()[0]), Buckets::new([3], [2, 2]));
        let error = panics.iter().find_map(Result::err).unwrap();
        assert!(matches!(error, Error::Panicked { operation: OPERATION, index: 3, .. }), "{error}");
    }

    #[test]
    fn specs_have_no_size_that_differs_from_bucket_to_bucket() {
        let text =
            |data: Dataset<HostTensor>| data.element_spec().unwrap().describe(&|spec| spec.to_string());
        assert_eq!(text(bucketed(Buckets::new([3], [2, 2]))), "int64 [?, ?]");
        let exact = bucketed(Buckets::new([3], [2, 2]).drop_remainder());
        assert_eq!((exact.batching(), text(exact)), (Batching::Batches(2), "int64 [2, ?]".into()));
        assert_eq!(bucketed(Buckets::new([3], [2, 2])).batching(), Batching::Unknown);
        let sized = Padding::new().sizes([vec![Some(9)]]);
        assert_eq!(text(bucketed(Buckets::new([3], [2, 2]).padding(sized))), "int64 [?, 9]");
        let fixed = Dataset::from_slices(HostTensor::zeros(DType::F32, [4, 3]).unwrap()).unwrap();
        assert_eq!(text(fixed.bucket_by_sequence_length(|_| 1, Buckets::new([3], [2, 2]))), "float32 [?, 3]");
        let endless =
            sequences().repeat_forever().bucket_by_sequence_length(|_| 1, Buckets::new([3], [2, 2]));
        assert_eq!(endless.cardinality(), Cardinality::Infinite);
        assert_eq!(endless.skip(7).iter().take(2).map(|batch| batch.unwrap().dims()[0]).sum::<usize>(), 4);
    }
}
