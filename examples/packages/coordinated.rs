//! The same training by a coordinator: this program schedules steps, workers run them without waiting for
//! each other, and tables of embeddings are on parameter servers.

use crate::data::{Batch, Packages};
use crate::fleet::Fleet;
use crate::model::Model;
use crate::progress::Progress;
use crate::report::report_asynchronous;
use crate::{BATCH, Kind, Options, right, rule, train};
use distribute::cluster::{Job, resolver};
use distribute::data::AutoShardPolicy;
use distribute::monitor::Monitor;
use distribute::nn::loss;
use distribute::optimizer::Adagrad;
use distribute::parameter_server::{LocalCluster, MinSizePartitioner};
use distribute::remote::{Batches, RemoteValue, WorkerContext};
use distribute::{ClusterCoordinator, Result, prelude::*};
use std::collections::VecDeque;
use std::sync::Arc;

/// The number of steps in the queue or on workers, so that no worker ever has to wait.
const AHEAD: usize = 64;
/// The minimum size of a shard, in bytes.
const SHARD: usize = 256 << 10;
/// The number of packages that are tested at once.
const TESTED: usize = 16 * BATCH;

/// The model and the optimizer of a worker, which creates them once.
struct Trainer {
    packages: Arc<Packages>,
    model: Replicated<Model>,
    optimizer: Adagrad,
}

#[distribute::remote]
fn build(worker: &WorkerContext, kind: Kind, seed: u64) -> Result<Trainer> {
    let (packages, all) = (Packages::share()?, Packages::share()?);
    let model = worker.strategy().replicate_seeded(seed, move |vb| Model::new(kind, &all, vb))?;
    let optimizer = Adagrad::with_rule(rule(), &model.variables, crate::LEARNING_RATE)?;
    Ok(Trainer { packages, model, optimizer })
}

/// Returns batches of a worker's share of the training packages. Each epoch has another order, and another
/// sample of neighbours. A faster worker reaches the end earlier, and starts again from the first epoch.
#[distribute::remote]
fn input(worker: &WorkerContext, epochs: usize, seed: u64) -> Result<Dataset<Batch>> {
    let (packages, part) = (Packages::share()?, worker.input_context());
    let mine = packages.training.iter().skip(part.input_pipeline_id).step_by(part.num_input_pipelines);
    let mine: Vec<u32> = mine.copied().collect();
    let mut all = packages.batches(&mine, BATCH, seed)?;
    for epoch in 1..epochs as u64 {
        all = all.concatenate(&packages.batches(&mine, BATCH, seed.wrapping_add(epoch))?);
    }
    Ok(all.repeat_forever())
}

/// Trains on the next batch, and returns the loss.
#[distribute::remote]
fn train_step(worker: &WorkerContext, trainer: &Trainer, data: &Batches<Batch>) -> Result<f32> {
    let losses = worker.strategy().run((&trainer.model, data.next()?), |ctx, (model, batch)| {
        let loss = loss::cross_entropy(&model.forward(&batch)?, &batch.sections)?;
        trainer.optimizer.minimize(ctx, loss, batch.sections.dim(0)?)
    })?;
    losses.to_scalar()
}

/// Returns the number of correct predictions among the held-out packages `from..to`.
#[distribute::remote]
fn evaluate(worker: &WorkerContext, trainer: &Trainer, from: usize, to: usize) -> Result<u64> {
    let Trainer { packages, model, .. } = trainer;
    right(
        worker.strategy(),
        model,
        packages,
        packages.held_out.get(from..to).unwrap_or_default(),
        AutoShardPolicy::default(),
    )
}

/// Returns the strategy of the coordinator: with the cluster in the environment or, without one, with workers and
/// servers in this process. Returns `None` if this process was another task of the cluster, which has served until the
/// chief finished.
fn strategy(options: &Options) -> Result<Option<ParameterServerStrategy>> {
    let found = resolver::from_env()?;
    let cluster = found.cluster_spec()?;
    if cluster.is_empty() {
        let cluster = LocalCluster::new(options.workers, options.ps)?;
        let partitioner = MinSizePartitioner::new(SHARD, options.ps)?;
        return ParameterServerStrategy::new(cluster.resolver(), partitioner).map(Some);
    }
    if distribute::serve(&*found)?.has_served() {
        return Ok(None);
    }
    let servers = cluster.num_tasks(&Job::Ps)?;
    let partitioner = MinSizePartitioner::new(SHARD, servers.max(1))?;
    ParameterServerStrategy::builder().partitioner(partitioner).build().map(Some)
}

/// Trains and tests on the workers, and compares with one device.
pub fn main(options: &Options) -> Result<()> {
    let Some(strategy) = strategy(options)? else { return Ok(()) };
    let packages = Packages::share()?;
    let coordinator = ClusterCoordinator::new(&strategy)?;
    let (epochs, examples) = (options.epochs, packages.training.len());
    let data = coordinator.create_per_worker_dataset(input, (epochs, options.seed))?;
    let trainer = coordinator.create_per_worker_value(build, (options.model, options.seed))?;

    let monitor = options.live.map(|port| {
        Monitor::builder(&strategy).coordinator(&coordinator).address(format!("127.0.0.1:{port}")).start()
    });
    let monitor = monitor.transpose()?; // served until it is dropped
    if let Some(address) = monitor.as_ref().and_then(Monitor::address).filter(|_| !options.quiet) {
        println!("watch it at http://{address}");
    }
    let mut fleet = Fleet::new(&coordinator)?;
    let mut progress = Progress::start(fleet.title(), options.quiet, epochs, examples, BATCH);
    let mut made = |loss: f32| {
        if let Some(monitor) = &monitor {
            monitor.record(BATCH, loss.into());
        }
        progress.step_of(loss.into(), || fleet.text())
    };
    let mut losses: VecDeque<RemoteValue<f32>> = VecDeque::new();
    for _ in 0..epochs * examples.div_ceil(BATCH) {
        if losses.len() == AHEAD
            && let Some(first) = losses.pop_front()
        {
            made(first.fetch()?)?;
        }
        losses.push_back(coordinator.schedule(train_step, (&trainer, &data))?);
    }
    losses.into_iter().try_for_each(|loss| made(loss.fetch()?))?;
    coordinator.join()?;
    let mut trained = progress.trained();

    let held_out = packages.held_out.len();
    let tests = (0..held_out)
        .step_by(TESTED)
        .map(|from| coordinator.schedule(evaluate, (&trainer, from, (from + TESTED).min(held_out))));
    let tests = tests.collect::<Result<Vec<_>>>()?;
    trained.accuracy = coordinator.fetch(tests)?.iter().sum::<u64>() as f64 / held_out as f64;
    let (workers, usage) = (strategy.workers(), strategy.server_usage()?);
    // Dropped before the workers are ended: otherwise the coordinator would report their loss.
    drop((trainer, data, fleet, monitor, coordinator));
    let (one, _) = train(&OneDeviceStrategy::new("cpu:0")?, options, &packages)?;
    report_asynchronous(options, workers, &usage, &trained, &one);
    strategy.end_servers()
}
