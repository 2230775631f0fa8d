//! Files: the digits become TFRecord files, and replicas learn from them. In the middle of the first epoch
//! the training resumes with one more replica: no digit is lost or repeated.
//!
//! ```text
//! cargo run --release --example records
//! ```

use candle_core::Device;
use candle_nn::{Module, linear};
use clap::Parser;
use distribute::data::example::{Example, Features, FixedLen};
use distribute::data::{Compression, Csv, Files, TfRecord, TfRecordWriter};
use distribute::nn::loss;
use distribute::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

const FILES: usize = 4;
const BATCH: usize = 64;

/// Features by name: `pixels` `[n, 64]` and `digit` `[n]`.
type Digits = Dataset<BTreeMap<String, HostTensor>>;

/// Writes digits into TFRecord files, and trains on them, from the middle of an epoch on another number of replicas
#[derive(Parser)]
struct Options {
    /// The number of replicas of the first half [default: one for each core]; the second half has one more
    #[arg(long)]
    replicas: Option<usize>,
    /// The seed of initial weights and of the order of digits
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
    let folder = tempfile::tempdir().map_err(distribute::Error::other)?;
    let count = write(folder.path())?;

    let features =
        Features::new().with("pixels", FixedLen::floats([64]))?.with("digit", FixedLen::ints([]))?;
    let files = Files::glob(&format!("{}/digits-*.tfrecord.gz", folder.path().display()))?;
    let digits = TfRecord::new(files).examples(&features)?.shuffle(500, options.seed).batch(BATCH);

    let few = match options.replicas {
        Some(replicas) => MirroredStrategy::cpus(replicas)?,
        None => MirroredStrategy::all_cores()?,
    };
    let more = MirroredStrategy::cpus(few.num_replicas_in_sync() + 1)?;
    let saved = folder.path().join("saved");
    let half = count / BATCH / 2 * BATCH;
    let seen = [
        train(&few, &options, &digits, &saved, half)?,
        train(&more, &options, &digits, &saved, count - half)?,
    ];

    if options.json {
        let replicas = more.num_replicas_in_sync();
        println!("{}", json!({"digits": count, "seen": seen.iter().sum::<usize>(), "replicas": replicas}));
    } else {
        println!("{} + {} of {count} digits seen in one epoch", seen[0], seen[1]);
    }
    Ok(())
}

/// Trains with `count` digits of an epoch, and resumes from a checkpoint if there is one. Returns the number
/// of digits used.
fn train(
    strategy: &Strategy,
    options: &Options,
    digits: &Digits,
    saved: &Path,
    count: usize,
) -> distribute::Result<usize> {
    let model = strategy.replicate_seeded(options.seed, |vb| linear(64, 10, vb.pp("output")))?;
    let optimizer = Adam::new(&model.variables, 1e-2)?;
    let batches = strategy.distribute_dataset(digits.clone())?;
    let training = Checkpoint::new()
        .part("model", &model.variables)
        .part("optimizer", &optimizer)
        .part("input", &batches);
    if saved.exists() {
        training.restore(saved)?;
    } else if !options.quiet {
        print!("{}", batches.explain());
    }

    let (mut seen, mut last) = (0, f32::NAN);
    for batch in batches.iter().take(count.div_ceil(BATCH)) {
        let results = strategy.run((&model, batch?), |ctx, (model, batch)| {
            let images = (batch["pixels"].to_candle(&Device::Cpu)? / 16.)?;
            let digits = batch["digit"].to_candle(&Device::Cpu)?;
            let loss = loss::cross_entropy(&model.forward(&images)?, &digits)?;
            Ok((optimizer.minimize(ctx, loss, digits.dim(0)?)?, digits.dim(0)?))
        })?;
        let (losses, counts) = results.unzip();
        last = losses.to_scalar()?;
        seen += strategy.reduce(ReduceOp::Sum, counts, None)?;
    }
    if !options.quiet {
        println!("{}: {seen} digits, loss {last:.4}", strategy.world());
    }
    if !saved.exists() {
        training.save(saved)?;
    }
    Ok(seen)
}

/// Writes the digits into files of examples, in round-robin order.
fn write(folder: &Path) -> distribute::Result<usize> {
    let csv = Csv::bytes("digits.csv.gz", include_bytes!("data/digits.csv.gz")).without_header();
    let digits: Dataset<(HostTensor, i64)> = csv.labelled(64)?;
    let mut writers = (0..FILES)
        .map(|i| TfRecordWriter::create(folder.join(format!("digits-{i}.tfrecord.gz")), Compression::Gzip))
        .collect::<Result<Vec<_>, _>>()?;
    let mut count = 0;
    for digit in &digits {
        let (pixels, digit) = digit?;
        let example = Example::from([("pixels", pixels.to_vec::<f32>()?.into()), ("digit", digit.into())]);
        writers[count % FILES].write(&example.encode())?;
        count += 1;
    }
    writers.into_iter().try_for_each(TfRecordWriter::finish)?;
    Ok(count)
}
