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
mod coordinated;
mod data;
mod fleet;
mod graph;
mod model;
mod progress;
mod report;
mod runner;
mod tables;

use candle_core::Tensor;
use clap::{Parser, ValueEnum};
use data::{Batch, Packages};
use distribute::data::AutoShardPolicy;
use distribute::nn::loss;
use distribute::optimizer::{Adagrad, rules};
use distribute::prelude::*;
use model::Model;
use progress::Progress;
use report::{Trained, report};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;

/// The global batch size.
const BATCH: usize = 256;
const LEARNING_RATE: f64 = 0.1;

/// Predicts the section of Debian's packages from their words or from the graph of their dependencies, with sparse
/// gradients, and compares with one device
#[derive(Parser)]
pub struct Options {
    /// The way in which replicas train together
    #[arg(long, value_enum, default_value = "mirrored")]
    strategy: Placement,
    /// The location of the tables of embeddings, with --strategy multi-worker
    #[arg(long, value_enum, default_value = "mirrored")]
    tables: tables::Tables,
    /// Request the rows of the next batch while a step ends, with --tables workers or servers
    #[arg(long)]
    prefetch: bool,
    /// The features that predict the section
    #[arg(long, value_enum, default_value = "words")]
    model: Kind,
    /// Leave the loop to runner::run, in which each replica has its own batches
    #[arg(long)]
    runner: bool,
    /// The number of replicas, on each worker [default: one for each core; with --strategy ps or between-graph one]
    #[arg(long)]
    replicas: Option<usize>,
    /// The number of workers, with --strategy ps in this process
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// The number of parameter servers, with --strategy ps in this process
    #[arg(long, default_value_t = 2)]
    ps: usize,
    /// The number of passes over all packages
    #[arg(long, default_value_t = 3)]
    epochs: usize,
    /// The seed of initial weights and of the order of packages
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// Print only the result
    #[arg(long)]
    quiet: bool,
    /// Print the result as one line of JSON
    #[arg(long)]
    json: bool,
    /// Show the coordinator of --strategy ps at http://127.0.0.1:PORT, to browsers, Prometheus and `distribute status`
    #[arg(long, value_name = "PORT")]
    live: Option<u16>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq)]
#[value(rename_all = "snake_case")]
enum Placement {
    /// MirroredStrategy: a replica on each core
    Mirrored,
    /// MultiWorkerMirroredStrategy: all processes of the cluster in the environment, a replica on each of their cores
    #[value(alias = "multi-worker")]
    MultiWorker,
    /// ParameterServerStrategy: a coordinator schedules steps on the workers of the cluster in the environment or,
    /// without one, of this process
    Ps,
    /// between_graph::AsyncWorkerStrategy: each worker runs the entire program, with the parameter servers of the
    /// cluster in the environment. Without a cluster, one process does
    #[value(alias = "between-graph")]
    BetweenGraph,
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

impl Options {
    fn name(&self) -> &'static str {
        match self.model {
            Kind::Words => "packages",
            Kind::Graph => "packages_graph",
            Kind::Both => "packages_both",
        }
    }
}

#[distribute::main(allocator = mimalloc::MiMalloc)]
fn main() -> distribute::Result<()> {
    let options = Options::parse();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let replicas = options.replicas.unwrap_or(cores);
    let strategy = match options.strategy {
        Placement::Mirrored => MirroredStrategy::cpus(replicas)?,
        Placement::MultiWorker => match tables::strategy(options.tables, replicas)? {
            Some(strategy) => strategy,
            // This was a parameter server.
            None => return Ok(()),
        },
        _ if options.runner => {
            let text = "--runner is for workers in step: not with --strategy ps or between-graph";
            return Err(distribute::Error::other(text));
        }
        _ if options.replicas.is_some_and(|replicas| replicas != 1) => {
            let text = "--replicas is not for --strategy ps or between-graph: their workers have one each";
            return Err(distribute::Error::other(text));
        }
        Placement::Ps => return coordinated::main(&options),
        Placement::BetweenGraph => return between::main(&options),
    };
    let packages = Packages::share()?;
    let (trained, variables) = train(&strategy, &options, &packages)?;
    let (sha256, replicas) = (variables.sha256()?, strategy.num_replicas_in_sync());
    let weights = values(&variables)?;
    strategy.end_servers()?;
    if !strategy.is_chief() {
        return Ok(());
    }
    let title = strategy.world().to_string();
    // The other workers wait for this one before they exit, because it may still read rows that they store.
    drop((variables, strategy));
    let mut more = json!({"replicas": replicas, "weights_sha256": sha256});
    if replicas == 1 {
        report(&options, (&title, &trained), None, &format!("weights: {sha256}"), &more);
        return Ok(());
    }
    let (one, same) = train(&OneDeviceStrategy::new("cpu:0")?, &options, &packages)?;
    let difference = largest_difference(&weights, &values(&same)?)?;
    more["largest_difference_of_weights"] = difference.into();
    let end = format!(
        "{replicas} replicas are {:.2} times as fast as one. The weights differ by {difference:.0e} at most.\nweights: {sha256}",
        trained.examples_per_s / one.examples_per_s,
    );
    report(&options, (&title, &trained), Some(&one), &end, &more);
    Ok(())
}

/// Trains with replicas that make each step together, and then tests the model.
fn train(
    strategy: &Strategy,
    options: &Options,
    packages: &Arc<Packages>,
) -> distribute::Result<(Trained, Variables)> {
    let (kind, all) = (options.model, packages.clone());
    let model = strategy.replicate_seeded(options.seed, move |vb| Model::new(kind, &all, vb))?;
    let optimizer = Adagrad::with_rule(rule(), &model.variables, LEARNING_RATE)?;

    let (title, is_quiet) = (strategy.world().to_string(), options.quiet || !strategy.is_chief());
    let mut progress = Progress::start(title, is_quiet, options.epochs, packages.training.len(), BATCH);
    if options.runner {
        runner::train(&model, &optimizer, packages, options, &mut progress)?;
    }
    let by_hand = if options.runner { 0 } else { options.epochs as u64 };
    for epoch in 0..by_hand {
        // Each epoch has its own order and its own sample of neighbours.
        let batches = packages.batches(&packages.training, BATCH, options.seed.wrapping_add(epoch))?;
        let first = &model.models().values()[0];
        let prefetch = |batch: &Batch| if options.prefetch { first.prefetch(batch) } else { Ok(()) };
        for batch in strategy.distribute_dataset(batches)?.iter().look_ahead(prefetch) {
            let losses = strategy.run((&model, batch?), |ctx, (model, batch)| {
                let loss = loss::cross_entropy(&model.forward(&batch)?, &batch.sections)?;
                optimizer.minimize(ctx, loss, batch.sections.dim(0)?)
            })?;
            progress.step(losses.to_scalar::<f32>()?.into())?;
        }
    }
    let mut trained = progress.trained();
    trained.accuracy = accuracy(strategy, &model, packages, AutoShardPolicy::default())?;
    Ok((trained, model.variables.clone()))
}

fn rule() -> rules::Adagrad {
    rules::Adagrad { initial_accumulator_value: 1e-8, ..Default::default() }
}

/// Returns the accuracy on the held-out packages.
fn accuracy(
    strategy: &Strategy,
    model: &Replicated<Model>,
    packages: &Arc<Packages>,
    shard: AutoShardPolicy,
) -> distribute::Result<f64> {
    let right = right(strategy, model, packages, &packages.held_out, shard)?;
    Ok(right as f64 / packages.held_out.len() as f64)
}

/// Returns the number of correct predictions among the packages `held_out`.
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

fn values(variables: &Variables) -> distribute::Result<Vec<Tensor>> {
    variables.names().iter().map(|name| variables.get(name)).collect()
}

/// Returns the largest difference of a weight. It is not 0 between trainings that add in another order, because the
/// last bits of sums then differ.
fn largest_difference(a: &[Tensor], b: &[Tensor]) -> distribute::Result<f32> {
    let mut largest = 0f32;
    for (a, b) in a.iter().zip(b) {
        let difference = (a - b)?.abs()?.flatten_all()?.max(0)?;
        largest = largest.max(difference.to_scalar()?);
    }
    Ok(largest)
}
