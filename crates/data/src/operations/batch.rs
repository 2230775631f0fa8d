//! The operation that stacks several elements into one, with a new axis 0.

use crate::chunk::{Assembly, Chunk};
use crate::error::at_least_one;
use crate::pipeline::{Batching, Look, Operation, Pipeline, Sharding, one_input};
use crate::room::fits;
use crate::stage::Stage;
use crate::{Cardinality, Dataset, ElementSpec, Result};
use distribute_tensor::Nest;

impl<T: Nest> Dataset<T> {
    /// Stacks `size` consecutive elements into a batch, along a new axis 0. Leaves of shape `[…]` become leaves
    /// of shape `[size, …]`. The last batch contains the remaining elements, at least one.
    ///
    /// Elements of a batch that differ in structure, dtype or shape result in [`Error::Stack`](crate::Error::Stack) in
    /// the pass. A `size` of 0 results in [`Error::Parameter`](crate::Error::Parameter).
    #[doc(alias = "tf.data.Dataset.batch")]
    pub fn batch(&self, size: usize) -> Dataset<T::Batch> {
        Dataset::of(Batch { input: self.pipeline().clone(), size, drop_remainder: false })
    }

    /// Stacks elements like [`batch`](Dataset::batch), but drops the last batch if it is not full.
    #[doc(alias = "drop_remainder")]
    pub fn batch_exact(&self, size: usize) -> Dataset<T::Batch> {
        Dataset::of(Batch { input: self.pipeline().clone(), size, drop_remainder: true })
    }
}

#[derive(Clone)]
struct Batch {
    input: Pipeline,
    size: usize,
    drop_remainder: bool,
}

impl Operation for Batch {
    one_input!();

    fn describe(&self) -> String {
        if self.drop_remainder {
            format!("batch {}, remainder dropped", self.size)
        } else {
            format!("batch {}, last one may be shorter", self.size)
        }
    }

    fn cardinality(&self) -> Cardinality {
        batches(self.input.cardinality(), self.size, self.drop_remainder)
    }

    fn batching(&self) -> Batching {
        Batching::Batches(self.size)
    }

    fn spec(&self, look: Look) -> Option<ElementSpec> {
        let rows = batch_rows(self.input.cardinality(), self.size, self.drop_remainder);
        Some(self.input.spec(look)?.map(&mut |spec| spec.batched(rows)))
    }

    fn check(&self) -> Result<()> {
        at_least_one("batch", "the size", self.size)?;
        fits("batch", "the size", self.size, self.input.cardinality())
    }

    fn sharding(&self) -> Sharding {
        remainder(self.drop_remainder)
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        let join = Box::new(|elements, _| Ok(Chunk::Batch(elements)));
        Box::new(BatchStage::new(self.input.start(epoch), self.size, self.drop_remainder, join))
    }
}

/// Returns the number of batches into which the elements are stacked.
pub(crate) fn batches(elements: Cardinality, size: usize, drop_remainder: bool) -> Cardinality {
    elements.map(|n| if drop_remainder { n / size.max(1) } else { n.div_ceil(size.max(1)) })
}

/// Returns the number of rows of every batch; `None` if the last batch may have fewer.
pub(crate) fn batch_rows(elements: Cardinality, size: usize, drop_remainder: bool) -> Option<usize> {
    let full = drop_remainder || elements == Cardinality::Infinite;
    full.then_some(size)
}

/// Returns the behavior of batching on shards. Dropping remainders is not possible on shards, because each worker
/// would drop a different one.
pub(super) fn remainder(drop: bool) -> Sharding {
    if drop { Sharding::Whole } else { Sharding::Through }
}

/// A function that creates a batch from elements. Its second argument is the index of the first element.
pub(super) type Join = Box<dyn Fn(Assembly, usize) -> Result<Chunk> + Send>;

pub(super) struct BatchStage {
    input: Box<dyn Stage>,
    size: usize,
    drop_remainder: bool,
    join: Join,
    number: usize,
    ended: bool,
    /// The largest number of [passes](Stage::passes) of the input that were complete when an element was received.
    received: usize,
    /// The number of batches that began after the end of a pass of the input. Several passes without elements count
    /// as one.
    aligned: usize,
}

/// The number of passes of the input that count as one if batches extend over the ends of passes. Such passes differ
/// in their batches: with 999 elements in batches of 1,000, the batches repeat only after 1,000 passes.
const UNALIGNED: usize = 100;

impl BatchStage {
    pub(super) fn new(input: Box<dyn Stage>, size: usize, drop_remainder: bool, join: Join) -> Self {
        Self { input, size, drop_remainder, join, number: 0, ended: false, received: 0, aligned: 0 }
    }

    fn batch(&mut self) -> Result<Option<Chunk>> {
        let mut assembly = Assembly::new(self.number);
        while assembly.len() < self.size && !self.ended {
            match self.input.next(self.size - assembly.len()) {
                Some(chunk) => {
                    let passes = self.input.passes();
                    if assembly.len() == 0 && passes > self.received {
                        self.aligned += 1;
                    }
                    self.received = self.received.max(passes);
                    assembly.push(chunk?)?;
                }
                None => self.ended = true,
            }
        }
        if assembly.len() == 0 || (self.drop_remainder && assembly.len() < self.size) {
            return Ok(None);
        }
        let first = self.number * self.size;
        self.number += 1;
        (self.join)(assembly, first).map(Some)
    }
}

impl Stage for BatchStage {
    fn next(&mut self, _max: usize) -> Option<Result<Chunk>> {
        self.batch().transpose()
    }

    fn skip(&mut self, count: usize) -> Result<usize> {
        if self.ended {
            return Ok(0);
        }
        let wanted = count.saturating_mul(self.size);
        let elements = self.input.skip(wanted)?;
        self.ended = elements < wanted;
        let skipped = if self.drop_remainder { elements / self.size } else { elements.div_ceil(self.size) };
        self.number += skipped;
        self.received = self.received.max(self.input.passes());
        Ok(skipped)
    }

    fn passes(&self) -> usize {
        self.aligned.max(self.input.passes() / UNALIGNED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ids;
    use crate::{Dataset, Error};
    use distribute_tensor::HostTensor;

    #[test]
    fn the_last_batch_may_be_shorter_or_dropped() {
        assert_eq!(ids(&Dataset::range(7).batch(3)), [vec![0, 1, 2], vec![3, 4, 5], vec![6]]);
        assert_eq!(ids(&Dataset::range(7).batch_exact(3)), [vec![0, 1, 2], vec![3, 4, 5]]);
        assert_eq!(Dataset::range(2).batch_exact(3).iter().count(), 0);
        assert_eq!(ids(&Dataset::range(2).batch(usize::MAX)), [[0, 1]]);
        assert_eq!(ids(&Dataset::range(3).repeat(2).batch(4)), [vec![0, 1, 2, 0], vec![1, 2]]);
    }

    #[test]
    fn a_rare_batch_of_a_repeated_dataset_is_found_and_one_that_does_not_exist_is_an_error() {
        let begins_with = |rows: i64, first: i64| {
            let batches = Dataset::range(rows).repeat_forever().batch(rows as usize + 1);
            batches.filter(move |batch| batch.as_slice::<i64>().unwrap()[0] == first)
        };
        // The batches begin with 0, 1, 2 … 998, and again.
        let mut pass = begins_with(999, 500).iter();
        for _ in 0..2 {
            assert_eq!(pass.next().unwrap().unwrap().to_vec::<i64>().unwrap()[998..], [499, 500]);
        }
        let error = begins_with(99, -1).iter().next().unwrap().unwrap_err();
        assert!(matches!(error, Error::EmptyPasses { operation: "filter", .. }), "{error}");
    }

    /// A stage whose elements are each followed by ten passes without elements.
    struct Rare(usize);

    impl Stage for Rare {
        fn next(&mut self, _max: usize) -> Option<Result<Chunk>> {
            self.0 += 1;
            Some(Ok(Chunk::Values(vec![7i64.into_tree()])))
        }

        fn passes(&self) -> usize {
            10 * self.0
        }
    }

    #[test]
    fn a_batch_counts_at_most_one_pass() {
        let join = Box::new(|elements, _| Ok(Chunk::Batch(elements)));
        let mut stage = BatchStage::new(Box::new(Rare(0)), 1, false, join);
        for _ in 0..5 {
            stage.next(1).unwrap().unwrap();
        }
        assert_eq!((stage.passes(), stage.input.passes()), (5, 50));
    }

    #[test]
    fn batches_of_batches_get_another_axis() {
        let shapes: Vec<_> =
            Dataset::range(8).batch(2).batch(3).iter().map(|b| b.unwrap().dims().to_vec()).collect();
        assert_eq!(shapes, [[3, 2], [1, 2]]);
    }

    #[test]
    fn a_whole_source_in_one_batch_is_the_source() {
        let x = HostTensor::vector(vec![1i64, 2, 3]);
        let batch = Dataset::from_slices(x.clone()).unwrap().batch(3).iter().next().unwrap().unwrap();
        assert!(std::ptr::eq(batch.as_slice::<i64>().unwrap(), x.as_slice::<i64>().unwrap()), "copied");
    }

    #[test]
    fn rows_and_values_mix_in_one_batch() {
        let rows = Dataset::from_slices(HostTensor::new(vec![1f32, 2., 3., 4.], [2, 2]).unwrap()).unwrap();
        let both = rows.map(|x| x).repeat(2).batch(3);
        let batch = both.iter().next().unwrap().unwrap();
        assert_eq!(batch.dims(), [3, 2]);
        assert_eq!(batch.as_slice::<f32>().unwrap(), [1., 2., 3., 4., 1., 2.]);
    }

    #[test]
    fn elements_that_differ_are_an_error_naming_the_batch() {
        let data = Dataset::range(4).map(|n| HostTensor::vector(vec![0f32; 1 + n as usize / 3])).batch(2);
        let mut iter = data.iter();
        assert!(iter.next().unwrap().is_ok());
        let error = iter.next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Stack { batch: 1, elements: 2, .. }), "{error:?}");
        assert!(iter.next().is_none());
    }
}
