//! A training that can be stopped at any time, even by `kill -9`. Restarted with the same folder, it resumes
//! in the middle of an epoch, and ends with a result that is bit-identical to an uninterrupted training.
//!
//! ```text
//! cargo run --release --example resume -- --checkpoints /tmp/spiral --stop-after 75
//! cargo run --release --example resume -- --checkpoints /tmp/spiral
//! ```
//!
//! SIGTERM saves first. All workers save after the same step, whichever of them receives it.

mod common;
use candle_core::{Device, Tensor};
use candle_nn::{Module, linear};
use clap::Parser;
use common::{Options, progress::Progress};
use distribute::{Checkpoint, CheckpointManager, Preemption, data::Dataset, nn::loss, prelude::*};
use std::path::PathBuf;

const POINTS: usize = 1000;
const BATCH: usize = 64;
/// The number of steps between checkpoints.
const SAVE_EVERY: u64 = 10;

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    common: Options,
    /// The folder of checkpoints, one for every ten steps; the last three are kept
    #[arg(long)]
    checkpoints: Option<PathBuf>,
    /// Stop after this number of steps, as if killed
    #[arg(long)]
    stop_after: Option<u64>,
}

#[distribute::main]
fn main() -> distribute::Result<()> {
    let Arguments { common: options, checkpoints, stop_after } = common::parse(
        "Trains, stops at any time, and continues from its last checkpoint when it is started again",
    );
    let epochs = options.epochs(20);

    let strategy = options.strategy()?;
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

    let manager = checkpoints.map(CheckpointManager::new).transpose()?.map(|manager| manager.keep(3));
    if let Some(manager) = &manager {
        training.restore_latest(manager)?;
    }
    // SIGTERM to any worker saves and ends all of them.
    let preemption = manager.as_ref().map(|_| Preemption::watch(&strategy)).transpose()?;

    let begun = batches.position();
    let done = begun.epoch * POINTS.div_ceil(BATCH) as u64 + begun.steps;
    let mut steps = done;
    let _trace = options.trace()?;
    let mut progress =
        Progress::start(&options, &strategy, epochs.saturating_sub(begun.epoch as usize), POINTS, BATCH)?;
    'training: while batches.position().epoch < epochs as u64 {
        for batch in &batches {
            let losses = strategy.run((&model, batch?), |ctx, (model, (x, y))| {
                let loss = loss::cross_entropy(&model(&x)?, &y)?;
                optimizer.minimize(ctx, loss, y.dim(0)?)
            })?;
            progress.step(&losses)?;
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
            if stop_after.is_some_and(|last| steps >= last) {
                break 'training;
            }
        }
    }

    let pace = progress.finish()?;
    let weights = model.variables.sha256()?;
    let figures = [
        ("example", "resume".into()),
        ("resumed_after", done.into()),
        ("steps", steps.into()),
        ("seconds", pace.seconds.into()),
        ("replicas", strategy.num_replicas_in_sync().into()),
        ("weights_sha256", weights.clone().into()),
    ];
    options.finish(&format!("steps {done} to {steps}; the weights are {weights}"), &figures);
    Ok(())
}

/// Returns points of two arms of a spiral, and the arm of each.
fn spiral() -> distribute::Result<Dataset<(Tensor, Tensor)>> {
    let t = Tensor::arange(0f32, POINTS as f32, &Device::Cpu)?;
    let arm = (0..POINTS as u32).map(|i| i % 2).collect::<Vec<_>>();
    let arm = Tensor::new(arm, &Device::Cpu)?;
    let radius = (&t / POINTS as f64)?;
    let angle = ((&radius * 6.)? + (arm.to_dtype(candle_core::DType::F32)? * std::f64::consts::PI)?)?;
    let points = Tensor::stack(&[(&radius * angle.cos()?)?, (&radius * angle.sin()?)?], 1)?;
    Ok(Dataset::from_slices((points, arm))?)
}
