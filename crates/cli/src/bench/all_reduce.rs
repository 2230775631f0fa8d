//! What it costs to sum one tensor over replicas of one process.

use super::figure::{About, Effort, Figure, Peer, RECORDED};
use super::size;
use candle_core::{Device, Tensor};
use distribute::cluster::Stopwatch;
use distribute::{MirroredStrategy, ReduceOp, Result};
use std::hint::black_box;

/// Calls of `all_reduce` inside of one `run`, timed on replica 0.
struct AllReduce {
    op: ReduceOp,
    replicas: usize,
    bytes: usize,
    /// Seconds, roughly.
    estimate: f64,
    reach: Option<f64>,
    peers: &'static [Peer],
}

macro_rules! peers {
    ($tensorflow:literal, $fused:literal) => {
        &[
            Peer { name: "TensorFlow", value: $tensorflow, source: RECORDED },
            // A loop of ten lines that knows neither tensors nor errors: what the machine allows.
            Peer {
                name: "prototype, in place",
                value: $fused,
                source: "reference/ecosystem.md C1, measured 2026-11-20 on 2 shared Zen4 cores",
            },
        ]
    };
}

/// 2 replicas at the sizes of DESIGN, and more replicas than there are cores.
pub fn figures() -> Vec<Box<dyn Figure>> {
    use ReduceOp::{Mean, Sum};
    let figure = |op, replicas, bytes, estimate, reach, peers| {
        Box::new(AllReduce { op, replicas, bytes, estimate, reach, peers }) as Box<dyn Figure>
    };
    vec![
        figure(Sum, 2, 4 << 10, 2e-6, Some(2.), peers!(570., 0.6)),
        figure(Sum, 2, 64 << 10, 10e-6, None, &[]),
        figure(Sum, 2, 1 << 20, 40e-6, Some(40.), peers!(780., 18.8)),
        figure(Sum, 2, 64 << 20, 10e-3, Some(8000.), peers!(20_800., 6338.)),
        figure(Mean, 2, 4 << 10, 2e-6, None, &[]),
        figure(Mean, 2, 1 << 20, 40e-6, None, &[]),
        figure(Sum, 4, 4 << 10, 20e-6, None, &[]),
        figure(Sum, 4, 1 << 20, 100e-6, None, &[]),
        figure(Sum, 8, 4 << 10, 40e-6, None, &[]),
        figure(Sum, 8, 1 << 20, 200e-6, None, &[]),
    ]
}

impl Figure for AllReduce {
    fn about(&self) -> About {
        let Self { op, replicas, bytes, .. } = self;
        let mean = if *op == ReduceOp::Mean { "mean_" } else { "" };
        About {
            name: format!("all_reduce_{mean}{replicas}_{}", size(*bytes)),
            unit: "µs",
            lower_is_better: true,
            measures: format!(
                "all_reduce {op} of one f32 tensor of {bytes} bytes, {replicas} replicas, inside of one run"
            ),
            peers: self.peers,
            reach: self.reach,
        }
    }

    fn round(&self, effort: Effort) -> Result<f64> {
        let strategy = MirroredStrategy::cpus(self.replicas)?;
        let calls = effort.calls(self.estimate);
        let seconds = strategy.run((), |ctx, ()| {
            let value = ctx.replica_id_in_sync_group() as f32 + 1.;
            let mine = Tensor::full(value, self.bytes / size_of::<f32>(), &Device::Cpu)?.contiguous()?;
            for _ in 0..calls / 10 + 2 {
                black_box(ctx.all_reduce(self.op, mine.clone())?);
            }
            let watch = Stopwatch::start();
            for _ in 0..calls {
                black_box(ctx.all_reduce(self.op, mine.clone())?);
            }
            Ok(watch.seconds())
        })?;
        Ok(seconds.values()[0] * 1e6 / calls as f64)
    }
}
