//! A small Llama 2 that learns to describe Debian's packages, character by character.
//!
//! ```text
//! cargo run --release --example language -- --help
//! ```
//!
//! The model is candle_transformers' llama2_c with other `use` lines (see `model.rs`, and the guide
//! docs/train/transformers.md for the reason). It is trained on nine tenths of 63,666 descriptions. On the others
//! its loss is compared with that of a bigram model, which counts pairs of characters. At the end it
//! generates some packages.

mod model;
mod text;

use candle_core::{D, DType, Device, IndexOp, Tensor};
use candle_nn::VarBuilder;
use clap::Parser;
use distribute::cluster::deadline::Stopwatch;
use distribute::nn::{MixedPrecision, loss, ops};
use distribute::optimizer::schedules::{CosineDecay, Warmup};
use distribute::prelude::*;
use model::{Config, Llama};
use serde_json::json;
use text::{END, Text};

/// The global batch size, in pieces of text.
const BATCH: usize = 32;
/// The number of characters in a piece.
const LENGTH: usize = 64;
const LEARNING_RATE: f64 = 3e-3;
const WARMUP: u64 = 50;
/// The number of lines that the training prints.
const LINES: usize = 20;

/// Trains a small Llama 2 to describe Debian's packages, character by character
#[derive(Parser)]
struct Options {
    /// The number of replicas [default: one for each core]
    #[arg(long)]
    replicas: Option<usize>,
    /// The number of passes over the text
    #[arg(long, default_value_t = 1)]
    epochs: usize,
    /// The precision in which layers compute: off (f32), bf16 or f16
    #[arg(long, value_name = "PRECISION", default_value = "off")]
    mixed_precision: MixedPrecision,
    /// The seed of initial weights and of the order of pieces
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
    let text = Text::read()?;
    let strategy = match options.replicas {
        Some(replicas) => MirroredStrategy::cpus(replicas)?,
        None => MirroredStrategy::all_cores()?,
    };
    strategy.set_mixed_precision(options.mixed_precision);
    let config = Config {
        dim: 64,
        hidden_dim: 192,
        n_layers: 3,
        n_heads: 4,
        n_kv_heads: 4,
        vocab_size: text.vocabulary(),
        seq_len: LENGTH,
        norm_eps: 1e-5,
    };
    let pieces = text.training(LENGTH)?;
    let examples = pieces.dim(0)?;
    let steps = options.epochs * examples.div_ceil(BATCH);

    let model = strategy.replicate_seeded(options.seed, move |vb: VarBuilder| Llama::load(vb, &config))?;
    let schedule = Warmup::new(
        0.,
        WARMUP,
        CosineDecay::new(LEARNING_RATE, (steps as u64).saturating_sub(WARMUP).max(1)),
    );
    let optimizer = Adam::new(&model.variables, LEARNING_RATE)?.with_schedule(schedule)?;
    let batches = Dataset::from_slices(pieces)?.shuffle(examples, options.seed).batch(BATCH);
    let batches = strategy.distribute_dataset(batches)?;
    let (clock, mut step, mut training_loss) = (Stopwatch::start(), 0, 0.);
    for _ in 0..options.epochs {
        let (mut sum, mut count) = (0., 0);
        for batch in &batches {
            let losses = strategy.run((&model, batch?), |ctx, (model, pieces)| {
                let (loss, n) = loss(model, &pieces)?;
                optimizer.minimize(ctx, loss, n)
            })?;
            let loss = f64::from(losses.to_scalar::<f32>()?);
            (sum, count, step) = (sum + loss, count + 1, step + 1);
            if !options.quiet && step % steps.div_ceil(LINES) == 0 {
                println!("step {step} of {steps}: loss {loss:.4}, after {:.0} s", clock.seconds());
            }
        }
        training_loss = sum / f64::from(count);
    }
    let seconds = clock.seconds();

    let loss = held_out_loss(&strategy, &model, &text)?;
    let bigram_loss = text.bigram_loss(LENGTH)?;
    let sha256 = model.variables.sha256()?;
    let speed = (options.epochs * examples * LENGTH) as f64 / seconds;
    if options.json {
        let figures = json!({
            "example": "language",
            "loss": loss,
            "bigram_loss": bigram_loss,
            "training_loss": training_loss,
            "seconds": seconds,
            "characters_per_s": speed,
            "replicas": strategy.num_replicas_in_sync(),
            "seed": options.seed,
            "weights_sha256": sha256,
        });
        println!("{figures}");
        return Ok(());
    }
    let mut table = format!("\n{:<22}{:>10}{:>18}\n", "", "loss", "bits/character");
    for (title, loss) in [
        ("bigrams, held out", bigram_loss),
        ("Llama 2, held out", loss),
        ("Llama 2, training", training_loss),
    ] {
        table += &format!("{title:<22}{loss:>10.4}{:>18.3}\n", loss / std::f64::consts::LN_2);
    }
    table += &format!("{seconds:.0} s, {speed:.0} characters/s\n");
    table += "\nPackages that it made up:\n";
    for line in made_up(&model.merged()?, &text, options.seed, 6)? {
        table += &format!("  {line}\n");
    }
    println!("{table}weights: {sha256}");
    Ok(())
}

/// Returns the mean loss of predicting each character after the first in the pieces, and the number of predictions.
fn loss(model: &Llama, pieces: &Tensor) -> distribute::Result<(Tensor, usize)> {
    let (rows, length) = (pieces.dim(0)?, pieces.dim(1)? - 1);
    let logits = model.forward(&pieces.narrow(1, 0, length)?)?.flatten_to(1)?;
    let next = pieces.narrow(1, 1, length)?.flatten_all()?;
    Ok((loss::cross_entropy(&logits, &next)?, rows * length))
}

/// Returns the held-out loss in nats per character.
fn held_out_loss(strategy: &Strategy, model: &Replicated<Llama>, text: &Text) -> distribute::Result<f64> {
    let (mut sum, mut count) = (0., 0);
    let batches = Dataset::from_slices(text.held_out(LENGTH)?)?.batch(4 * BATCH);
    for batch in &strategy.distribute_dataset(batches)? {
        let sums = strategy.run((model, batch?), |_ctx, (model, pieces)| {
            let (loss, n) = loss(model, &pieces)?;
            Ok((f64::from(loss.to_scalar::<f32>()?) * n as f64, n as u64))
        })?;
        let (loss, n) = strategy.reduce(ReduceOp::Sum, sums, None)?;
        (sum, count) = (sum + loss, count + n);
    }
    Ok(sum / count as f64)
}

/// Generates descriptions with the model, one character at a time. Logits are scaled up, so that likely characters are
/// preferred.
fn made_up(model: &Llama, text: &Text, seed: u64, lines: usize) -> distribute::Result<Vec<String>> {
    const STRETCH: f64 = 1.5;
    let mut random = seed;
    let mut uniform = || {
        // A linear congruential generator is sufficient here.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 11) as f64 / (1u64 << 53) as f64
    };
    let mut line = || {
        let (mut tokens, mut line) = (vec![END], String::new());
        while tokens.len() <= LENGTH {
            let seen = Tensor::new(tokens.as_slice(), &Device::Cpu)?.unsqueeze(0)?;
            let logits = (model.forward(&seen)?.i((0, tokens.len() - 1))? * STRETCH)?;
            let weights = ops::softmax(&logits, D::Minus1)?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
            let mut left = uniform();
            let next = weights.iter().position(|weight| {
                left -= weight;
                left < 0.
            });
            match next.map_or(END, |next| next as u32) {
                END => break,
                next => tokens.push(next),
            }
            line.extend(tokens.last().map(|token| text.character(*token)));
        }
        Ok(line)
    };
    (0..lines).map(|_| line()).collect()
}
