//! The operation that takes each element from a dataset that a dataset of choices selects.

use super::repeat::EmptyPassCounter;
use super::rounds::Rounds;
use crate::chunk::Chunk;
use crate::dataset::AtDatasetEnd;
use crate::pipeline::{Batching, Look, Operation, Pipeline, Sharding};
use crate::stage::{Counted, Stage};
use crate::{Cardinality, Dataset, ElementSpec, Error, Result, spec};
use distribute_tensor::Nest;
use std::sync::Arc;

impl<T: Nest> Dataset<T> {
    /// Takes elements from several datasets. Each element of `choices` is the index of the dataset from which the
    /// next element is taken. The pass ends with the choices, or as `at_end` determines.
    ///
    /// A choice that is not an index of a dataset gives [`Error::Choice`], and an empty list of datasets gives
    /// [`Error::Parameter`]. If repeated choices only choose datasets that have ended, the pass gives
    /// [`Error::EmptyPasses`] after 100 repetitions.
    ///
    /// ```
    /// # use distribute_data::{AtDatasetEnd, Dataset};
    /// let datasets = [Dataset::range(3), Dataset::range(10..20)];
    /// let choices = Dataset::from_items([0, 1, 1]).repeat_forever();
    /// let data = Dataset::choose_from_datasets(&datasets, &choices, AtDatasetEnd::Stop);
    /// assert_eq!(data.iter().collect::<Result<Vec<_>, _>>()?, [0, 10, 11, 1, 12, 13, 2, 14, 15]);
    /// # Ok::<(), distribute_data::Error>(())
    /// ```
    #[doc(alias = "tf.data.Dataset.choose_from_datasets")]
    #[doc(alias = "tf.data.experimental.choose_from_datasets")]
    #[doc(alias = "stop_on_empty_dataset")]
    pub fn choose_from_datasets(
        datasets: &[Dataset<T>],
        choices: &Dataset<i64>,
        at_end: AtDatasetEnd,
    ) -> Dataset<T> {
        let datasets = datasets.iter().map(|dataset| dataset.pipeline().clone());
        let inputs = datasets.chain([choices.pipeline().clone()]).collect();
        Dataset::of(ChooseFromDatasets { inputs, at_end })
    }
}

const OPERATION: &str = "choose_from_datasets";

struct ChooseFromDatasets {
    /// The datasets, and after them the choices.
    inputs: Vec<Pipeline>,
    at_end: AtDatasetEnd,
}

impl ChooseFromDatasets {
    /// Returns the choices and the datasets.
    fn split(&self) -> Option<(&Pipeline, &[Pipeline])> {
        self.inputs.split_last()
    }
}

impl Operation for ChooseFromDatasets {
    fn inputs(&self) -> &[Pipeline] {
        &self.inputs
    }

    fn over(&self, f: &mut dyn FnMut(&Pipeline) -> Pipeline) -> Option<Pipeline> {
        Some(Arc::new(Self { inputs: self.inputs.iter().map(f).collect(), at_end: self.at_end }))
    }

    fn describe(&self) -> String {
        format!("{OPERATION}, {} datasets, {}", self.inputs.len() - 1, self.at_end.describe())
    }

    fn cardinality(&self) -> Cardinality {
        let Some((choices, datasets)) = self.split() else { return Cardinality::Unknown };
        match choices.cardinality() {
            Cardinality::Finite(0) => Cardinality::Finite(0),
            other if datasets.iter().all(|input| input.cardinality() == Cardinality::Infinite) => other,
            _ => Cardinality::Unknown,
        }
    }

    fn batching(&self) -> Batching {
        self.split().map_or(Batching::Unknown, |(_, datasets)| common_batching(datasets))
    }

    fn spec(&self, look: Look) -> Option<ElementSpec> {
        common_spec(self.split()?.1, look)
    }

    fn check(&self) -> Result<()> {
        check_datasets(OPERATION, self.inputs.len() - 1)
    }

    fn sharding(&self) -> Sharding {
        Sharding::Whole
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        let mut stages: Vec<_> = self.inputs.iter().map(|input| input.start(epoch)).collect();
        let choices = stages.pop().map(Counted::new);
        let open = vec![true; stages.len()];
        let pick = Box::new(Choices { choices, datasets: stages.len() });
        Box::new(ChooseStage::new(OPERATION, stages, open, pick, self.at_end))
    }
}

/// Checks that there is a dataset to take elements from.
pub(super) fn check_datasets(operation: &'static str, datasets: usize) -> Result<()> {
    crate::error::at_least_one(operation, "the number of datasets", datasets)
}

/// Returns the batching of elements that may come from any of the datasets.
pub(super) fn common_batching(datasets: &[Pipeline]) -> Batching {
    let all = datasets.iter().map(|dataset| dataset.batching());
    all.reduce(Batching::or).unwrap_or(Batching::Unknown)
}

/// Returns a spec that the elements of all datasets satisfy; `None` if there is none, or a dataset's spec is unknown.
pub(super) fn common_spec(datasets: &[Pipeline], look: Look) -> Option<ElementSpec> {
    let (first, rest) = datasets.split_first()?;
    rest.iter().try_fold(first.spec(look)?, |all, dataset| spec::either(all, dataset.spec(look)?))
}

/// A rule that selects the dataset of each element.
pub(super) trait Pick: Send {
    /// Returns the index of the dataset of the next element; `None` at the end. `open` contains a flag for each
    /// dataset: whether it may have more elements. If a dataset that has ended is returned, this is called again.
    fn pick(&mut self, open: &[bool]) -> Result<Option<usize>>;

    /// Returns the number of completed passes over the choices, as [`Stage::passes`] does.
    fn passes(&self) -> usize {
        0
    }
}

/// A rule that selects datasets by the elements of a dataset of choices.
struct Choices {
    choices: Option<Counted>,
    datasets: usize,
}

impl Pick for Choices {
    fn pick(&mut self, _open: &[bool]) -> Result<Option<usize>> {
        let Some(choices) = &mut self.choices else { return Ok(None) };
        let Some(chunk) = choices.next(1) else { return Ok(None) };
        let Some(tree) = chunk?.into_values()?.pop() else { return Ok(None) };
        let index = choices.index;
        choices.index += 1;
        let found =
            i64::from_tree(tree).map_err(|source| Error::Type { operation: OPERATION, index, source })?;
        match usize::try_from(found) {
            Ok(dataset) if dataset < self.datasets => Ok(Some(dataset)),
            _ => Err(Error::Choice { index, found, datasets: self.datasets }),
        }
    }

    fn passes(&self) -> usize {
        self.choices.as_ref().map_or(0, |choices| choices.input.passes())
    }
}

/// A stage that takes each element from the dataset that a [`Pick`] selects.
pub(super) struct ChooseStage {
    operation: &'static str,
    datasets: Vec<Box<dyn Stage>>,
    /// Whether each dataset may have more elements.
    open: Vec<bool>,
    pick: Box<dyn Pick>,
    at_end: AtDatasetEnd,
    empty_passes: EmptyPassCounter,
    rounds: Rounds,
}

impl ChooseStage {
    /// Creates a stage. `open` contains a flag for each dataset: whether it can be picked.
    pub(super) fn new(
        operation: &'static str,
        datasets: Vec<Box<dyn Stage>>,
        open: Vec<bool>,
        pick: Box<dyn Pick>,
        at_end: AtDatasetEnd,
    ) -> Self {
        let rounds = Rounds::new(datasets.len());
        Self { operation, datasets, open, pick, at_end, empty_passes: EmptyPassCounter::default(), rounds }
    }

    /// Calls `take` with the dataset of each pick until it returns an element. `take` returns `None` at the end of the
    /// dataset. Returns `None` at the end of the pass.
    fn element<X>(&mut self, take: impl Fn(&mut dyn Stage) -> Result<Option<X>>) -> Result<Option<X>> {
        while self.open.contains(&true) {
            let Some(picked) = self.pick.pick(&self.open)? else { return Ok(None) };
            let (Some(stage), Some(open)) = (self.datasets.get_mut(picked), self.open.get_mut(picked)) else {
                return Ok(None);
            };
            if *open {
                if let Some(element) = take(stage.as_mut())? {
                    self.empty_passes.found();
                    self.rounds.taken(picked, stage.passes(), self.pick.passes(), &self.open);
                    return Ok(Some(element));
                }
                *open = false;
                if self.at_end == AtDatasetEnd::Stop {
                    return Ok(None);
                }
            }
            self.empty_passes.nothing(self.operation, self.pick.passes())?;
        }
        Ok(None)
    }
}

impl Stage for ChooseStage {
    fn next(&mut self, _max: usize) -> Option<Result<Chunk>> {
        self.element(|stage| stage.next(1).transpose()).transpose()
    }

    fn skip(&mut self, count: usize) -> Result<usize> {
        for skipped in 0..count {
            let one = self.element(|stage| Ok((stage.skip(1)? == 1).then_some(())))?;
            if one.is_none() {
                return Ok(skipped);
            }
        }
        Ok(count)
    }

    fn passes(&self) -> usize {
        self.rounds.complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ids, values};
    use distribute_tensor::HostTensor;

    fn datasets() -> [Dataset<i64>; 2] {
        [Dataset::range(3), Dataset::range(10..12)]
    }

    fn choose(choices: &Dataset<i64>, at_end: AtDatasetEnd) -> Dataset<i64> {
        Dataset::choose_from_datasets(&datasets(), choices, at_end)
    }

    /// Checks that each choice takes one element. With `Stop` (TensorFlow's `stop_on_empty_dataset`, its default), the
    /// pass ends at the first choice of a dataset that has ended; with `Skip`, such a choice is passed over. TensorFlow
    /// 2.21 computed the expected values.
    #[test]
    fn each_choice_takes_the_next_element_of_a_dataset() {
        let choices = Dataset::from_items([0, 1, 0, 1, 1, 1, 0]);
        let stop = choose(&choices, AtDatasetEnd::Stop);
        assert_eq!(values(&stop), [0, 10, 1, 11]);
        assert_eq!(values(&choose(&choices, AtDatasetEnd::Skip)), [0, 10, 1, 11, 2]);
        // Endless choices end with the last dataset.
        assert_eq!(values(&choose(&choices.repeat_forever(), AtDatasetEnd::Skip)), [0, 10, 1, 11, 2]);
        assert_eq!(values(&stop.skip(1).repeat(2)), [10, 1, 11, 10, 1, 11]);
        assert_eq!(ids(&stop.batch(3)), [vec![0, 10, 1], vec![11]]);
    }

    #[test]
    fn a_choice_of_no_dataset_is_an_error() {
        for (wrong, skip) in [(5, 0), (-1, 0), (2, 1)] {
            let data = choose(&Dataset::from_items([0, wrong]), AtDatasetEnd::Skip);
            let error = data.skip(skip).iter().find_map(Result::err).unwrap();
            assert_eq!(
                error.to_string(),
                format!("choose_from_datasets: choice 1 is dataset {wrong}, but there are 2, counted from 0")
            );
        }
        let none = Dataset::<i64>::choose_from_datasets(&[], &Dataset::range(1), AtDatasetEnd::Stop);
        assert!(matches!(none.check(), Err(Error::Parameter { operation: OPERATION, .. })));
        let typed = choose(&Dataset::from_items([0.5f32]).typed(), AtDatasetEnd::Stop);
        assert!(matches!(typed.iter().next().unwrap(), Err(Error::Type { operation: OPERATION, .. })));
    }

    /// Checks that endless choices of datasets that have all ended result in an error. In TensorFlow, such a
    /// pass never returns.
    #[test]
    fn endless_choices_of_ended_datasets_are_an_error() {
        distribute_testing::watched(|| {
            let ones = Dataset::from_items([1]).repeat_forever();
            let data = choose(&ones, AtDatasetEnd::Skip);
            let mut pass = data.iter();
            assert_eq!(pass.by_ref().take(2).map(Result::unwrap).collect::<Vec<_>>(), [10, 11]);
            let error = pass.next().unwrap().unwrap_err();
            assert!(matches!(error, Error::EmptyPasses { operation: OPERATION, passes: 100 }), "{error}");
        });
    }

    #[test]
    fn static_properties_are_those_common_to_all_datasets() {
        let choices = Dataset::from_items([0, 1]);
        let cardinality = |a: &Dataset<i64>, b: &Dataset<i64>, choices: &Dataset<i64>| {
            Dataset::choose_from_datasets(&[a.clone(), b.clone()], choices, AtDatasetEnd::Skip).cardinality()
        };
        let [short, _] = datasets();
        let endless = short.repeat_forever();
        assert_eq!(cardinality(&short, &short, &choices), Cardinality::Unknown);
        assert_eq!(cardinality(&endless, &short, &choices), Cardinality::Unknown);
        assert_eq!(cardinality(&endless, &endless, &choices), Cardinality::Finite(2));
        assert_eq!(cardinality(&endless, &endless, &choices.repeat_forever()), Cardinality::Infinite);
        assert_eq!(cardinality(&short, &short, &choices.take(0)), Cardinality::Finite(0));
        let rows = |n| Dataset::from_items([HostTensor::vector(vec![0f32; n])]);
        let both = Dataset::choose_from_datasets(&[rows(2), rows(3)], &choices, AtDatasetEnd::Skip);
        assert_eq!(both.element_spec().unwrap().describe(&|spec| spec.to_string()), "float32 [?]");
        let batches = [short.batch(2), endless.batch(2)];
        let batches = Dataset::choose_from_datasets(&batches, &choices, AtDatasetEnd::Skip);
        assert_eq!(batches.batching(), Batching::Batches(2));
        assert_eq!(
            choose(&choices, AtDatasetEnd::Stop).explain(),
            "  | range 0..3 (3 elements)
  | range 10..12 (2 elements)
items in memory (2 elements)
choose_from_datasets, 2 datasets, until a chosen one has ended (length unknown)
"
        );
    }
}
