//! The operation that takes each element from a dataset that is drawn at random.

use super::choose_from_datasets::{ChooseStage, Pick, check_datasets, common_batching, common_spec};
use crate::dataset::AtDatasetEnd;
use crate::pipeline::{Batching, Look, Operation, Pipeline, Sharding};
use crate::random::EpochRng;
use crate::stage::Stage;
use crate::{Cardinality, Dataset, ElementSpec, Error, Result};
use distribute_tensor::Nest;
use std::sync::Arc;

impl<T: Nest> Dataset<T> {
    /// Takes each element from one of several datasets, drawn at random. `weights` has a number for each dataset, to
    /// which the probability of the dataset is proportional; the numbers need not sum to 1. A dataset with weight 0 is
    /// never drawn. `at_end` determines what happens when a dataset ends.
    ///
    /// The draws depend only on `seed` and the epoch. So every pass, and every repetition of a later
    /// [`repeat`](Dataset::repeat), has different draws. An element is requested only after its dataset has been drawn.
    ///
    /// An empty list of datasets, a different number of weights, and weights that are negative, not finite or all 0
    /// give [`Error::Parameter`].
    ///
    /// ```
    /// # use distribute_data::{AtDatasetEnd, Dataset};
    /// let corpora = [Dataset::range(1000), Dataset::range(1000..1100)];
    /// let mixed = Dataset::sample_from_datasets(&corpora, &[0.9, 0.1], 42, AtDatasetEnd::Skip);
    /// assert_eq!(mixed.iter().count(), 1100);
    /// ```
    #[doc(alias = "tf.data.Dataset.sample_from_datasets")]
    #[doc(alias = "tf.data.experimental.sample_from_datasets")]
    #[doc(alias = "stop_on_empty_dataset")]
    #[doc(alias = "rerandomize_each_iteration")]
    pub fn sample_from_datasets(
        datasets: &[Dataset<T>],
        weights: &[f64],
        seed: u64,
        at_end: AtDatasetEnd,
    ) -> Dataset<T> {
        let inputs = datasets.iter().map(|dataset| dataset.pipeline().clone()).collect();
        Dataset::of(SampleFromDatasets { inputs, weights: weights.into(), seed, at_end })
    }
}

const OPERATION: &str = "sample_from_datasets";

struct SampleFromDatasets {
    inputs: Vec<Pipeline>,
    weights: Arc<[f64]>,
    seed: u64,
    at_end: AtDatasetEnd,
}

impl SampleFromDatasets {
    /// Returns the datasets that can be drawn, whose weights are not 0.
    fn drawn(&self) -> impl Iterator<Item = &Pipeline> + Clone {
        self.inputs
            .iter()
            .zip(self.weights.iter())
            .filter(|(_, weight)| **weight > 0.)
            .map(|(input, _)| input)
    }

    fn endless(&self) -> bool {
        self.drawn().all(|input| input.cardinality() == Cardinality::Infinite)
    }
}

impl Operation for SampleFromDatasets {
    fn inputs(&self) -> &[Pipeline] {
        &self.inputs
    }

    fn over(&self, f: &mut dyn FnMut(&Pipeline) -> Pipeline) -> Option<Pipeline> {
        let (weights, seed, at_end) = (self.weights.clone(), self.seed, self.at_end);
        Some(Arc::new(Self { inputs: self.inputs.iter().map(f).collect(), weights, seed, at_end }))
    }

    fn describe(&self) -> String {
        format!("{OPERATION}, weights {:?}, seed {}, {}", self.weights, self.seed, self.at_end.describe())
    }

    fn cardinality(&self) -> Cardinality {
        let mut all = self.drawn().map(|input| input.cardinality());
        match (self.at_end, self.drawn().count()) {
            (_, 1) => all.next().unwrap_or(Cardinality::Unknown),
            (AtDatasetEnd::Stop, _) if self.endless() => Cardinality::Infinite,
            (AtDatasetEnd::Stop, _) => Cardinality::Unknown,
            (AtDatasetEnd::Skip, _) if all.clone().any(|n| n == Cardinality::Infinite) => {
                Cardinality::Infinite
            }
            (AtDatasetEnd::Skip, _) => {
                let sum = all.try_fold(0usize, |sum, n| Some(sum.saturating_add(n.finite()?)));
                sum.map_or(Cardinality::Unknown, Cardinality::Finite)
            }
        }
    }

    fn batching(&self) -> Batching {
        common_batching(&self.inputs)
    }

    fn spec(&self, look: Look) -> Option<ElementSpec> {
        common_spec(&self.inputs, look)
    }

    fn check(&self) -> Result<()> {
        check_datasets(OPERATION, self.inputs.len())?;
        let wrong = |found, expected| {
            Err(Error::Parameter { operation: OPERATION, parameter: "the list of weights", found, expected })
        };
        let found = format!("{:?}", self.weights);
        if self.weights.len() != self.inputs.len() {
            return wrong(
                format!("{found}, for {} datasets", self.inputs.len()),
                "one number for each dataset",
            );
        }
        let total: f64 = self.weights.iter().sum();
        if self.weights.iter().any(|weight| weight.is_nan() || *weight < 0.)
            || !total.is_finite()
            || total == 0.
        {
            return wrong(found, "of finite numbers from 0 on, one of them more than 0");
        }
        Ok(())
    }

    /// Returns `Through` if all elements of the datasets are used, because each dataset may then be replaced by a
    /// shard.
    fn sharding(&self) -> Sharding {
        match self.at_end {
            AtDatasetEnd::Skip => Sharding::Through,
            AtDatasetEnd::Stop if self.endless() => Sharding::Through,
            AtDatasetEnd::Stop => Sharding::Whole,
        }
    }

    fn start(&self, epoch: u64) -> Box<dyn Stage> {
        let stages = self.inputs.iter().map(|input| input.start(epoch)).collect();
        let open = self.weights.iter().map(|weight| *weight > 0.).collect();
        let pick = Box::new(Draws { weights: self.weights.clone(), rng: EpochRng::new(self.seed, epoch) });
        Box::new(ChooseStage::new(OPERATION, stages, open, pick, self.at_end))
    }
}

/// A rule that draws datasets at random, in proportion to their weights. Only datasets that have not ended are drawn.
struct Draws {
    weights: Arc<[f64]>,
    rng: EpochRng,
}

impl Pick for Draws {
    fn pick(&mut self, open: &[bool]) -> Result<Option<usize>> {
        let weighted = || self.weights.iter().zip(open).enumerate().filter(|(_, (_, open))| **open);
        let total: f64 = weighted().map(|(_, (weight, _))| weight).sum();
        let mut left = self.rng.fraction() * total;
        let mut last = None;
        for (dataset, (weight, _)) in weighted() {
            last = Some(dataset);
            if left < *weight {
                break;
            }
            left -= weight;
        }
        // Because of rounding, a little may be left after the last weight.
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ids, values};
    use proptest::prelude::*;

    fn sample(lengths: &[i64], weights: &[f64], seed: u64, at_end: AtDatasetEnd) -> Dataset<i64> {
        let datasets =
            (0..).zip(lengths).map(|(i, n)| Dataset::range(100 * i..100 * i + n)).collect::<Vec<_>>();
        Dataset::sample_from_datasets(&datasets, weights, seed, at_end)
    }

    fn pass(data: &Dataset<i64>, epoch: u64) -> Vec<i64> {
        data.epoch(epoch).map(Result::unwrap).collect()
    }

    proptest! {
        /// Checks that the elements of a dataset keep their order. With `Skip`, all elements of datasets with a
        /// positive weight are used. With `Stop`, the pass ends when a dataset is drawn that has ended. (In TensorFlow,
        /// these are `stop_on_empty_dataset=False`, the default, and `True`.)
        #[test]
        fn each_dataset_keeps_its_order(
            datasets in proptest::collection::vec((0i64..20, 0u8..4), 1..5), seed: u64, epoch in 0u64..3, skip in 0usize..30,
        ) {
            prop_assume!(datasets.iter().any(|(_, weight)| *weight > 0));
            let (lengths, weights): (Vec<_>, Vec<_>) = datasets.iter().map(|(n, weight)| (*n, f64::from(*weight))).unzip();
            let skipping = sample(&lengths, &weights, seed, AtDatasetEnd::Skip);
            let all = pass(&skipping, epoch);
            prop_assert_eq!(&pass(&skipping, epoch), &all);
            prop_assert_eq!(&pass(&skipping.skip(skip), epoch), &all[skip.min(all.len())..]);
            prop_assert_eq!(skipping.cardinality(), Cardinality::Finite(all.len()));
            for (i, (n, weight)) in (0i64..).zip(&datasets) {
                let mine: Vec<i64> = all.iter().copied().filter(|x| x / 100 == i).collect();
                let n = if *weight > 0 { *n } else { 0 };
                prop_assert_eq!(mine, (100 * i..100 * i + n).collect::<Vec<_>>());
            }
            // A stop is the same pass up to the end of some dataset.
            let stopped = pass(&sample(&lengths, &weights, seed, AtDatasetEnd::Stop), epoch);
            prop_assert_eq!(&all[..stopped.len()], &stopped);
            let ended = (0i64..).zip(&datasets).any(|(i, (n, weight))| {
                *weight > 0 && stopped.iter().filter(|x| *x / 100 == i).count() == *n as usize
            });
            prop_assert!(ended);
        }
    }

    #[test]
    fn datasets_are_drawn_in_proportion_to_their_weights() {
        let endless = [0, 1].map(|i| Dataset::from_items([i]).repeat_forever());
        let data = Dataset::sample_from_datasets(&endless, &[6., 2.], 1, AtDatasetEnd::Stop);
        assert_eq!(data.cardinality(), Cardinality::Infinite);
        let ones: i64 = data.iter().take(10_000).map(Result::unwrap).sum();
        assert!((2300..2700).contains(&ones), "{ones}");
        let first = |epoch| data.take(50).epoch(epoch).map(Result::unwrap).collect::<Vec<_>>();
        assert!(first(0) == first(0) && first(0) != first(1));
        // Repetitions have the draws of the following passes.
        let finite = sample(&[9, 9], &[1., 1.], 1, AtDatasetEnd::Skip);
        assert_eq!(values(&finite.repeat(2)), [pass(&finite, 0), pass(&finite, 1)].concat());
        assert_eq!(ids(&finite.batch(4)).concat(), pass(&finite, 0));
    }

    #[test]
    fn impossible_weights_are_errors() {
        for weights in [&[1.][..], &[], &[0., 0.], &[-1., 2.], &[f64::NAN, 1.], &[f64::INFINITY, 1.]] {
            let error = sample(&[3, 3], weights, 1, AtDatasetEnd::Skip).check().unwrap_err();
            assert!(matches!(error, Error::Parameter { operation: OPERATION, .. }), "{error}");
        }
        let error = sample(&[3, 3], &[1.], 1, AtDatasetEnd::Skip).check().unwrap_err().to_string();
        assert_eq!(
            error,
            "sample_from_datasets: the list of weights is [1.0], for 2 datasets, but must be one number for each dataset"
        );
        assert!(sample(&[], &[], 1, AtDatasetEnd::Skip).check().is_err());
    }

    #[test]
    fn the_length_of_a_stopped_pass_is_known_if_one_dataset_is_drawn() {
        let stop =
            |lengths: &[i64], weights: &[f64]| sample(lengths, weights, 1, AtDatasetEnd::Stop).cardinality();
        assert_eq!(stop(&[3, 5], &[1., 0.]), Cardinality::Finite(3));
        assert_eq!(stop(&[3, 5], &[1., 1.]), Cardinality::Unknown);
        let both = [Dataset::range(3), Dataset::range(3).repeat_forever()];
        let data = |at_end| Dataset::sample_from_datasets(&both, &[1., 1.], 1, at_end);
        assert_eq!(data(AtDatasetEnd::Stop).cardinality(), Cardinality::Unknown);
        assert_eq!(data(AtDatasetEnd::Skip).cardinality(), Cardinality::Infinite);
    }
}
