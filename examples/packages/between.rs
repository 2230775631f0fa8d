//! The same training without a coordinator: each worker runs this program, with variables on parameter
//! servers.
//!
//! ```text
//! distribute launch --workers 2 --ps 2 -- target/release/examples/packages --strategy between-graph
//! ```

use crate::data::Packages;
use crate::model::Model;
use crate::progress::Progress;
use crate::report::{Trained, report_asynchronous};
use crate::{BATCH, LEARNING_RATE, Options, accuracy, rule};
use distribute::between_graph::{self, AsyncWorkerStrategy};
use distribute::cluster::{Job, resolver};
use distribute::data::AutoShardPolicy;
use distribute::nn::loss;
use distribute::optimizer::Adagrad;
use distribute::parameter_server::{MinSizePartitioner, Usage};
use distribute::prelude::*;
use std::sync::Arc;
use std::time::Duration;

/// The minimum size of a shard, in bytes.
const SHARD: usize = 256 << 10;

/// The maximum time for which the chief waits for the others at the end, and they wait for the chief at the start.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs one task of the job, or the entire training if there is no cluster.
pub fn main(options: &Options) -> distribute::Result<()> {
    let found = resolver::from_env()?;
    if between_graph::serve(&*found)?.has_served() {
        return Ok(());
    }
    let servers = found.cluster_spec()?.num_tasks(&Job::Ps).unwrap_or(1);
    let settings =
        distribute::ParameterServerStrategy::builder().partitioner(MinSizePartitioner::new(SHARD, servers)?);
    let strategy = AsyncWorkerStrategy::of(settings)?;
    let packages = Packages::share()?;
    let trained = train(&strategy, options, &packages)?;
    strategy.finish(PATIENCE)?;
    if let Some((trained, usage)) = trained {
        let (one, _) = crate::train(&OneDeviceStrategy::new("cpu:0")?, options, &packages)?;
        report_asynchronous(options, strategy.workers(), &usage, &trained, &one);
    }
    Ok(())
}

/// Trains as one of the workers. Returns the result and the usage of the servers on the chief.
fn train(
    strategy: &AsyncWorkerStrategy,
    options: &Options,
    packages: &Arc<Packages>,
) -> distribute::Result<Option<(Trained, Vec<Usage>)>> {
    let (kind, examples) = (options.model, packages.training.len());
    let all = packages.clone();
    let model = strategy.replicate_seeded(options.seed, move |vb| Model::new(kind, &all, vb))?;
    let optimizer = Adagrad::with_rule(rule(), &model.variables, LEARNING_RATE)?;
    // The steps of all workers count, so a restarted or slow worker delays no other.
    let steps = strategy.global_step()?;
    let each = examples.div_ceil(BATCH) as i64;
    let total = each * options.epochs as i64;
    strategy.ready(PATIENCE)?;

    let mut made: i64 = steps.read()?;
    if !options.quiet {
        let (worker, workers) = (strategy.worker(), strategy.workers());
        println!("worker {worker} of {workers} trains from step {made} of {total}");
    }
    // The chief shows its own steps.
    let share = examples.div_ceil(strategy.workers());
    let (title, is_quiet) = (strategy.world().to_string(), options.quiet || !strategy.is_chief());
    let mut progress = Progress::start(title, is_quiet, options.epochs, share, BATCH);
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
            progress.step(losses.to_scalar::<f32>()?.into())?;
            made = steps.read()?;
            if made >= total {
                break;
            }
        }
        pass += 1;
    }
    let mut trained = progress.trained();
    if !strategy.is_chief() {
        return Ok(None);
    }
    // The chief tests alone, on all held-out packages.
    trained.accuracy = accuracy(strategy, &model, packages, AutoShardPolicy::Off)?;
    let usage = strategy.extended().parameter_servers().map_or(Ok(Vec::new()), |servers| servers.usage())?;
    Ok(Some((trained, usage)))
}
