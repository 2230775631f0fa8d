//! The operation that asserts the number of elements.

use crate::chunk::Chunk;
use crate::pipeline::{Operation, Pipeline, Sharding, WorkerShard, one_input};
use crate::stage::Stage;
use crate::{Cardinality, Dataset, Error, Result};
use distribute_tensor::Nest;

impl<T: Nest> Dataset<T> {
    /// Asserts that the dataset has `count` elements. This is then the [`cardinality`](Dataset::cardinality) of
    /// the result.
    ///
    /// A different number results in [`Error::Cardinality`]. If the pipeline determines the number, the error is
    /// returned before anything is read. Otherwise it is returned in the pass: at its end, or in place of the first
    /// excess element. A worker that reads only its own files, or its own elements at a shard hint, has fewer elements,
    /// so the assertion is removed for it.
    ///
    /// ```
    /// # use distribute_data::Dataset;
    /// let odd = Dataset::range(9).filter(|x| x % 2 == 1).assert_cardinality(4);
    /// assert_eq!(odd.cardinality().finite(), Some(4));
    /// ```
    #[doc(alias = "tf.data.experimental.assert_cardinality")]
    pub fn assert_cardinality(&self, count: usize) -> Self {
        Self::of(AssertCardinality { input: self.pipeline().clone(), count })
    }
}

#[derive(Clone)]
struct AssertCardinality {
    input: Pipeline,
    count: usize,
}

impl Operation for AssertCardinality {
    one_input!();

    fn describe(&self) -> String {
        format!("assert_cardinality {}", self.count)
    }

    fn cardinality(&self) -> Cardinality {
        Cardinality::Finite(self.count)
    }

    fn check(&self) -> Result<()> {
        match self.input.cardinality() {
            Cardinality::Unknown => Ok(()),
            Cardinality::Finite(count) if count == self.count => Ok(()),
            Cardinality::Infinite => Err(wrong(self.count, Cardinality::Infinite.to_string())),
            Cardinality::Finite(count) => Err(wrong(self.count, has(count))),
        }
    }

    fn sharding(&self) -> Sharding {
        Sharding::Through
    }

    fn shard(&self, worker: &WorkerShard) -> Option<Pipeline> {
        Some(crate::pipeline::shard(&self.input, worker))
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        Box::new(AssertStage {
            input: self.input.start(epoch),
            expected: self.count,
            left: self.count,
            more: false,
        })
    }
}

fn wrong(expected: usize, found: String) -> Error {
    Error::Cardinality { expected, found }
}

fn has(count: usize) -> String {
    format!("has {}", Cardinality::Finite(count))
}

struct AssertStage {
    input: Box<dyn Stage>,
    expected: usize,
    left: usize,
    /// Whether the input had an excess element.
    more: bool,
}

impl AssertStage {
    fn wrong(&self) -> Error {
        wrong(self.expected, if self.more { "has more".into() } else { has(self.expected - self.left) })
    }

    /// Counts the elements of a chunk, and returns the chunk without excess elements. If all of them are excess,
    /// returns the error.
    fn count(&mut self, mut chunk: Chunk) -> Result<Chunk> {
        if chunk.len() > self.left {
            self.more = true;
            if self.left == 0 {
                return Err(self.wrong());
            }
            chunk = chunk.slice(0..self.left);
        }
        self.left -= chunk.len();
        Ok(chunk)
    }
}

impl Stage for AssertStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        if self.more {
            return Some(Err(self.wrong()));
        }
        match self.input.next(max) {
            Some(chunk) => Some(chunk.and_then(|chunk| self.count(chunk))),
            None if self.left > 0 => Some(Err(self.wrong())),
            None => None,
        }
    }

    fn skip(&mut self, count: usize) -> Result<usize> {
        let skipped = self.input.skip(count)?;
        self.more |= skipped > self.left;
        self.left = self.left.saturating_sub(skipped);
        if self.more || (skipped < count && self.left > 0) { Err(self.wrong()) } else { Ok(skipped) }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{ids, values};
    use crate::{Batching, Cardinality, Dataset, Error};

    #[test]
    fn the_right_number_changes_only_the_cardinality() {
        let data = Dataset::range(9).filter(|x| *x > 4).assert_cardinality(4);
        assert_eq!(data.cardinality(), Cardinality::Finite(4));
        assert_eq!(values(&data), [5, 6, 7, 8]);
        assert_eq!(values(&data.skip(3)), [8]);
        assert_eq!(values(&data.skip(9)), [0i64; 0]);
        assert_eq!(Dataset::range(8).batch(2).assert_cardinality(4).batching(), Batching::Batches(2));
    }

    #[test]
    fn another_number_is_an_error_where_it_shows() {
        let data = Dataset::range(9).filter(|x| *x > 4);
        let mut pass = data.assert_cardinality(3).iter();
        assert_eq!(pass.by_ref().take(3).map(Result::unwrap).collect::<Vec<_>>(), [5, 6, 7]);
        let error = pass.next().unwrap().unwrap_err().to_string();
        assert_eq!(error, "assert_cardinality: there must be 3 elements, but this dataset has more");
        let error = data.assert_cardinality(5).iter().last().unwrap().unwrap_err().to_string();
        assert_eq!(error, "assert_cardinality: there must be 5 elements, but this dataset has 4 elements");
        assert_eq!(ids(&data.assert_cardinality(3).batch(3).take(1)), [[5, 6, 7]]);
        assert!(data.assert_cardinality(3).skip(5).iter().next().unwrap().is_err());
        assert!(matches!(
            Dataset::range(3).assert_cardinality(4).check(),
            Err(Error::Cardinality { expected: 4, .. })
        ));
        let endless = Dataset::range(3).repeat_forever().assert_cardinality(4).check();
        assert_eq!(
            endless.unwrap_err().to_string(),
            "assert_cardinality: there must be 4 elements, but this dataset never ends"
        );
    }
}
