//! `distribute-bench --steps N`: makes N steps and nothing else, so that instructions can be counted
//! (`.ci/instructions`). The cost of the steps is the difference between two runs with different N.

use super::error::invalid;
use super::work::{Mlp, Model, Recommender, Training};
use distribute::{MirroredStrategy, Result};
use std::hint::black_box;

/// A description of the valid names, for an error message.
const NAMES: &str =
    "empty_step_R, mlp_R_replicas and recommender_R_replicas, R being a number of replicas such as 2";

/// Makes `steps` steps of the figure `name`, and prints nothing.
pub fn run(name: &str, steps: u64) -> Result<()> {
    let replicas = |prefix, suffix| {
        let number = name.strip_prefix(prefix)?.strip_suffix(suffix)?;
        number.parse().ok().filter(|replicas| *replicas > 0)
    };
    if let Some(replicas) = replicas("empty_step_", "") {
        return empty_steps(replicas, steps);
    }
    if let Some(replicas) = replicas("mlp_", "_replicas") {
        return train::<Mlp>(replicas, steps);
    }
    if let Some(replicas) = replicas("recommender_", "_replicas") {
        return train::<Recommender>(replicas, steps);
    }
    Err(invalid(format!("--steps takes one name by --filter: {NAMES}; {name:?} is none of them")))
}

fn empty_steps(replicas: usize, steps: u64) -> Result<()> {
    let strategy = MirroredStrategy::cpus(replicas)?;
    for _ in 0..steps {
        black_box(strategy.run((), |ctx, ()| Ok(ctx.replica_id_in_sync_group()))?);
    }
    Ok(())
}

/// Trains from the same weights and on the same batches in every run, because the time of relu, for example, depends on
/// its input.
fn train<M: Model>(replicas: usize, steps: u64) -> Result<()> {
    let mut training = Training::<M>::new(replicas)?;
    for _ in 0..steps {
        black_box(training.step()?);
    }
    Ok(())
}
