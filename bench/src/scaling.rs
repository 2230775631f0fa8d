//! The speedup that a second replica achieves if only matrix products limit it.

use super::figure::{About, Better, Effort, Figure, Target};
use super::sample::Sample;
use super::training::timed;
use candle_core::{Device, Tensor};
use candle_nn::{Activation::Relu, Module, VarBuilder};
use distribute::nn::{Linear, linear};
use distribute::{MirroredStrategy, PerReplica, Result, Sgd};
use std::hint::black_box;

/// The figure for the steps per second of two replicas, divided by those of one replica on the same global batch.
struct TwoOverOne;

/// Returns the only figure of this module.
pub fn figures() -> Vec<Box<dyn Figure>> {
    vec![Box::new(TwoOverOne)]
}

const WIDTH: usize = 512;
const BATCH: usize = 1024;

impl Figure for TwoOverOne {
    fn about(&self) -> About {
        About {
            name: "scaling_2_over_1".into(),
            unit: "times",
            better: Better::More,
            measures: format!(
                "steps/s of 2 replicas over those of 1, four layers {WIDTH} x {WIDTH} with relu, global batch {BATCH}"
            ),
            targets: vec![Target::Value(1.9)],
        }
    }

    fn round(&self, effort: Effort) -> Result<Sample> {
        let half = Effort { seconds: effort.seconds / 2. };
        Ok((steps_per_second(2, half)? / steps_per_second(1, half)?).into())
    }
}

fn steps_per_second(replicas: usize, effort: Effort) -> Result<f64> {
    let strategy = MirroredStrategy::cpus(replicas)?;
    let model = strategy.replicate(|vb: VarBuilder<'_>| {
        let layer = |i| Ok(linear(WIDTH, WIDTH, vb.pp(format!("layer{i}")))?.with_activation(Relu));
        (0..4).map(layer).collect::<candle_core::Result<Vec<Linear>>>()
    })?;
    let optimizer = Sgd::new(&model.variables, 0.01)?;
    let rows = BATCH / replicas;
    let piece = |_| Ok(Tensor::rand(0f32, 1., (rows, WIDTH), &Device::Cpu)?);
    let batch: PerReplica<_> = PerReplica::from_values((0..replicas).map(piece).collect::<Result<Vec<_>>>()?);
    let sample = timed(effort, || {
        black_box(strategy.run((&model, &batch), |ctx, (layers, batch)| {
            let mut x = batch.clone();
            for layer in layers {
                x = layer.forward(&x)?;
            }
            optimizer.minimize(ctx, x.mean_all()?, rows)
        })?);
        Ok(())
    })?;
    Ok(sample.value)
}
