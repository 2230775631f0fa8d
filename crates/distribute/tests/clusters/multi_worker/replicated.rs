//! Optimizers whose state is sharded over workers, with a copy of each shard at the next worker.

use crate::multi_worker::compression;
use crate::multi_worker::on_workers;
use crate::multi_worker::sharded::{WORLDS, large};
use crate::multi_worker::training::{ALL, Plan, assert_trains_equally};
use candle_core::{DType, Device, Tensor};
use candle_nn::{Module, linear};
use distribute::cluster::{Fault, Stopwatch};
use distribute::optimizer::rules::{self, Rule};
use distribute::strategy::{CommunicationOptions, Compression, Links};
use distribute::{Result, prelude::*};
use distribute_testing::{watched, watched_for};
use std::sync::Arc;
use std::time::Duration;

fn replicated(plan: Plan) -> Plan {
    Plan { replicated: true, ..plan }
}

fn assert_all_train_equally<R: Rule + Clone + 'static>(plan: Plan, rule: R) {
    watched(move || assert_trains_equally(replicated(plan), rule, WORLDS, false));
}

// INV-40
#[test]
fn every_kind_of_rule_is_bit_identical_with_copies() {
    assert_all_train_equally(large(), rules::Sgd);
    assert_all_train_equally(large(), rules::Momentum::default());
    assert_all_train_equally(large(), rules::Adam::default());
    assert_all_train_equally(large(), rules::Adam { lazy: true, ..Default::default() });
    assert_all_train_equally(large(), rules::RowAdagrad::default());
    assert_all_train_equally(large(), rules::Adafactor::default());
    assert_all_train_equally(large(), rules::Lamb { weight_decay: 0.1, ..Default::default() });
    let averaged = rules::Averaged { rule: Arc::new(rules::RowAdagrad::default()), momentum: 0.9 };
    assert_all_train_equally(Plan { clip: true, ..large() }, averaged);
}

#[test]
fn transforms_doubles_and_batches_without_rows_give_the_same_bits_with_copies() {
    for dtype in [DType::F32, DType::F64] {
        assert_all_train_equally(Plan { clip: true, decay: true, dtype, ..large() }, rules::Adam::default());
    }
    let small = Plan { parts: ALL, ..Plan::new(1, 8) };
    assert_all_train_equally(small, rules::Adam::default());
    assert_all_train_equally(
        Plan { parts: ALL, width: 2500, ..Plan::new(13, 9) },
        rules::Momentum::default(),
    );
}

#[test]
fn compressed_gradients_give_the_same_bits_with_copies() {
    watched(|| {
        let plan = Plan { width: 2500, ..Plan::new(11, 8) };
        for form in [Compression::Bf16, Compression::EightBits] {
            for (workers, replicas) in [(2, 1), (3, 2)] {
                let whole = compression::trained(form, workers, replicas, plan);
                let copied = compression::trained(form, workers, replicas, replicated(plan));
                assert!(whole == copied, "{workers} workers of {replicas} replicas, {form}");
            }
        }
    });
}

/// A setting that changes the slots may follow.
#[test]
fn copies_follow_later_settings_and_restores() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let train = |workers: usize, copies: bool, first: bool| {
        let path = path.clone();
        on_workers(workers, 1, move |strategy| {
            let model = strategy.replicate_seeded(3, |vb| linear(300, 40, vb))?;
            let optimizer = Adam::new(&model.variables, 0.01)?;
            let optimizer =
                if copies { optimizer.shard_state_replicated()? } else { optimizer.shard_state()? };
            let optimizer = optimizer.with_ema(0.9)?.freeze(|name| name == "bias")?;
            let state = Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer);
            if !first {
                state.restore(&path)?;
            }
            for step in 0..3 {
                strategy.run(&model, |ctx, model| {
                    let x = (step + ctx.replica_id_in_sync_group()) as f32;
                    let x = Tensor::full(x, (4, 300), &Device::Cpu)?;
                    optimizer.minimize(ctx, model.forward(&x)?.sqr()?.mean_all()?, 4)
                })?;
            }
            if first && copies {
                state.save(&path)?;
            }
            let slot = optimizer.slot("weight", "v")?.flatten_all()?.to_vec1::<f32>()?;
            Result::Ok((model.variables.sha256()?, slot.iter().map(|x| x.to_bits()).collect::<Vec<_>>()))
        })
    };
    for first in [true, false] {
        let (copied, without) = (train(3, true, first), train(3, false, first));
        assert!(copied == without, "{first}");
    }
}

#[test]
fn each_worker_keeps_two_shards() {
    let bytes = |copies: bool| {
        on_workers(4, 1, move |strategy| {
            let model = strategy.replicate(|vb| linear(1024, 64, vb))?;
            let optimizer = Adam::new(&model.variables, 0.01)?;
            if copies { optimizer.shard_state_replicated()? } else { optimizer.shard_state()? }.state_bytes()
        })
    };
    let (own, both) = (bytes(false), bytes(true));
    for worker in 0..4 {
        assert_eq!(both[worker], own[worker] + own[(worker + 3) % 4]);
    }
}

#[test]
fn workers_that_differ_in_copies_are_an_error() {
    let errors = crate::multi_worker::errors(2, 1, |strategy| {
        let model = strategy.replicate(|vb| linear(2, 1, vb))?;
        let optimizer = Sgd::new(&model.variables, 0.1)?;
        let copies = strategy.world().worker() == 1;
        let optimizer = if copies { optimizer.shard_state_replicated()? } else { optimizer.shard_state()? };
        strategy.run(&model, |ctx, model| {
            let x = Tensor::ones((1, 2), DType::F32, &Device::Cpu)?;
            optimizer.minimize(ctx, model.forward(&x)?.sum_all()?, 1).map(drop)
        })
    });
    for error in errors {
        let blame = error.blame().expect("a blame");
        assert_eq!(blame.fault, Fault::Mismatch);
        assert!(blame.to_string().contains("minimize (sgd 1, sharded and replicated)"), "{blame}");
    }
}

/// Returns the times of steps of one layer of 1024 × 1024 with Adam, over sockets.
fn times(workers: usize, copies: bool, steps: usize) -> Vec<Duration> {
    let options = CommunicationOptions::default();
    let all =
        MultiWorkerMirroredStrategy::on_threads_over(Links::Tcp, options, workers, 1, move |strategy| {
            let model = strategy.replicate(|vb| linear(1024, 1024, vb))?;
            let optimizer = Adam::new(&model.variables, 1e-3)?;
            let optimizer =
                if copies { optimizer.shard_state_replicated()? } else { optimizer.shard_state()? };
            let mut times = Vec::new();
            for _ in 0..steps {
                let watch = Stopwatch::start();
                strategy.run(&model, |ctx, model| {
                    let x = Tensor::ones((1, 1024), DType::F32, &Device::Cpu)?;
                    optimizer.minimize(ctx, model.forward(&x)?.sqr()?.mean_all()?, 1)
                })?;
                times.push(watch.elapsed());
            }
            Result::Ok(times)
        });
    let mut times = all.unwrap().remove(0).split_off(1);
    times.sort_unstable();
    times
}

/// `DISTRIBUTE_TEST_STEPS=40 cargo test -p distribute --test clusters replicated::step_times -- --nocapture` prints the
/// times of docs/clusters/sharded-state.md.
#[test]
fn step_times() {
    let steps: usize = std::env::var("DISTRIBUTE_TEST_STEPS").map_or(2, |steps| steps.parse().unwrap());
    watched_for(Duration::from_secs(60 + 10 * steps as u64), move || {
        for workers in 2..5 {
            for copies in [false, true] {
                let times = times(workers, copies, steps + 1);
                let (first, last) = (times[0], times[times.len() - 1]);
                println!(
                    "{workers} workers, copies {copies}: median {:?}, {first:?} to {last:?}",
                    times[times.len() / 2]
                );
                assert_eq!(times.len(), steps);
            }
        }
    });
}
