//! A small Llama 2 that learns to describe Debian's packages, character by character.
//!
//! ```text
//! cargo run --release --example language -- --help
//! ```
//!
//! The model is candle_transformers' llama2_c with other `use` lines (see `model.rs`, and the guide
//! docs/transformers.md for the reason). It is trained on nine tenths of 63,666 descriptions. On the others
//! its loss is compared with that of a bigram model, which counts pairs of characters. At the end it
//! generates some packages.

#[path = "../common/mod.rs"]
mod common;
mod model;
mod text;

use candle_core::{D, DType, Device, IndexOp, Tensor};
use candle_nn::VarBuilder;
use common::{Options, progress::Progress};
use distribute::data::Dataset;
use distribute::optimizer::schedules::{CosineDecay, Warmup};
use distribute::{nn::loss, nn::ops, prelude::*};
use model::{Config, Llama};
use serde_json::json;
use text::{END, Text};

const EPOCHS: usize = 1;
/// The global batch size, in pieces of text.
const BATCH: usize = 32;
/// The number of characters in a piece.
const LENGTH: usize = 64;
const LEARNING_RATE: f64 = 3e-3;
const WARMUP: u64 = 50;

#[distribute::main]
fn main() -> distribute::Result<()> {
    let options: Options =
        common::parse("Trains a small Llama 2 to describe Debian's packages, character by character");
    let text = Text::read()?;
    let strategy = options.strategy()?;
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
    let (epochs, examples) = (options.epochs(EPOCHS), pieces.dim(0)?);
    let steps = (epochs * examples.div_ceil(BATCH)) as u64;

    let trace = options.trace()?;
    let model = strategy.replicate_seeded(options.seed, move |vb: VarBuilder| Llama::load(vb, &config))?;
    let schedule =
        Warmup::new(0., WARMUP, CosineDecay::new(LEARNING_RATE, steps.saturating_sub(WARMUP).max(1)));
    let optimizer = Adam::new(&model.variables, LEARNING_RATE)?.with_schedule(schedule)?;
    let batches = Dataset::from_slices(pieces)?.shuffle(examples, options.seed).batch(BATCH);
    let batches = strategy.distribute_dataset(batches)?;
    let mut progress =
        Progress::start(&options, &strategy, epochs, examples, BATCH)?.variables(&model.variables);
    for _ in 0..epochs {
        for batch in &batches {
            let losses = strategy.run((&model, batch?), |ctx, (model, pieces)| {
                let (loss, n) = loss(model, &pieces)?;
                optimizer.minimize(ctx, loss, n)
            })?;
            progress.step(&losses)?;
        }
    }
    let pace = progress.finish()?;
    drop(trace);

    let loss = held_out_loss(&strategy, &model, &text)?;
    let bigram_loss = text.bigram_loss(LENGTH)?;
    let replicas = strategy.num_replicas_in_sync();
    let sha256 = model.variables.sha256()?;
    let mut table = format!("\n{:<22}{:>10}{:>18}\n", "", "loss", "bits/character");
    for (title, loss) in
        [("bigrams, held out", bigram_loss), ("Llama 2, held out", loss), ("Llama 2, training", pace.loss)]
    {
        table += &format!("{title:<22}{loss:>10.4}{:>18.3}\n", loss / std::f64::consts::LN_2);
    }
    let (seconds, speed) = (pace.seconds, pace.examples_per_s * LENGTH as f64);
    table += &format!("{seconds:.0} s, {} characters/s\n", common::progress::thousands(speed));
    table += "\nPackages that it made up:\n";
    for line in made_up(&model.merged()?, &text, options.seed, 6)? {
        table += &format!("  {line}\n");
    }
    table += &format!("weights: {sha256}");
    let figures = [
        ("example", json!("language")),
        ("strategy", json!(strategy.extended().kind())),
        ("loss", json!(loss)),
        ("bigram_loss", json!(bigram_loss)),
        ("training_loss", json!(pace.loss)),
        ("seconds", json!(seconds)),
        ("characters_per_s", json!(speed)),
        ("replicas", json!(replicas)),
        ("seed", json!(options.seed)),
        ("weights_sha256", json!(sha256)),
    ];
    options.finish(&table, &figures);
    Ok(())
}

/// Returns the mean loss of the characters after the first in some pieces, and their number.
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

/// Generates descriptions with the model, a character at a time. Scaled logits prefer likely characters.
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
