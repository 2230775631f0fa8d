//! `distribute bench --steps N`: a certain number of steps and nothing else, for those who count instructions
//! (`.ci/instructions`): what two runs of different N differ by is what the steps cost.

use super::invalid;
use candle_core::{Device, Tensor};
use candle_nn::{Activation::Relu, Module, VarBuilder};
use distribute::nn::{Linear, linear, loss};
use distribute::{MirroredStrategy, PerReplica, Result, Sgd};
use std::hint::black_box;

/// What can be counted.
const NAMES: &str = "empty_step_R and mlp_R_replicas, R being a number of replicas such as 2";

/// Makes `steps` steps of what `name` says, and prints nothing.
pub fn run(name: &str, steps: u64) -> Result<()> {
    let replicas = |prefix, suffix| {
        let number = name.strip_prefix(prefix)?.strip_suffix(suffix)?;
        number.parse().ok().filter(|replicas| *replicas > 0)
    };
    if let Some(replicas) = replicas("empty_step_", "") {
        return empty_steps(replicas, steps);
    }
    if let Some(replicas) = replicas("mlp_", "_replicas") {
        return mlp_steps(replicas, steps);
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

fn mlp_steps(replicas: usize, steps: u64) -> Result<()> {
    const BATCH: usize = 128;
    let strategy = MirroredStrategy::cpus(replicas)?;
    let model = strategy.replicate_seeded(1, |vb: VarBuilder| -> candle_core::Result<[Linear; 3]> {
        let a = linear(784, 512, vb.pp("a"))?.with_activation(Relu);
        let b = linear(512, 256, vb.pp("b"))?.with_activation(Relu);
        Ok([a, b, linear(256, 10, vb.pp("c"))?])
    })?;
    let optimizer = Sgd::new(&model.variables, 0.01)?;
    let each = BATCH / replicas;
    let pieces = (0..replicas).map(|replica| {
        let first = (replica * each * 784) as f32;
        let images = Tensor::arange(first, first + (each * 784) as f32, &Device::Cpu)?.sin()?;
        let labels = Tensor::from_iter((0..each as u32).map(|i| i % 10), &Device::Cpu)?;
        Ok((images.reshape((each, 784))?, labels))
    });
    let batches: PerReplica<_> = PerReplica::from_values(pieces.collect::<Result<Vec<_>>>()?);
    for _ in 0..steps {
        black_box(strategy.run((&model, &batches), |ctx, ([a, b, c], (images, labels))| {
            let logits = c.forward(&b.forward(&a.forward(images)?)?)?;
            optimizer.minimize(ctx, loss::cross_entropy(&logits, labels)?, labels.dim(0)?)
        })?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_steps_are_made_and_other_names_refused() {
        run("empty_step_2", 3).unwrap();
        run("empty_step_1", 1).unwrap();
        for name in ["empty_step", "empty_step_0", "mlp", "all_reduce_2_4KiB"] {
            assert!(run(name, 1).unwrap_err().to_string().contains("empty_step_R"), "{name}");
        }
    }
}
