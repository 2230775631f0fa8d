//! The operations that take or skip the first elements.

use crate::chunk::Chunk;
use crate::pipeline::{Operation, Pipeline, Sharding, one_input};
use crate::stage::Stage;
use crate::{Cardinality, Dataset, Result};
use distribute_tensor::Nest;

impl<T: Nest> Dataset<T> {
    /// Returns a dataset of the first `count` elements, or of all if there are fewer.
    #[doc(alias = "tf.data.Dataset.take")]
    pub fn take(&self, count: usize) -> Self {
        Self::of(Take { input: self.pipeline().clone(), count })
    }

    /// Returns a dataset of all elements except the first `count`.
    #[doc(alias = "tf.data.Dataset.skip")]
    pub fn skip(&self, count: usize) -> Self {
        Self::of(Skip { input: self.pipeline().clone(), count })
    }
}

#[derive(Clone)]
struct Take {
    input: Pipeline,
    count: usize,
}

impl Operation for Take {
    one_input!();

    fn describe(&self) -> String {
        format!("take {}", self.count)
    }

    fn cardinality(&self) -> Cardinality {
        match self.input.cardinality() {
            _ if self.count == 0 => Cardinality::Finite(0),
            Cardinality::Infinite => Cardinality::Finite(self.count),
            other => other.map(|n| n.min(self.count)),
        }
    }

    fn sharding(&self) -> Sharding {
        Sharding::Whole
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        Box::new(TakeStage { input: self.input.start(epoch), left: self.count })
    }
}

struct TakeStage {
    input: Box<dyn Stage>,
    left: usize,
}

impl Stage for TakeStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        if self.left == 0 {
            return None;
        }
        let chunk = self.input.next(max.min(self.left))?;
        if let Ok(chunk) = &chunk {
            self.left -= chunk.len();
        }
        Some(chunk)
    }

    fn skip(&mut self, count: usize) -> Result<usize> {
        let skipped = self.input.skip(count.min(self.left))?;
        self.left -= skipped;
        Ok(skipped)
    }

    fn passes(&self) -> usize {
        self.input.passes()
    }
}

#[derive(Clone)]
struct Skip {
    input: Pipeline,
    count: usize,
}

impl Operation for Skip {
    one_input!();

    fn describe(&self) -> String {
        format!("skip {}", self.count)
    }

    fn cardinality(&self) -> Cardinality {
        self.input.cardinality().map(|n| n.saturating_sub(self.count))
    }

    fn sharding(&self) -> Sharding {
        Sharding::Whole
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        Box::new(SkipStage { input: self.input.start(epoch), left: self.count, ended: false })
    }
}

struct SkipStage {
    input: Box<dyn Stage>,
    left: usize,
    ended: bool,
}

impl SkipStage {
    /// Skips the first elements, before an element is read for the first time.
    fn begin(&mut self) -> Result<()> {
        let left = std::mem::take(&mut self.left);
        if left > 0 {
            self.ended = self.input.skip(left)? < left;
        }
        Ok(())
    }
}

impl Stage for SkipStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        match self.begin() {
            Err(error) => Some(Err(error)),
            Ok(()) if self.ended => None,
            Ok(()) => self.input.next(max),
        }
    }

    fn skip(&mut self, count: usize) -> Result<usize> {
        self.begin()?;
        if self.ended { Ok(0) } else { self.input.skip(count) }
    }

    fn passes(&self) -> usize {
        self.input.passes()
    }
}

#[cfg(test)]
mod tests {
    use crate::Dataset;
    use crate::testing::{ids, values};

    #[test]
    fn take_and_skip() {
        let range = Dataset::range(5);
        assert_eq!(values(&range.take(2)), [0, 1]);
        assert_eq!(values(&range.take(9)), [0, 1, 2, 3, 4]);
        assert_eq!(values(&range.skip(3)), [3, 4]);
        assert_eq!(values(&range.skip(9)), [0i64; 0]);
        assert_eq!(values(&Dataset::range(5000).skip(4998)), [4998, 4999]);
        assert_eq!(ids(&range.batch(2).skip(1).take(1)), [[2, 3]]);
    }

    #[test]
    fn take_asks_for_no_more_than_it_gives() {
        let data = Dataset::range(5).map(|x| if x < 2 { x } else { panic!("asked for {x}") });
        assert_eq!(ids(&data.take(2).batch(10)), [[0, 1]]);
    }

    #[test]
    fn an_error_among_elements_that_have_to_be_made_is_not_skipped() {
        let data = Dataset::range(5).try_map(|x| if x == 1 { Err("one") } else { Ok(x) });
        assert!(data.filter(|_| true).skip(3).iter().next().unwrap().is_err());
        // A map is not called for elements that are skipped.
        assert_eq!(values(&data.skip(3)), [3, 4]);
    }
}
