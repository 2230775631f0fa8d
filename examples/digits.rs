//! Handwritten digits: a network of three layers learns to read them, with a replica on every core.
//!
//! ```text
//! cargo run --release --example digits -- --help
//! ```
//!
//! Four fifths of the 1,797 digits are for training. The other fifth is held out. It is chosen at random with
//! a fixed seed, so accuracies can be compared for all values of `--seed`.

mod common;

use candle_core::{Device, Tensor};
use candle_nn::{Activation::Relu, Module, VarBuilder};
use common::compare::{Trained, compared};
use common::{Options, progress::Progress};
use distribute::data::{Csv, Dataset};
use distribute::nn::{Linear, linear, loss}; // candle_nn's layers work as well, at half the speed
use distribute::prelude::*;
use distribute::{Checkpoint, Training};

const EPOCHS: usize = 30;
/// The global batch size.
const BATCH: usize = 128;
const LEARNING_RATE: f64 = 1e-3;

/// Images `[n, 64]` in [0, 1] and their labels `[n]`.
type Digits = Dataset<(Tensor, Tensor)>;

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

#[distribute::main]
fn main() -> distribute::Result<()> {
    let options: Options = common::parse(
        "Trains a network of three layers to read handwritten digits, a replica on every core; with --workers also on several workers",
    );
    let (training, held_out) = digits()?;
    compared("digits", &options, |strategy| train(strategy, &options, &training, &held_out))
}

fn train(
    strategy: &Strategy,
    options: &Options,
    training: &Digits,
    held_out: &Digits,
) -> distribute::Result<Trained> {
    let (epochs, examples) = (options.epochs(EPOCHS), training.cardinality().finite().unwrap_or(0));
    let model = strategy.replicate_seeded(options.seed, Mlp::new)?;
    let optimizer = Adam::new(&model.variables, LEARNING_RATE)?;
    let batches = strategy.distribute_dataset(training.shuffle(examples, options.seed).batch(BATCH))?;

    let mut progress =
        Progress::start(options, strategy, epochs, examples, BATCH)?.variables(&model.variables);
    let state = Checkpoint::new().part("strategy", strategy).part("model", &model.variables);
    let state = state.part("optimizer", &optimizer).part("batches", &batches);
    // If a worker of several is killed, its replacement takes over this state, and all resume from it.
    let accuracy = Training::new(state)?.run(|| {
        progress.at(batches.position());
        while batches.position().epoch < epochs as u64 {
            for batch in &batches {
                let losses = strategy.run((&model, batch?), |ctx, (model, (images, labels))| {
                    let loss = loss::cross_entropy(&model.forward(&images)?, &labels)?;
                    optimizer.minimize(ctx, loss, labels.dim(0)?) // backward, reduce, update; the mean loss of all replicas
                })?;
                progress.step(&losses)?;
            }
        }
        accuracy(strategy, &model, held_out)
    })?;
    Ok(Trained { pace: progress.finish()?, accuracy, variables: model.variables.clone() })
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
    let file = Csv::bytes("digits.csv.gz", include_bytes!("data/digits.csv.gz")).header(false);
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
