//! Comparison of losses with those of the peers, from the same weights and batches. Speeds are comparable only if the
//! losses are equal.

use super::figure::{About, Better, Effort, Figure, Target};
use super::sample::Sample;
use super::work::{Mlp, Model, Recommender, Training};
use distribute::Result;
use std::marker::PhantomData;

/// The figure for the losses of the first steps on two replicas.
struct Losses<M>(PhantomData<fn() -> M>);

const STEPS: usize = 50;

/// Returns the figures for both models.
pub fn figures() -> Vec<Box<dyn Figure>> {
    vec![Box::new(Losses::<Mlp>(PhantomData)), Box::new(Losses::<Recommender>(PhantomData))]
}

impl<M: Model> Figure for Losses<M> {
    fn about(&self) -> About {
        About {
            name: format!("losses_{}", M::NAME),
            unit: "",
            better: Better::Same,
            measures: format!(
                "loss of step {STEPS} of {}, 2 replicas, learning rate {}, and the greatest difference of all {STEPS}",
                M::WORK,
                M::LOSS_RATE
            ),
            targets: vec![Target::Difference(1e-4)],
        }
    }

    // The losses are deterministic.
    fn rounds(&self, _: usize) -> usize {
        1
    }

    fn round(&self, _: Effort) -> Result<Sample> {
        let mut training = Training::<M>::with(2, M::LOSS_RATE, M::BATCH)?;
        let losses = (0..STEPS).map(|_| Ok(f64::from(training.step()?.to_scalar::<f32>()?)));
        let losses = losses.collect::<Result<Vec<_>>>()?;
        Ok(Sample { value: losses[STEPS - 1], losses, sent: None })
    }
}
