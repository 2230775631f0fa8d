//! Handwritten digits: a network of three layers learns to read them, with a replica on every core.
//!
//! ```text
//! cargo run --release --example digits -- --help
//! ```
//!
//! Four fifths of the 1,797 digits are for training. The other fifth is held out. It is chosen at random with
//! a fixed seed, so accuracies can be compared for all values of `--seed`.

use candle_core::{Device, Tensor};
use candle_nn::{Activation::Relu, Module, VarBuilder};
use clap::{Parser, ValueEnum};
use distribute::cluster::deadline::Stopwatch;
use distribute::data::Csv;
use distribute::monitor::Monitor;
use distribute::net::{Certificates, Credentials};
use distribute::nn::{Linear, MixedPrecision, linear, loss}; // candle_nn's layers work as well, at half the speed
use distribute::strategy::{Compression, Links, LocalSteps, MultiWorkerMirroredStrategyBuilder, Outer};
use distribute::summary::SummaryWriter;
use distribute::{prelude::*, trace};
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;

/// The global batch size.
const BATCH: usize = 128;
const LEARNING_RATE: f64 = 1e-3;

/// Images `[n, 64]` in [0, 1] and their labels `[n]`.
type Digits = Dataset<(Tensor, Tensor)>;

/// Trains a network of three layers to read handwritten digits, a replica on every core, and compares with one replica
#[derive(Parser)]
struct Options {
    /// The placement of the replicas
    #[arg(long, value_enum, default_value = "mirrored")]
    strategy: Kind,
    /// The number of replicas, on each worker [default: one for each core]
    #[arg(long)]
    replicas: Option<usize>,
    /// The number of replicas of all workers together, with --strategy multi-worker: the result does not depend on the
    /// number of workers, even if they come and go
    #[arg(long, conflicts_with_all = ["replicas", "workers", "device"])]
    logical_replicas: Option<usize>,
    /// The devices of the replicas instead of cores, the same on each worker, such as gpu:0 or gpu:0,cpu:0, in a build
    /// with --features cuda
    #[arg(long, value_name = "DEVICE", value_delimiter = ',', conflicts_with_all = ["replicas", "workers"])]
    device: Vec<String>,
    /// The number of workers that train together, as threads of this process
    #[arg(long)]
    workers: Option<usize>,
    /// The precision in which layers compute: off (f32), bf16 or f16
    #[arg(long, value_name = "PRECISION", default_value = "off")]
    mixed_precision: MixedPrecision,
    /// The form in which workers send gradients, or with --local-steps what they have changed: none, f16, bf16, 8bit,
    /// topk or lowrank-R, such as lowrank-4
    #[arg(long, value_name = "FORM", default_value = "none")]
    compression: Compression,
    /// The number of steps that each worker trains alone before the workers agree on new weights
    #[arg(long, value_name = "STEPS", default_value_t = 1)]
    local_steps: u64,
    /// The outer step after local steps: average or nesterov (DiLoCo)
    #[arg(long, value_name = "STEP", default_value = "average")]
    outer: Outer,
    /// Certificates for links between machines: ca.pem, certificate.pem and key.pem in this folder [default: created
    /// from the secret of the job]
    #[arg(long, value_name = "FOLDER")]
    certificates: Option<PathBuf>,
    /// The number of passes over all digits
    #[arg(long, default_value_t = 30)]
    epochs: u64,
    /// The seed of initial weights and of the order of digits
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Print only the result
    #[arg(long)]
    quiet: bool,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
    /// Write a timeline of each replica into this file, for <https://ui.perfetto.dev>
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write the loss of each step and histograms of variables into this folder, for TensorBoard
    #[arg(long, value_name = "FOLDER")]
    log_dir: Option<PathBuf>,
    /// Show the training at http://127.0.0.1:PORT, to browsers, Prometheus and `distribute status 127.0.0.1:PORT`
    #[arg(long, value_name = "PORT")]
    live: Option<u16>,
}

impl Options {
    /// Returns a builder with the options for what workers send.
    fn builder(&self) -> MultiWorkerMirroredStrategyBuilder {
        self.lock_step().local_steps(LocalSteps { steps: self.local_steps, outer: self.outer })
    }

    /// Returns a builder of a training in lock step, with the form in which workers send gradients.
    fn lock_step(&self) -> MultiWorkerMirroredStrategyBuilder {
        MultiWorkerMirroredStrategy::builder().compression(self.compression)
    }

    /// Returns `true` if each worker makes some steps alone.
    fn is_local(&self) -> bool {
        self.local_steps > 1 || self.outer != Outer::Average
    }
}

#[derive(ValueEnum, Clone, Copy)]
#[value(rename_all = "snake_case")]
enum Kind {
    /// MirroredStrategy: a replica on each core
    Mirrored,
    /// MultiWorkerMirroredStrategy: all processes of the cluster in the environment, a replica on each of their cores
    #[value(alias = "multi-worker")]
    MultiWorker,
}

struct Mlp {
    hidden: [Linear; 2],
    output: Linear,
}

impl Mlp {
    fn new(vb: VarBuilder) -> candle_core::Result<Self> {
        let [first, second] = [linear(64, 512, vb.pp("hidden1"))?, linear(512, 512, vb.pp("hidden2"))?];
        let hidden = [first.with_activation(Relu), second.with_activation(Relu)];
        Ok(Self { hidden, output: linear(512, 10, vb.pp("output"))? })
    }

    fn forward(&self, images: &Tensor) -> candle_core::Result<Tensor> {
        let [first, second] = &self.hidden;
        self.output.forward(&second.forward(&first.forward(images)?)?)
    }
}

#[distribute::main(allocator = mimalloc::MiMalloc)]
fn main() -> distribute::Result<()> {
    let options = Options::parse();
    let (training, held_out) = digits()?;
    let train = |strategy: &Strategy| train(strategy, &options, &training, &held_out);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let timeline = options.trace.as_ref().map(trace::to_file).transpose()?; // written until it is dropped

    if let Some(workers) = options.workers {
        let replicas = options.replicas.unwrap_or((cores / workers.max(1)).max(1));
        let all = options.builder().replicas(replicas).on_threads(Links::Memory, workers, train)?;
        drop(timeline);
        let one = one_process(&options, workers * replicas, train)?;
        return compare_workers(&options, workers, &all, &one);
    }
    let strategy = strategy(&options, options.replicas.unwrap_or(cores))?;
    let trained = train(&strategy)?;
    drop(timeline);
    match (strategy.world().workers(), trained.replicas) {
        // The first worker compares.
        _ if !strategy.is_chief() => Ok(()),
        (1, 1) => {
            let table = format!("{HEADER}{}weights: {}", trained.row("1 replica"), trained.sha256);
            finish(&options, &table, &trained.figures(&options));
            Ok(())
        }
        (1, _) => compare_replicas(&options, &trained, &train(&OneDeviceStrategy::new("cpu:0")?)?),
        (workers, replicas) => {
            let one = one_process(&options, replicas, train)?;
            compare_workers(&options, workers, &[trained], &one)
        }
    }
}

/// Trains in lock step with all replicas in one process, which changes gradients in the same way as several workers.
fn one_process(
    options: &Options,
    replicas: usize,
    train: impl Fn(&Strategy) -> distribute::Result<Trained> + Sync,
) -> distribute::Result<Trained> {
    if options.compression == Compression::None {
        return train(&MirroredStrategy::cpus(replicas)?);
    }
    let mut trained = options.lock_step().replicas(replicas).on_threads(Links::Memory, 1, train)?;
    Ok(trained.remove(0))
}

/// Returns the requested strategy: the only part of a program that depends on the location of replicas.
fn strategy(options: &Options, replicas: usize) -> distribute::Result<Strategy> {
    let devices = options.device.iter().map(String::as_str);
    if options.logical_replicas.is_some() && !matches!(options.strategy, Kind::MultiWorker) {
        return Err(distribute::Error::other("--logical-replicas is for --strategy multi-worker"));
    }
    match (options.strategy, options.device.is_empty()) {
        (Kind::Mirrored, true) => MirroredStrategy::cpus(replicas),
        (Kind::Mirrored, false) => MirroredStrategy::new(devices),
        (Kind::MultiWorker, cpus) => {
            let builder = options.builder();
            let mut builder = match options.logical_replicas {
                Some(replicas) => builder.logical_replicas(replicas),
                None if cpus => builder.replicas(replicas),
                None => builder.devices(devices),
            };
            if let Some(folder) = &options.certificates {
                let [ca, certificate, key] =
                    ["ca.pem", "certificate.pem", "key.pem"].map(|name| folder.join(name));
                let certificates = Certificates { ca, certificate, key };
                builder = builder.credentials(Credentials::new().certificates(certificates));
            }
            builder.build()
        }
    }
}

fn train(
    strategy: &Strategy,
    options: &Options,
    training: &Digits,
    held_out: &Digits,
) -> distribute::Result<Trained> {
    strategy.set_mixed_precision(options.mixed_precision);
    let examples = training.cardinality().finite().unwrap_or(0);
    let model = strategy.replicate_seeded(options.seed, Mlp::new)?;
    let optimizer = Adam::new(&model.variables, LEARNING_RATE)?;
    let batches = strategy.distribute_dataset(training.shuffle(examples, options.seed).batch(BATCH))?;
    let steps_per_epoch = examples.div_ceil(BATCH) as u64;

    // A page of the chief, served until it is dropped.
    let monitor = options.live.map(|port| Monitor::builder(strategy).address(format!("127.0.0.1:{port}")));
    let monitor = monitor.map(|monitor| monitor.start()).transpose()?;
    if let Some(address) = monitor.as_ref().and_then(Monitor::address).filter(|_| !options.quiet) {
        say(&format!("watch it at http://{address}"));
    }
    let summaries = match &options.log_dir {
        None => SummaryWriter::noop(),
        Some(folder) => {
            let world = strategy.world().to_string().replace(',', "").replace(' ', "-");
            strategy.summary_writer(folder.join(world))?
        }
    };

    let (clock, mut seen, mut mean) = (Stopwatch::start(), 0, f64::NAN);
    let state = Checkpoint::new().part("strategy", strategy).part("model", &model.variables);
    let state = state.part("optimizer", &optimizer).part("batches", &batches);
    // If one of several workers is killed, its replacement receives this state, and all resume from it.
    let accuracy = Training::new(state)?.run(|| {
        while batches.position().epoch < options.epochs {
            let (begun, mut losses) = (batches.position(), Vec::new());
            for batch in &batches {
                let of_replicas = strategy.run((&model, batch?), |ctx, (model, (images, labels))| {
                    let loss = loss::cross_entropy(&model.forward(&images)?, &labels)?;
                    optimizer.minimize(ctx, loss, labels.dim(0)?) // backward, reduce, update; the mean loss of all replicas
                })?;
                losses.extend(of_replicas.iter().next().cloned());
            }

            if losses.is_empty() {
                continue; // resumed after the last step of an epoch
            }
            // Read once an epoch, because reading from a GPU waits for it.
            let losses = Tensor::stack(&losses, 0)?.to_vec1::<f32>()?;
            let (mut sum, mut count) = (0., 0);
            for (step, loss) in (begun.steps..).zip(losses) {
                let size = BATCH.min(examples - step as usize * BATCH);
                (sum, count) = (sum + f64::from(loss) * size as f64, count + size);
                summaries.scalar("loss", loss.into(), begun.epoch * steps_per_epoch + step + 1)?;
            }
            (mean, seen) = (sum / count as f64, seen + count);
            let (epoch, speed) = (begun.epoch + 1, seen as f64 / clock.seconds());
            summarize(&summaries, &model.variables, speed, epoch * steps_per_epoch)?;
            // At most twenty lines.
            if strategy.is_chief() && !options.quiet && epoch.is_multiple_of(options.epochs.div_ceil(20)) {
                let (world, epochs, speed) = (strategy.world(), options.epochs, thousands(speed));
                say(&format!("{world}: epoch {epoch} of {epochs}, {speed} examples/s, loss {mean:.4}"));
            }
        }
        optimizer.finish_local_steps()?;
        accuracy(strategy, &model, held_out)
    })?;
    let seconds = clock.seconds();
    Ok(Trained {
        seconds,
        examples_per_s: seen as f64 / seconds,
        loss: mean,
        accuracy,
        replicas: strategy.num_replicas_in_sync(),
        sha256: model.variables.sha256()?,
        variables: model.variables.clone(),
    })
}

/// Writes the speed and histograms of variables, if there is a folder for them.
fn summarize(
    summaries: &SummaryWriter,
    variables: &Variables,
    speed: f64,
    step: u64,
) -> distribute::Result<()> {
    if summaries.path().is_some() {
        summaries.scalar("examples_per_s", speed, step)?;
        for name in variables.names() {
            let values = variables.get(&name)?.flatten_all()?.to_vec1::<f32>()?;
            summaries.histogram(&name.replace('.', "/"), values, step)?;
        }
    }
    Ok(())
}

/// Returns the accuracy of the model on `digits`: each replica counts in its part of the batch, and `reduce`
/// sums the counts.
fn accuracy(strategy: &Strategy, model: &Replicated<Mlp>, digits: &Digits) -> distribute::Result<f64> {
    let (mut right, mut all) = (0, 0);
    for batch in &strategy.distribute_dataset(digits.batch(BATCH))? {
        let counts = strategy.run((model, batch?), |_ctx, (model, (images, labels))| {
            Ok((loss::correct(&model.forward(&images)?, &labels)?, labels.dim(0)?))
        })?;
        let (batch_right, batch_all) = strategy.reduce(ReduceOp::Sum, counts, None)?;
        right += batch_right;
        all += batch_all;
    }
    Ok(right as f64 / all as f64)
}

/// Returns four fifths of the digits for training, and one for testing.
fn digits() -> distribute::Result<(Digits, Digits)> {
    const SPLIT_SEED: u64 = 0;
    let file = Csv::bytes("digits.csv.gz", include_bytes!("data/digits.csv.gz")).without_header();
    let (images, labels) = file.labelled(64)?.load()?;
    let count = labels.dims()[0];
    let images = (images.to_candle(&Device::Cpu)? / 16.)?;
    let labels = labels.to_candle(&Device::Cpu)?;
    // Loaded once, so that the order stays the same: otherwise each pass would shuffle again, and mix both
    // parts.
    let shuffled = Dataset::from_slices((images, labels))?.shuffle(count, SPLIT_SEED).load()?;
    let digits = Dataset::from_slices(shuffled)?;
    Ok((digits.skip(count / 5), digits.take(count / 5)))
}

/// The result of a training.
struct Trained {
    seconds: f64,
    examples_per_s: f64,
    /// The mean loss of the last epoch.
    loss: f64,
    /// The accuracy on the held-out digits.
    accuracy: f64,
    replicas: usize,
    variables: Variables,
    sha256: String,
}

const HEADER: &str = "\n                accuracy   seconds    examples/s\n";

impl Trained {
    fn row(&self, title: &str) -> String {
        let (percent, speed) = (format!("{:.2} %", self.accuracy * 100.), thousands(self.examples_per_s));
        format!("{title:<14}{percent:>10}{:>10.2}{speed:>14}\n", self.seconds)
    }

    fn figures(&self, options: &Options) -> Value {
        json!({
            "example": "digits",
            "accuracy": self.accuracy,
            "seconds": self.seconds,
            "examples_per_s": self.examples_per_s,
            "loss": self.loss,
            "replicas": self.replicas,
            "seed": options.seed,
            "weights_sha256": self.sha256,
        })
    }
}

/// The maximum accepted difference of weights. With another number of replicas the same gradients are added in another
/// order, so their last bits differ. Weights then mostly differ by 1e-6. But if the input of a unit is zero except for
/// such a bit, the unit is on in one training and off in the other. Adam divides gradients by their size, so it then
/// moves the unit's weights by up to the learning rate in each step.
const TOLERANCE: f32 = 1e-2;

/// Compares a training with another one on a single replica.
fn compare_replicas(options: &Options, trained: &Trained, one: &Trained) -> distribute::Result<()> {
    let mut difference = 0f32;
    for name in one.variables.names() {
        let both = (trained.variables.get(&name)? - one.variables.get(&name)?)?;
        difference = difference.max(both.abs()?.flatten_all()?.max(0)?.to_scalar()?);
    }
    let (replicas, speedup) = (trained.replicas, trained.examples_per_s / one.examples_per_s);
    let weights = if difference <= TOLERANCE {
        " and train the same weights: they differ"
    } else {
        ". Their weights differ:"
    };
    let table = format!(
        "{HEADER}{}{}{replicas} replicas are {speedup:.2} times as fast as one{weights} by {difference:.0e} at most.\nweights: {}",
        trained.row(&format!("{replicas} replicas")),
        one.row("1 replica"),
        trained.sha256,
    );
    let mut figures = trained.figures(options);
    figures["speedup"] = speedup.into();
    figures["largest_difference_of_weights"] = difference.into();
    finish(options, &table, &figures);
    Ok(())
}

/// Compares the results of all workers, or of the first, with a training of one process with the same number
/// of replicas. All computed values must be equal, unless workers make steps alone.
fn compare_workers(
    options: &Options,
    workers: usize,
    all: &[Trained],
    one: &Trained,
) -> distribute::Result<()> {
    let Some(first) = all.first() else { return Ok(()) };
    let expected = if options.is_local() { first } else { one };
    let same = all.iter().all(|worker| worker.sha256 == expected.sha256);
    let mut table = format!("{HEADER}{}{}", first.row(&format!("{workers} workers")), one.row("one process"));
    table += match (same, options.is_local()) {
        (true, false) => "All train the same weights, to the bit.\n",
        (true, true) => "All workers have the same weights, to the bit. One process trains in lock step.\n",
        (false, _) => "Their weights differ.\n",
    };
    for (worker, trained) in all.iter().enumerate() {
        table += &format!("weights of worker {worker}: {}\n", trained.sha256);
    }
    table += &format!("of one process:      {}", one.sha256);
    let mut figures = first.figures(options);
    figures["loss"] = (all.iter().map(|worker| worker.loss).sum::<f64>() / all.len() as f64).into();
    figures["workers"] = workers.into();
    figures["same_weights"] = same.into();
    finish(options, &table, &figures);
    Ok(())
}

fn finish(options: &Options, table: &str, figures: &Value) {
    if !(options.quiet && options.json) {
        say(table);
    }
    if options.json {
        say(&figures.to_string());
    }
}

/// Prints a line. If the reader has exited (`digits | head -1`), the program continues silently.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Formats a number for people: 12,345.
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}
