//! The time of a step's matrix products alone, which is a lower bound for the time of the step.

use super::figure::{About, Beside, Better, Effort, Figure, Role};
use super::sample::Sample;
use super::training::timed;
use super::work::{Mlp, Model, Recommender, Training};
use distribute::cluster::Stopwatch;
use distribute::{MirroredStrategy, ReduceOp, Result};
use std::hint::black_box;
use std::marker::PhantomData;

/// The figure for the matrix products of a model's step on two replicas.
struct Alone<M>(PhantomData<fn() -> M>);

/// Returns the figures for both models.
pub fn figures() -> Vec<Box<dyn Figure>> {
    vec![Box::new(Alone::<Mlp>(PhantomData)), Box::new(Alone::<Recommender>(PhantomData))]
}

const REPLICAS: usize = 2;
/// An estimate of the time of the products, in seconds.
const ESTIMATE: f64 = 1.5e-3;

impl<M: Model> Figure for Alone<M> {
    fn about(&self) -> About {
        About {
            name: format!("{}_products", M::NAME),
            unit: "µs",
            better: Better::Less,
            measures: format!(
                "the bare matrix products of a step of {}, global batch {}, by {REPLICAS} threads that do not wait for \
                 each other; peers' products of the whole batch on as many threads",
                M::WORK,
                M::BATCH
            ),
            targets: Vec::new(),
        }
    }

    fn round(&self, effort: Effort) -> Result<Sample> {
        let strategy = MirroredStrategy::cpus(REPLICAS)?;
        let calls = effort.calls(ESTIMATE);
        let seconds = strategy.run((), |ctx, ()| {
            let mut layers = M::products(M::BATCH / REPLICAS);
            let mut make = || layers.iter_mut().for_each(|layer| black_box(layer).compute());
            (0..calls / 4 + 1).for_each(|_| make());
            // All begin at the same time.
            ctx.all_reduce(ReduceOp::Sum, 0f32)?;
            let watch = Stopwatch::start();
            (0..calls).for_each(|_| make());
            Ok(watch.seconds())
        })?;
        let slowest = seconds.values().iter().copied().fold(0., f64::max);
        Ok((slowest * 1e6 / calls as f64).into())
    }

    fn beside(&self) -> Vec<Beside> {
        let step = |effort| {
            let mut training = Training::<M>::new(REPLICAS)?;
            let steps = timed(effort, || {
                black_box(training.step()?);
                Ok(())
            })?;
            Ok((1e6 / steps.value).into())
        };
        vec![Beside { name: "the whole step".into(), version: "", role: Role::Whole, round: Box::new(step) }]
    }
}
