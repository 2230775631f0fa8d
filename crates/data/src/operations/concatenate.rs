//! The operation that concatenates two datasets.

use crate::chunk::Chunk;
use crate::pipeline::{Batching, Look, Operation, Pipeline, Sharding};
use crate::stage::Stage;
use crate::{Cardinality, Dataset, ElementSpec, Result, spec};
use distribute_tensor::Nest;
use std::sync::Arc;

impl<T: Nest> Dataset<T> {
    /// Returns a dataset of all elements of this dataset, followed by all elements of `other`.
    ///
    /// ```
    /// # use distribute_data::Dataset;
    /// let data = Dataset::range(2).concatenate(&Dataset::range(10..12));
    /// assert_eq!(data.iter().collect::<Result<Vec<_>, _>>()?, [0, 1, 10, 11]);
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    #[doc(alias = "tf.data.Dataset.concatenate")]
    pub fn concatenate(&self, other: &Dataset<T>) -> Self {
        Self::of(Concatenate { inputs: [self.pipeline().clone(), other.pipeline().clone()] })
    }
}

struct Concatenate {
    inputs: [Pipeline; 2],
}

impl Operation for Concatenate {
    fn inputs(&self) -> &[Pipeline] {
        &self.inputs
    }

    fn over(&self, f: &mut dyn FnMut(&Pipeline) -> Pipeline) -> Option<Pipeline> {
        Some(Arc::new(Concatenate { inputs: self.inputs.each_ref().map(f) }))
    }

    fn describe(&self) -> String {
        "concatenate".into()
    }

    fn cardinality(&self) -> Cardinality {
        match self.inputs.each_ref().map(|input| input.cardinality()) {
            [Cardinality::Finite(a), Cardinality::Finite(b)] => Cardinality::Finite(a.saturating_add(b)),
            [Cardinality::Infinite, _] | [_, Cardinality::Infinite] => Cardinality::Infinite,
            _ => Cardinality::Unknown,
        }
    }

    fn batching(&self) -> Batching {
        let [first, second] = &self.inputs;
        first.batching().or(second.batching())
    }

    fn spec(&self, look: Look) -> Option<ElementSpec> {
        let [first, second] = &self.inputs;
        spec::either(first.spec(look)?, second.spec(look)?)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Through
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        let [first, second] = self.inputs.each_ref().map(|input| input.start(epoch));
        let is_endless = self.inputs[0].cardinality() == Cardinality::Infinite;
        Box::new(ConcatenateStage { current: first, second: Some(second), is_endless })
    }
}

struct ConcatenateStage {
    current: Box<dyn Stage>,
    /// The stage of the second dataset; `None` once it is in `current`.
    second: Option<Box<dyn Stage>>,
    /// Whether the first dataset is known to be infinite, so that the second one is never read.
    is_endless: bool,
}

impl Stage for ConcatenateStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        match self.current.next(max) {
            None => {
                self.current = self.second.take()?;
                self.current.next(max)
            }
            some => some,
        }
    }

    fn skip(&mut self, count: usize) -> Result<usize> {
        let skipped = self.current.skip(count)?;
        match self.second.take_if(|_| skipped < count) {
            None => Ok(skipped),
            Some(second) => {
                self.current = second;
                Ok(skipped + self.current.skip(count - skipped)?)
            }
        }
    }

    /// Returns the number of passes over the current dataset if no other dataset follows. Otherwise returns 0,
    /// because a filter that keeps no element of the first dataset may keep elements of the second one.
    fn passes(&self) -> usize {
        if self.is_endless || self.second.is_none() { self.current.passes() } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{ids, values};
    use crate::{Batching, Cardinality, Dataset};

    #[test]
    fn one_comes_after_the_other_in_the_pass_of_the_same_number() {
        let shuffled = Dataset::range(9).shuffle(9, 1);
        let both = shuffled.concatenate(&Dataset::range(10..12));
        for epoch in 0..2 {
            let mut expected: Vec<i64> = shuffled.epoch(epoch).map(Result::unwrap).collect();
            expected.extend([10, 11]);
            assert_eq!(both.epoch(epoch).map(Result::unwrap).collect::<Vec<_>>(), expected);
        }
        assert_eq!(
            ids(&Dataset::range(2).concatenate(&Dataset::range(3)).batch(4)),
            [vec![0, 1, 0, 1], vec![2]]
        );
        assert_eq!(values(&Dataset::range(0).concatenate(&Dataset::range(0))), [0i64; 0]);
        for skip in 0..8 {
            let data = Dataset::range(3).concatenate(&Dataset::range(3..6)).skip(skip);
            assert_eq!(values(&data), (skip.min(6) as i64..6).collect::<Vec<_>>());
        }
    }

    /// Checks that a filter that keeps no element of many repetitions does not return an error before the second
    /// dataset.
    #[test]
    fn elements_that_come_after_many_repetitions_are_kept() {
        let many = Dataset::range(3).repeat(500).concatenate(&Dataset::range(9));
        assert_eq!(values(&many.filter(|x| *x > 7)), [8]);
    }

    // DIST-3
    #[test]
    fn common_static_properties_are_kept() {
        let batched = |size| Dataset::range(7).batch(size);
        assert_eq!(batched(3).concatenate(&batched(3)).batching(), Batching::Batches(3));
        assert_eq!(batched(3).concatenate(&batched(2)).batching(), Batching::Unknown);
        assert_eq!(batched(3).concatenate(&batched(3)).cardinality(), Cardinality::Finite(6));
        assert_eq!(batched(3).concatenate(&batched(3)).element_spec(), batched(3).element_spec());
        let endless = batched(3).repeat_forever();
        assert_eq!(batched(3).concatenate(&endless).cardinality(), Cardinality::Infinite);
    }
}
