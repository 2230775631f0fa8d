//! The operation that reads several datasets, which are created from elements, in turn.

use super::cycle::{Cycle, InnerFn};
use crate::error::at_least_one;
use crate::guard::catch_panics;
use crate::pipeline::{Batching, Look, Operation, Pipeline, Sharding, one_input};
use crate::stage::Stage;
use crate::worker_pool::check_threads;
use crate::{Cardinality, Cause, Dataset, ElementSpec, Error, Interleave, Result, pipeline};
use distribute_tensor::Nest;
use std::sync::Arc;

impl<T: Nest> Dataset<T> {
    /// Maps each element to a dataset, such as the lines of a file, and reads several of these datasets in turn,
    /// as `turns` describes.
    ///
    /// A dataset that has ended is replaced at its next turn by the dataset of the next element. Each dataset is
    /// read in the pass with the same number as the pass over this dataset, so its shuffles have a different
    /// order in each pass.
    ///
    /// A panic results in [`Error::Panicked`], and an error in one of the datasets results in [`Error::Inner`]. Both
    /// contain the element's index, and end the pass. `turns` that are out of range result in [`Error::Parameter`].
    ///
    /// If this dataset is [repeated](Dataset::repeat), and all datasets of 100 consecutive repetitions are empty, the
    /// pass ends with [`Error::EmptyPasses`].
    #[doc(alias = "tf.data.Dataset.interleave")]
    pub fn interleave<U, F>(&self, function: F, turns: Interleave) -> Dataset<U>
    where
        T: 'static,
        U: Nest,
        F: Fn(T) -> Dataset<U> + Send + Sync + 'static,
    {
        self.try_interleave(move |value| Ok::<_, Cause>(function(value)), turns)
    }

    /// Interleaves like [`interleave`](Dataset::interleave), but `function` may fail. An error of `function` ends the
    /// pass with [`Error::Inner`].
    #[doc(alias = "tf.data.Dataset.interleave")]
    pub fn try_interleave<U, E, F>(&self, function: F, turns: Interleave) -> Dataset<U>
    where
        T: 'static,
        U: Nest,
        E: Into<Cause>,
        F: Fn(T) -> Result<Dataset<U>, E> + Send + Sync + 'static,
    {
        self.in_turn("interleave", function, turns)
    }

    /// Implements [`try_interleave`](Self::try_interleave) and [`try_flat_map`](Self::try_flat_map). `operation` is
    /// the name in errors.
    pub(super) fn in_turn<U, E, F>(
        &self,
        operation: &'static str,
        function: F,
        turns: Interleave,
    ) -> Dataset<U>
    where
        T: 'static,
        U: Nest,
        E: Into<Cause>,
        F: Fn(T) -> Result<Dataset<U>, E> + Send + Sync + 'static,
    {
        let input = self.pipeline().clone();
        Dataset::of(InTurn { input, operation, function: on_trees(operation, function), turns })
    }
}

/// Wraps a user function as a function from a tree to a pipeline. Its errors and panics contain the element's
/// index.
fn on_trees<T, U, E, F>(operation: &'static str, function: F) -> InnerFn
where
    T: Nest + 'static,
    U: Nest,
    E: Into<Cause>,
    F: Fn(T) -> Result<Dataset<U>, E> + Send + Sync + 'static,
{
    Arc::new(move |tree, index| {
        let value = T::from_tree(tree).map_err(|source| Error::Type { operation, index, source })?;
        inner_pipeline(operation, index, || function(value))
    })
}

/// Calls a user function that returns a dataset, and checks the dataset. Errors and panics contain `index`, the index
/// of the element.
pub(super) fn inner_pipeline<U: Nest, E: Into<Cause>>(
    operation: &'static str,
    index: usize,
    function: impl FnOnce() -> Result<Dataset<U>, E>,
) -> Result<Pipeline> {
    let inner = |cause| Error::Inner { operation, index, cause };
    let dataset = catch_panics(operation, index, function)?.map_err(|cause| inner(cause.into()))?;
    dataset.check().map_err(|error| inner(error.into()))?;
    Ok(dataset.pipeline().clone())
}

#[derive(Clone)]
struct InTurn {
    input: Pipeline,
    operation: &'static str,
    function: InnerFn,
    turns: Interleave,
}

impl Operation for InTurn {
    one_input!();

    fn describe(&self) -> String {
        let Interleave { cycle_length, block_length, ahead } = self.turns;
        match (self.operation, ahead) {
            ("flat_map", _) => "flat_map".into(),
            (name, 0) => format!("{name} {cycle_length}, blocks of {block_length}"),
            (name, _) => format!("{name} {cycle_length}, blocks of {block_length}, {ahead} ahead each"),
        }
    }

    /// Returns `false`, because the function opens the files.
    fn names_files(&self) -> bool {
        false
    }

    /// Returns the description without the number of elements that are prepared early, which changes only the timing.
    fn identity(&self) -> String {
        Self { turns: Interleave { ahead: 0, ..self.turns }, ..self.clone() }.describe()
    }

    fn cardinality(&self) -> Cardinality {
        match self.input.cardinality() {
            Cardinality::Finite(n) if n > 0 => Cardinality::Unknown,
            other => other,
        }
    }

    fn batching(&self) -> Batching {
        Batching::Unknown
    }

    /// Returns the spec of the dataset that is created from the first element, if `look` allows computing this element.
    fn spec(&self, look: Look) -> Option<ElementSpec> {
        match look {
            Look::Never => None,
            Look::AtFirst => (self.function)(pipeline::first(&self.input)?, 0).ok()?.spec(look),
        }
    }

    fn check(&self) -> Result<()> {
        at_least_one("interleave", "the cycle length", self.turns.cycle_length)?;
        at_least_one("interleave", "the block length", self.turns.block_length)?;
        match self.turns.ahead {
            0 => Ok(()),
            // Each dataset of the cycle has a thread.
            _ => check_threads("interleave", self.turns.cycle_length),
        }
    }

    fn sharding(&self) -> Sharding {
        Sharding::Through
    }

    fn costly(&self) -> bool {
        true
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        let (input, function) = (self.input.start(epoch), self.function.clone());
        Box::new(Cycle::new(self.operation, input, function, self.turns, epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ids, in_turn, values};
    use distribute_testing::watched;
    use proptest::prelude::*;

    fn of_lengths(lengths: &[usize], turns: Interleave) -> (Dataset<i64>, Vec<i64>) {
        let list = |(i, n): (usize, &usize)| (100 * i as i64..100 * i as i64 + *n as i64).collect::<Vec<_>>();
        let lists: Vec<Vec<i64>> = lengths.iter().enumerate().map(list).collect();
        let expected = in_turn(&lists, turns);
        let inner = lists.clone();
        let data = Dataset::range(lists.len() as i64)
            .interleave(move |i| Dataset::from_items(inner[i as usize].clone()), turns);
        (data, expected)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn datasets_are_read_in_turn_with_threads_and_without(
            lengths in proptest::collection::vec(0usize..6, 0..8),
            cycle_length in 1usize..5, block_length in 1usize..4, ahead in 0usize..3, skip in 0usize..12,
        ) {
            watched(move || {
                let turns = Interleave { cycle_length, block_length, ahead };
                let (data, expected) = of_lengths(&lengths, turns);
                assert_eq!(values(&data), expected);
                assert_eq!(values(&data.skip(skip)), expected[skip.min(expected.len())..]);
                assert_eq!(ids(&data.batch(3)).concat(), expected);
            });
        }
    }

    #[test]
    fn a_shuffle_in_an_inner_dataset_has_the_order_of_the_outer_pass() {
        let inner = Dataset::range(30).shuffle(30, 1);
        let same = inner.clone();
        let outer = Dataset::range(1).interleave(move |_| same.clone(), Interleave::default());
        for epoch in 0..3 {
            let pass = |data: &Dataset<i64>| data.epoch(epoch).map(Result::unwrap).collect::<Vec<_>>();
            assert_eq!(pass(&outer), pass(&inner));
        }
    }

    // INV-13
    #[test]
    fn errors_name_the_element_and_keep_its_position() {
        watched(|| {
            for ahead in [0, 2] {
                let turns = Interleave { cycle_length: 2, block_length: 1, ahead };
                let data = Dataset::range(4)
                    .try_interleave(|i| if i == 2 { Err("no file") } else { Ok(Dataset::range(2)) }, turns);
                let mut pass = data.iter();
                assert_eq!(pass.by_ref().take(4).map(Result::unwrap).collect::<Vec<_>>(), [0, 0, 1, 1]);
                let error = pass.next().unwrap().unwrap_err();
                assert_eq!(error.to_string(), "interleave: the dataset of element 2 failed: no file");
                assert!(pass.next().is_none());

                let panics = Dataset::range(2)
                    .interleave(|i| if i == 1 { panic!("at one") } else { Dataset::range(2) }, turns);
                let error = panics.iter().find_map(Result::err).unwrap();
                assert!(
                    matches!(error, Error::Panicked { operation: "interleave", index: 1, .. }),
                    "{error:?}"
                );

                let inner = Dataset::range(2).interleave(|_| Dataset::range(3).map(|x| 1 / (1 - x)), turns);
                let error = inner.iter().find_map(Result::err).unwrap().to_string();
                assert!(
                    error.starts_with(
                        "interleave: the dataset of element 0 failed: the function given to map"
                    ),
                    "{error}"
                );
                let zero = Dataset::range(2).interleave(|_| Dataset::range(3).shuffle(0, 1), turns);
                assert!(matches!(zero.iter().next().unwrap().unwrap_err(), Error::Inner { index: 0, .. }));
            }
        });
    }

    #[test]
    fn a_cycle_of_nothing_is_an_error() {
        let turns = Interleave { cycle_length: 0, ..Interleave::default() };
        let data = Dataset::range(2).interleave(|_| Dataset::range(1), turns);
        assert!(matches!(data.check(), Err(Error::Parameter { operation: "interleave", .. })));
        let all = Interleave { cycle_length: usize::MAX, ..Interleave::default() };
        assert_eq!(values(&Dataset::range(3).interleave(|i| Dataset::range(0..i), all)), [0, 0, 1]);
    }
}
