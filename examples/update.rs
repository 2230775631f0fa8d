//! A line through noisy points without an optimizer: the standard way to update variables with values
//! computed by replicas, run → merge_call → batch_reduce_to → update.

use candle_core::{DType, Device, Tensor};
use clap::{Parser, ValueEnum};
use distribute::nn::loss;
use distribute::optimizer::backward;
use distribute::parameter_server::{LocalCluster, MinSizePartitioner};
use distribute::prelude::*;
use serde_json::json;

const POINTS: usize = 1000;
const BATCH: usize = 100;
const LEARNING_RATE: f64 = 0.2;

/// Fits a line through noisy points without an optimizer: by what replicas have computed, reduced in merge_call
#[derive(Parser)]
struct Options {
    /// The location of the variables
    #[arg(long, value_enum, default_value = "mirrored")]
    strategy: Kind,
    /// The number of replicas of a mirrored strategy [default: one for each core]
    #[arg(long)]
    replicas: Option<usize>,
    /// The number of passes over all points
    #[arg(long, default_value_t = 20)]
    epochs: usize,
    /// The seed of the order of points
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Print only the result
    #[arg(long)]
    quiet: bool,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(ValueEnum, Clone, Copy)]
enum Kind {
    /// MirroredStrategy: a copy on each replica
    Mirrored,
    /// ParameterServerStrategy: on two parameter servers in this process
    Ps,
}

#[distribute::main(allocator = mimalloc::MiMalloc)]
fn main() -> distribute::Result<()> {
    let options = Options::parse();
    let x =
        Tensor::arange(0f32, POINTS as f32, &Device::Cpu)?.affine(2. / POINTS as f64, -1.)?.unsqueeze(1)?;
    let y = x.affine(3., 2.)?;

    let strategy: Strategy = match (options.strategy, options.replicas) {
        (Kind::Mirrored, None) => MirroredStrategy::all_cores()?,
        (Kind::Mirrored, Some(replicas)) => MirroredStrategy::cpus(replicas)?,
        (Kind::Ps, _) => {
            let (servers, min_shard_bytes) = (2, 256 << 10);
            let cluster = LocalCluster::new(1, servers)?;
            let partitioner = MinSizePartitioner::new(min_shard_bytes, servers)?;
            ParameterServerStrategy::new(cluster.resolver(), partitioner)?.into()
        }
    };
    // Mirrored variables: a copy on each replica's device.
    let zero = Tensor::zeros(1, DType::F32, &Device::Cpu)?;
    let [slope, intercept] =
        ["slope", "intercept"].map(|name| strategy.scope(|| Variable::new(name, zero.clone())));
    let (slope, intercept) = (slope?, intercept?);
    // A variable that belongs to no other: the number of steps, on the devices for such variables.
    let devices = strategy.non_slot_devices(&[&slope, &intercept])?;
    let steps = strategy.scope(|| strategy.colocate_vars_with(&devices, || Variable::new("steps", 0i64)))?;

    let batches = strategy
        .distribute_dataset(Dataset::from_slices((x, y))?.shuffle(POINTS, options.seed).batch_exact(BATCH))?;
    for epoch in 1..=options.epochs {
        let mut last = f32::NAN;
        for batch in &batches {
            let losses = strategy.run(batch?, |ctx, (x, y)| {
                // On each replica: the gradients of its own part of the batch.
                let (a, b) = (slope.as_tensor()?, intercept.as_tensor()?);
                let loss = loss::mse(&x.broadcast_mul(&a)?.broadcast_add(&b)?, &y)?;
                let mut found = backward(&loss)?;
                let none = || distribute::Error::other("the loss does not depend on the line");
                let gradients = [found.remove(&a).ok_or_else(none)?, found.remove(&b).ok_or_else(none)?];

                // Once for all replicas: reduce the mean onto the variables' devices, and update each copy
                // with it. All parts have the same size here, so a plain mean is right.
                ctx.merge_call(gradients, |strategy, gradients| {
                    let of = |i: usize| gradients.clone().map(|both| both[i].clone());
                    let pairs = [(of(0), &slope), (of(1), &intercept)];
                    let means = strategy.batch_reduce_to(ReduceOp::Mean, pairs)?;
                    for (variable, mean) in [&slope, &intercept].into_iter().zip(means) {
                        strategy
                            .update(variable, mean, |copy, mean| copy.assign_sub((mean * LEARNING_RATE)?))?;
                    }
                    strategy.update_non_slot(&devices, (), |()| steps.assign_add(1i64))?;
                    Ok(())
                })?;
                ctx.all_reduce(ReduceOp::Mean, loss.detach())
            })?;
            last = losses.to_scalar()?;
        }
        if !options.quiet {
            println!("epoch {epoch} of {}: loss {last:.4}", options.epochs);
        }
    }

    let number = |variable: &Variable| distribute::Ok(variable.read::<Tensor>()?.to_vec1::<f32>()?[0]);
    let (a, b, steps) = (number(&slope)?, number(&intercept)?, steps.read::<i64>()?);
    if options.json {
        let replicas = strategy.num_replicas_in_sync();
        println!("{}", json!({"slope": a, "intercept": b, "steps": steps, "replicas": replicas}));
    } else {
        println!("y = {a:.3} x + {b:.3} after {steps} steps, drawn as y = 3 x + 2\n{slope}");
    }
    Ok(())
}
