//! The cost of an empty step, which is the cost of `run` itself.

use super::figure::{About, Better, Effort, Figure, Target};
use super::sample::Sample;
use distribute::cluster::Stopwatch;
use distribute::{MirroredStrategy, Result};
use std::hint::black_box;

/// The figure for consecutive calls of `run` with an empty closure.
struct EmptyStep {
    replicas: usize,
}

/// Returns figures for 2 replicas, and for more replicas than cores, to check that waiting does not cost more than
/// working.
pub fn figures() -> Vec<Box<dyn Figure>> {
    [2, 4, 8].into_iter().map(|replicas| Box::new(EmptyStep { replicas }) as Box<dyn Figure>).collect()
}

impl Figure for EmptyStep {
    fn about(&self) -> About {
        let replicas = self.replicas;
        About {
            name: format!("empty_step_{replicas}"),
            unit: "µs",
            better: Better::Less,
            measures: format!("run of an empty step, {replicas} replicas, back to back"),
            targets: if replicas == 2 { vec![Target::Value(5.)] } else { Vec::new() },
        }
    }

    fn round(&self, effort: Effort) -> Result<Sample> {
        let strategy = MirroredStrategy::cpus(self.replicas)?;
        let step = || strategy.run((), |ctx, ()| Ok(ctx.replica_id_in_sync_group()));
        let calls = effort.calls(5e-6);
        for _ in 0..calls / 10 + 1 {
            black_box(step()?);
        }
        let watch = Stopwatch::start();
        for _ in 0..calls {
            black_box(step()?);
        }
        Ok((watch.seconds() * 1e6 / calls as f64).into())
    }
}
