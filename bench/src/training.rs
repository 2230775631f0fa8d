//! Training steps of two models on one and two replicas, compared with candle's own layers and optimizer.

use super::figure::{About, Beside, Better, Effort, Figure, Role, Target};
use super::sample::Sample;
use super::work::{BATCHES, Mlp, Model, RATE, Recommender, Training};
use candle_core::{DType, Device};
use candle_nn::{Optimizer, SGD, VarBuilder, VarMap};
use distribute::Result;
use distribute::cluster::Stopwatch;
use std::hint::black_box;
use std::marker::PhantomData;

/// The figure for a model's steps on the given number of replicas.
struct Steps<M> {
    replicas: usize,
    /// The target multiples of the best peer, and of JAX, which is the fastest peer with compiled steps.
    reach: Option<(f64, f64)>,
    model: PhantomData<fn() -> M>,
}

/// Returns the figures for both models, on one and two replicas.
pub fn figures() -> Vec<Box<dyn Figure>> {
    vec![
        steps::<Mlp>(1, None),
        steps::<Mlp>(2, Some((1.1, 1.2))),
        steps::<Recommender>(1, None),
        steps::<Recommender>(2, Some((1.4, 1.2))),
    ]
}

fn steps<M: Model>(replicas: usize, reach: Option<(f64, f64)>) -> Box<dyn Figure> {
    Box::new(Steps::<M> { replicas, reach, model: PhantomData })
}

impl<M: Model> Figure for Steps<M> {
    fn about(&self) -> About {
        About {
            name: format!("{}_{}_replicas", M::NAME, self.replicas),
            unit: "steps/s",
            better: Better::More,
            measures: format!(
                "SGD steps of {}, global batch {}, {} replicas; peers on as many cores",
                M::WORK,
                M::BATCH,
                self.replicas
            ),
            targets: self.reach.map_or_else(Vec::new, |(best, jax)| {
                vec![Target::BestPeer(best), Target::Library("JAX", jax)]
            }),
        }
    }

    fn round(&self, effort: Effort) -> Result<Sample> {
        let mut training = Training::<M>::new(self.replicas)?;
        timed(effort, || {
            black_box(training.step()?);
            Ok(())
        })
    }

    fn beside(&self) -> Vec<Beside> {
        vec![Beside {
            name: "candle, stock layers".into(),
            version: "0.11.1",
            role: Role::Peer,
            round: Box::new(stock::<M>),
        }]
    }
}

/// Returns the number of steps per second. A quarter of the measured number of steps is made first, as a warm-up.
pub fn timed(effort: Effort, mut step: impl FnMut() -> Result<()>) -> Result<Sample> {
    let calls = warmed_up(effort, Ok, &mut step)?;
    steps_per_second(calls, step).map(Sample::from)
}

/// Makes warm-up steps, and returns the number of steps to measure. If several replicas or workers make the same steps,
/// `agree` returns the same estimate of a step's seconds on all of them.
pub fn warmed_up(
    effort: Effort,
    agree: impl FnOnce(f64) -> Result<f64>,
    mut step: impl FnMut() -> Result<()>,
) -> Result<usize> {
    let watch = Stopwatch::start();
    for _ in 0..4 {
        step()?;
    }
    let calls = effort.calls(agree(watch.seconds() / 4.)?);
    for _ in 0..calls / 4 {
        step()?;
    }
    Ok(calls)
}

/// Makes `calls` steps, and returns the number of steps per second.
pub fn steps_per_second(calls: usize, mut step: impl FnMut() -> Result<()>) -> Result<f64> {
    let watch = Stopwatch::start();
    for _ in 0..calls {
        step()?;
    }
    Ok(calls as f64 / watch.seconds())
}

/// Measures candle_nn's layers, losses and optimizer.
fn stock<M: Model>(effort: Effort) -> Result<Sample> {
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    let batches = (0..BATCHES).map(|n| M::batch(n, 0, M::BATCH)).collect::<Result<Vec<_>>>()?;
    M::stock_loss(&vb, &batches[0].0, &batches[0].1)?; // creates the variables
    let mut optimizer = SGD::new(variables.all_vars(), RATE)?;
    let mut turn = batches.iter().cycle();
    timed(effort, || {
        if let Some((inputs, targets)) = turn.next() {
            optimizer.backward_step(&M::stock_loss(&vb, inputs, targets)?)?;
        }
        Ok(())
    })
}
