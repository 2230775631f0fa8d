//! The operation that splits batches into their rows.

use super::repeat::EmptyPassCounter;
use crate::chunk::{Chunk, Picks};
use crate::pipeline::{Batching, Look, Operation, Pipeline, Sharding, one_input};
use crate::rows::Rows;
use crate::stage::Stage;
use crate::{Cardinality, Dataset, ElementSpec, Result, TensorSpec};
use distribute_tensor::Nest;
use std::ops::Range;
use std::sync::Arc;

impl<B: Nest> Dataset<B> {
    /// Splits each batch into its rows: leaves of shape `[n, …]` give `n` elements with leaves of shape `[…]`.
    /// This is the opposite of [`batch`](Dataset::batch).
    ///
    /// `U` is the type of the elements. It cannot be inferred, because both numbers and tensors are batched into
    /// tensors. If the elements are batched again, the new batches are created from the old ones with a single
    /// copy.
    ///
    /// An element that is not a batch results in [`Error::Scalar`](crate::Error::Scalar),
    /// [`Error::UnequalRows`](crate::Error::UnequalRows) or [`Error::NoTensor`](crate::Error::NoTensor) in the pass.
    ///
    /// ```
    /// # use distribute_data::Dataset;
    /// let data = Dataset::range(5).batch(3).unbatch::<i64>();
    /// assert_eq!(data.iter().collect::<Result<Vec<_>, _>>()?, [0, 1, 2, 3, 4]);
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    #[doc(alias = "tf.data.Dataset.unbatch")]
    pub fn unbatch<U: Nest<Batch = B>>(&self) -> Dataset<U> {
        Dataset::of(Unbatch { input: self.pipeline().clone() })
    }
}

#[derive(Clone)]
struct Unbatch {
    input: Pipeline,
}

impl Unbatch {
    /// Returns the number of rows per batch, if every batch has the same number.
    fn rows(&self) -> Option<usize> {
        let spec = self.input.spec(Look::Never)?;
        let mut rows = spec.leaves().into_iter().map(|leaf| leaf.dims.first().copied().flatten());
        let first = rows.next()??;
        rows.all(|rows| rows == Some(first)).then_some(first)
    }
}

impl Operation for Unbatch {
    one_input!();

    fn describe(&self) -> String {
        "unbatch".into()
    }

    fn cardinality(&self) -> Cardinality {
        match (self.input.cardinality(), self.rows()) {
            (Cardinality::Finite(batches), Some(rows)) => Cardinality::Finite(batches.saturating_mul(rows)),
            (Cardinality::Finite(0), None) => Cardinality::Finite(0),
            (Cardinality::Infinite, Some(0)) => Cardinality::Unknown,
            (Cardinality::Infinite, _) => Cardinality::Infinite,
            _ => Cardinality::Unknown,
        }
    }

    fn batching(&self) -> Batching {
        Batching::Elements
    }

    fn spec(&self, look: Look) -> Option<ElementSpec> {
        Some(self.input.spec(look)?.map(&mut TensorSpec::row))
    }

    fn sharding(&self) -> Sharding {
        Sharding::Through
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        Box::new(UnbatchStage {
            input: self.input.start(epoch),
            batch: None,
            empty_passes: EmptyPassCounter::default(),
        })
    }
}

struct UnbatchStage {
    input: Box<dyn Stage>,
    /// The batch that was read last, and the range of its remaining rows.
    batch: Option<(Arc<Rows>, Range<usize>)>,
    empty_passes: EmptyPassCounter,
}

impl UnbatchStage {
    /// Returns the next rows, up to `max`, all from one batch; `None` at the end.
    fn rows(&mut self, max: usize) -> Result<Option<(Arc<Rows>, Range<usize>)>> {
        loop {
            if let Some((rows, left)) = &mut self.batch
                && left.start < left.end
            {
                let taken = left.start..left.end.min(left.start.saturating_add(max));
                left.start = taken.end;
                return Ok(Some((rows.clone(), taken)));
            }
            let Some(chunk) = self.input.next(1) else { return Ok(None) };
            let Some(tree) = chunk?.into_values()?.pop() else { continue };
            let len = crate::split::rows(&tree, "unbatch")?;
            match len {
                0 => self.empty_passes.nothing("unbatch", self.input.passes())?,
                _ => self.empty_passes.found(),
            }
            self.batch = Some((Arc::new(Rows::Section { tree, len }), 0..len));
        }
    }
}

impl Stage for UnbatchStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        let rows = self.rows(max).transpose()?;
        Some(rows.map(|(rows, taken)| Chunk::Rows(rows, Picks::Range(taken))))
    }

    fn skip(&mut self, count: usize) -> Result<usize> {
        let mut left = count;
        while left > 0 {
            match self.rows(left)? {
                Some((_, passed)) => left -= passed.len(),
                None => break,
            }
        }
        Ok(count - left)
    }

    fn passes(&self) -> usize {
        self.input.passes()
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{ids, values};
    use crate::{Batching, Cardinality, Dataset, Error};
    use distribute_tensor::HostTensor;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn unbatching_gives_the_elements_back(n in 0i64..40, batch in 1usize..9, again in 1usize..9, skip in 0usize..20) {
            let data = Dataset::range(n);
            let rows = data.batch(batch).unbatch::<i64>();
            prop_assert_eq!(values(&rows), values(&data));
            prop_assert_eq!(values(&rows.skip(skip)), values(&data.skip(skip)));
            prop_assert_eq!(ids(&rows.batch(again)), ids(&data.batch(again)));
            prop_assert_eq!(ids(&data.batch(batch).rebatch(&[batch, 0]).unbatch::<i64>().batch(again)), ids(&data.batch(again)));
        }
    }

    #[test]
    fn rows_of_a_batch_are_cut_out_of_it_again() {
        let x = HostTensor::new(vec![1f32, 2., 3., 4.], [2, 2]).unwrap();
        let batches = Dataset::from_items([(x.clone(), HostTensor::vector(vec![7i64, 8]))]);
        let rows = batches.unbatch::<(HostTensor, i64)>();
        let (row, label) = rows.iter().last().unwrap().unwrap();
        assert_eq!((row.as_slice::<f32>().unwrap(), label), (&[3., 4.][..], 8));
        let (whole, _) = rows.batch(2).iter().next().unwrap().unwrap();
        assert!(std::ptr::eq(whole.as_slice::<f32>().unwrap(), x.as_slice::<f32>().unwrap()), "copied");
        assert_eq!(
            rows.element_spec().unwrap().describe(&|spec| spec.to_string()),
            "(float32 [2], int64 [])"
        );
    }

    #[test]
    fn lengths_are_static_if_all_batches_are_full() {
        assert_eq!(Dataset::range(7).batch_exact(3).unbatch::<i64>().cardinality(), Cardinality::Finite(6));
        assert_eq!(Dataset::range(7).batch(3).unbatch::<i64>().cardinality(), Cardinality::Unknown);
        assert_eq!(Dataset::range(7).batch(3).unbatch::<i64>().batching(), Batching::Elements);
    }

    #[test]
    fn an_element_that_is_no_batch_is_an_error() {
        let scalars = Dataset::range(3).typed::<HostTensor>().unbatch::<i64>();
        assert!(matches!(scalars.iter().next().unwrap().unwrap_err(), Error::Scalar { .. }));
        let uneven =
            Dataset::from_items([(HostTensor::vector(vec![1i64]), HostTensor::vector(vec![1i64, 2]))]);
        assert!(matches!(
            uneven.unbatch::<(i64, i64)>().iter().next().unwrap().unwrap_err(),
            Error::UnequalRows { .. }
        ));
    }
}
