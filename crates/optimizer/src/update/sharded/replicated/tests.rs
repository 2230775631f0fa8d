use crate::Optimizer;
use crate::progress::Progress;
use crate::rules::{Rule, SlotSpec, Step};
use crate::slots::Slots;
use crate::update::sharded::tests::Ends;
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{VarBuilder, linear};
use distribute_base::Result;
use distribute_cluster::Fault;
use distribute_collective::group::Links;
use distribute_collective::recovery::shards::Version;
use distribute_core::internal::ShardedState;
use distribute_core::{Checkpoint, CommunicationOptions, ReplicaContext, Strategy};
use distribute_optim::{InvalidHyperparameter, UpdateError};
use distribute_strategies::MultiWorkerMirroredStrategy;
use distribute_testing::watched;
use std::collections::HashSet;
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

fn bytes(slots: &[Slots]) -> Vec<u8> {
    slots.iter().flat_map(Slots::all_elements).collect::<Vec<_>>().concat()
}

/// The slots of a worker, and its copies of those of another one.
#[derive(Clone, Debug, PartialEq)]
struct Shards {
    own: Vec<u8>,
    copy: Vec<u8>,
}

fn shards(progress: &Progress) -> Shards {
    Shards { own: bytes(&progress.read("test").unwrap()), copy: bytes(&progress.copies().slots) }
}

/// Makes three steps. If `last_ends` is `true`, the last worker ends its group in the third, when it has sent its sums
/// and not its weights. Returns the shards of each worker after the second and the third step. After a third step that
/// failed, these are the slots for which the worker is prepared.
fn train(workers: usize, links: Links, last_ends: bool) -> Vec<[Shards; 2]> {
    let options = CommunicationOptions { timeout: Some(Duration::from_secs(30)), ..Default::default() };
    let all =
        MultiWorkerMirroredStrategy::on_threads_over(links, options, workers, 1, |strategy: &Strategy| {
            let model = strategy.replicate_seeded(5, |vb: VarBuilder| linear(300, 100, vb))?;
            let ends = last_ends && strategy.world().worker() == workers - 1;
            let rule = Ends { strategy: strategy.clone(), in_step: if ends { 3 } else { u64::MAX } };
            let optimizer = Optimizer::with_rule(rule, &model.variables, 0.1)?.shard_state_replicated()?;
            let step = |number: usize| {
                strategy.run(&model, |ctx: &ReplicaContext, linear| {
                    let x = (number + ctx.replica_id_in_sync_group()) as f32 / 300.;
                    let x = Tensor::full(x, (2, 300), &Device::Cpu)?.to_dtype(DType::F32)?;
                    optimizer.minimize(ctx, linear.forward(&x)?.sqr()?.mean_all()?, 2)
                })
            };
            step(0)?;
            step(1)?;
            let progress = &optimizer.inner.progress;
            let (before, weights) = (shards(progress), model.variables.sha256()?);
            let third = step(2);
            if !last_ends {
                third?;
                assert_eq!(progress.copies().version, Version { step: 3, generation: 1 });
                return Ok([before, shards(progress)]);
            }
            if ends {
                return Ok([before.clone(), before]);
            }
            let error = third.unwrap_err();
            assert_eq!(error.blame().map(|blame| blame.fault), Some(Fault::Lost), "{error}");
            assert!(error.to_string().contains("its update: its weights"), "{error}");
            // The state is still that of the second step.
            assert_eq!((model.variables.sha256()?, optimizer.finished_steps()), (weights, 2));
            assert_eq!(shards(progress), before);
            assert!(!progress.is_incomplete() && !optimizer.inner.lacks_shards());
            // The state of a worker that has made the step.
            let version = Version { step: 3, generation: 1 };
            let change = progress.change("test")?;
            change.copies().adopt(version, &mut change.slots(), true);
            drop(change);
            assert!(!optimizer.inner.lacks_shards());
            Result::Ok([before, shards(progress)])
        });
    all.unwrap()
}

// INV-109
#[test]
fn a_worker_without_the_last_message_has_the_shards_of_both_versions() {
    watched(|| {
        for (workers, links) in [(2, Links::Memory), (3, Links::Shared), (4, Links::Tcp)] {
            let (made, interrupted) = (train(workers, links, false), train(workers, links, true));
            assert_eq!(interrupted[..workers - 1], made[..workers - 1], "{workers}");
            for (worker, [before, after]) in made.iter().enumerate() {
                let [copied, copied_after] = &made[(worker + workers - 1) % workers];
                assert!(before.copy == copied.own && after.copy == copied_after.own, "{worker} of {workers}");
                assert!(before != after);
            }
        }
    });
}

/// A rank may change in a rendezvous that no worker has completed.
// INV-109
#[test]
fn a_restore_is_of_the_shards_of_the_present_rank() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let all = MultiWorkerMirroredStrategy::on_threads(3, 1, |strategy: &Strategy| {
            let model = strategy.replicate_seeded(5, |vb: VarBuilder| linear(300, 100, vb))?;
            let rule = crate::rules::Momentum::default();
            let optimizer = Optimizer::with_rule(rule, &model.variables, 0.1)?.shard_state_replicated()?;
            let step = || {
                strategy.run(&model, |ctx: &ReplicaContext, linear| {
                    let x = Tensor::ones((2, 300), DType::F32, &Device::Cpu)?;
                    optimizer.minimize(ctx, linear.forward(&x)?.sqr()?.mean_all()?, 2)
                })
            };
            step()?;
            let state = Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer);
            state.save(&path)?;
            let progress = &optimizer.inner.progress;
            let saved = shards(progress);
            step()?;
            let after = shards(progress);
            let partition = optimizer.inner.parameters.partition.as_ref().unwrap();
            partition.set_worker((strategy.world().worker() + 1) % 3);
            assert!(optimizer.inner.lacks_shards());
            state.restore(&path)?;
            assert!(!optimizer.inner.lacks_shards() && shards(progress) == saved);
            step()?;
            assert!(shards(progress) == after);
            Result::Ok(())
        });
        all.unwrap();
    });
}

// INV-109
#[test]
fn shards_of_another_version_are_not_in_the_inventory() {
    watched(|| {
        let all = MultiWorkerMirroredStrategy::on_threads(3, 1, |strategy: &Strategy| {
            let model = strategy.replicate(|vb: VarBuilder| linear(300, 10, vb))?;
            let rule = crate::rules::Momentum::default();
            let optimizer = Optimizer::with_rule(rule, &model.variables, 0.1)?.shard_state_replicated()?;
            let progress = &optimizer.inner.progress;
            let adopt = |step: u64, generation: u64, is_usable: bool| {
                let change = progress.change("test").unwrap();
                change.copies().complete(Version { step: 4, generation: 2 });
                change.copies().adopt(Version { step, generation }, &mut change.slots(), is_usable);
                !optimizer.inner.lacks_shards()
            };
            assert!(adopt(4, 2, true));
            assert!(!adopt(4, 1, true) && !adopt(5, 2, true), "another version");
            assert!(!adopt(4, 2, false), "a step has failed while it changed slots");
            // Slots that a step changes are not lost, but this worker cannot read them.
            assert!(optimizer.inner.inventory().is_ok());
            let step = progress.change("test")?;
            let busy = step.slots();
            assert!(optimizer.inner.inventory().is_err());
            drop((busy, step));
            // Without its shards a worker makes no step.
            let step = strategy.run(&model, |ctx: &ReplicaContext, linear| {
                let x = Tensor::ones((2, 300), DType::F32, &Device::Cpu)?;
                optimizer.minimize(ctx, linear.forward(&x)?.sqr()?.mean_all()?, 2)
            });
            let error = step.unwrap_err();
            assert!(
                error.to_string().contains("worker 0, worker 1, worker 2 lacked shards of this state"),
                "{error}"
            );
            Result::Ok(())
        });
        all.unwrap();
    });
}

/// A momentum rule that ends the group of the last worker in step 3. On the others it fails in this step if it updates
/// the same elements again, which is after the exchange of weights has failed.
struct FailsAgain {
    ends: Ends,
    seen: Mutex<HashSet<(u32, u32)>>,
}

impl fmt::Debug for FailsAgain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FailsAgain")
    }
}

impl Rule for FailsAgain {
    fn name(&self) -> &'static str {
        "fails again"
    }

    fn slots(&self) -> Vec<SlotSpec> {
        self.ends.slots()
    }

    fn validate(&self) -> Result<(), InvalidHyperparameter> {
        self.ends.validate()
    }

    fn moves_absent_rows(&self) -> bool {
        self.ends.moves_absent_rows()
    }

    fn only_computes(&self) -> bool {
        true
    }

    fn update_f32(
        &self,
        at: Step,
        var: &mut [f32],
        grad: &[f32],
        slots: &mut [&mut [f32]],
    ) -> Result<(), UpdateError> {
        let first = (var[0].to_bits(), grad[0].to_bits());
        if at.number() == 3 && !self.seen.lock().unwrap().insert(first) {
            return Err(UpdateError::LengthMismatch { what: "again", expected: 0, found: 1 });
        }
        self.ends.update_f32(at, var, grad, slots)
    }

    fn update_f64(
        &self,
        at: Step,
        var: &mut [f64],
        grad: &[f64],
        slots: &mut [&mut [f64]],
    ) -> Result<(), UpdateError> {
        self.ends.update_f64(at, var, grad, slots)
    }

    fn update_rows_f32(
        &self,
        at: Step,
        var: &mut [f32],
        row_len: usize,
        rows: &[usize],
        grads: &[f32],
        slots: &mut [&mut [f32]],
    ) -> Result<(), UpdateError> {
        self.ends.update_rows_f32(at, var, row_len, rows, grads, slots)
    }

    fn update_rows_f64(
        &self,
        at: Step,
        var: &mut [f64],
        row_len: usize,
        rows: &[usize],
        grads: &[f64],
        slots: &mut [&mut [f64]],
    ) -> Result<(), UpdateError> {
        self.ends.update_rows_f64(at, var, row_len, rows, grads, slots)
    }
}

// INV-109
#[test]
fn the_lost_worker_is_named_even_if_the_state_after_the_step_cannot_be_computed() {
    watched(|| {
        let options = CommunicationOptions { timeout: Some(Duration::from_secs(30)), ..Default::default() };
        let all = MultiWorkerMirroredStrategy::on_threads_over(Links::Memory, options, 3, 1, |strategy| {
            let model = strategy.replicate_seeded(5, |vb: VarBuilder| linear(300, 100, vb))?;
            let is_last = strategy.world().worker() == 2;
            let ends = Ends { strategy: strategy.clone(), in_step: if is_last { 3 } else { u64::MAX } };
            let rule = FailsAgain { ends, seen: Mutex::default() };
            let optimizer = Optimizer::with_rule(rule, &model.variables, 0.1)?.shard_state_replicated()?;
            let step = || {
                strategy.run(&model, |ctx: &ReplicaContext, linear| {
                    let x = Tensor::ones((2, 300), DType::F32, &Device::Cpu)?;
                    optimizer.minimize(ctx, linear.forward(&x)?.sqr()?.mean_all()?, 2)
                })
            };
            step()?;
            step()?;
            let third = step();
            if is_last {
                return Ok(());
            }
            let error = third.unwrap_err();
            assert_eq!(error.blame().map(|blame| blame.fault), Some(Fault::Lost), "{error}");
            assert!(error.to_string().contains("its update: its weights"), "{error}");
            // It may be that the last worker has made the step, for which this one is not prepared.
            let progress = &optimizer.inner.progress;
            assert!(progress.is_incomplete() && progress.copies().next.is_none());
            Result::Ok(())
        });
        all.unwrap();
    });
}
