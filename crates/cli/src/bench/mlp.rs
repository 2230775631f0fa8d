//! A small model that computes: what a training step costs, and what a second replica brings.

use super::figure::{About, Effort, Figure, Peer};
use candle_core::{Device, Tensor};
use candle_nn::{Activation::Relu, Module, VarBuilder};
use distribute::cluster::Stopwatch;
use distribute::nn::{Linear, linear, loss};
use distribute::{MirroredStrategy, PerReplica, Result, Sgd};
use std::hint::black_box;

/// Training steps of an MLP 784-512-256-10 with candle's stock layers.
struct MlpSteps {
    replicas: usize,
}

const BATCH: usize = 128;
const A1: &str = "reference/ecosystem.md A1, measured 2026-11-20 on 2 shared Zen4 cores";
const ONE: &[Peer] = &[
    Peer { name: "PyTorch, 1 thread", value: 277., source: A1 },
    Peer { name: "TensorFlow, 1 thread", value: 307., source: A1 },
    Peer { name: "candle with mimalloc", value: 168., source: A1 },
];
const TWO: &[Peer] = &[
    Peer { name: "PyTorch, 2 threads", value: 462., source: A1 },
    Peer { name: "TensorFlow, 2 threads", value: 450., source: A1 },
    Peer { name: "TensorFlow, MirroredStrategy", value: 392., source: A1 },
    Peer { name: "PyTorch, DDP-style gloo", value: 164., source: A1 },
];

/// One replica and two, on the same global batch.
pub fn figures() -> Vec<Box<dyn Figure>> {
    [1, 2].into_iter().map(|replicas| Box::new(MlpSteps { replicas }) as Box<dyn Figure>).collect()
}

struct Mlp([Linear; 3]);

impl Mlp {
    fn new(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        let hidden =
            |i, o, name| Ok::<_, candle_core::Error>(linear(i, o, vb.pp(name))?.with_activation(Relu));
        Ok(Self([hidden(784, 512, "a")?, hidden(512, 256, "b")?, linear(256, 10, vb.pp("c"))?]))
    }

    fn forward(&self, images: &Tensor) -> candle_core::Result<Tensor> {
        let [a, b, c] = &self.0;
        c.forward(&b.forward(&a.forward(images)?)?)
    }
}

impl Figure for MlpSteps {
    fn about(&self) -> About {
        About {
            name: format!("mlp_{}_replicas", self.replicas),
            unit: "steps/s",
            lower_is_better: false,
            measures: format!(
                "SGD steps of an MLP 784-512-256-10 of stock layers, global batch {BATCH}, {} replicas",
                self.replicas
            ),
            peers: if self.replicas == 1 { ONE } else { TWO },
            // 1.1 times the best peer. One replica alone is a reference.
            reach: (self.replicas == 2).then_some(1.1 * 462.),
        }
    }

    fn round(&self, effort: Effort) -> Result<f64> {
        let strategy = MirroredStrategy::cpus(self.replicas)?;
        let model = strategy.replicate(Mlp::new)?;
        let optimizer = Sgd::new(&model.variables, 0.01)?;
        let each = BATCH / self.replicas;
        let mut batches = Vec::new();
        for _ in 0..self.replicas {
            let images = Tensor::rand(0f32, 1., (each, 784), &Device::Cpu)?;
            let labels = (0..each as u32).map(|i| i % 10).collect::<Vec<_>>();
            batches.push((images, Tensor::from_vec(labels, each, &Device::Cpu)?));
        }
        let batches: PerReplica<_> = PerReplica::from_values(batches);
        let step = || {
            strategy.run((&model, &batches), |ctx, (model, (images, labels))| {
                let loss = loss::cross_entropy(&model.forward(images)?, labels)?;
                optimizer.minimize(ctx, loss, labels.dim(0)?)
            })
        };
        let calls = effort.calls(4e-3);
        for _ in 0..calls / 4 {
            black_box(step()?);
        }
        let watch = Stopwatch::start();
        for _ in 0..calls {
            black_box(step()?);
        }
        Ok(calls as f64 / watch.seconds())
    }
}
