//! The operations that parse batches of records into columns of tensors.

use crate::chunk::Chunk;
use crate::example::{Features, SequenceFeatures};
use crate::pipeline::{Look, Operation, Pipeline, Sharding, one_input};
use crate::stage::Stage;
use crate::{Cardinality, Dataset, ElementSpec, Error, Result};
use distribute_tensor::{HostTensor, Leaf, Nest, Tree};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Dataset<HostTensor> {
    /// Parses batches of records that are encoded as `tf.train.Example`. Strings of shape `[n]` become columns of
    /// shape `[n, …]` by name. Features of variable length are padded to the longest in their batch.
    ///
    /// A record that cannot be parsed results in [`Error::Example`] in the pass, with the record and the feature.
    /// Elements that are not vectors of strings result in [`Error::Type`].
    #[doc(alias = "tf.io.parse_example")]
    pub fn parse_examples(&self, features: &Features) -> Dataset<BTreeMap<String, HostTensor>> {
        Dataset::of(ParseExamples { input: self.pipeline().clone(), parser: Arc::new(features.clone()) })
    }

    /// Parses batches of records that are encoded as `tf.train.SequenceExample`. Strings of shape `[n]` become
    /// the columns of the context and of the lists, of shape `[n, …]` by name. Lists are padded to the longest in
    /// their batch.
    ///
    /// A record that cannot be parsed results in [`Error::Example`] in the pass, with the record, the list and the
    /// step. Elements that are not vectors of strings result in [`Error::Type`].
    #[doc(alias = "tf.io.parse_sequence_example")]
    pub fn parse_sequence_examples(
        &self,
        features: &SequenceFeatures,
    ) -> Dataset<(BTreeMap<String, HostTensor>, BTreeMap<String, HostTensor>)> {
        Dataset::of(ParseExamples { input: self.pipeline().clone(), parser: Arc::new(features.clone()) })
    }
}

/// A parser of records into columns.
trait Parser: Send + Sync {
    const NAME: &'static str;
    const TEXT: &'static str;

    /// Returns a text for [`identity`](crate::pipeline::Operation::identity), which differs between parsers that
    /// result in different columns.
    fn identity(&self) -> String;

    fn spec(&self, rows: Option<usize>) -> ElementSpec;

    fn parse(&self, records: &[Vec<u8>]) -> Result<Tree<Leaf>>;
}

impl Parser for Features {
    const NAME: &'static str = "parse_examples";
    const TEXT: &'static str = "parse examples";

    fn identity(&self) -> String {
        self.identity()
    }

    fn spec(&self, rows: Option<usize>) -> ElementSpec {
        self.spec(rows)
    }

    fn parse(&self, records: &[Vec<u8>]) -> Result<Tree<Leaf>> {
        Ok(self.parse(records.iter().map(Vec::as_slice))?.into_tree())
    }
}

impl Parser for SequenceFeatures {
    const NAME: &'static str = "parse_sequence_examples";
    const TEXT: &'static str = "parse sequence examples";

    fn identity(&self) -> String {
        self.identity()
    }

    fn spec(&self, rows: Option<usize>) -> ElementSpec {
        self.spec(rows)
    }

    fn parse(&self, records: &[Vec<u8>]) -> Result<Tree<Leaf>> {
        Ok(self.parse(records.iter().map(Vec::as_slice))?.into_tree())
    }
}

struct ParseExamples<P> {
    input: Pipeline,
    parser: Arc<P>,
}

impl<P> Clone for ParseExamples<P> {
    fn clone(&self) -> Self {
        Self { input: self.input.clone(), parser: self.parser.clone() }
    }
}

impl<P: Parser + 'static> Operation for ParseExamples<P> {
    one_input!();

    fn describe(&self) -> String {
        P::TEXT.into()
    }

    fn identity(&self) -> String {
        format!("{}, {}", P::TEXT, self.parser.identity())
    }

    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }

    fn spec(&self, look: Look) -> Option<ElementSpec> {
        let rows = self.input.spec(look)?.leaves().first()?.dims.first().copied().flatten();
        Some(self.parser.spec(rows))
    }

    fn sharding(&self) -> Sharding {
        Sharding::Through
    }

    fn costly(&self) -> bool {
        true
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        Box::new(ParseStage { input: self.input.start(epoch), parser: self.parser.clone(), index: 0 })
    }
}

struct ParseStage<P> {
    input: Box<dyn Stage>,
    parser: Arc<P>,
    index: usize,
}

impl<P: Parser> ParseStage<P> {
    fn parse(&mut self, tree: Tree<Leaf>) -> Result<Tree<Leaf>> {
        let index = self.index;
        self.index += 1;
        let mistyped = |source| Error::Type { operation: P::NAME, index, source };
        let batch = HostTensor::from_tree(tree).map_err(mistyped)?;
        let records = batch.to_vec::<Vec<u8>>().map_err(mistyped)?;
        self.parser.parse(&records)
    }
}

impl<P: Parser> Stage for ParseStage<P> {
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

    fn passes(&self) -> usize {
        self.input.passes()
    }
}

#[cfg(test)]
mod tests {
    use crate::example::{Example, Features, FixedLen, SequenceExample, SequenceFeatures, Steps, VarLen};
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
        // DIST-3: parsed batches are still batches.
        assert_eq!(parsed.batching(), Batching::Batches(2));
        assert_eq!(parsed.skip(1).iter().count(), 1);
    }

    #[test]
    fn sequences_are_parsed_into_context_and_lists() {
        let record = |i: i64| {
            let steps = (0..i).map(|step| [step as f32, 0.5]);
            SequenceExample::new().with_context("label", i).with_list("frames", steps).encode()
        };
        let features = SequenceFeatures::new()
            .context("label", FixedLen::ints([]))
            .and_then(|f| f.list("frames", Steps::floats([2]).lengths("n")))
            .unwrap();
        let records = Dataset::range(4i64).map(move |i| HostTensor::scalar(record(i)));
        let parsed = records.batch(2).parse_sequence_examples(&features);
        let (context, lists) = parsed.iter().nth(1).unwrap().unwrap();
        assert_eq!(context["label"].as_slice::<i64>().unwrap(), [2, 3]);
        assert_eq!(
            (lists["frames"].dims(), lists["n"].as_slice::<i64>().unwrap()),
            (&[2, 3, 2][..], &[2, 3][..])
        );
        let spec = parsed.element_spec().unwrap();
        let texts: Vec<_> = spec.leaves().iter().map(ToString::to_string).collect();
        assert!(texts.len() == 3 && texts[1].ends_with("?, 2]"), "{texts:?}");
        assert_eq!(parsed.batching(), Batching::Batches(2));
    }

    #[test]
    fn an_invalid_record_is_an_error_that_names_it() {
        let features = Features::new().with("ids", VarLen::ints()).unwrap();
        let error = Dataset::range(3).batch(2).parse_examples(&features).iter().next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Type { operation: "parse_examples", index: 0, .. }), "{error}");
        let broken = Dataset::from_items([HostTensor::vector(vec![b"\xff".to_vec()])]);
        let error = broken.parse_examples(&features).iter().next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Example { record: 0, .. }), "{error}");
    }
}
