//! Calls in a wrong context (ERR-1, ERR-2, RUN-11, MC-6, SCOPE-4).

use crate::faults::support::{assert_message, fault_on, healthy, tensor};
use candle_core::{Tensor, Var};
use distribute::context::ContextKind;
use distribute::{Error, prelude::*};
use distribute_testing::watched;
use std::sync::Mutex;

/// Returns a replica context, and a loss whose graph contains an `all_reduce`, both from a run that has ended.
fn kept(strategy: &Strategy) -> (ReplicaContext, Tensor) {
    let results = strategy.run((), |ctx, ()| {
        let x = Var::from_tensor(&tensor(&[1., 2.]))?;
        let sum = ctx.all_reduce(ReduceOp::Sum, x.as_tensor().clone())?;
        Ok((ctx.clone(), sum.sqr()?.sum_all()?))
    });
    results.unwrap().into_values().remove(0)
}

#[test]
fn err_2_a_context_of_a_run_that_is_over_is_stale_everywhere() {
    watched(|| {
        for replicas in 2..=4 {
            let strategy = MirroredStrategy::cpus(replicas).unwrap();
            let (stale, _) = kept(&strategy);
            let is_stale = |error: Error, operation: &str| {
                assert_message(
                    &error,
                    &[
                        operation,
                        "another run or thread (replica 0, step 1)",
                        "use the one passed to the closure",
                    ],
                );
                assert!(
                    matches!(error.root_cause(), Error::StaleContext { replica: 0, step: 1, .. }),
                    "{error}"
                );
            };
            is_stale(stale.all_reduce(ReduceOp::Sum, 1i32).unwrap_err(), "all_reduce");
            is_stale(stale.all_gather(HostTensor::vector(vec![1i32]), 0).unwrap_err(), "all_gather");
            is_stale(stale.merge_call((), |_, _| Ok(())).unwrap_err(), "merge_call");
            // In another run on the same thread. The other replicas are released.
            is_stale(
                strategy
                    .run((), |ctx, ()| {
                        let used = if ctx.replica_id_in_sync_group() == 0 { &stale } else { ctx };
                        used.all_reduce(ReduceOp::Sum, 1i32)
                    })
                    .unwrap_err(),
                "all_reduce",
            );
            // On one of the program's own threads, during the run of the context.
            strategy
                .run((), |ctx, ()| {
                    let used = std::thread::scope(|s| s.spawn(|| ctx.all_reduce(ReduceOp::Sum, 1i32)).join())
                        .unwrap();
                    assert!(matches!(used, Err(Error::StaleContext { .. })), "{used:?}");
                    Ok(())
                })
                .unwrap();
            let in_scope = strategy.scope(|| stale.all_reduce(ReduceOp::Sum, 1i32)).unwrap_err();
            assert!(
                matches!(in_scope, Error::WrongContext { found: ContextKind::CrossReplica, .. }),
                "{in_scope}"
            );
            healthy(&strategy);
        }
    });
}

#[test]
fn another_replicas_context_is_stale() {
    watched(|| {
        let strategy = MirroredStrategy::cpus(2).unwrap();
        let shared = Mutex::new(None);
        let error = strategy.run((), |ctx, ()| {
            if ctx.replica_id_in_sync_group() == 0 {
                *shared.lock().unwrap() = Some(ctx.clone());
            }
            ctx.all_reduce(ReduceOp::Sum, 1i32)?;
            let used = shared.lock().unwrap().clone().unwrap();
            used.all_reduce(ReduceOp::Sum, 1i32)
        });
        let error = error.unwrap_err();
        assert!(matches!(error, Error::Replica { replica: 1, .. }), "{error}");
        assert!(matches!(error.root_cause(), Error::StaleContext { replica: 0, .. }), "{error}");
        healthy(&strategy);
    });
}

#[test]
fn backward_through_a_collective_outside_its_run_is_an_error_without_side_effects() {
    watched(|| {
        let strategy = MirroredStrategy::cpus(2).unwrap();
        let (_, loss) = kept(&strategy);
        let text = loss.backward().map(|_| ()).unwrap_err().to_string();
        for part in ["backward through a collective", "belongs inside its run", "replica 0, step 1"] {
            assert!(text.contains(part), "{text}");
        }
        // In the next run as well. candle only forwards the text of the error, but `run` returns the typed error.
        let error = strategy.run((), |ctx, ()| {
            if ctx.replica_id_in_sync_group() == 0 {
                loss.backward()?;
            }
            ctx.all_reduce(ReduceOp::Sum, 1i32)
        });
        assert!(matches!(error.unwrap_err().root_cause(), Error::StaleContext { step: 1, .. }));
        // If a closure ignores the error, later errors of candle are not confused with it.
        let _ = loss.backward();
        let error = strategy.run((), |_, ()| Ok((tensor(&[1.]) + tensor(&[1., 2.]))?)).unwrap_err();
        assert!(matches!(error.root_cause(), Error::Candle(_)), "{error}");
        let error = strategy.run((), |ctx, ()| {
            if ctx.replica_id_in_sync_group() == 0 {
                let _ = loss.backward();
            }
            Ok((tensor(&[1.]) + tensor(&[1., 2.]))?)
        });
        assert!(matches!(error.unwrap_err().root_cause(), Error::Candle(_)));
        healthy(&strategy);
    });
}

#[test]
fn a_collective_in_backward_of_one_replica_only_is_a_mismatch_with_its_forward_line() {
    watched(|| {
        let strategy = MirroredStrategy::cpus(3).unwrap();
        let error = fault_on(&strategy, |ctx| {
            let x = Var::from_tensor(&tensor(&[1., 2.]))?;
            let sum = ctx.all_reduce(ReduceOp::Sum, x.as_tensor().clone())?;
            match ctx.replica_id_in_sync_group() {
                1 => sum.sum_all()?.backward().map(|_| 0)?,
                _ => ctx.all_reduce(ReduceOp::Sum, 1i32)?,
            };
            Ok(())
        });
        assert_eq!(error.blame().unwrap().culprits, [1]);
        assert_message(
            &error,
            &["the gradient of call 1 leaf 0", "contexts.rs:", "replica 1 called", "replicas 0 and 2 called"],
        );
    });
}

#[test]
fn run_11_a_nested_run_is_a_wrong_context_with_advice() {
    watched(|| {
        for replicas in 2..=4 {
            let strategy = MirroredStrategy::cpus(replicas).unwrap();
            let error = fault_on(&strategy, |_| strategy.run((), |_, ()| Ok(())));
            let Error::WrongContext { operation, required, found, .. } = error.root_cause() else {
                panic!("{error}")
            };
            assert_eq!(
                (*operation, *required, *found),
                ("run", ContextKind::CrossReplica, ContextKind::Replica)
            );
            assert_message(&error, &["merge_call"]);
            let error =
                fault_on(&MirroredStrategy::cpus(replicas).unwrap(), |ctx| ctx.strategy().scope(|| Ok(())));
            assert!(matches!(error.root_cause(), Error::WrongContext { operation: "scope", .. }), "{error}");
        }
    });
}

#[test]
fn mc_6_run_inside_a_merge_function_is_allowed() {
    watched(|| {
        for replicas in 2..=4 {
            let strategy = MirroredStrategy::cpus(replicas).unwrap();
            let sums = strategy.run((), |ctx, ()| {
                ctx.merge_call(ctx.replica_id_in_sync_group() as i32, |strategy, ids| {
                    strategy.run(ids, |ctx, id| ctx.all_reduce(ReduceOp::Sum, id))
                })
            });
            let sum = (0..replicas as i32).sum::<i32>();
            assert!(sums.unwrap().values().iter().all(|s| *s == sum));
            // And a fault in the inner run is the error of the outer.
            let error = strategy.run((), |ctx, ()| {
                ctx.merge_call((), |strategy, _| {
                    strategy.run((), |ctx, ()| match ctx.replica_id_in_sync_group() {
                        0 => ctx.all_reduce(ReduceOp::Sum, 1i32),
                        _ => Ok(0),
                    })
                })
            });
            assert_message(&error.unwrap_err(), &["returned without making this call", "contexts.rs:"]);
            healthy(&strategy);
        }
    });
}

#[test]
fn scope_run_in_its_own_scope_is_allowed_and_in_another_is_mixed() {
    watched(|| {
        let strategy = MirroredStrategy::cpus(2).unwrap();
        let other = MirroredStrategy::cpus(3).unwrap();
        strategy
            .scope(|| {
                healthy(&strategy);
                Ok(())
            })
            .unwrap();
        let error = strategy.scope(|| other.run((), |_, ()| Ok(()))).unwrap_err();
        assert!(matches!(error, Error::MixedStrategies { operation: "run", .. }), "{error}");
        assert_message(
            &error,
            &["MirroredStrategy (2 replicas", "MirroredStrategy (3 replicas", "leave its scope first"],
        );
        let fresh = MirroredStrategy::cpus(2).unwrap();
        let error = fault_on(&fresh, |_| other.run((), |_, ()| Ok(())));
        assert!(matches!(error.root_cause(), Error::MixedStrategies { operation: "run", .. }), "{error}");
        healthy(&strategy);
        healthy(&other);
    });
}
