//! A worker is lost and another takes its place: the weights become those of a training without interruption (INV-37).
//!
//! The workers are threads here, linked by sockets as processes are; examples/tests/recovery.rs kills processes.

use candle_core::{Device, Tensor};
use candle_nn::{Module, linear};
use distribute::cluster::{ClusterSpec, Job, resolver::SimpleClusterResolver};
use distribute::prelude::*;
use distribute::{Checkpoint, Error, Result, Training};
use distribute_testing::watched;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};

const EPOCHS: u64 = 3;
const STEPS: u64 = 4;

/// Where in the training a worker is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Nowhere,
    /// Before the first step of all.
    First,
    /// Between two steps.
    Between,
    /// In the closure, before the others have its gradients.
    InStep,
    /// After the update, in what follows in the same step.
    AfterUpdate,
    /// When the pass has ended.
    AtEnd,
}

#[derive(Clone, Copy, Debug)]
struct Fault {
    worker: usize,
    place: Place,
}

/// A worker's program, from its start to its end. With a fault that has not happened yet, it ends there.
fn program(
    worker: usize,
    workers: usize,
    replicas: usize,
    port: u16,
    fault: Fault,
    happened: &AtomicBool,
) -> Result<(String, u64)> {
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
    let dies = |place: Place| {
        let epoch = match place {
            Place::First => 0,
            Place::AtEnd => 2,
            _ => 1,
        };
        let now = fault.place == place && fault.worker == worker && batches.position().epoch == epoch;
        now && !happened.swap(true, Ordering::SeqCst)
    };
    let killed = || Error::other("killed");
    let training = Training::new(parts)?;
    if dies(Place::First) {
        return Err(killed());
    }
    training.run(|| {
        while batches.position().epoch < EPOCHS {
            for batch in &batches {
                let batch = batch?;
                if batches.position().steps == 2 && dies(Place::Between) {
                    return Err(killed());
                }
                let before = optimizer.finished_steps();
                strategy.run((&model, batch), |ctx, (fc, ids): (_, HostTensor)| {
                    let ids = ids.to_vec::<i64>()?;
                    let x: Vec<f32> =
                        ids.iter().flat_map(|id| (0..3).map(move |i| ((id * 3 + i) as f32).sin())).collect();
                    let x = Tensor::from_vec(x, (ids.len(), 3), &Device::Cpu)?;
                    let here =
                        ctx.replica_id_in_sync_group() / replicas == worker && batches.position().steps == 3;
                    if here && dies(Place::InStep) {
                        return Err(killed());
                    }
                    if ids.is_empty() {
                        optimizer.skip(ctx)?;
                    } else {
                        let loss = fc.forward(&x)?.sqr()?.mean_all()?;
                        optimizer.minimize(ctx, loss, ids.len())?;
                    }
                    if here && dies(Place::AfterUpdate) {
                        return Err(killed());
                    }
                    ctx.all_reduce(ReduceOp::Sum, 1f32)?;
                    Ok(())
                })?;
                assert_eq!(optimizer.finished_steps(), before + 1);
            }
            if dies(Place::AtEnd) {
                return Err(killed());
            }
        }
        Ok(())
    })?;
    assert_eq!(optimizer.finished_steps(), EPOCHS * STEPS);
    assert_eq!(strategy.steps(), EPOCHS * STEPS);
    Ok((model.variables.sha256()?, training.generation()))
}

fn train(workers: usize, replicas: usize, fault: Fault) -> Vec<(String, u64)> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let happened = AtomicBool::new(false);
    let happened = &happened;
    std::thread::scope(|scope| {
        let worker = |worker| {
            scope.spawn(move || {
                loop {
                    match program(worker, workers, replicas, port, fault, happened) {
                        // As `distribute launch --max-restarts` does.
                        Err(error) if error.to_string().contains("killed") && fault.worker == worker => {}
                        ended => return ended.unwrap_or_else(|error| panic!("worker {worker}: {error}")),
                    }
                }
            })
        };
        let all: Vec<_> = (0..workers).map(worker).collect();
        all.into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}

fn check(workers: usize, replicas: usize) {
    let undisturbed = train(workers, replicas, Fault { worker: 0, place: Place::Nowhere });
    assert!(undisturbed.iter().all(|(_, generation)| *generation == 1));
    for place in [Place::First, Place::Between, Place::InStep, Place::AfterUpdate, Place::AtEnd] {
        for worker in 0..workers {
            let fault = Fault { worker, place };
            let recovered = train(workers, replicas, fault);
            for (other, (sha256, generation)) in recovered.iter().enumerate() {
                assert_eq!(*sha256, undisturbed[0].0, "{fault:?}: weights of worker {other}");
                assert_eq!(*generation, 2, "{fault:?}");
            }
        }
    }
}

#[test]
fn two_workers() {
    watched(|| check(2, 1));
}

#[test]
fn three_workers() {
    watched(|| check(3, 1));
}

#[test]
fn two_workers_of_two_replicas() {
    watched(|| check(2, 2));
}
