//! Debian packages: prediction of their section from the words of name and description, or from the packages
//! that they depend on and that depend on them.
//!
//! ```text
//! cargo run --release --example packages -- --help
//! ```
//!
//! Tables of embeddings have most of the weights, and a batch uses few of their rows: the gradients are
//! sparse. Four fifths of the 63,666 packages are for training. The other fifth, chosen at random with a
//! fixed seed, is held out.

mod between;
#[path = "../common/mod.rs"]
mod common;
mod coordinated;
mod data;
mod graph;
mod model;
mod runner;

use clap::{Parser, ValueEnum};
use common::compare::{Trained, compared};
use common::{Options, progress::Progress};
use data::Packages;
use distribute::data::AutoShardPolicy;
use distribute::optimizer::{Adagrad, rules};
use distribute::{InputOptions, nn::loss, prelude::*};
use model::Model;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const EPOCHS: usize = 3;
/// The global batch size.
const BATCH: usize = 256;
const LEARNING_RATE: f64 = 0.1;

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    common: Options,
    /// The features that predict the section
    #[arg(long, value_enum, default_value = "words")]
    model: Kind,
    /// Leave the loop to runner::run, in which each replica has its own batches
    #[arg(long)]
    runner: bool,
}

/// The features that predict the section.
#[derive(ValueEnum, Serialize, Deserialize, Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A bag of embeddings of the words
    Words,
    /// GraphSAGE over the dependencies, with an embedding of each package
    Graph,
    /// Both, concatenated
    Both,
}

#[distribute::main]
fn main() -> distribute::Result<()> {
    let Arguments { common: options, model, runner } = common::parse(
        "Predicts the section of Debian's packages from their words or from the graph of their dependencies, with sparse gradients",
    );
    let name = match model {
        Kind::Words => "packages",
        Kind::Graph => "packages_graph",
        Kind::Both => "packages_both",
    };
    if runner && !options.is_in_step() {
        return Err(distribute::Error::other(
            "--runner is for workers in step: not with --strategy ps or between-graph",
        ));
    }
    if let Some(strategy) = options.parameter_servers()? {
        return coordinated::main(name, &options, &strategy, model);
    }
    let packages = Packages::share()?;
    if options.is_between_graph() {
        return between::run(name, &options, model, &packages);
    }
    compared(name, &options, |strategy| train(strategy, &options, model, &packages, runner))
}

fn train(
    strategy: &Strategy,
    options: &Options,
    kind: Kind,
    packages: &Arc<Packages>,
    runner: bool,
) -> distribute::Result<Trained> {
    let (epochs, examples) = (options.epochs(EPOCHS), packages.training.len());
    let all = packages.clone();
    let model = strategy.replicate_seeded(options.seed, move |vb| Model::new(kind, &all, vb))?;
    let optimizer = Adagrad::with_rule(rule(), &model.variables, LEARNING_RATE)?;

    let mut progress =
        Progress::start(options, strategy, epochs, examples, BATCH)?.variables(&model.variables);
    if runner {
        runner::train(&model, &optimizer, packages, options, &mut progress)?;
    }
    let by_hand = if runner { 0 } else { epochs as u64 };
    for epoch in 0..by_hand {
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
    let pace = progress.finish()?;
    let accuracy = right(strategy, &model, packages, &packages.held_out, AutoShardPolicy::default())? as f64
        / packages.held_out.len() as f64;
    Ok(Trained { pace, accuracy, variables: model.variables.clone() })
}

fn rule() -> rules::Adagrad {
    rules::Adagrad { initial_accumulator_value: 1e-8, ..Default::default() }
}

/// Returns the number of correct predictions among these packages.
fn right(
    strategy: &Strategy,
    model: &Replicated<Model>,
    packages: &Arc<Packages>,
    held_out: &[u32],
    shard: AutoShardPolicy,
) -> distribute::Result<u64> {
    let mut right = 0;
    let batches = packages.batches(held_out, 4 * BATCH, 0)?;
    let options = InputOptions { auto_shard_policy: shard, ..Default::default() };
    for batch in &strategy.distribute_dataset_with(batches, options)? {
        let counts = strategy.run((model, batch?), |_ctx, (model, batch)| {
            Ok(loss::correct(&model.forward(&batch)?, &batch.sections)?)
        })?;
        right += strategy.reduce(ReduceOp::Sum, counts, None)? as u64;
    }
    Ok(right)
}
