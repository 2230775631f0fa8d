//! A line through noisy points: the smallest training. `replicate`, an optimizer, a dataset, `run` and `minimize`.

use candle_core::{Device, Tensor};
use candle_nn::{Module, linear};
use clap::Parser;
use distribute::{nn::loss, prelude::*, trace};
use serde_json::json;
use std::path::PathBuf;

const POINTS: usize = 1000;
const BATCH: usize = 100;

/// Fits a line through noisy points: the smallest training
#[derive(Parser)]
struct Options {
    /// The number of replicas [default: one for each core]
    #[arg(long)]
    replicas: Option<usize>,
    /// The number of passes over all points
    #[arg(long, default_value_t = 20)]
    epochs: usize,
    /// The seed of initial weights and of the order of points
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
}

#[distribute::main(allocator = mimalloc::MiMalloc)]
fn main() -> distribute::Result<()> {
    let options = Options::parse();
    let x =
        Tensor::arange(0f32, POINTS as f32, &Device::Cpu)?.affine(2. / POINTS as f64, -1.)?.unsqueeze(1)?;
    let noise = (&x * 1e3)?.sin()?;
    let y = (x.affine(3., 2.)? + noise * 0.1)?;

    let strategy = match options.replicas {
        Some(replicas) => MirroredStrategy::cpus(replicas)?,
        None => MirroredStrategy::all_cores()?,
    };
    let line = strategy.replicate_seeded(options.seed, |vb| linear(1, 1, vb))?;
    let optimizer = Sgd::new(&line.variables, 0.2)?;
    let batches = strategy
        .distribute_dataset(Dataset::from_slices((x, y))?.shuffle(POINTS, options.seed).batch(BATCH))?;

    let _trace = options.trace.map(trace::to_file).transpose()?; // written until it is dropped
    for epoch in 1..=options.epochs {
        let mut last = f32::NAN;
        for batch in &batches {
            let losses = strategy.run((&line, batch?), |ctx, (line, (x, y))| {
                let loss = loss::mse(&line.forward(&x)?, &y)?;
                optimizer.minimize(ctx, loss, x.dim(0)?)
            })?;
            last = losses.to_scalar()?;
        }
        if !options.quiet {
            println!("epoch {epoch} of {}: loss {last:.4}", options.epochs);
        }
    }

    let number = |name| distribute::Ok(line.variables.get(name)?.flatten_all()?.to_vec1::<f32>()?[0]);
    let (slope, intercept) = (number("weight")?, number("bias")?);
    if options.json {
        let (replicas, sha256) = (strategy.num_replicas_in_sync(), line.variables.sha256()?);
        let line =
            json!({"slope": slope, "intercept": intercept, "replicas": replicas, "weights_sha256": sha256});
        println!("{line}");
    } else {
        println!("y = {slope:.3} x + {intercept:.3}, drawn as y = 3 x + 2");
    }
    Ok(())
}
