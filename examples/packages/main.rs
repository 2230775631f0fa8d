//! Debian packages: their section, predicted from the words of name and description, or from the packages that they depend
//! on and that depend on them.
//!
//! ```text
//! cargo run --release --example packages -- --help
//! ```
//!
//! Tables of embeddings have most of the weights, and a batch touches few of their rows: the gradients are sparse. Of the
//! 63,666 packages four fifths are for training, the other fifth, drawn at random from one fixed seed, is held out.

#[path = "../common/mod.rs"]
mod common;
mod data;
mod graph;
mod model;

use clap::{Parser, ValueEnum};
use common::compare::{Trained, compared};
use common::{Options, progress::Progress};
use data::Packages;
use distribute::optimizer::{Adagrad, rules};
use distribute::{nn::loss, prelude::*};
use model::Model;
use std::sync::Arc;

const EPOCHS: usize = 3;
/// Of all replicas together.
const BATCH: usize = 256;
const LEARNING_RATE: f64 = 0.1;

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    common: Options,
    /// What the section is told by
    #[arg(long, value_enum, default_value = "words")]
    model: Kind,
}

/// What tells the section.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A bag of embeddings of the words
    Words,
    /// GraphSAGE over the dependencies, with an embedding of each package
    Graph,
    /// Both, side by side
    Both,
}

#[distribute::main]
fn main() -> distribute::Result<()> {
    let Arguments { common: options, model } = Arguments::parse();
    let packages = Packages::read()?;
    let name = match model {
        Kind::Words => "packages",
        Kind::Graph => "packages_graph",
        Kind::Both => "packages_both",
    };
    compared(name, &options, |strategy| train(strategy, &options, model, &packages))
}

fn train(
    strategy: &Strategy,
    options: &Options,
    kind: Kind,
    packages: &Arc<Packages>,
) -> distribute::Result<Trained> {
    let (epochs, examples) = (options.epochs(EPOCHS), packages.training.len());
    let all = packages.clone();
    let model = strategy.replicate_seeded(options.seed, move |vb| Model::new(kind, &all, vb))?;
    let rule = rules::Adagrad { initial_accumulator_value: 1e-8, ..Default::default() };
    let optimizer = Adagrad::with_rule(rule, &model.variables, LEARNING_RATE)?;

    let mut progress = Progress::start(options, strategy, epochs, examples, BATCH);
    for epoch in 0..epochs as u64 {
        // Each epoch has its own order and its own sample of neighbours.
        let batches = packages.batches(&packages.training, BATCH, options.seed.wrapping_add(epoch))?;
        for batch in &strategy.distribute_dataset(batches)? {
            let losses = strategy.run((&model, batch?), |ctx, (model, batch)| {
                let loss = loss::cross_entropy(&model.forward(&batch)?, &batch.sections)?;
                optimizer.minimize(ctx, loss, batch.sections.dim(0)?)
            })?;
            progress.step(&losses)?;
        }
    }
    let pace = progress.finish();
    Ok(Trained { pace, accuracy: accuracy(strategy, &model, packages)?, variables: model.variables.clone() })
}

/// The share of the held-out packages whose section the model tells.
fn accuracy(
    strategy: &Strategy,
    model: &Replicated<Model>,
    packages: &Arc<Packages>,
) -> distribute::Result<f64> {
    let mut right = 0;
    let batches = packages.batches(&packages.held_out, 4 * BATCH, 0)?;
    for batch in &strategy.distribute_dataset(batches)? {
        let counts = strategy.run((model, batch?), |_ctx, (model, batch)| {
            Ok(loss::correct(&model.forward(&batch)?, &batch.sections)?)
        })?;
        right += strategy.reduce(ReduceOp::Sum, counts, None)?;
    }
    Ok(right as f64 / packages.held_out.len() as f64)
}
