//! Workers with a spare, as processes under a launcher: one of three dies, and the spare takes its place. The process
//! that is started again is the next spare, and exits with 0 when the training ends without it.

#![allow(clippy::unwrap_used, clippy::panic)]

mod launched;

use candle_core::{Device, Tensor};
use candle_nn::{Module, linear};
use distribute::cluster::{Deadline, Stopwatch};
use distribute::prelude::*;
use distribute_launch::{Layout, Plan};
use distribute_testing::{child, watched};
use launched::launched;
use std::time::Duration;

const TEST: &str = "a_spare_takes_the_place_of_a_worker_that_dies";

/// The environment variable that contains the number of the worker that dies.
const DIES: &str = "DISTRIBUTE_TEST_DIES";

/// Waits until a spare has been connected for a second without a break: a spare also connects once before it has built
/// its model.
fn wait_for_spare(strategy: &Strategy) {
    let until = Deadline::after(Duration::from_secs(50));
    let mut waits = Stopwatch::start();
    while waits.elapsed() < Duration::from_secs(1) {
        assert!(!until.has_passed(), "no spare waits");
        if strategy.extended().group().is_none_or(|group| group.spares() == 0) {
            waits = Stopwatch::start();
        }
        std::thread::yield_now();
    }
}

/// Runs the program of docs/clusters/recovery.md, in which a worker dies in its first life. The worker that leads waits
/// for a spare before the steps `awaits`: before the death, and again afterwards, for the worker that was restarted as
/// a spare.
fn train(strategy: &Strategy, dies: bool, awaits: &[u64]) -> distribute::Result<String> {
    let model = strategy.replicate(|vb| linear(2, 1, vb.pp("fc")))?;
    let optimizer = Adam::new(&model.variables, 0.1)?;
    let points = Tensor::arange(0f32, 200., &Device::Cpu)?.sin()?.reshape((100, 2))?;
    let batches = strategy.distribute_dataset(Dataset::from_slices(points)?.shuffle(100, 42).batch(18))?;

    let state = Checkpoint::new().part("strategy", strategy).part("model", &model.variables);
    let state = state.part("optimizer", &optimizer).part("batches", &batches);
    Training::new(state)?.run(|| {
        while batches.position().epoch < 3 {
            for batch in &batches {
                let made = optimizer.finished_steps();
                if awaits.contains(&made) {
                    wait_for_spare(strategy);
                }
                strategy.run((&model, batch?), |ctx, (model, points)| {
                    if dies && made == 4 {
                        std::process::abort();
                    }
                    let loss = model.forward(&points)?.sqr()?.mean_all()?;
                    optimizer.minimize(ctx, loss, points.dim(0)?)
                })?;
            }
        }
        Ok(())
    })?;
    model.variables.sha256()
}

/// Runs the program as a worker that the launcher started, and prints its result.
fn worker() -> distribute::Result<()> {
    let first = std::env::var("DISTRIBUTE_RESTART").unwrap() == "0";
    let config = std::env::var("TF_CONFIG").unwrap();
    let is = |index: usize| config.contains(&format!("\"index\":{index}}}"));
    let dying: usize = std::env::var(DIES).unwrap().parse().unwrap();
    let awaits: &[u64] = match dying {
        // Worker 1 leads after the death of the first.
        0 if is(0) && first => &[2],
        0 if is(1) => &[10],
        1 if is(0) => &[2, 10],
        _ => &[],
    };
    let strategy = MultiWorkerMirroredStrategy::new()?;
    println!("trained {}", train(&strategy, is(dying) && first, awaits)?);
    Ok(())
}

/// Launches three workers and a spare, of which `dying` dies and is restarted.
fn dies(dying: usize) {
    watched(move || {
        let plan = Plan::new(&Layout::new(3).spares(1)).unwrap();
        let lines =
            launched(plan, TEST, "worker", |launch| launch.max_restarts(2).env(DIES, dying.to_string()));
        let alone = train(&MirroredStrategy::cpus(3).unwrap(), false, &[]).unwrap();
        for worker in (0..4).filter(|worker| *worker != dying) {
            let trained = |line: &str| {
                line.starts_with(&format!("worker {worker}: ")) && line.ends_with(&format!("trained {alone}"))
            };
            assert!(lines.lines().any(trained), "{alone}\n{lines}");
        }
        assert!(lines.contains("a spare that takes part from now on, as generation 2"), "{lines}");
        assert!(lines.contains("which is a spare, was not needed"), "{lines}");
    });
}

// INV-42, INV-100
#[test]
fn a_spare_takes_the_place_of_a_worker_that_dies() {
    if child::part().is_some() {
        return distribute::end_main(worker()).unwrap();
    }
    dies(1);
}

// INV-42, INV-111
#[test]
fn a_spare_takes_the_place_of_the_first_worker_that_dies() {
    dies(0);
}
