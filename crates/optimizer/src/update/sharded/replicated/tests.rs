use crate::Optimizer;
use crate::progress::Progress;
use crate::slots::Slots;
use crate::update::sharded::tests::Ends;
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{VarBuilder, linear};
use distribute_base::Result;
use distribute_cluster::Fault;
use distribute_collective::group::Links;
use distribute_collective::recovery::shards::Version;
use distribute_core::{CommunicationOptions, ReplicaContext, Strategy};
use distribute_strategies::MultiWorkerMirroredStrategy;
use distribute_testing::watched;
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
            // Without its shards a worker makes no step.
            let step = strategy.run(&model, |ctx: &ReplicaContext, linear| {
                let x = Tensor::ones((2, 300), DType::F32, &Device::Cpu)?;
                optimizer.minimize(ctx, linear.forward(&x)?.sqr()?.mean_all()?, 2)
            });
            let error = step.unwrap_err();
            assert!(
                error.to_string().contains("has ended on worker 0, worker 1, worker 2 between"),
                "{error}"
            );
            Result::Ok(())
        });
        all.unwrap();
    });
}
