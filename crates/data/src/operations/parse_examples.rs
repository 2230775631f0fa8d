//! Batches of records becoming columns of tensors.

use crate::chunk::Chunk;
use crate::example::Features;
use crate::pipeline::{Look, Operation, Pipeline, Sharding, one_input};
use crate::stage::Stage;
use crate::{Cardinality, Dataset, ElementSpec, Error, Result};
use distribute_tensor::{HostTensor, Leaf, Nest, Tree};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Dataset<HostTensor> {
    /// Parses batches of records that are `tf.train.Example`: from strings `[n]` to columns `[n, …]` by name. Features of
    /// variable length are as long as the longest of their batch.
    ///
    /// [`Error::Example`] in the pass names record and feature; [`Error::Type`] if elements are not vectors of strings.
    #[doc(alias = "tf.io.parse_example")]
    pub fn parse_examples(&self, features: &Features) -> Dataset<BTreeMap<String, HostTensor>> {
        Dataset::of(ParseExamples { input: self.pipeline().clone(), features: Arc::new(features.clone()) })
    }
}

#[derive(Clone)]
struct ParseExamples {
    input: Pipeline,
    features: Arc<Features>,
}

impl Operation for ParseExamples {
    one_input!();

    fn describe(&self) -> String {
        "parse examples".into()
    }

    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }

    fn spec(&self, look: Look) -> Option<ElementSpec> {
        let rows = self.input.spec(look)?.leaves().first()?.dims.first().copied().flatten();
        Some(self.features.spec(rows))
    }

    fn sharding(&self) -> Sharding {
        Sharding::Through
    }

    fn costly(&self) -> bool {
        true
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        Box::new(ParseStage { input: self.input.start(epoch), features: self.features.clone(), index: 0 })
    }
}

struct ParseStage {
    input: Box<dyn Stage>,
    features: Arc<Features>,
    index: usize,
}

impl ParseStage {
    fn parse(&mut self, tree: Tree<Leaf>) -> Result<Tree<Leaf>> {
        let index = self.index;
        self.index += 1;
        let mistyped = |source| Error::Type { operation: "parse_examples", index, source };
        let batch = HostTensor::from_tree(tree).map_err(mistyped)?;
        let records = batch.to_vec::<Vec<u8>>().map_err(mistyped)?;
        Ok(self.features.parse(records.iter().map(Vec::as_slice))?.into_tree())
    }
}

impl Stage for ParseStage {
    fn next(&mut self, _max: usize) -> Option<Result<Chunk>> {
        let chunk = self.input.next(1)?;
        Some(chunk.and_then(Chunk::into_values).and_then(|batches| {
            batches.into_iter().map(|batch| self.parse(batch)).collect::<Result<_>>().map(Chunk::Values)
        }))
    }

    fn skip(&mut self, count: usize) -> Result<usize> {
        let skipped = self.input.skip(count)?;
        self.index = self.index.saturating_add(skipped);
        Ok(skipped)
    }
}

#[cfg(test)]
mod tests {
    use crate::example::{Example, Features, VarLen};
    use crate::{Batching, Dataset, Error};
    use distribute_tensor::HostTensor;

    fn records(n: i64) -> Dataset<HostTensor> {
        Dataset::range(n).map(|i| {
            let ids: Vec<i64> = (0..i).collect();
            let record = Example::from([("ids", ids.into())]).encode();
            HostTensor::scalar(record)
        })
    }

    #[test]
    fn lists_are_as_long_as_the_longest_of_their_batch() {
        let features = Features::new().with("ids", VarLen::ints().pad(-1).lengths("n")).unwrap();
        let parsed = records(4).batch(2).parse_examples(&features);
        let batches: Vec<_> = parsed.iter().map(Result::unwrap).collect();
        assert_eq!(batches[0]["ids"].as_slice::<i64>().unwrap(), [-1, 0]);
        assert_eq!(batches[1]["ids"].dims(), [2, 3]);
        assert_eq!(batches[1]["n"].as_slice::<i64>().unwrap(), [2, 3]);
        // DIST-3: parsing keeps batches batches.
        assert_eq!(parsed.batching(), Batching::Batches(2));
        assert_eq!(parsed.skip(1).iter().count(), 1);
    }

    #[test]
    fn what_is_no_record_is_an_error_naming_it() {
        let features = Features::new().with("ids", VarLen::ints()).unwrap();
        let error = Dataset::range(3).batch(2).parse_examples(&features).iter().next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Type { operation: "parse_examples", index: 0, .. }), "{error}");
        let broken = Dataset::from_items([HostTensor::vector(vec![b"\xff".to_vec()])]);
        let error = broken.parse_examples(&features).iter().next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Example { record: 0, .. }), "{error}");
    }
}
