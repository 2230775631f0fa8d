//! `distribute-bench --saves FOLDER`: the time of steps while a checkpoint is saved, compared to that of other steps.
//! The model has 50 million parameters (200 MB), and Adam keeps 400 MB of slots. Each round measures steps without a
//! save, steps during a save in the background, and steps that wait for a save.

use super::form::Form;
use super::numbers::number;
use super::output;
use super::statistics::Summary;
use candle_core::{DType, Device, Tensor};
use candle_nn::{Module, VarBuilder};
use distribute::checkpoint::CheckpointManager;
use distribute::cluster::Stopwatch;
use distribute::nn::{Linear, linear};
use distribute::{Adam, Checkpoint, MirroredStrategy, Replicated, Result};
use serde_json::json;
use std::path::Path;
use std::time::Duration;

/// The amount of work in a run.
#[derive(Clone, Copy)]
struct Size {
    width: usize,
    layers: usize,
    /// The rows of the global batch.
    rows: usize,
    /// The number of steps that are timed after each save, and also without a save.
    steps: usize,
}

const FULL: Size = Size { width: 4096, layers: 3, rows: 512, steps: 4 };
const QUICK: Size = Size { width: 64, layers: 3, rows: 16, steps: 2 };

/// The maximum time of a save.
const PATIENCE: Duration = Duration::from_secs(600);

/// The measured seconds of each kind of step and save, in all rounds.
#[derive(Default)]
struct Seconds {
    without: Vec<f64>,
    call: Vec<f64>,
    next: Vec<f64>,
    later: Vec<f64>,
    complete: Vec<f64>,
    waited: Vec<f64>,
}

/// Measures saves to `folder` with each number of replicas, and prints the medians.
pub fn run(folder: &Path, rounds: usize, is_quick: bool, form: Form) -> Result<()> {
    let size = if is_quick { QUICK } else { FULL };
    if form == Form::Markdown {
        output::line("| replicas | | seconds (spread) | of a step without a save |")?;
        output::line("|---|---|---|---|")?;
    }
    for replicas in [1, 2] {
        print(replicas, &measure(folder, replicas, size, rounds)?, form)?;
    }
    Ok(())
}

fn measure(folder: &Path, replicas: usize, size: Size, rounds: usize) -> Result<Seconds> {
    let strategy = MirroredStrategy::cpus(replicas)?;
    let model = strategy.replicate(move |vb: VarBuilder<'_>| {
        (0..size.layers)
            .map(|k| linear(size.width, size.width, vb.pp(k)))
            .collect::<candle_core::Result<Vec<_>>>()
    })?;
    let optimizer = Adam::new(&model.variables, 1e-5)?;
    let rows = size.rows / replicas;
    let batch = Tensor::ones((rows, size.width), DType::F32, &Device::Cpu)?;
    let step = |model: &Replicated<Vec<Linear>>| {
        let watch = Stopwatch::start();
        strategy.run(model, |ctx, layers| {
            let mut x = batch.clone();
            for layer in layers {
                x = layer.forward(&x)?;
            }
            optimizer.minimize(ctx, x.sqr()?.mean_all()?, rows)
        })?;
        Ok::<_, distribute::Error>(watch.seconds())
    };
    let state = Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer);
    let manager = CheckpointManager::new(folder.join(format!("saves-{replicas}")))?.keep(1);
    let mut all = Seconds::default();
    step(&model)?;
    for _ in 0..rounds {
        for _ in 0..size.steps {
            all.without.push(step(&model)?);
        }
        let watch = Stopwatch::start();
        let saving = state.save_async(&manager)?;
        all.call.push(watch.seconds());
        all.next.push(step(&model)?);
        for _ in 1..size.steps {
            let is_saving = !saving.is_finished();
            let seconds = step(&model)?;
            if is_saving {
                all.later.push(seconds);
            }
        }
        saving.wait(PATIENCE)?;
        all.complete.push(watch.seconds());
        step(&model)?;
        let watch = Stopwatch::start();
        state.save_to(&manager)?;
        all.waited.push(watch.seconds());
        step(&model)?;
    }
    Ok(all)
}

fn print(replicas: usize, all: &Seconds, form: Form) -> Result<()> {
    let without = Summary::of(&all.without).median;
    let lines = [
        ("a step without a save", &all.without),
        ("`save_async`", &all.call),
        ("the next step", &all.next),
        ("later steps during the save", &all.later),
        ("from `save_async` to the checkpoint, with steps", &all.complete),
        ("`save_to`", &all.waited),
    ];
    for (what, seconds) in lines {
        let Summary { median, spread, .. } = Summary::of(seconds);
        let ratio = median / without;
        output::line(match form {
            Form::Json => json!({
                "figure": "saves", "replicas": replicas, "measures": what, "unit": "s", "count": seconds.len(),
                "ours": median, "spread": spread, "ratio": ratio,
            })
            .to_string(),
            Form::Markdown => {
                format!("| {replicas} | {what} | {} ({}) | {ratio:.3} |", number(median), number(spread))
            }
            Form::Text => format!(
                "{replicas} replicas, {what}: {} s (spread {}), {ratio:.3} of a step without a save",
                number(median),
                number(spread)
            ),
        })?;
    }
    Ok(())
}
