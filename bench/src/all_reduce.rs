//! The time of an all-reduce of one tensor over replicas in one process.

use super::figure::{About, Beside, Better, Effort, Figure, Target};
use super::numbers::size;
use super::sample::Sample;
use super::traffic;
use candle_core::{Device, Tensor};
use distribute::cluster::Stopwatch;
use distribute::{MirroredStrategy, ReduceOp, Result};
use std::hint::black_box;

/// The figure for calls of `all_reduce` inside one `run`, timed on replica 0.
struct AllReduce {
    op: ReduceOp,
    replicas: usize,
    bytes: usize,
    /// An estimate of the time of a call, in seconds.
    estimate: f64,
    /// The target in microseconds, if there is one.
    reach: Option<f64>,
}

/// Returns figures for 2 replicas, some of which have targets, and for more replicas than cores.
pub fn figures() -> Vec<Box<dyn Figure>> {
    use ReduceOp::{Mean, Sum};
    let figure = |op, replicas, bytes, estimate, reach| {
        Box::new(AllReduce { op, replicas, bytes, estimate, reach }) as Box<dyn Figure>
    };
    vec![
        figure(Sum, 2, 4 << 10, 2e-6, Some(2.)),
        figure(Sum, 2, 64 << 10, 10e-6, None),
        figure(Sum, 2, 1 << 20, 40e-6, Some(40.)),
        figure(Sum, 2, 64 << 20, 10e-3, Some(8000.)),
        figure(Mean, 2, 4 << 10, 2e-6, None),
        figure(Mean, 2, 1 << 20, 40e-6, None),
        figure(Sum, 4, 4 << 10, 20e-6, None),
        figure(Sum, 4, 1 << 20, 100e-6, None),
        figure(Sum, 8, 4 << 10, 40e-6, None),
        figure(Sum, 8, 1 << 20, 200e-6, None),
    ]
}

impl Figure for AllReduce {
    fn about(&self) -> About {
        let Self { op, replicas, bytes, .. } = self;
        let mean = if *op == ReduceOp::Mean { "mean_" } else { "" };
        About {
            name: format!("all_reduce_{mean}{replicas}_{}", size(*bytes)),
            unit: "µs",
            better: Better::Less,
            measures: format!(
                "all_reduce {op} of one f32 tensor of {bytes} bytes, {replicas} replicas, inside of one run"
            ),
            targets: self.reach.map_or_else(Vec::new, |reach| {
                // The smallest has negligible traffic.
                let bound = (self.bytes > 64 << 10).then_some(Target::Bound(0.8));
                [Target::Value(reach)].into_iter().chain(bound).collect()
            }),
        }
    }

    fn round(&self, effort: Effort) -> Result<Sample> {
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
        Ok((seconds.values()[0] * 1e6 / calls as f64).into())
    }

    fn beside(&self) -> Vec<Beside> {
        let bound = self.reach.map(|_| traffic::of_a_sum(self.bytes, self.estimate / 2.));
        bound.into_iter().collect()
    }
}
