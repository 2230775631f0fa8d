//! `distribute-bench --precision`: speed, loss and memory of trainings in f32, bf16 and f16.
//!
//! Each training is a process of its own, on two replicas, from the same initial weights with the same batches. The
//! three precisions take turns.

use super::form::Form;
use super::numbers::number;
use super::output;
use super::program::PATIENCE;
use super::spawned::{peak_mib, spawned};
use super::statistics::Summary;
use super::work::{BATCHES, Mlp, Model};
use candle_core::Tensor;
use candle_nn::{Activation::Relu, Module, VarBuilder};
use distribute::cluster::Stopwatch;
use distribute::nn::{Conv2d, Conv2dConfig, Linear, MixedPrecision, conv2d, linear, loss, max_pool2d};
use distribute::{Adam, Error, MirroredStrategy, Result};
use serde_json::{Value, json};
use std::io::Error as IoError;

/// The beginning of the names of child processes: `precision/cnn/bf16/300`, with the number of steps.
pub const CHILD: &str = "precision/";

const PRECISIONS: [MixedPrecision; 3] = [MixedPrecision::Off, MixedPrecision::Bf16, MixedPrecision::F16];
const NETWORKS: [&str; 2] = ["mlp", "cnn"];
const REPLICAS: usize = 2;
const BATCH: usize = 128;
const RATE: f64 = 1e-3;

/// The result of a training.
struct Trained {
    steps_per_s: f64,
    /// The mean loss over the last pass through the sixteen batches.
    loss: f64,
    peak_mib: f64,
}

impl Trained {
    /// Formats the result as the line that a child process prints.
    fn line(&self) -> String {
        json!([self.steps_per_s, self.loss, self.peak_mib]).to_string()
    }

    /// Parses the line of a child process.
    fn parse(line: &str) -> Result<Self> {
        let values: Option<Vec<f64>> = serde_json::from_str::<Value>(line)
            .ok()
            .and_then(|line| line.as_array()?.iter().map(Value::as_f64).collect());
        match values.as_deref() {
            Some(&[steps_per_s, loss, peak_mib]) => Ok(Self { steps_per_s, loss, peak_mib }),
            _ => {
                let source = IoError::other(format!("{line:?} is not the result of a training"));
                Err(Error::Io { operation: "training in a process".into(), source })
            }
        }
    }
}

/// A network of two convolutions with 16 and 32 channels, each followed by relu and pooling, and a linear layer.
struct Cnn(Conv2d, Conv2d, Linear);

impl Cnn {
    fn new(vb: VarBuilder<'_>) -> candle_core::Result<Self> {
        let config = Conv2dConfig { padding: 1, ..Default::default() };
        let (first, second) = (conv2d(1, 16, 3, config, vb.pp("a"))?, conv2d(16, 32, 3, config, vb.pp("b"))?);
        Ok(Self(first, second, linear(32 * 7 * 7, 10, vb.pp("c"))?))
    }

    fn loss(&self, images: &Tensor, labels: &Tensor) -> Result<Tensor> {
        let x = images.reshape(((), 1, 28, 28))?;
        let x = max_pool2d(&self.0.forward(&x)?.apply(&Relu)?, 2)?;
        let x = max_pool2d(&self.1.forward(&x)?.apply(&Relu)?, 2)?;
        Ok(loss::cross_entropy(&self.2.forward(&x.flatten_from(1)?)?, labels)?)
    }
}

/// Measures each network with each precision, and prints the medians.
pub fn run(rounds: usize, is_quick: bool, form: Form) -> Result<()> {
    if form == Form::Markdown {
        output::line("| network | precision | steps/s (spread) | of f32 | loss | most memory, MiB |")?;
        output::line("|---|---|---|---|---|---|")?;
    }
    for network in NETWORKS {
        let steps = if is_quick { 2 } else { 304 };
        let mut all = PRECISIONS.map(|_| Vec::new());
        for _ in 0..rounds {
            for (precision, trained) in PRECISIONS.iter().zip(&mut all) {
                let (line, _) = spawned(&format!("{CHILD}{network}/{precision}/{steps}"), PATIENCE)?;
                trained.push(Trained::parse(&line)?);
            }
        }
        let speeds = all.each_ref().map(|trained| Summary::of(&of(trained, |one| one.steps_per_s)));
        for ((precision, trained), speed) in PRECISIONS.iter().zip(&all).zip(&speeds) {
            let median = |value: fn(&Trained) -> f64| Summary::of(&of(trained, value)).median;
            let (loss, peak) = (median(|one| one.loss), median(|one| one.peak_mib));
            print(form, network, *precision, (speed, speed.median / speeds[0].median), loss, peak)?;
        }
    }
    Ok(())
}

fn of(trained: &[Trained], value: fn(&Trained) -> f64) -> Vec<f64> {
    trained.iter().map(value).collect()
}

fn print(
    form: Form,
    network: &str,
    precision: MixedPrecision,
    (speed, ratio): (&Summary, f64),
    loss: f64,
    peak: f64,
) -> Result<()> {
    let (median, spread) = (number(speed.median), number(speed.spread));
    output::line(match form {
        Form::Json => json!({
            "figure": "precision", "network": network, "precision": precision.to_string(), "unit": "steps/s",
            "ours": speed.median, "spread": speed.spread, "ratio": ratio, "loss": loss, "peak_mib": peak,
        })
        .to_string(),
        Form::Markdown => {
            format!("| {network} | {precision} | {median} ({spread}) | {ratio:.2} | {loss:.4} | {peak:.0} |")
        }
        Form::Text => format!(
            "{network}, {precision}: {median} steps/s (spread {spread}), {ratio:.2} of f32, loss {loss:.4}, {peak:.0} MiB"
        ),
    })
}

/// Trains the network that `name` describes, and prints the result as one line.
pub fn child(name: &str) -> Result<()> {
    let parts = name.strip_prefix(CHILD).map(|rest| rest.split('/').collect::<Vec<_>>());
    let Some([network, precision, steps]) = parts.as_deref() else { return Err(unknown(name)) };
    let precision: MixedPrecision = precision.parse().map_err(|_| unknown(name))?;
    let steps: u32 = steps.parse().map_err(|_| unknown(name))?;
    let trained = match *network {
        "mlp" => train(precision, steps, Mlp::new, Mlp::loss),
        "cnn" => train(precision, steps, Cnn::new, Cnn::loss),
        _ => return Err(unknown(name)),
    };
    output::line(trained?.line())
}

fn train<M: Send + Sync + 'static>(
    precision: MixedPrecision,
    steps: u32,
    new: fn(VarBuilder<'_>) -> candle_core::Result<M>,
    loss: fn(&M, &Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Trained> {
    let strategy = MirroredStrategy::cpus(REPLICAS)?;
    strategy.set_mixed_precision(precision);
    let model = strategy.replicate(new)?;
    let optimizer = Adam::new(&model.variables, RATE)?;
    let rows = BATCH / REPLICAS;
    let batches = (0..BATCHES).map(|number| Mlp::batch(number, 0, BATCH)).collect::<Result<Vec<_>>>()?;
    let step = |number: u32| {
        let (images, labels) = &batches[(number % BATCHES) as usize];
        let losses = strategy.run(&model, |ctx, model| {
            let first = ctx.replica_id_in_sync_group() * rows;
            let loss = loss(model, &images.narrow(0, first, rows)?, &labels.narrow(0, first, rows)?)?;
            optimizer.minimize(ctx, loss, rows)
        })?;
        Ok::<_, Error>(f64::from(losses.values()[0].to_scalar::<f32>()?))
    };
    step(0)?;
    let (watch, mut losses) = (Stopwatch::start(), Vec::new());
    for number in 1..=steps {
        losses.push(step(number)?);
    }
    let seconds = watch.seconds();
    let last = &losses[losses.len().saturating_sub(BATCHES as usize)..];
    Ok(Trained {
        steps_per_s: f64::from(steps) / seconds,
        loss: last.iter().sum::<f64>() / last.len() as f64,
        peak_mib: peak_mib()?,
    })
}

fn unknown(name: &str) -> Error {
    super::error::invalid(format!("there is no training {name:?}"))
}
