//! The same training by a coordinator: this program schedules steps, workers run them without waiting for
//! each other, and tables of embeddings are on parameter servers.

use crate::common::compare::{Asynchronous, beside_one_device};
use crate::common::{Options, progress::Progress};
use crate::data::{Batch, Packages};
use crate::model::Model;
use crate::{BATCH, EPOCHS, Kind, right, rule, train};
use distribute::data::AutoShardPolicy;
use distribute::nn::loss;
use distribute::optimizer::Adagrad;
use distribute::remote::{Batches, RemoteValue, WorkerContext};
use distribute::{ClusterCoordinator, ParameterServerStrategy, Result, prelude::*};
use std::collections::VecDeque;
use std::sync::Arc;

/// The number of steps in the queue or on workers, so that no worker ever has to wait.
const AHEAD: usize = 64;
/// The number of packages that are tested at once.
const TESTED: usize = 16 * BATCH;

/// A resource that each worker creates once, and keeps.
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

/// Makes a step, and returns its loss.
#[distribute::remote]
fn train_step(worker: &WorkerContext, trainer: &Trainer, data: &Batches<Batch>) -> Result<f32> {
    let losses = worker.strategy().run((&trainer.model, data.next()?), |ctx, (model, batch)| {
        let loss = loss::cross_entropy(&model.forward(&batch)?, &batch.sections)?;
        trainer.optimizer.minimize(ctx, loss, batch.sections.dim(0)?)
    })?;
    losses.to_scalar()
}

/// Returns the number of correct predictions among the held-out packages in this range.
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

/// Trains and tests on the workers of a strategy, and compares with one device.
pub fn main(name: &str, options: &Options, strategy: &ParameterServerStrategy, kind: Kind) -> Result<()> {
    let packages = Packages::share()?;
    let coordinator = ClusterCoordinator::new(strategy)?;
    let trace = options.trace()?;
    let (epochs, examples) = (options.epochs(EPOCHS), packages.training.len());
    let data = coordinator.create_per_worker_dataset(input, (epochs, options.seed))?;
    let trainer = coordinator.create_per_worker_value(build, (kind, options.seed))?;

    let mut progress = Progress::of_coordinator(options, &coordinator, epochs, examples, BATCH)?;
    let mut losses: VecDeque<RemoteValue<f32>> = VecDeque::new();
    for _ in 0..epochs * examples.div_ceil(BATCH) {
        if losses.len() == AHEAD
            && let Some(first) = losses.pop_front()
        {
            progress.add(first.fetch()?.into())?;
        }
        losses.push_back(coordinator.schedule(train_step, (&trainer, &data))?);
    }
    losses.into_iter().try_for_each(|loss| progress.add(loss.fetch()?.into()))?;
    coordinator.join()?;
    let pace = progress.finish()?;

    let held_out = packages.held_out.len();
    let tests = (0..held_out)
        .step_by(TESTED)
        .map(|from| coordinator.schedule(evaluate, (&trainer, from, (from + TESTED).min(held_out))));
    let tests = tests.collect::<Result<Vec<_>>>()?;
    let accuracy = coordinator.fetch(tests)?.iter().sum::<u64>() as f64 / held_out as f64;
    drop(trace);
    let trained = Asynchronous {
        strategy: strategy.extended().kind(),
        pace,
        accuracy,
        workers: strategy.workers(),
        usage: strategy.server_usage()?,
    };
    // Dropped before the workers are ended: otherwise the coordinator would report their loss.
    drop((trainer, data, coordinator));
    beside_one_device(name, options, &trained, |one| train(one, options, kind, &packages, false))
}
