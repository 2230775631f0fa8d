//! Errors of one worker: all workers get the same message, and can continue if that is possible.

use distribute::cluster::{Blame, Fault};
use distribute::strategy::CommunicationOptions;
use distribute::{Error, PerReplica, ReduceOp, ReplicaContext, Result, Sgd};
use distribute_testing::watched;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The kind of wrong call that one replica makes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    OtherCall,
    OtherShape,
    OtherOp,
    Returns,
    Fails,
    Panics,
}

fn step(ctx: &ReplicaContext, wrong: Option<Wrong>) -> Result<f32> {
    ctx.all_reduce(ReduceOp::Sum, 1f32)?;
    match wrong {
        None => {}
        Some(Wrong::OtherCall) => return ctx.all_gather(vec![1f32], 0).map(|all| all[0]),
        Some(Wrong::OtherShape) => return ctx.all_reduce(ReduceOp::Sum, vec![1f32; 3]).map(|all| all[0]),
        Some(Wrong::OtherOp) => return ctx.all_reduce(ReduceOp::Mean, 1f32),
        Some(Wrong::Returns) => return Ok(0.),
        Some(Wrong::Fails) => return Err(Error::other("a file is missing")),
        Some(Wrong::Panics) => panic!("index out of bounds"),
    }
    ctx.all_reduce(ReduceOp::Sum, 1f32)
}

fn blame(error: &Error) -> Blame {
    error.blame().unwrap_or_else(|| panic!("no blame in {error}")).clone()
}

// INV-25
#[test]
fn after_any_fault_of_one_replica_all_workers_get_one_message_and_the_next_step_works() {
    let cases = [
        (Wrong::OtherCall, Fault::Mismatch),
        (Wrong::OtherShape, Fault::Mismatch),
        (Wrong::OtherOp, Fault::Mismatch),
        (Wrong::Returns, Fault::Returned),
        (Wrong::Fails, Fault::Failed),
        (Wrong::Panics, Fault::Failed),
    ];
    for (wrong, fault) in cases {
        for (workers, replicas) in [(2, 1), (3, 1), (2, 2), (3, 2)] {
            watched(move || {
                let culprit = workers * replicas - 1;
                let outcomes = crate::multi_worker::on_threads(workers, replicas, |strategy| {
                    let failed = strategy.run((), |ctx, ()| {
                        step(ctx, (ctx.replica_id_in_sync_group() == culprit).then_some(wrong))
                    });
                    let after = strategy.run((), |ctx, ()| step(ctx, None))?.into_values();
                    assert_eq!(after, vec![(workers * replicas) as f32; replicas]);
                    Ok(failed.err())
                });
                let errors: Vec<Error> = outcomes.unwrap().into_iter().map(Option::unwrap).collect();
                let last = &errors[errors.len() - 1];
                if matches!(wrong, Wrong::Fails | Wrong::Panics) {
                    assert!(matches!(last.root_cause(), Error::Other(_) | Error::Panicked { .. }), "{last}");
                    assert!(last.to_string().contains(&format!("replica {culprit} ")), "{last}");
                }
                let victims =
                    if matches!(wrong, Wrong::Fails | Wrong::Panics) { workers - 1 } else { errors.len() };
                let first = blame(&errors[0]);
                assert_eq!(first.fault, fault, "{first}");
                // If one of two replicas differs, the culprit is unknown.
                if !(fault == Fault::Mismatch && workers * replicas == 2) {
                    assert_eq!(first.culprits, [culprit], "{wrong:?}: {first}");
                }
                for error in &errors[..victims] {
                    assert_eq!(blame(error).to_string(), first.to_string());
                }
            });
        }
    }
}

// INV-31
#[test]
fn a_merge_function_that_fails_alone_gives_all_one_message_and_the_step_continues() {
    watched(|| {
        let all = crate::multi_worker::on_threads(3, 2, |strategy| {
            let texts = strategy.run((), |ctx, ()| {
                let merged = ctx.merge_call(1f32, |strategy, ones| {
                    if strategy.world().worker() == 1 {
                        return Err(Error::other("no such file"));
                    }
                    strategy.reduce_to(ReduceOp::Sum, ones, "cpu:0")
                });
                // All replicas have handled the error, so they make this call and the next step.
                assert_eq!(ctx.all_reduce(ReduceOp::Sum, 1f32)?, 6.);
                Ok(merged.map(drop).unwrap_err().to_string())
            })?;
            assert_eq!(strategy.run((), |ctx, ()| step(ctx, None))?.into_values(), [6.; 2]);
            Ok(texts.into_values())
        });
        let mut all = all.unwrap();
        assert_eq!(all.remove(1)[0], "no such file");
        let text = all[0][0].clone();
        assert!(all.iter().flatten().all(|other| *other == text), "{all:#?}");
        assert!(text.contains("replicas 2 and 3 failed"), "{text}");
    });
}

// INV-31
#[test]
fn a_worker_that_fails_between_steps_does_not_wait() {
    watched(|| {
        let (tell, told) = channel();
        let (tell, told) = (Mutex::new(tell), Mutex::new(told));
        let errors = crate::multi_worker::on_threads(3, 1, |strategy| {
            let worker = strategy.world().worker();
            let parts = if worker == 1 { vec![] } else { vec![1f32] };
            if worker != 1 {
                // Until worker 1 has its error.
                told.lock().unwrap().recv_timeout(Duration::from_secs(30)).map_err(Error::other)?;
            }
            let error = strategy.reduce(ReduceOp::Sum, PerReplica::from_values(parts), None).unwrap_err();
            if worker == 1 {
                (0..2).try_for_each(|_| tell.lock().unwrap().send(()).map_err(Error::other))?;
            }
            assert_eq!(strategy.run((), |ctx, ()| step(ctx, None))?.into_values(), [3.]);
            Ok(error)
        });
        let errors = errors.unwrap();
        assert_eq!(blame(&errors[0]), blame(&errors[2]));
        assert_eq!((blame(&errors[0]).fault, blame(&errors[0]).culprits), (Fault::Failed, vec![1]));
        assert!(errors[1].blame().is_none(), "{}", errors[1]);
    });
}

#[test]
fn a_worker_that_times_out_is_named_on_all_and_the_next_step_works() {
    watched(|| {
        let options =
            CommunicationOptions { timeout: Some(Duration::from_millis(300)), ..Default::default() };
        let (tell, told) = channel();
        let (tell, told) = (Mutex::new(tell), Arc::new(Mutex::new(told)));
        let errors = crate::multi_worker::on_threads_with(options, 3, 1, |strategy| {
            let worker = strategy.world().worker();
            let failed = strategy.run((), |ctx, ()| {
                if worker == 1 {
                    // Until the others have given it up.
                    for _ in 0..2 {
                        told.lock().unwrap().recv_timeout(Duration::from_secs(30)).map_err(Error::other)?;
                    }
                }
                let result = ctx.all_reduce(ReduceOp::Sum, 1f32);
                if worker != 1 {
                    tell.lock().unwrap().send(()).map_err(Error::other)?;
                }
                result
            });
            Ok(failed.unwrap_err())
        });
        for error in errors.unwrap() {
            let blame = blame(&error);
            assert_eq!((blame.fault, blame.culprits.as_slice()), (Fault::TimedOut, &[1][..]), "{blame}");
        }
    });
}

#[test]
fn a_worker_that_has_ended_is_lost_to_the_others_at_once() {
    watched(|| {
        let error = crate::multi_worker::on_threads(3, 2, |strategy| -> Result<()> {
            strategy.run((), |ctx, ()| step(ctx, None))?;
            if strategy.world().worker() == 2 {
                return Err(Error::other("out of disk"));
            }
            let error = strategy.run((), |ctx, ()| step(ctx, None)).unwrap_err();
            let blame = blame(&error);
            assert_eq!((blame.fault, blame.culprits.as_slice()), (Fault::Lost, &[4, 5][..]), "{blame}");
            Err(error)
        });
        let error = error.unwrap_err();
        assert!(matches!(error, Error::Worker { worker: 2, .. }), "{error}");
        assert!(error.to_string().contains("out of disk"), "{error}");
    });
}

/// Checks that the end of a worker is noticed at once after each of several kinds of calls, such as a save.
#[test]
fn a_worker_that_has_ended_after_a_training_is_lost_to_the_others_at_once() {
    use distribute::data::Dataset;
    use distribute::{Checkpoint, Variable};
    type Part = fn(&distribute::Strategy) -> Result<()>;
    let parts: [(&str, Part); 5] = [
        ("variable", |strategy| {
            let weight = strategy.scope(|| Variable::new("weight", 1f32))?;
            weight.read::<f32>().map(drop)
        }),
        ("model", |strategy| {
            let model = strategy.replicate(|vb: candle_nn::VarBuilder| candle_nn::linear(2, 1, vb))?;
            Sgd::new(&model.variables, 0.1).map(drop)
        }),
        ("data", |strategy| {
            let data = strategy.distribute_dataset(Dataset::range(40).batch(4))?;
            data.iter().take(2).try_for_each(|step| step.map(drop))
        }),
        ("mapped data", |strategy| {
            let data = Dataset::range(40).try_map(|x: i64| Ok::<_, String>(x)).batch(4);
            strategy.distribute_dataset(data)?.iter().take(2).try_for_each(|step| step.map(drop))
        }),
        ("checkpoint", |strategy| {
            let folder = tempfile::tempdir().map_err(Error::other)?;
            Checkpoint::new().part("steps", strategy).save(folder.path().join("saved"))
        }),
    ];
    for (what, part) in parts {
        watched(move || {
            let options =
                CommunicationOptions { timeout: Some(Duration::from_secs(3)), ..Default::default() };
            let texts = crate::multi_worker::on_threads_with(options, 2, 2, |strategy| {
                part(strategy)?;
                strategy.run((), |ctx, ()| step(ctx, None))?;
                if strategy.world().worker() == 1 {
                    return Ok(None);
                }
                let error = strategy.run((), |ctx, ()| step(ctx, None)).unwrap_err();
                Ok(Some((blame(&error).fault, error.to_string())))
            });
            let texts = texts.unwrap();
            let (fault, text) = texts[0].as_ref().unwrap();
            assert_eq!(*fault, Fault::Lost, "{what}: {text}");
        });
    }
}

#[test]
fn a_worker_that_returns_its_model_has_finished() {
    watched(|| {
        let options = CommunicationOptions { timeout: Some(Duration::from_secs(20)), ..Default::default() };
        let fault = crate::multi_worker::on_threads_with(options, 2, 2, |strategy| {
            let model = strategy.replicate(|vb: candle_nn::VarBuilder| candle_nn::linear(2, 1, vb))?;
            strategy.run((), |ctx, ()| step(ctx, None))?;
            if strategy.world().worker() == 1 {
                return Ok((Some(model), None));
            }
            let error = strategy.run((), |ctx, ()| step(ctx, None)).unwrap_err();
            Ok((None, Some(blame(&error).fault)))
        });
        assert_eq!(fault.unwrap()[0].1, Some(Fault::Lost));
    });
}

#[test]
fn optimizers_and_steps_that_differ_between_workers_are_errors() {
    watched(|| {
        let errors = crate::multi_worker::on_threads(2, 2, |strategy| {
            let worker = strategy.world().worker();
            let model = strategy.replicate(|vb: candle_nn::VarBuilder| candle_nn::linear(2, 1, vb))?;
            let (a, b) = (Sgd::new(&model.variables, 0.1)?, Sgd::new(&model.variables, 0.1)?);
            let train = |optimizer: &Sgd, n: usize| {
                strategy.run(&model, |ctx, linear| {
                    let x = candle_core::Tensor::ones(
                        (n, 2),
                        candle_core::DType::F32,
                        &candle_core::Device::Cpu,
                    )?;
                    let loss = candle_nn::Module::forward(linear, &x)?.mean_all()?;
                    optimizer.minimize(ctx, loss, n)
                })
            };
            let other = train(if worker == 0 { &a } else { &b }, 2).unwrap_err();
            assert_eq!(blame(&other).fault, Fault::Mismatch, "{other}");
            train(&a, 2)?;
            assert_eq!((a.finished_steps(), b.finished_steps()), (1, 0));
            Ok(other.blame().map(ToString::to_string))
        });
        let errors = errors.unwrap();
        assert_eq!(errors[0], errors[1]);
    });
}

#[test]
fn impossible_worlds_are_refused() {
    for (workers, replicas, text) in [(0, 1, "at least one worker"), (1, 0, "at least one replica")] {
        let error = crate::multi_worker::on_threads(workers, replicas, |_| Ok(())).unwrap_err();
        assert!(
            matches!(error, Error::InvalidArgument { .. }) && error.to_string().contains(text),
            "{error}"
        );
    }
    let error = crate::multi_worker::on_threads(1 << 40, 1 << 40, |_| Ok(())).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
}

// MW-5
#[test]
fn a_strategy_reports_how_its_cluster_was_detected() {
    use distribute::cluster::{ClusterSpec, Job, resolver::SimpleClusterResolver};
    use distribute::{MirroredStrategy, MultiWorkerMirroredStrategy};
    let cluster: ClusterSpec = r#"{"chief": ["localhost:1"], "ps": ["localhost:2"]}"#.parse().unwrap();
    let of = |job: Job| {
        let resolver = SimpleClusterResolver::new(cluster.clone()).with_task(job.task(0));
        MultiWorkerMirroredStrategy::builder().cluster_resolver(resolver).replicas(2).build()
    };
    let chief = of(Job::Chief).unwrap();
    assert_eq!((chief.world().workers(), chief.world().replicas()), (1, 2));
    assert_eq!(chief.cluster_resolver().unwrap().task_type(), Some(Job::Chief));
    let error = of(Job::Ps).unwrap_err().to_string();
    assert!(error.contains("ps 0") && error.contains("distribute::between_graph::serve"), "{error}");
    assert!(MirroredStrategy::cpus(2).unwrap().cluster_resolver().is_none());
}
