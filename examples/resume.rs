//! A training that can be stopped at any time, even by `kill -9`. Restarted with the same folder, it resumes
//! in the middle of an epoch, and ends with a result that is bit-identical to an uninterrupted training.
//!
//! ```text
//! cargo run --release --example resume -- --checkpoints /tmp/spiral --stop-after 75
//! cargo run --release --example resume -- --checkpoints /tmp/spiral
//! ```
//!
//! SIGTERM saves first. All workers save after the same step, whichever of them receives it.

use candle_core::{DType, Device, Tensor};
use candle_nn::{Module, linear};
use clap::Parser;
use distribute::checkpoint::CheckpointManager;
use distribute::nn::loss;
use distribute::prelude::*;
use distribute::training::Preemption;
use serde_json::json;
use std::path::PathBuf;

const POINTS: usize = 1000;
const BATCH: usize = 64;
/// The number of steps between checkpoints.
const SAVE_EVERY: u64 = 10;

/// Trains, stops at any time, and continues from its last checkpoint when it is started again
#[derive(Parser)]
struct Options {
    /// The number of replicas, on each worker of the cluster in the environment [default: one for each core]
    #[arg(long)]
    replicas: Option<usize>,
    /// The number of passes over all points
    #[arg(long, default_value_t = 20)]
    epochs: u64,
    /// The folder of checkpoints, one for every ten steps; the last three are kept
    #[arg(long)]
    checkpoints: Option<PathBuf>,
    /// Stop after this number of steps, as if killed
    #[arg(long)]
    stop_after: Option<u64>,
    /// The seed of initial weights and of the order of points
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Print only the result
    #[arg(long)]
    quiet: bool,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
}

#[distribute::main(allocator = mimalloc::MiMalloc)]
fn main() -> distribute::Result<()> {
    let options = Options::parse();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // Without a cluster in the environment, this process is the only worker.
    let strategy =
        MultiWorkerMirroredStrategy::builder().replicas(options.replicas.unwrap_or(cores)).build()?;
    let model = strategy.replicate_seeded(options.seed, |vb| {
        let [first, second] = [linear(2, 64, vb.pp("first"))?, linear(64, 2, vb.pp("second"))?];
        distribute::Ok(move |x: &Tensor| second.forward(&first.forward(x)?.relu()?))
    })?;
    let optimizer = Adam::new(&model.variables, 1e-2)?;
    let batches = strategy.distribute_dataset(spiral()?.shuffle(POINTS, options.seed).batch(BATCH))?;
    let training = Checkpoint::new()
        .part("model", &model.variables)
        .part("optimizer", &optimizer)
        .part("steps", &strategy)
        .part("input", &batches); // the position in the epoch: the examples still to come

    let manager = options.checkpoints.map(CheckpointManager::new).transpose()?.map(|manager| manager.keep(3));
    if let Some(manager) = &manager {
        training.restore_latest(manager)?;
    }
    // After a SIGTERM to any worker, all of them save and exit.
    let preemption = manager.as_ref().map(|_| Preemption::watch(&strategy)).transpose()?;

    let begun = batches.position();
    let done = begun.epoch * POINTS.div_ceil(BATCH) as u64 + begun.steps;
    let mut steps = done;
    'training: while batches.position().epoch < options.epochs {
        let (epoch, mut last) = (batches.position().epoch + 1, f32::NAN);
        for batch in &batches {
            let losses = strategy.run((&model, batch?), |ctx, (model, (x, y))| {
                let loss = loss::cross_entropy(&model(&x)?, &y)?;
                optimizer.minimize(ctx, loss, y.dim(0)?)
            })?;
            last = losses.to_scalar()?;
            steps += 1;
            if let Some(manager) = manager.as_ref().filter(|_| steps.is_multiple_of(SAVE_EVERY)) {
                training.save_to(manager)?;
            }
            if let (Some(preemption), Some(manager)) = (&preemption, &manager)
                && preemption.requested()
            {
                preemption.save(&training, manager)?;
                break 'training;
            }
            if options.stop_after.is_some_and(|last| steps >= last) {
                break 'training;
            }
        }
        // At most twenty lines.
        if strategy.is_chief() && !options.quiet && epoch.is_multiple_of(options.epochs.div_ceil(20)) {
            println!("{}: epoch {epoch} of {}, loss {last:.4}", strategy.world(), options.epochs);
        }
    }

    let weights = model.variables.sha256()?;
    if options.json {
        let replicas = strategy.num_replicas_in_sync();
        let line =
            json!({"resumed_after": done, "steps": steps, "replicas": replicas, "weights_sha256": weights});
        println!("{line}");
    } else {
        println!("steps {done} to {steps}; the weights are {weights}");
    }
    Ok(())
}

/// Returns points of two arms of a spiral, and the arm of each.
fn spiral() -> distribute::Result<Dataset<(Tensor, Tensor)>> {
    let t = Tensor::arange(0f32, POINTS as f32, &Device::Cpu)?;
    let arm = (0..POINTS as u32).map(|i| i % 2).collect::<Vec<_>>();
    let arm = Tensor::new(arm, &Device::Cpu)?;
    let radius = (&t / POINTS as f64)?;
    let angle = ((&radius * 6.)? + (arm.to_dtype(DType::F32)? * std::f64::consts::PI)?)?;
    let points = Tensor::stack(&[(&radius * angle.cos()?)?, (&radius * angle.sin()?)?], 1)?;
    Ok(Dataset::from_slices((points, arm))?)
}
