//! Optimizers whose state is sharded over workers, with a copy of each shard at the next worker.

use crate::multi_worker::compression;
use crate::multi_worker::on_workers;
use crate::multi_worker::sharded::{WORLDS, large};
use crate::multi_worker::training::{ALL, Micro, Plan, assert_trains_equally};
use bytes::Bytes;
use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, Module, linear};
use distribute::checkpoint::{Checkpointed, Reader, Restore, Writer};
use distribute::cluster::{Fault, Stopwatch};
use distribute::optimizer::rules::{self, Rule};
use distribute::strategy::{CommunicationOptions, Compression, Links};
use distribute::{Error, ErrorKind, Result, prelude::*};
use distribute_collective::recovery::shards::{Inventory, Version};
use distribute_core::internal::ShardedState;
use distribute_testing::{watched, watched_for};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
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

#[test]
fn micro_batches_give_the_same_bits_with_copies() {
    for micro in [Micro::Halves, Micro::Uneven] {
        assert_all_train_equally(Plan { micro, ..large() }, rules::Adagrad::default());
        assert_all_train_equally(Plan { micro, clip: true, ..large() }, rules::Adam::default());
    }
    // Moments of a micro-batch over all replicas.
    let all = Plan { parts: ALL, micro: Micro::Halves, width: 2500, ..Plan::new(13, 9) };
    assert_all_train_equally(all, rules::Adam { lazy: true, ..Default::default() });
}

/// Checks that the copies that each worker has are the shard of the worker before it. All workers must make this call.
pub(crate) fn assert_copies<R: Rule>(strategy: &Strategy, optimizer: &Optimizer<R>) -> Result<()> {
    let world = strategy.world();
    let (workers, me) = (world.workers(), world.worker());
    let before = |worker: usize| (worker + workers - 1) % workers;
    let Some(state) = optimizer.sharded_state() else {
        assert_eq!(workers, 1, "only a single worker has no copies");
        return Ok(());
    };
    let digest = |shard: usize| -> Result<i64> {
        let mut hasher = DefaultHasher::new();
        state.read_shard(shard)?.hash(&mut hasher);
        Ok(hasher.finish() as i64)
    };
    let mine = [digest(me)?, digest(before(me))?];
    let all = strategy.run((), |ctx, ()| ctx.all_gather(HostTensor::vector(mine.to_vec()), 0))?;
    let all = all.values()[0].to_vec::<i64>()?;
    // Each replica has sent the two digests of its worker.
    let of = |worker: usize| &all[2 * world.replicas_of(worker).start..][..2];
    for worker in 0..workers {
        let (copy, shard) = (of(worker)[1], of(before(worker))[0]);
        assert_eq!(copy, shard, "the copy at worker {worker} of {workers} is not the shard before it");
    }
    Ok(())
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
            if copies {
                assert_copies(strategy, &optimizer)?;
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

/// Makes a step in which each worker has one row.
fn step(strategy: &Strategy, model: &Replicated<Linear>, optimizer: &Adam) -> Result<()> {
    let step = |ctx: &ReplicaContext, model: &Linear| {
        let x = Tensor::ones((1, 300), DType::F32, &Device::Cpu)?;
        optimizer.minimize(ctx, model.forward(&x)?.sqr()?.mean_all()?, 1)
    };
    strategy.run(model, step).map(drop)
}

/// One worker restores a checkpoint of the step that all have made. The others do not, so it is not the same state.
// INV-109
#[test]
fn a_worker_whose_slots_have_another_version_makes_no_step() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let errors = crate::multi_worker::errors(3, 1, move |strategy| {
        let model = strategy.replicate_seeded(3, |vb| linear(300, 40, vb))?;
        let optimizer = Adam::new(&model.variables, 0.01)?.shard_state_replicated()?;
        step(strategy, &model, &optimizer)?;
        Checkpoint::new().part("optimizer", &optimizer).save(&path)?;
        if strategy.world().worker() == 1 {
            optimizer.restore("optimizer", &Reader::open(&path)?)?()?;
        }
        let before = model.variables.sha256()?;
        let result = step(strategy, &model, &optimizer);
        assert_eq!((model.variables.sha256()?, optimizer.finished_steps()), (before, 1));
        result
    });
    let versions = "(step 1 of generation 1, step 1 of generation 0, step 1 of generation 1, by worker)";
    for error in &errors {
        assert_eq!(error.kind(), ErrorKind::RestoreNeeded, "{error}");
        assert!(error.to_string().contains(versions), "{error}");
    }
}

/// A state that is saved for another worker has no slots. As a checkpoint it is incomplete.
// INV-109
#[test]
fn a_checkpoint_without_slots_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    on_workers(3, 1, move |strategy| {
        let path = folder.path().join(format!("saved-{}", strategy.world().worker()));
        let model = strategy.replicate_seeded(3, |vb| linear(300, 40, vb))?;
        let optimizer = Adam::new(&model.variables, 0.01)?.shard_state_replicated()?;
        let state = Checkpoint::new().part("optimizer", &optimizer);
        step(strategy, &model, &optimizer)?;
        strategy.begin_catching_up();
        state.writer()?.save(&path, 1)?;
        // A replacement process restores a checkpoint before it has caught up.
        for is_catching_up in [true, false] {
            let error = optimizer.restore("optimizer", &Reader::open(&path)?).err().expect("it is refused");
            assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
            assert!(error.to_string().contains("has no slots of \"optimizer\""), "{error}");
            if is_catching_up {
                strategy.finish_catching_up();
            }
        }
        assert_copies(strategy, &optimizer)?;
        step(strategy, &model, &optimizer)
    });
}

/// A component with shards that were made for the rank after the worker's present one.
struct OtherRank {
    strategy: Strategy,
    shards: Mutex<BTreeMap<usize, Bytes>>,
    has_kept: AtomicBool,
}

impl Checkpointed for OtherRank {
    fn save(&self, _: &str, _: &mut Writer) -> Result<()> {
        Ok(())
    }
    fn restore<'a>(&'a self, _: &str, _: &Reader) -> Result<Restore<'a>> {
        Ok(Box::new(|| Ok(())))
    }
    fn sharded_state(&self) -> Option<&dyn ShardedState> {
        Some(self)
    }
}

impl ShardedState for OtherRank {
    fn inventory(&self) -> Result<Inventory> {
        let shards = self.shards.lock().unwrap();
        let shards = shards.iter().map(|(shard, bytes)| (*shard, bytes.len() as u64)).collect();
        Ok(Inventory { version: Version::default(), shards })
    }
    fn read_shard(&self, shard: usize) -> Result<Bytes> {
        Ok(self.shards.lock().unwrap()[&shard].clone())
    }
    fn add_shard(&self, shard: usize, bytes: &[u8]) -> Result<()> {
        self.shards.lock().unwrap().insert(shard, bytes.to_vec().into());
        Ok(())
    }
    fn keep_own_shards(&self) -> Result<()> {
        self.has_kept.store(true, Ordering::Relaxed);
        Ok(())
    }
    fn discard_shards(&self) {}
}

/// Ranks may change in a rendezvous that fails before the first step.
// INV-109
#[test]
fn workers_whose_ranks_have_changed_before_the_first_step_receive_the_shards_of_their_ranks() {
    on_workers(4, 1, |strategy| {
        let worker = strategy.world().worker();
        let text = |shard: usize| (shard, Bytes::from(format!("shard {shard}")));
        let shards = Mutex::new(BTreeMap::from([text((worker + 1) % 4), text(worker)]));
        let state = OtherRank { strategy: strategy.clone(), shards, has_kept: AtomicBool::new(false) };
        Training::new(Checkpoint::new().part("strategy", &state.strategy).part("state", &state))?;
        assert!(state.has_kept.load(Ordering::Relaxed));
        for shard in [worker, (worker + 3) % 4] {
            assert_eq!(state.shards.lock().unwrap().get(&shard), Some(&text(shard).1), "{shard}");
        }
        Ok(())
    });
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

/// `cargo test -p distribute --test clusters replicated::step_times -- --ignored --nocapture` prints the times of
/// docs/clusters/sharded-state.md.
#[test]
#[ignore = "a measurement, which no result fails"]
fn step_times() {
    const STEPS: usize = 15;
    watched_for(Duration::from_secs(210), || {
        for workers in 2..5 {
            for copies in [false, true] {
                let times = times(workers, copies, STEPS + 1);
                println!(
                    "{workers} workers, copies {copies}: median {:?}, {:?} to {:?}",
                    times[STEPS / 2],
                    times[0],
                    times[STEPS - 1]
                );
            }
        }
    });
}
