//! The same training without a coordinator: each worker runs this program, with variables on parameter
//! servers.
//!
//! ```text
//! distribute launch --workers 2 --ps 2 -- target/release/examples/packages --strategy between-graph
//! ```

use crate::common::compare::{Asynchronous, beside_one_device};
use crate::common::{Options, progress::Progress, say};
use crate::data::Packages;
use crate::model::Model;
use crate::{BATCH, EPOCHS, Kind, LEARNING_RATE, right, rule};
use distribute::between_graph::{self, ParameterServerStrategy};
use distribute::cluster::resolver;
use distribute::data::AutoShardPolicy;
use distribute::optimizer::Adagrad;
use distribute::params::MinSizePartitioner;
use distribute::{Job, nn::loss};
use std::sync::Arc;
use std::time::Duration;

/// The minimum size of a shard, in bytes.
const SHARD: usize = 256 << 10;

/// The time that the chief waits for the others at the end, and they for the chief at the start.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs one task of the job, or the entire training if there is no cluster.
pub fn run(name: &str, options: &Options, kind: Kind, packages: &Arc<Packages>) -> distribute::Result<()> {
    let found = resolver::from_env()?;
    if between_graph::serve(&*found)? {
        return Ok(());
    }
    let servers = found.cluster_spec()?.num_tasks(&Job::Ps).unwrap_or(1);
    let settings =
        distribute::ParameterServerStrategy::builder().partitioner(MinSizePartitioner::new(SHARD, servers)?);
    let strategy = ParameterServerStrategy::of(settings)?;
    let trained = train(&strategy, options, kind, packages)?;
    strategy.finish(PATIENCE)?;
    match trained {
        Some(trained) => beside_one_device(name, options, &trained, |one| {
            crate::train(one, options, kind, packages, false)
        }),
        None => Ok(()),
    }
}

fn train(
    strategy: &ParameterServerStrategy,
    options: &Options,
    kind: Kind,
    packages: &Arc<Packages>,
) -> distribute::Result<Option<Asynchronous>> {
    let (epochs, examples) = (options.epochs(EPOCHS), packages.training.len());
    let all = packages.clone();
    let model = strategy.replicate_seeded(options.seed, move |vb| Model::new(kind, &all, vb))?;
    let optimizer = Adagrad::with_rule(rule(), &model.variables, LEARNING_RATE)?;
    // The steps of all workers count, so a restarted or slow worker delays no other.
    let steps = strategy.global_step()?;
    let each = examples.div_ceil(BATCH) as i64;
    let total = each * epochs as i64;
    strategy.ready(PATIENCE)?;

    let mut made: i64 = steps.read()?;
    if !options.quiet {
        let (worker, workers) = (strategy.worker(), strategy.workers());
        say(&format!("worker {worker} of {workers} trains from step {made} of {total}"));
    }
    // The chief shows its own steps.
    let share = examples.div_ceil(strategy.workers());
    let mut progress = Progress::start(options, strategy, epochs, share, BATCH)?.variables(&model.variables);
    let mut pass = made / each;
    while made < total {
        let (all, seed) = (packages.clone(), options.seed.wrapping_add(pass as u64));
        let batches = strategy.distribute_datasets_from_function(move |context| {
            let (workers, worker) = (context.num_input_pipelines, context.input_pipeline_id);
            let mine: Vec<u32> = all.training.iter().skip(worker).step_by(workers).copied().collect();
            all.batches(&mine, context.get_per_replica_batch_size(BATCH)?, seed)
        })?;
        for batch in &batches {
            let losses = strategy.run((&model, batch?), |ctx, (model, batch)| {
                let loss = loss::cross_entropy(&model.forward(&batch)?, &batch.sections)?;
                let loss = optimizer.minimize(ctx, loss, batch.sections.dim(0)?)?;
                steps.assign_add(1i64)?;
                Ok(loss)
            })?;
            progress.step(&losses)?;
            made = steps.read()?;
            if made >= total {
                break;
            }
        }
        pass += 1;
    }
    let pace = progress.finish()?;
    if !strategy.is_chief() {
        return Ok(None);
    }
    // The chief tests alone, on all held-out packages.
    let right = right(strategy, &model, packages, &packages.held_out, AutoShardPolicy::Off)?;
    let usage = strategy.extended().parameter_servers().map_or(Ok(Vec::new()), |servers| servers.usage())?;
    Ok(Some(Asynchronous {
        strategy: strategy.extended().kind(),
        accuracy: right as f64 / packages.held_out.len() as f64,
        workers: strategy.workers(),
        pace,
        usage,
    }))
}
