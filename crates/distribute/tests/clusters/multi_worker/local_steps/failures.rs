//! Steps that fail on some workers, workers that are lost, weights that drift apart, and workers without examples.

use super::{DILOCO, bits, local, loss, model, on, step_of, weights};
use candle_core::{Device, Tensor};
use candle_nn::Init;
use distribute::checkpoint::Reader;
use distribute::data::Dataset;
use distribute::strategy::{CommunicationOptions, LocalSteps, Outer};
use distribute::{
    Adam, Checkpoint, Error, ErrorKind, MultiWorkerMirroredStrategy, Result, Sgd, Strategy, Variable,
};
use distribute_collective::group::local as groups;
use distribute_tensor::HostTensor;
use distribute_testing::watched;
use std::time::Duration;

// INV-98
#[test]
fn a_step_that_fails_on_one_worker_before_the_outer_step_changes_nothing_on_any() {
    watched(|| {
        for world in [(2, 1), (3, 2)] {
            for of in [local(3, Outer::Average), local(3, DILOCO), local(1, DILOCO)] {
                let run = |fails: bool| {
                    on(world, of, |strategy| {
                        let model = model(strategy)?;
                        let optimizer = Adam::new(&model.variables, 0.01)?;
                        let last = strategy.world().workers() - 1;
                        let is_last = strategy.world().worker() == last;
                        let step = |number, fails: bool| {
                            strategy.run(&model, |ctx, layers| {
                                if fails && is_last {
                                    return Err(Error::other("out of memory"));
                                }
                                step_of(ctx, &optimizer, layers, number, ctx.replica_id_in_sync_group())
                            })
                        };
                        for number in 1..=6 {
                            if fails && number % of.steps == 0 {
                                let before = (bits(&weights(&model)?), optimizer.finished_steps());
                                let error = step(number, true).unwrap_err();
                                assert_eq!(error.kind() == ErrorKind::PeerFailed, !is_last, "{error}");
                                let after = (bits(&weights(&model)?), optimizer.finished_steps());
                                assert!(before == after, "{world:?}, {of:?}: {error}");
                            }
                            step(number, false)?;
                        }
                        let slot = optimizer.slot("a.weight", "v")?.flatten_all()?.to_vec1::<f32>()?;
                        Ok((bits(&weights(&model)?), bits(&slot)))
                    })
                };
                assert!(run(true) == run(false), "{world:?}, {of:?}");
            }
        }
    });
}

// INV-112
#[test]
fn a_local_step_that_fails_on_one_worker_is_an_error_of_all_before_the_outer_step() {
    for failed in [1, 2, 3] {
        let ends = watched(move || {
            on((2, 2), local(4, DILOCO), |strategy| {
                let model = model(strategy)?;
                let optimizer = Adam::new(&model.variables, 0.01)?;
                let is_last = strategy.world().worker() == 1;
                let step = |fails: bool| {
                    strategy.run(&model, |ctx, layers| {
                        if fails {
                            return Err(Error::other("out of memory"));
                        }
                        step_of(ctx, &optimizer, layers, 1, ctx.replica_id_in_sync_group())
                    })
                };
                for number in 1..=3 {
                    let fails = is_last && number == failed;
                    assert_eq!(step(fails).is_err(), fails);
                }
                // Both have made as many local steps, one of them in one step more.
                if is_last {
                    step(false)?;
                }
                let error = step(false).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}");
                step(false)?;
                Ok((error, bits(&weights(&model)?)))
            })
        });
        assert_eq!(ends[0].1, ends[1].1);
        let errors: Vec<_> = ends.into_iter().map(|(error, _)| error).collect();
        crate::multi_worker::one_message(&errors, &["have run 3, 4 steps", "a local step has failed"]);
    }
}

// INV-112
#[test]
fn workers_that_have_made_different_numbers_of_local_steps_do_not_finish_them() {
    for (first, second) in [(6, 7), (6, 5), (0, 1)] {
        let ends = watched(move || {
            on((2, 1), local(4, DILOCO), |strategy| {
                let model = model(strategy)?;
                let optimizer = Adam::new(&model.variables, 0.01)?;
                // Also if the first local step is the one that a worker lacks.
                strategy.run((), |_, ()| Ok(()))?;
                let steps = if strategy.is_chief() { first } else { second };
                for number in 1..=steps {
                    strategy.run(&model, |ctx, layers| {
                        step_of(ctx, &optimizer, layers, number, ctx.replica_id_in_sync_group())
                    })?;
                }
                let before = bits(&weights(&model)?);
                let error = optimizer.finish_local_steps().unwrap_err();
                assert_eq!(bits(&weights(&model)?), before);
                Ok(error)
            })
        });
        let counts = format!("({}, {}, by worker)", first % 4, second % 4);
        crate::multi_worker::one_message(&ends, &["local steps since the last outer step", &counts]);
    }
}

#[test]
fn a_lost_worker_is_an_error_of_the_others_before_the_outer_step() {
    watched(|| {
        let options = CommunicationOptions { timeout: Some(Duration::from_secs(20)), ..Default::default() };
        let builder = MultiWorkerMirroredStrategy::builder()
            .communication_options(options)
            .local_steps(local(4, DILOCO));
        let errors = builder.on_threads(crate::multi_worker::links(3, 1), 3, |strategy| {
            let model = model(strategy)?;
            let optimizer = Adam::new(&model.variables, 0.01)?;
            let steps = (1..=9).try_for_each(|number| {
                if strategy.world().worker() == 2 && number == 6 {
                    return Err(Error::other("exits"));
                }
                let made = strategy.run(&model, |ctx, layers| {
                    step_of(ctx, &optimizer, layers, number, ctx.replica_id_in_sync_group())
                });
                made.map(drop)
            });
            Ok((strategy.steps(), steps.unwrap_err()))
        });
        let errors = errors.unwrap();
        for (steps, error) in &errors[..2] {
            assert_eq!((*steps, error.kind()), (7, ErrorKind::PeerFailed), "{error}");
            assert!(error.to_string().contains("replica 2"), "{error}");
        }
    });
}

/// Flips one bit of a weight on worker 1, and returns the error of the next step; `None` if the step succeeds.
fn flipped(strategy: &Strategy, of: LocalSteps, after: u64) -> Result<Option<Error>> {
    let model = model(strategy)?;
    let optimizer = Adam::new(&model.variables, 0.01)?;
    let step = |number| {
        strategy.run(&model, |ctx, layers| {
            step_of(ctx, &optimizer, layers, number, ctx.replica_id_in_sync_group())
        })
    };
    for number in 1..=after {
        step(number)?;
    }
    if strategy.world().worker() == 1 {
        let mut values = weights(&model)?[..7].to_vec();
        values[3] = f32::from_bits(values[3].to_bits() ^ 1);
        let name = model.variables.names().into_iter().find(|name| name == "a.bias").unwrap();
        model.variables.set(&name, &Tensor::from_vec(values, 7, &Device::Cpu)?)?;
    }
    for number in after + 1..=after + of.steps {
        if let Err(error) = step(number) {
            return Ok(Some(error));
        }
    }
    Ok(None)
}

// INV-37
#[test]
fn weights_are_compared_after_outer_steps_alone() {
    watched(|| {
        for of in [local(2, Outer::Average), local(3, DILOCO)] {
            let run = |after| {
                let groups = groups::groups(crate::multi_worker::links(2, 1), 2, 1).unwrap();
                std::thread::scope(|scope| {
                    let start = |group| {
                        scope.spawn(move || {
                            let builder = MultiWorkerMirroredStrategy::builder().group(group);
                            let strategy = builder.local_steps(of).check_drift_every(1).build().unwrap();
                            flipped(&strategy, of, after).unwrap()
                        })
                    };
                    let threads: Vec<_> = groups.into_iter().map(start).collect();
                    threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
                })
            };
            let errors: Vec<_> = run(of.steps).into_iter().map(Option::unwrap).collect();
            let text = crate::multi_worker::one_message(&errors, &["a.bias", "worker 1"]);
            assert!(matches!(errors[0], Error::Drift { .. }), "{text}");
            assert!(run(of.steps + 1).iter().all(Option::is_none), "the workers agree afterwards");
        }
    });
}

#[test]
fn a_worker_without_examples_keeps_its_weights_until_the_outer_step() {
    watched(|| {
        let found = on((2, 1), local(2, Outer::Average), |strategy| {
            let model = strategy.replicate(|vb| vb.get_with_hints((), "w", Init::Const(0.)))?;
            let optimizer = Sgd::new(&model.variables, 1.)?;
            // The second batch has one row, which worker 0 gets.
            let rows = Dataset::from_slices(Tensor::new(&[1f32, 2., 4.], &Device::Cpu)?)?.batch(2);
            let mut all = Vec::new();
            for batch in &strategy.distribute_dataset(rows)? {
                let losses = strategy.run((&model, batch?), |ctx, (w, x)| {
                    let n = x.dim(0)?;
                    if n == 0 {
                        return optimizer.skip(ctx);
                    }
                    optimizer.minimize(ctx, x.broadcast_mul(w)?.mean_all()?.neg()?, n)
                })?;
                let loss = losses.values()[0].to_dtype(candle_core::DType::F32)?.to_scalar::<f32>()?;
                all.push((model.variables.get("w")?.to_scalar::<f32>()?, loss.is_nan()));
            }
            Ok((all, optimizer.finished_steps()))
        });
        // Worker 0 goes to 1 and 5, worker 1 stays at 2.
        assert_eq!(found, [(vec![(1., false), (3.5, false)], 2), (vec![(2., false), (3.5, true)], 1)]);
    });
}

#[test]
fn replicas_of_a_worker_train_in_lock_step() {
    watched(|| {
        on((2, 3), local(2, DILOCO), |strategy| {
            let model = model(strategy)?;
            let optimizer = Adam::new(&model.variables, 0.01)?;
            for number in 1..=5 {
                let losses = strategy.run(&model, |ctx, layers| {
                    // One of the worker's replicas has no examples.
                    let id = ctx.replica_id_in_sync_group();
                    let (loss, rows) = loss(layers, number, id)?;
                    let loss = optimizer.minimize(ctx, loss, if id % 3 == 1 { 0 } else { rows })?;
                    Ok(loss.to_scalar::<f32>()?)
                })?;
                let losses = losses.into_values();
                assert!(losses.iter().all(|loss| loss.to_bits() == losses[0].to_bits()), "{losses:?}");
            }
            Ok(())
        });
    });
}

// INV-106
#[test]
fn an_outer_step_that_only_some_workers_have_made_is_an_error_of_all() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("first");
        // With an outer step after each step, no other count differs.
        let errors = on((2, 1), local(1, DILOCO), |strategy| {
            let model = model(strategy)?;
            let optimizer = Adam::new(&model.variables, 0.01)?;
            let parts = Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer);
            let step = |number| {
                strategy.run(&model, |ctx, layers| {
                    step_of(ctx, &optimizer, layers, number, ctx.replica_id_in_sync_group())
                })
            };
            step(1)?;
            parts.save(&path)?;
            step(2)?;
            if strategy.world().worker() == 1 {
                // As if the second outer step had failed here alone.
                parts.restore_image(&Reader::open(&path)?)?;
            }
            let error = step(3).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}");
            parts.restore(&path)?;
            step(2)?;
            step(3)?;
            Ok((error, bits(&weights(&model)?)))
        });
        assert_eq!(errors[0].1, errors[1].1);
        let errors: Vec<_> = errors.into_iter().map(|(error, _)| error).collect();
        crate::multi_worker::one_message(&errors, &["outer steps since the last restore (2, 0, by worker)"]);
    });
}

// INV-106
#[test]
fn a_dropped_optimizer_with_local_steps_is_an_error_until_a_state_is_restored() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("first");
        let errors = on((2, 1), local(3, Outer::Average), |strategy| {
            let model = model(strategy)?;
            let counter = strategy.scope(|| Variable::new("counter", HostTensor::scalar(0i64)))?;
            let parts = Checkpoint::new().part("model", &model.variables).part("counter", &counter);
            parts.save(&path)?;
            let file = folder.path().join("first.safetensors");
            model.variables.save(&file)?;
            let train = |steps| {
                let optimizer = Adam::new(&model.variables, 0.01)?;
                (1..=steps).try_for_each(|number| {
                    let step = strategy.run(&model, |ctx, layers| {
                        step_of(ctx, &optimizer, layers, number, ctx.replica_id_in_sync_group())
                    });
                    step.map(drop)
                })
            };
            train(3)?;
            strategy.run((), |_, ()| Ok(()))?;
            train(2)?;
            let save = parts.save(folder.path().join("second")).unwrap_err();
            assert_eq!(save.kind(), ErrorKind::Usage, "{save}");
            let error = strategy.run((), |_, ()| Ok(())).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
            Checkpoint::new().part("counter", &counter).restore(&path)?;
            let again = strategy.run((), |_, ()| Ok(())).unwrap_err();
            assert_eq!(again.kind(), ErrorKind::Usage, "the weights still differ: {again}");
            parts.restore(&path)?;
            strategy.run((), |_, ()| Ok(()))?;
            train(1)?;
            model.variables.load(&file)?;
            strategy.run((), |_, ()| Ok(()))?;
            train(3)?;
            parts.save(folder.path().join("third"))?;
            Ok(error)
        });
        crate::multi_worker::one_message(&errors, &["was dropped 2 steps after its last outer step"]);
    });
}

// INV-106
#[test]
fn outer_steps_of_a_dropped_optimizer_still_count() {
    watched(|| {
        on((2, 1), local(3, Outer::Average), |strategy| {
            let model = model(strategy)?;
            let optimizer = Adam::new(&model.variables, 0.01)?;
            for number in 1..=3 {
                strategy.run(&model, |ctx, layers| {
                    step_of(ctx, &optimizer, layers, number, ctx.replica_id_in_sync_group())
                })?;
            }
            // Only the chief keeps it.
            let kept = Some(optimizer).filter(|_| strategy.is_chief());
            strategy.run((), |_, ()| Ok(()))?;
            drop(kept);
            strategy.run((), |_, ()| Ok(())).map(drop)
        });
    });
}

// INV-37
#[test]
fn all_elements_are_compared_if_optimizers_alternate() {
    watched(|| {
        let drifts = |element: usize| {
            let groups = groups::groups(crate::multi_worker::links(2, 1), 2, 1).unwrap();
            let worker = |strategy: &Strategy| -> Result<Option<String>> {
                let models = [model(strategy)?, model(strategy)?];
                let of = |at: usize| Adam::new(&models[at].variables, 0.01);
                let optimizers = [of(0)?, of(1)?];
                // No optimizer changes it, and it has nearly all elements.
                let other = strategy.replicate(|vb| vb.get_with_hints(40_000, "other", Init::Const(1.)))?;
                if strategy.world().worker() == 1 {
                    let mut values = vec![1f32; 40_000];
                    values[element] = 2.;
                    other.variables.set("other", &Tensor::from_vec(values, 40_000, &Device::Cpu)?)?;
                }
                // Both are at an outer step after each sixth step.
                for number in 0..36u64 {
                    let at = number as usize % 2;
                    let step = strategy.run(&models[at], |ctx, layers| {
                        step_of(ctx, &optimizers[at], layers, number, ctx.replica_id_in_sync_group())
                    });
                    match step {
                        Err(Error::Drift { variable, .. }) => return Ok(Some(variable)),
                        step => drop(step?),
                    }
                }
                Ok(None)
            };
            std::thread::scope(|scope| {
                let start = |group| {
                    scope.spawn(move || {
                        let builder = MultiWorkerMirroredStrategy::builder().group(group);
                        let of = local(3, Outer::Average);
                        let strategy = builder.local_steps(of).check_drift_every(12).build().unwrap();
                        worker(&strategy).unwrap()
                    })
                };
                let threads: Vec<_> = groups.into_iter().map(start).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
            })
        };
        for element in (1_000..40_000).step_by(3_000) {
            let found: Vec<Option<String>> = drifts(element);
            assert!(
                found.iter().all(|variable| variable.as_deref() == Some("other")),
                "{element}: {found:?}"
            );
        }
    });
}
