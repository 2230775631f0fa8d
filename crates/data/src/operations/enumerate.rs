//! The operation that numbers the elements.

use super::pairing::Pairing;
use crate::chunk::{Chunk, Picks};
use crate::pipeline::{Batching, Look, Operation, Pipeline, Sharding, one_input};
use crate::rows::Rows;
use crate::stage::Stage;
use crate::{Cardinality, Dataset, ElementSpec, Result, TensorSpec};
use distribute_tensor::{DType, Nest, Tree};
use std::sync::Arc;

impl<T: Nest> Dataset<T> {
    /// Pairs each element with its index in the pass, counted from 0.
    ///
    /// ```
    /// # use distribute_data::Dataset;
    /// let data = Dataset::range(5..7).enumerate();
    /// assert_eq!(data.iter().collect::<Result<Vec<_>, _>>()?, [(0, 5), (1, 6)]);
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    #[doc(alias = "tf.data.Dataset.enumerate")]
    pub fn enumerate(&self) -> Dataset<(i64, T)> {
        Dataset::of(Enumerate { input: self.pipeline().clone() })
    }
}

#[derive(Clone)]
struct Enumerate {
    input: Pipeline,
}

impl Operation for Enumerate {
    one_input!();

    fn describe(&self) -> String {
        "enumerate".into()
    }

    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }

    /// Returns [`Batching::Elements`], or [`Batching::Unknown`] if the input may have batches: an index next to a batch
    /// cannot be split.
    fn batching(&self) -> Batching {
        Batching::Elements.or(self.input.batching())
    }

    fn spec(&self, look: Look) -> Option<ElementSpec> {
        Some(Tree::Tuple(vec![Tree::Leaf(TensorSpec::scalar(DType::I64)), self.input.spec(look)?]))
    }

    fn sharding(&self) -> Sharding {
        Sharding::Whole
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        let numbers = Arc::new(Rows::Range { start: 0, len: usize::MAX });
        Box::new(EnumerateStage {
            input: self.input.start(epoch),
            numbers,
            index: 0,
            pairing: Pairing::default(),
        })
    }
}

struct EnumerateStage {
    input: Box<dyn Stage>,
    numbers: Arc<Rows>,
    index: usize,
    pairing: Pairing,
}

impl Stage for EnumerateStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        let chunk = match self.input.next(max)? {
            Ok(chunk) => chunk,
            error => return Some(error),
        };
        let start = self.index;
        self.index = self.index.saturating_add(chunk.len());
        Some(self.pairing.pair(Chunk::Rows(self.numbers.clone(), Picks::Range(start..self.index)), chunk))
    }

    fn skip(&mut self, count: usize) -> Result<usize> {
        let skipped = self.input.skip(count)?;
        self.index = self.index.saturating_add(skipped);
        Ok(skipped)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Batching, Dataset, Result};

    #[test]
    fn numbers_are_those_of_the_pass() {
        let all = |data: Dataset<(i64, i64)>| data.iter().collect::<Result<Vec<_>>>().unwrap();
        assert_eq!(all(Dataset::range(10).filter(|x| x % 4 == 1).enumerate()), [(0, 1), (1, 5), (2, 9)]);
        assert_eq!(all(Dataset::range(2).enumerate().repeat(2)), [(0, 0), (1, 1), (0, 0), (1, 1)]);
        assert_eq!(all(Dataset::range(9).skip(3).enumerate().skip(2).take(1)), [(2, 5)]);
        let (numbers, values) = Dataset::range(5..9).enumerate().batch(3).iter().next().unwrap().unwrap();
        assert_eq!(numbers.to_vec::<i64>().unwrap(), [0, 1, 2]);
        assert_eq!(values.to_vec::<i64>().unwrap(), [5, 6, 7]);
        assert_eq!(Dataset::range(5).enumerate().batching(), Batching::Elements);
        assert_eq!(Dataset::range(5).batch(2).enumerate().batching(), Batching::Unknown);
        assert_eq!(Dataset::range(5).enumerate().batch(2).batching(), Batching::Batches(2));
    }
}
