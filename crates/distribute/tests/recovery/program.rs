//! What each worker does, and where one of them is lost.

use candle_core::{Device, Tensor};
use candle_nn::{Module, linear};
use distribute::cluster::{ClusterSpec, Job, resolver::SimpleClusterResolver};
use distribute::prelude::*;
use distribute::{Checkpoint, Result, Training};

pub const EPOCHS: u64 = 3;
const STEPS: u64 = 4;

/// Where in the training a worker is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place {
    /// When it has joined, and builds its model.
    Setup,
    /// Before the first step of all.
    First,
    /// Between two steps.
    Between,
    /// In the closure, while the others wait in the exchange of gradients.
    InStep,
    /// After the update, while the others wait in the next call of the same step.
    AfterUpdate,
    /// When the last but one pass has ended.
    AtEnd,
}

impl Place {
    pub const IN_TRAINING: [Self; 5] =
        [Self::First, Self::Between, Self::InStep, Self::AfterUpdate, Self::AtEnd];
}

/// A worker, and where the others are.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    pub worker: usize,
    pub workers: usize,
    pub replicas: usize,
    /// Of worker 0.
    pub port: u16,
}

/// A worker's program, from its start to its end. `lost` is asked at each place, and may fail, or not return. Gives the sum of the
/// weights, and how often the workers have met.
pub fn program(task: Task, lost: impl Fn(Place) -> Result<()> + Sync) -> Result<(String, u64)> {
    let Task { worker, workers, replicas, port } = task;
    let addresses: Vec<_> =
        (0..workers).map(|rank| format!("127.0.0.1:{}", if rank == 0 { port } else { 0 })).collect();
    let cluster: ClusterSpec = format!("{{\"worker\": {addresses:?}}}").parse()?;
    let resolver = SimpleClusterResolver::new(cluster).with_task(Job::Worker.task(worker));
    let strategy =
        MultiWorkerMirroredStrategy::builder().cluster_resolver(resolver).replicas(replicas).build()?;
    let model = strategy.replicate(|vb| linear(3, 2, vb.pp("fc")))?;
    let optimizer = Adam::new(&model.variables, 0.05)?;
    let rows = 16usize;
    let ids = Dataset::range(rows as i64).shuffle(rows, 7).batch(rows / STEPS as usize);
    let batches = strategy.distribute_dataset(ids)?;
    let parts = Checkpoint::new()
        .part("strategy", &*strategy)
        .part("model", &model.variables)
        .part("optimizer", &optimizer)
        .part("batches", &batches);
    lost(Place::Setup)?;
    let training = Training::new(parts)?;
    lost(Place::First)?;
    training.run(|| {
        while batches.position().epoch < EPOCHS {
            for batch in &batches {
                let batch = batch?;
                let steps = (batches.position().epoch, batches.position().steps);
                if steps == (1, 2) {
                    lost(Place::Between)?;
                }
                let before = optimizer.finished_steps();
                strategy.run((&model, batch), |ctx, (fc, ids): (_, HostTensor)| {
                    let ids = ids.to_vec::<i64>()?;
                    let x: Vec<f32> =
                        ids.iter().flat_map(|id| (0..3).map(move |i| ((id * 3 + i) as f32).sin())).collect();
                    let x = Tensor::from_vec(x, (ids.len(), 3), &Device::Cpu)?;
                    if steps == (1, 3) {
                        lost(Place::InStep)?;
                    }
                    if ids.is_empty() {
                        optimizer.skip(ctx)?;
                    } else {
                        let loss = fc.forward(&x)?.sqr()?.mean_all()?;
                        optimizer.minimize(ctx, loss, ids.len())?;
                    }
                    if steps == (1, 3) {
                        lost(Place::AfterUpdate)?;
                    }
                    ctx.all_reduce(ReduceOp::Sum, 1f32)?;
                    Ok(())
                })?;
                assert_eq!(optimizer.finished_steps(), before + 1);
            }
            if batches.position().epoch == 2 {
                lost(Place::AtEnd)?;
            }
        }
        Ok(())
    })?;
    assert_eq!(optimizer.finished_steps(), EPOCHS * STEPS);
    assert_eq!(strategy.steps(), EPOCHS * STEPS);
    Ok((model.variables.sha256()?, training.generation()))
}
