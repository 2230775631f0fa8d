//! The stack of modes, and the scopes of strategies.

use crate::contexts::{everywhere, floats, id, is_mixed, is_wrong_context, mirrored, one_device};
use candle_core::{Device, Tensor};
use candle_nn::{Module, VarBuilder, linear};
use distribute::context::{
    ContextKind, get_replica_context, get_strategy, has_strategy, in_cross_replica_context,
};
use distribute::data::Dataset;
use distribute::{Error, HostTensor, ReduceOp, Result, Strategy};
use distribute_testing::watched;
use std::sync::Mutex;

// 1. The mode stack

#[test]
fn ctx_1_each_thread_has_its_own_stack() {
    let check = |strategy: &Strategy| {
        strategy
            .scope(|| {
                std::thread::scope(|scope| {
                    scope.spawn(|| assert!(!has_strategy() && !in_cross_replica_context())).join().unwrap();
                });
                Ok(())
            })
            .unwrap();
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn ctx_2_queries_look_at_the_top_of_the_stack() {
    let check = |strategy: &Strategy| {
        let start = || {
            assert!(!has_strategy() && !in_cross_replica_context());
            let context = get_replica_context().unwrap();
            assert_eq!((context.replica_id_in_sync_group(), context.num_replicas_in_sync()), (0, 1));
            assert!(context.strategy() == &get_strategy());
        };
        start();
        // The default strategy enters no scope (SCOPE-5).
        let is_entered = *strategy != get_strategy();
        strategy
            .scope(|| {
                assert_eq!((has_strategy(), in_cross_replica_context()), (is_entered, is_entered));
                assert_eq!(get_replica_context().is_none(), is_entered, "{strategy}");
                assert!(get_strategy() == *strategy);
                strategy.run((), |_, ()| {
                    assert_eq!((has_strategy(), in_cross_replica_context()), (is_entered, false));
                    assert!(get_strategy() == *strategy && get_replica_context().is_some());
                    Ok(())
                })?;
                assert_eq!(in_cross_replica_context(), is_entered, "{strategy}");
                Ok(())
            })
            .unwrap();
        start();
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn ctx_3_transitions_of_the_table() {
    watched(|| {
        let strategy = mirrored(2);
        let seen = Mutex::new(Vec::new());
        let note = |place: &str| {
            let kind = match (in_cross_replica_context(), has_strategy()) {
                (true, _) => "cross-replica",
                (false, true) => "replica",
                (false, false) => "default",
            };
            seen.lock().unwrap().push(format!("{place}: {kind}"));
        };
        note("start");
        strategy
            .scope(|| {
                note("scope");
                strategy.run((), |ctx, ()| {
                    ctx.merge_call((), |strategy, _| {
                        note("merge");
                        strategy.run((), |ctx, ()| {
                            ctx.merge_call((), |_, _| {
                                note("nested merge");
                                Ok(())
                            })
                        })?;
                        note("merge again");
                        Ok(())
                    })?;
                    if id() == 0 {
                        note("run");
                    }
                    Ok(())
                })?;
                note("scope again");
                Ok(())
            })
            .unwrap();
        note("end");
        let expected = [
            "start: default",
            "scope: cross-replica",
            "merge: cross-replica",
            "nested merge: cross-replica",
            "merge again: cross-replica",
            "run: replica",
            "scope again: cross-replica",
            "end: default",
        ];
        assert_eq!(*seen.lock().unwrap(), expected);
    });
}

#[test]
fn ctx_5_the_stack_is_restored_after_errors_and_panics() {
    let check = |strategy: &Strategy| {
        let _ = strategy.scope(|| strategy.run((), |_, ()| Err::<(), _>(Error::other("no"))));
        assert!(!has_strategy(), "{strategy}");
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            strategy.scope(|| -> Result<()> { panic!("in scope") })
        }));
        assert!(caught.is_err() && !has_strategy(), "{strategy}");
        let _ = strategy.run((), |ctx, ()| ctx.merge_call((), |_, _| -> Result<i32> { panic!("in merge") }));
        assert!(!has_strategy() && !in_cross_replica_context(), "{strategy}");
        let after = strategy.run((), |_, ()| {
            // The replica threads are reused: nothing of the failed run is left on them.
            Ok(!in_cross_replica_context() && get_replica_context().is_some())
        });
        assert!(after.unwrap().iter().all(|is_clean| *is_clean), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

// 2. Scope

#[test]
fn scope_1_making_a_strategy_enters_nothing() {
    watched(|| drop(everywhere(|strategy| assert!(!has_strategy(), "{strategy}"))));
}

#[test]
fn scope_2_the_same_strategy_nests_and_only_the_outer_exit_leaves() {
    let check = |strategy: &Strategy| {
        let is_entered = *strategy != get_strategy();
        strategy
            .scope(|| {
                strategy.scope(|| {
                    assert_eq!(in_cross_replica_context(), is_entered, "{strategy}");
                    Ok(())
                })?;
                assert_eq!((has_strategy(), in_cross_replica_context()), (is_entered, is_entered));
                Ok(())
            })
            .unwrap();
        assert!(!has_strategy(), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn scope_3_another_strategy_is_an_error_that_names_both() {
    let (a, b) = (mirrored(2), one_device());
    let error = a.scope(|| b.scope(|| Ok(()))).unwrap_err();
    assert!(matches!(error, Error::MixedStrategies { operation: "scope", .. }));
    let text = error.to_string();
    assert!(
        text.contains("MirroredStrategy (2 replicas") && text.contains("OneDeviceStrategy (1 replica"),
        "{text}"
    );
    // Another object of the same kind is another strategy.
    assert!(is_mixed(a.scope(|| mirrored(2).scope(|| Ok(())))));
}

#[test]
fn scope_4_not_from_inside_a_replica_context() {
    let check = |strategy: &Strategy| {
        let inside = strategy.run((), |_, ()| strategy.scope(|| Ok(())));
        // Nothing is entered there, so nothing has to be left (SCOPE-5).
        if *strategy == get_strategy() {
            inside.unwrap();
            return;
        }
        let error = inside.unwrap_err();
        assert!(is_wrong_context(&error, ContextKind::CrossReplica, ContextKind::Replica), "{error}");
        assert!(error.to_string().contains("merge_call"), "{strategy}: {error}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn scope_5_the_default_strategy_pushes_nothing_and_does_not_nest() {
    let default = get_strategy();
    default
        .scope(|| {
            assert!(!has_strategy() && !in_cross_replica_context() && get_strategy() == default);
            Ok(())
        })
        .unwrap();
    let strategy = mirrored(2);
    assert!(is_mixed(strategy.scope(|| default.scope(|| Ok(())))));
}

#[test]
fn scope_7_variables_belong_to_the_strategy_that_made_them() {
    let check = |strategy: &Strategy| {
        let other = mirrored(2);
        let model = strategy.replicate(|vb: VarBuilder| linear(2, 1, vb)).unwrap();
        assert!(model.variables.strategy() == strategy);
        assert!(is_mixed(
            other.scope(|| Ok(strategy.replicate(|vb: VarBuilder| linear(2, 1, vb))?.models().len()))
        ));
        // If another strategy trained them, that strategy's replicas would differ.
        let optimizer = distribute::Sgd::new(&model.variables, 0.1).unwrap();
        let before = model.variables.sha256().unwrap();
        let step = |ctx: &distribute::ReplicaContext, model: &candle_nn::Linear| {
            optimizer.minimize(ctx, model.weight().sum_all()?, 1)
        };
        let first = model.models().values()[0].clone();
        assert!(is_mixed(other.run((), |ctx, ()| step(ctx, &first))), "{strategy}");
        assert_eq!(model.variables.sha256().unwrap(), before, "{strategy}");
        strategy.run(&model, step).unwrap();
        assert_ne!(model.variables.sha256().unwrap(), before, "{strategy}");
    };
    watched(move || {
        everywhere(check);
        let (strategy, other) = (mirrored(2), mirrored(2));
        let model = strategy.replicate(|vb: VarBuilder| linear(2, 1, vb)).unwrap();
        let optimizer = distribute::Sgd::new(&model.variables, 0.1).unwrap();
        let step = other.run(&model, |ctx, model| optimizer.minimize(ctx, model.weight().sum_all()?, 1));
        assert!(is_mixed(step));
    });
}

#[test]
fn scope_9_operations_enter_the_scope_automatically() {
    let check = |strategy: &Strategy| {
        let all = || -> Result<String> {
            let model = strategy.replicate(|vb: VarBuilder| linear(2, 1, vb))?;
            let ids = strategy.run(&model, |ctx, _| Ok(ctx.replica_id_in_sync_group() as i64))?;
            let sum = strategy.reduce(ReduceOp::Sum, &ids, None)?;
            let gathered = strategy.gather(ids.map(|id| HostTensor::vector(vec![id])), 0)?;
            Ok(format!("{sum} {gathered} {}", model.variables.sha256()?))
        };
        assert_eq!(all().unwrap(), strategy.scope(all).unwrap(), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

/// Checks the loops of `Model.fit`, `evaluate` and `predict`, which programs write themselves and which need no scope.
#[test]
fn scope_9_fit_evaluate_and_predict_give_the_same_in_a_scope_and_without() {
    let check = |strategy: &Strategy| {
        let x: Vec<f32> = (0..24).map(|i| (i * 7 % 12) as f32 / 6. - 1.).collect();
        let y: Vec<f32> = x.chunks(2).map(|x| 2. * x[0] - x[1]).collect();
        let x = Tensor::from_vec(x, (12, 2), &Device::Cpu).unwrap();
        let y = Tensor::from_vec(y, (12, 1), &Device::Cpu).unwrap();
        let all = || -> Result<(f32, f32, String, Vec<f32>)> {
            let model = strategy.replicate(|vb: VarBuilder| linear(2, 1, vb))?;
            let optimizer = distribute::Sgd::new(&model.variables, 0.1)?;
            let data = Dataset::from_slices((x.clone(), y.clone()))?.batch(5);
            let batches = strategy.distribute_dataset(data)?;
            let evaluate = || -> Result<f32> {
                let mut squares = 0.;
                for batch in &batches {
                    let sums = strategy.run((&model, batch?), |_, (model, (x, y))| {
                        Ok(model.forward(&x)?.sub(&y)?.sqr()?.sum_all()?.to_scalar::<f32>()?)
                    })?;
                    squares += strategy.reduce(ReduceOp::Sum, sums, None)?;
                }
                Ok(squares / 12.)
            };
            let before = evaluate()?;
            for _ in 0..30 {
                for batch in &batches {
                    strategy.run((&model, batch?), |ctx, (model, (x, y))| {
                        let loss = distribute::nn::loss::mse(&model.forward(&x)?, &y)?;
                        optimizer.minimize(ctx, loss, y.dim(0)?)
                    })?;
                }
            }
            let predictions = floats(&model.merged()?.forward(&x)?);
            Ok((before, evaluate()?, model.variables.sha256()?, predictions))
        };
        assert!(!has_strategy());
        let (before, after, weights, predictions) = all().unwrap();
        assert!(after < 0.01 * before, "{strategy}: {before} {after}");
        let off = predictions.iter().zip(floats(&y)).map(|(found, y)| (found - y).abs()).fold(0., f32::max);
        assert!(off < 0.3, "{strategy}: {off}");
        let inside = strategy.scope(all).unwrap();
        assert_eq!(inside, (before, after, weights, predictions), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}
