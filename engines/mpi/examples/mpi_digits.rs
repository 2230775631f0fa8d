//! Trains a model of handwritten digits on workers that are linked by MPI. The first worker then trains again in one
//! process with the same number of replicas, and compares the weights.
//!
//! ```text
//! cargo build --release -p distribute-mpi --example mpi_digits
//! mpirun -np 2 --bind-to none target/release/examples/mpi_digits
//! ```

use candle_core::{Device, Tensor};
use candle_nn::{Activation::Relu, Module};
use distribute::data::{Csv, Dataset};
use distribute::nn::{linear, loss};
use distribute::prelude::*;
use distribute_mpi::Settings;
use std::error::Error;

const EPOCHS: usize = 5;
/// The size of the global batch. The last batch of an epoch is smaller.
const BATCH: usize = 128;

#[distribute::main]
fn main() -> Result<(), Box<dyn Error>> {
    distribute_mpi::run(Settings::default(), |group| {
        let workers = MultiWorkerMirroredStrategy::builder().group(group).build()?;
        let (loss, weights) = train(&workers)?;
        println!("{}: loss {loss:.6}, weights {weights}", workers.world());
        if workers.world().is_chief() {
            let alone = MirroredStrategy::cpus(workers.num_replicas_in_sync())?;
            let (loss, beside) = train(&alone)?;
            println!("{}, one process: loss {loss:.6}, weights {beside}", alone.world());
            if beside != weights {
                return Err("one process has trained other weights".into());
            }
            println!("The same weights, to the bit.");
        }
        Ok(())
    })
}

/// Trains on one worker. Nothing in this function depends on MPI.
fn train(strategy: &Strategy) -> distribute::Result<(f32, String)> {
    let model = strategy.replicate(|vb| {
        let hidden = linear(64, 128, vb.pp("hidden"))?.with_activation(Relu);
        distribute::Ok((hidden, linear(128, 10, vb.pp("output"))?))
    })?;
    let optimizer = Adam::new(&model.variables, 1e-3)?;
    let batches = strategy.distribute_dataset(digits()?.shuffle(1797, 42).batch(BATCH))?;
    let mut last = f32::NAN;
    for _ in 0..EPOCHS {
        for batch in &batches {
            let losses = strategy.run((&model, batch?), |ctx, ((hidden, output), (images, labels))| {
                let loss = loss::cross_entropy(&output.forward(&hidden.forward(&images)?)?, &labels)?;
                optimizer.minimize(ctx, loss, labels.dim(0)?)
            })?;
            last = losses.values()[0].to_scalar()?;
        }
    }
    Ok((last, model.variables.sha256()?))
}

/// Returns a dataset of images `[n, 64]` in [0, 1] and their labels `[n]`.
fn digits() -> distribute::Result<Dataset<(Tensor, Tensor)>> {
    let bytes = include_bytes!("../../../examples/data/digits.csv.gz");
    let (images, labels) = Csv::bytes("digits.csv.gz", bytes).without_header().labelled(64)?.load()?;
    let images = (images.to_candle(&Device::Cpu)? / 16.)?;
    Dataset::from_slices((images, labels.to_candle(&Device::Cpu)?)).map_err(Into::into)
}
