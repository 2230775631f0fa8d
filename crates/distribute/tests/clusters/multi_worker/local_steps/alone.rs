//! Local steps are made alone: they send nothing and wait for no other worker, unless the program makes a call.

use super::{DILOCO, bits, local, model, on, on_groups, step_of, weights};
use crate::multi_worker::compression::counting_groups;
use candle_core::{Device, Tensor};
use distribute::cluster::Fault;
use distribute::strategy::{CommunicationOptions, Compression, Outer};
use distribute::{Adam, Error, MultiWorkerMirroredStrategy, PerReplica, ReduceOp, Result};
use distribute_testing::watched;
use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::time::Duration;

// INV-112
#[test]
fn a_local_step_sends_nothing_and_waits_for_no_other_worker() {
    watched(|| {
        for (workers, replicas) in [(2, 1), (3, 1), (2, 2)] {
            for (of, form) in
                [(local(5, Outer::Average), Compression::None), (local(5, DILOCO), Compression::TopK)]
            {
                let (groups, bytes) = counting_groups(workers, replicas);
                let all = Barrier::new(workers);
                let counted = on_groups(
                    groups,
                    |_, builder| builder.local_steps(of).compression(form),
                    |strategy| {
                        let model = model(strategy)?;
                        let optimizer = Adam::new(&model.variables, 0.01)?;
                        let step = |number| -> Result<()> {
                            let made = strategy.run(&model, |ctx, layers| {
                                step_of(ctx, &optimizer, layers, number, ctx.replica_id_in_sync_group())
                            });
                            made.map(drop)
                        };
                        let mut counts = Vec::new();
                        for round in 0..3 {
                            step(5 * round + 1)?;
                            all.wait();
                            counts.push(bytes.load(Ordering::Relaxed));
                            all.wait();
                            // One worker after another.
                            for turn in 0..workers {
                                if turn == strategy.world().worker() {
                                    (2..5).try_for_each(|number| step(5 * round + number))?;
                                }
                                all.wait();
                            }
                            counts.push(bytes.load(Ordering::Relaxed));
                            all.wait();
                            step(5 * round + 5)?;
                        }
                        Ok((counts, bits(&weights(&model)?)))
                    },
                );
                let case = format!("{workers} workers of {replicas} replicas, {of:?}, {form}: {counted:?}");
                for (counts, weights) in &counted {
                    assert!(counts.chunks(2).all(|of_round| of_round[0] == of_round[1]), "{case}");
                    assert!(counts[1] < counts[2] && *weights == counted[0].1, "{case}");
                }
            }
        }
    });
}

// INV-112
#[test]
fn a_call_in_a_local_step_is_made_by_all_workers() {
    watched(|| {
        for world in [(2, 1), (3, 2)] {
            let sums = on(world, local(6, Outer::Average), |strategy| {
                let model = model(strategy)?;
                let optimizer = Adam::new(&model.variables, 0.01)?;
                let mut sums = Vec::new();
                for number in 1..=12u64 {
                    let of_step = strategy.run(&model, |ctx, layers| {
                        let id = ctx.replica_id_in_sync_group();
                        let calls = [2, 3, 9].contains(&number);
                        let sum = calls.then(|| ctx.all_reduce(ReduceOp::Sum, (number as usize * id) as f32));
                        step_of(ctx, &optimizer, layers, number, id)?;
                        sum.transpose()
                    })?;
                    sums.extend(of_step.into_values().into_iter().flatten());
                }
                Ok((sums, bits(&weights(&model)?)))
            });
            let replicas = world.0 * world.1;
            let ids = (0..replicas).sum::<usize>() as f32;
            let expected: Vec<f32> =
                [2., 3., 9.].into_iter().flat_map(|number| vec![number * ids; world.1]).collect();
            assert!(sums.iter().all(|(found, weights)| *found == expected && *weights == sums[0].1));
        }
    });
}

#[test]
fn a_call_that_another_worker_omits_in_a_local_step_is_an_error_after_the_timeout() {
    watched(|| {
        let options = CommunicationOptions { timeout: Some(Duration::from_secs(1)), ..Default::default() };
        let builder = MultiWorkerMirroredStrategy::builder()
            .communication_options(options)
            .local_steps(local(4, DILOCO));
        let has_left = Barrier::new(2);
        let errors = builder.on_threads(crate::multi_worker::links(2, 1), 2, |strategy| {
            let model = model(strategy)?;
            let optimizer = Adam::new(&model.variables, 0.01)?;
            let calls = strategy.is_chief();
            let step = |number| {
                if calls && number == 2 {
                    has_left.wait();
                }
                strategy.run(&model, |ctx, layers| {
                    step_of(ctx, &optimizer, layers, number, ctx.replica_id_in_sync_group())?;
                    if calls && number == 2 {
                        ctx.all_reduce(ReduceOp::Sum, 1f32)?;
                    }
                    Ok(())
                })
            };
            step(1)?;
            let made = step(2);
            if !calls {
                has_left.wait();
            }
            // The other worker is not lost, but times out.
            has_left.wait();
            Ok(made.err())
        });
        let errors = errors.unwrap();
        assert!(errors[1].is_none(), "{:?}", errors[1]);
        let error = errors[0].as_ref().unwrap();
        let blame = error.blame().unwrap();
        assert_eq!((blame.fault, &blame.culprits[..]), (Fault::TimedOut, &[1][..]), "{error}");
    });
}

#[test]
fn rows_of_local_steps_follow_those_of_the_workers_before() {
    watched(|| {
        let found = on((3, 1), local(4, Outer::Average), |strategy| {
            let model = model(strategy)?;
            let optimizer = Adam::new(&model.variables, 0.01)?;
            let worker = strategy.world().worker();
            let height = [5, 4, 3][worker];
            let mut all = Vec::new();
            for number in 1..=8u64 {
                let batch = Tensor::ones((height, 1), candle_core::DType::F32, &Device::Cpu)?;
                let batch = PerReplica::with_rows(vec![batch], vec![height]);
                let rows = strategy.run((&model, batch), |ctx, (layers, _)| {
                    step_of(ctx, &optimizer, layers, number, worker)?;
                    Ok::<_, Error>(ctx.rows())
                })?;
                all.extend(rows.into_values());
            }
            Ok(all)
        });
        for (found, expected) in found.into_iter().zip([0..5, 5..9, 9..12]) {
            assert!(found.iter().all(|rows| *rows == Some(expected.clone())), "{found:?}");
        }
    });
}
