//! The rules of contexts, `run`, merging, distributed values and collectives, one test for each, named by the rule.
//!
//! Where a rule describes a trap of TensorFlow, the test asserts what is done here instead.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{VarBuilder, linear};
use distribute::cluster::Fault;
use distribute::tensor::DType as HostDType;
use distribute::{
    ContextKind, Error, HostTensor, IndexedSlices, Leaf, Mirrored, MirroredStrategy, Nest, OneDeviceStrategy,
    PerReplica, ReduceOp, Result, Strategy, Tree, ValueContext, get_replica_context, get_strategy,
    has_strategy, in_cross_replica_context,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, mpsc};
use std::time::Duration;

/// Fails a test that hangs.
fn watched(body: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        body();
        let _ = done.send(());
    });
    match wait.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the test hangs"),
        _ => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

fn mirrored(replicas: usize) -> Strategy {
    MirroredStrategy::cpus(replicas).unwrap().into()
}

fn one_device() -> Strategy {
    OneDeviceStrategy::new("cpu:0").unwrap().into()
}

fn tensor(values: &[f32]) -> Tensor {
    Tensor::new(values, &Device::Cpu).unwrap()
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn host<T: distribute::tensor::Element>(values: Vec<T>, shape: impl Into<Vec<usize>>) -> HostTensor {
    HostTensor::new(values, shape).unwrap()
}

fn per_replica<T>(values: impl IntoIterator<Item = T>) -> PerReplica<T> {
    PerReplica::from_values(values.into_iter().collect())
}

/// Of two replicas.
fn id() -> usize {
    get_replica_context().unwrap().replica_id_in_sync_group()
}

fn is_wrong_context(error: &Error, required: ContextKind, found: ContextKind) -> bool {
    matches!(error.root_cause(), Error::WrongContext { required: r, found: f, .. } if (*r, *f) == (required, found))
}

fn is_mixed<T: std::fmt::Debug>(result: Result<T>) -> bool {
    matches!(result.unwrap_err().root_cause(), Error::MixedStrategies { .. })
}

// 1. The mode stack

#[test]
fn ctx_1_each_thread_has_its_own_stack() {
    watched(|| {
        let strategy = mirrored(2);
        strategy
            .scope(|| {
                std::thread::scope(|scope| {
                    scope.spawn(|| assert!(!has_strategy() && !in_cross_replica_context())).join().unwrap();
                });
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn ctx_2_queries_look_at_the_top_of_the_stack() {
    watched(|| {
        let strategy = mirrored(2);
        let start = || {
            assert!(!has_strategy() && !in_cross_replica_context());
            let context = get_replica_context().unwrap();
            assert_eq!((context.replica_id_in_sync_group(), context.num_replicas_in_sync()), (0, 1));
            assert!(context.strategy() == &get_strategy());
        };
        start();
        strategy
            .scope(|| {
                assert!(has_strategy() && in_cross_replica_context() && get_replica_context().is_none());
                assert!(get_strategy() == strategy);
                strategy.run((), |_, ()| {
                    assert!(has_strategy() && !in_cross_replica_context() && get_strategy() == strategy);
                    assert!(get_replica_context().is_some());
                    Ok(())
                })?;
                assert!(in_cross_replica_context());
                Ok(())
            })
            .unwrap();
        start();
    });
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
    watched(|| {
        let strategy = mirrored(2);
        let _ = strategy.scope(|| strategy.run((), |_, ()| Err::<(), _>(Error::other("no"))));
        assert!(!has_strategy());
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            strategy.scope(|| -> Result<()> { panic!("in scope") })
        }));
        assert!(caught.is_err() && !has_strategy());
        let _ = strategy.run((), |ctx, ()| ctx.merge_call((), |_, _| -> Result<i32> { panic!("in merge") }));
        assert!(!has_strategy() && !in_cross_replica_context());
        let _ = strategy.run((), |_, ()| {
            // The replica threads are reused: nothing of the failed run is left on them.
            assert!(!in_cross_replica_context() && get_replica_context().is_some());
            Ok(())
        });
    });
}

// 2. Scope

#[test]
fn scope_1_making_a_strategy_enters_nothing() {
    let _strategy = mirrored(2);
    assert!(!has_strategy());
}

#[test]
fn scope_2_the_same_strategy_nests_and_only_the_outer_exit_leaves() {
    let strategy = mirrored(2);
    strategy
        .scope(|| {
            strategy.scope(|| {
                assert!(in_cross_replica_context());
                Ok(())
            })?;
            assert!(has_strategy() && in_cross_replica_context());
            Ok(())
        })
        .unwrap();
    assert!(!has_strategy());
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
    watched(|| {
        let strategy = mirrored(2);
        let error = strategy.run((), |_, ()| strategy.scope(|| Ok(()))).unwrap_err();
        assert!(is_wrong_context(&error, ContextKind::CrossReplica, ContextKind::Replica), "{error}");
        assert!(error.to_string().contains("merge_call"), "{error}");
    });
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
    watched(|| {
        let (strategy, other) = (mirrored(2), mirrored(2));
        let model = strategy.replicate(|vb: VarBuilder| linear(2, 1, vb)).unwrap();
        assert!(model.variables.strategy() == &strategy);
        assert!(is_mixed(
            other.scope(|| Ok(strategy.replicate(|vb: VarBuilder| linear(2, 1, vb))?.models().len()))
        ));
        // Training them under another strategy would leave that one's replicas out of step.
        let optimizer = distribute::Sgd::new(&model.variables, 0.1).unwrap();
        let before = model.variables.sha256().unwrap();
        let step = |strategy: &Strategy| {
            strategy.run(&model, |ctx, model| optimizer.minimize(ctx, model.weight().sum_all()?, 1))
        };
        assert!(is_mixed(step(&other)));
        assert_eq!(model.variables.sha256().unwrap(), before);
        step(&strategy).unwrap();
        assert_ne!(model.variables.sha256().unwrap(), before);
    });
}

#[test]
fn scope_9_operations_enter_the_scope_themselves() {
    watched(|| {
        let strategy = mirrored(2);
        let all = || -> Result<String> {
            let model = strategy.replicate(|vb: VarBuilder| linear(2, 1, vb))?;
            let ids = strategy.run(&model, |ctx, _| Ok(ctx.replica_id_in_sync_group() as i64))?;
            let sum = strategy.reduce(ReduceOp::Sum, &ids, None)?;
            let gathered = strategy.gather(ids.map(|id| HostTensor::vector(vec![id])), 0)?;
            Ok(format!("{sum} {gathered} {}", model.variables.sha256()?))
        };
        assert_eq!(all().unwrap(), strategy.scope(all).unwrap());
    });
}

// 3. Which error

#[test]
fn err_1_cross_replica_operations_inside_of_run_say_what_to_call() {
    watched(|| {
        let strategy = mirrored(2);
        let wrong = |error: Error, advice: &str| {
            assert!(is_wrong_context(&error, ContextKind::CrossReplica, ContextKind::Replica), "{error}");
            assert!(error.to_string().contains(advice), "{error}");
        };
        wrong(
            strategy
                .run((), |_, ()| strategy.reduce(ReduceOp::Sum, per_replica([1f32, 2.]), None))
                .unwrap_err(),
            "all_reduce",
        );
        wrong(
            strategy
                .run((), |_, ()| strategy.replicate(|vb: VarBuilder| linear(1, 1, vb)).map(|_| ()))
                .unwrap_err(),
            "before run",
        );
        // ERR-1c: of another strategy.
        let other = mirrored(3);
        assert!(is_mixed(strategy.run((), |_, ()| other.reduce(ReduceOp::Mean, 1f32, None))));
        assert!(is_mixed(strategy.scope(|| other.reduce(ReduceOp::Mean, 1f32, None))));
        assert!(is_mixed(strategy.scope(|| other.gather(1f32, 0))));
        assert!(is_mixed(strategy.scope(|| other.run((), |_, ()| Ok(())))));
    });
}

#[test]
fn err_2_replica_operations_need_the_current_context() {
    watched(|| {
        let strategy = mirrored(2);
        let kept = Mutex::new(None);
        strategy
            .run((), |ctx, ()| {
                *kept.lock().unwrap() = Some(ctx.clone());
                Ok(())
            })
            .unwrap();
        let old = kept.into_inner().unwrap().unwrap();
        // Outside of any run there is no strategy to mix it with: its run is over.
        let stale = |error: Error| matches!(error, Error::StaleContext { step: 1, .. });
        assert!(stale(old.devices().unwrap_err()));
        assert!(stale(old.all_reduce(ReduceOp::Sum, 1f32).unwrap_err()));
        // In cross-replica context there is none.
        let error = strategy.scope(|| old.merge_call(1i32, |_, _| Ok(1i32))).unwrap_err();
        assert!(is_wrong_context(&error, ContextKind::Replica, ContextKind::CrossReplica), "{error}");
        // A later run of the same strategy: this one belongs to an earlier one.
        let error = strategy.run((), |_, ()| old.all_gather(HostTensor::vector(vec![1f32]), 0)).unwrap_err();
        assert!(
            matches!(error.root_cause(), Error::StaleContext { operation: "all_gather", step: 1, .. }),
            "{error}"
        );
        // A run of another strategy.
        assert!(is_mixed(mirrored(2).run((), |_, ()| old.devices())));
        // And the context of another thread of the same run.
        let shared = Mutex::new(None);
        let error = strategy.run((), |ctx, ()| {
            if ctx.replica_id_in_sync_group() == 0 {
                *shared.lock().unwrap() = Some(ctx.clone());
            }
            ctx.all_reduce(ReduceOp::Sum, 0f32)?;
            let zero = shared.lock().unwrap().clone().unwrap();
            zero.devices()
        });
        assert!(matches!(error.unwrap_err().root_cause(), Error::StaleContext { .. }));
    });
}

#[test]
fn err_3_gather_in_replica_context_points_at_all_gather() {
    watched(|| {
        let strategy = mirrored(2);
        let error = strategy
            .run((), |_, ()| strategy.gather(HostTensor::vector(vec![1]), 0))
            .unwrap_err()
            .to_string();
        assert!(error.contains("all_gather"), "{error}");
    });
}

#[test]
fn err_4_the_default_context_is_accepted_everywhere() {
    watched(|| {
        let strategy = mirrored(2);
        assert!(!has_strategy());
        let values = strategy.run((), |_, ()| Ok(tensor(&[1., 2.]))).unwrap();
        assert_eq!(floats(&strategy.reduce(ReduceOp::Sum, &values, None).unwrap()), [2., 4.]);
        assert_eq!(floats(&strategy.gather(&values, 0).unwrap()), [1., 2., 1., 2.]);
    });
}

// 4. run

#[test]
fn run_3_each_replica_gets_its_part_of_what_is_distributed_and_all_of_the_rest() {
    watched(|| {
        let strategy = mirrored(2);
        let list = vec![per_replica([1, 2]), per_replica([3, 4])];
        let args = (per_replica(["a", "b"]), (list, Mirrored::new(5)), (tensor(&[6.]), 7u8, "x".to_string()));
        let seen = strategy.run(args, |_, (name, (list, five), (t, seven, x))| {
            Ok(format!("{name} {list:?} {five} {:?} {seven} {x}", floats(&t)))
        });
        assert_eq!(seen.unwrap().values(), ["a [1, 3] 5 [6.0] 7 x", "b [2, 4] 5 [6.0] 7 x"]);
        // By reference nothing is copied; and of a model each replica gets its own.
        let (values, model) =
            (per_replica([10, 20]), strategy.replicate(|vb: VarBuilder| linear(1, 1, vb)).unwrap());
        let same = strategy.run((&values, &model), |ctx, (value, mine)| {
            let id = ctx.replica_id_in_sync_group();
            Ok(std::ptr::eq(value, &values.values()[id]) && std::ptr::eq(mine, &model.models().values()[id]))
        });
        assert_eq!(same.unwrap().values(), [true, true]);
    });
}

#[test]
fn run_4_what_the_context_says_inside() {
    watched(|| {
        let strategy = mirrored(3);
        for step in 1..=2 {
            let seen = strategy.run((), |ctx, ()| {
                assert!(ctx.strategy() == &strategy && get_strategy() == strategy);
                assert_eq!((ctx.num_replicas_in_sync(), ctx.step()), (3, step));
                assert_eq!(
                    get_replica_context().unwrap().replica_id_in_sync_group(),
                    ctx.replica_id_in_sync_group()
                );
                Ok(ctx.replica_id_in_sync_group())
            });
            assert_eq!(seen.unwrap().values(), [0, 1, 2]);
        }
    });
}

#[test]
fn run_6_replicas_run_at_once_with_merge_call_as_the_barrier() {
    watched(|| {
        let strategy = mirrored(3);
        // Ends only if all three are inside at once: TensorFlow runs them one after another.
        let (meet, before, order) = (Barrier::new(3), AtomicUsize::new(0), Mutex::new(Vec::new()));
        strategy
            .run((), |ctx, ()| {
                meet.wait();
                before.fetch_add(1, Ordering::SeqCst);
                ctx.merge_call((), |_, _| {
                    order.lock().unwrap().push(before.load(Ordering::SeqCst));
                    Ok(())
                })?;
                order.lock().unwrap().push(9);
                Ok(())
            })
            .unwrap();
        assert_eq!(*order.lock().unwrap(), [3, 9, 9, 9]);
    });
}

#[test]
fn run_7_the_error_of_a_replica_reaches_the_caller_with_its_kind_and_the_replica() {
    #[derive(Debug, thiserror::Error, PartialEq)]
    #[error("out of cheese")]
    struct Cheese;

    watched(|| {
        let strategy = mirrored(3);
        for guilty in 0..3 {
            let error = strategy.run((), |ctx, ()| {
                if ctx.replica_id_in_sync_group() == guilty {
                    return Err(Error::other(Cheese));
                }
                ctx.all_reduce(ReduceOp::Sum, 1f32)
            });
            let error = error.unwrap_err();
            let Error::Replica { replica, device, source, .. } = &error else { panic!("{error}") };
            assert_eq!(
                (*replica, device.as_str()),
                (guilty, &*format!("/job:localhost/replica:0/task:0/device:CPU:{guilty}"))
            );
            let Error::Other(cause) = source.root_cause() else { panic!("{source}") };
            assert_eq!(cause.downcast_ref::<Cheese>(), Some(&Cheese));
        }
        // Of several the lowest, and all have run (TF: those after the first never start).
        let ran = AtomicUsize::new(0);
        let error = strategy.run((), |ctx, ()| -> Result<()> {
            ran.fetch_add(1, Ordering::SeqCst);
            Err(Error::other(format!("replica {}", ctx.replica_id_in_sync_group())))
        });
        assert_eq!(error.unwrap_err().root_cause().to_string(), "replica 0");
        assert_eq!(ran.into_inner(), 3);
    });
}

#[test]
fn run_9_later_replicas_find_what_replica_0_created_by_name() {
    watched(|| {
        let strategy = mirrored(2);
        let model = strategy.replicate(|vb: VarBuilder| linear(2, 1, vb.pp("fc"))).unwrap();
        assert_eq!(model.variables.names(), ["fc.bias", "fc.weight"]);
        let [a, b] = model.models().values() else { panic!() };
        assert_eq!(a.weight().id(), b.weight().id());
        // A name asked for twice is one variable; with another shape or dtype it is an error.
        let twice =
            strategy.replicate(|vb: VarBuilder| Ok::<_, Error>((vb.get(2, "w")?, vb.get(2, "w")?))).unwrap();
        assert_eq!(twice.variables.names(), ["w"]);
        let error = strategy
            .replicate(|vb: VarBuilder| Ok::<_, Error>((vb.get(2, "w")?, vb.get(3, "w")?)))
            .unwrap_err();
        assert!(error.to_string().contains("variable w was created with shape [2]"), "{error}");
        let error = strategy.replicate(|vb: VarBuilder| {
            Ok::<_, Error>((vb.get(2, "w")?, vb.to_dtype(DType::F64).get(2, "w")?))
        });
        assert!(error.unwrap_err().to_string().contains("F64"));
    });
}

#[test]
fn run_10_variables_that_only_some_replicas_ask_for_are_an_error_naming_replica_and_variable() {
    watched(|| {
        let strategy = mirrored(2);
        let build = |extra_on: usize| {
            let calls = AtomicUsize::new(0);
            strategy.replicate(move |vb: VarBuilder| -> Result<()> {
                vb.get(1, "common")?;
                if calls.fetch_add(1, Ordering::SeqCst) == extra_on {
                    vb.get(1, "extra")?;
                }
                Ok(())
            })
        };
        // TensorFlow sees only the second of these.
        for (extra_on, text) in
            [(0, r#"did not ask for the variables ["extra"]"#), (1, r#"asked for ["extra"]"#)]
        {
            let error = build(extra_on).unwrap_err().to_string();
            assert!(error.contains("replica 1") && error.contains(text), "{error}");
        }
        // Whether a variable exists has one answer on all replicas, whoever was first to build.
        let model = strategy.replicate(|vb: VarBuilder| -> Result<bool> {
            let old_name = vb.contains_tensor("gamma");
            vb.get(1, if old_name { "beta" } else { "gamma" })?;
            Ok(old_name)
        });
        assert_eq!(model.unwrap().models().values(), [false, false]);
    });
}

#[test]
fn run_11_run_inside_of_its_own_run_is_an_error() {
    watched(|| {
        let strategy = mirrored(2);
        let error = strategy.run((), |_, ()| strategy.run((), |_, ()| Ok(())).map(|_| ())).unwrap_err();
        assert!(is_wrong_context(&error, ContextKind::CrossReplica, ContextKind::Replica), "{error}");
        assert!(error.to_string().contains("merge_call"), "{error}");
    });
}

#[test]
fn run_12_one_device_calls_the_closure_once_and_still_gives_a_per_replica() {
    let strategy = one_device();
    let thread = std::thread::current().id();
    let values = strategy.run(per_replica([3]), |ctx, three| {
        assert_eq!(std::thread::current().id(), thread);
        Ok((ctx.replica_id_in_sync_group(), ctx.num_replicas_in_sync(), three))
    });
    assert_eq!(values.unwrap().values(), [(0, 1, 3)]);
}

// 4.1. Merging

#[test]
fn merge_1_to_3_lists_tuples_and_maps_keep_their_structure() {
    watched(|| {
        #[derive(Clone, Debug, PartialEq, Nest)]
        struct Named {
            loss: f32,
            count: i64,
        }
        let strategy = mirrored(2);
        let results = strategy.run((), |ctx, ()| {
            let r = ctx.replica_id_in_sync_group() as i64;
            let map = BTreeMap::from([("b".to_string(), r), ("a".to_string(), 10 + r)]);
            Ok((vec![r as f32, 2.], map, Named { loss: 0.5, count: r }))
        });
        let merged = results.unwrap().regroup().unwrap();
        let show = |leaf: &PerReplica<Leaf>| {
            let parts = leaf
                .iter()
                .map(|part| part.to_host().unwrap().cast(HostDType::F64).unwrap().item::<f64>().unwrap());
            parts.map(|x| x.to_string()).collect::<Vec<_>>().join("|")
        };
        assert_eq!(
            merged.describe(&show),
            r#"([0|1, 2|2], {"a": 10|11, "b": 0|1}, {"count": 0|1, "loss": 0.5|0.5})"#
        );
    });
}

#[test]
fn merge_4_another_structure_on_a_later_replica_is_an_error_that_names_the_path() {
    watched(|| {
        let strategy = mirrored(2);
        let results = strategy.run((), |ctx, ()| {
            let leaf = || 5i32.into_tree();
            Ok(match ctx.replica_id_in_sync_group() {
                0 => Tree::Tuple(vec![leaf(), leaf()]),
                _ => Tree::Tuple(vec![leaf(), Tree::List(vec![leaf()])]),
            })
        });
        let error = results.unwrap().regroup().unwrap_err();
        assert!(matches!(error, Error::Tensor { .. }));
        let text = error.to_string();
        assert!(
            text.contains("value[1]") && text.contains("a leaf") && text.contains("a list of 1"),
            "{text}"
        );
    });
}

#[test]
fn merge_6_values_are_never_merged_because_they_are_the_same_object() {
    watched(|| {
        let strategy = mirrored(2);
        let captured = tensor(&[1.]);
        let values = strategy.run((), |_, ()| Ok(captured.clone())).unwrap();
        assert_eq!(values.len(), 2);
        assert!(values.iter().all(|value| value.id() == captured.id()));
        assert_eq!(values.regroup().unwrap().leaves()[0].len(), 2);
    });
}

#[test]
fn merge_8_one_replica_is_a_per_replica_of_one() {
    let values = one_device().run((), |_, ()| Ok(7)).unwrap();
    assert_eq!(values.values(), [7]);
}

#[test]
fn merge_9_nothing_from_some_replicas_is_an_error_where_values_are_merged() {
    watched(|| {
        let strategy = mirrored(2);
        let run = |some: fn(usize) -> bool| {
            strategy.run((), |ctx, ()| Ok(some(ctx.replica_id_in_sync_group()).then_some(1f32))).unwrap()
        };
        assert_eq!(run(|_| false).values(), [None, None]);
        assert!(matches!(run(|_| false).regroup().unwrap(), Tree::None));
        // The values are there; only merging them fails, and says where.
        assert_eq!(run(|id| id == 0).values(), [Some(1.), None]);
        let text = run(|id| id == 0).regroup().unwrap_err().to_string();
        assert!(text.contains("a leaf") && text.contains("nothing"), "{text}");
    });
}

// 5. Members of the replica context

#[test]
fn rctx_2_ids_go_from_0_to_n_minus_1() {
    watched(|| {
        for n in [1, 2, 5] {
            let ids = mirrored(n).run((), |ctx, ()| Ok(ctx.replica_id_in_sync_group())).unwrap();
            assert_eq!(ids.into_values(), (0..n).collect::<Vec<_>>());
        }
        assert_eq!(get_replica_context().unwrap().replica_id_in_sync_group(), 0);
    });
}

#[test]
fn rctx_4_devices_name_the_device_of_this_replica() {
    watched(|| {
        let devices = mirrored(2).run((), |ctx, ()| ctx.devices()).unwrap();
        let full = |i| vec![format!("/job:localhost/replica:0/task:0/device:CPU:{i}")];
        assert_eq!(devices.values(), [full(0), full(1)]);
        assert_eq!(one_device().run((), |ctx, ()| ctx.devices()).unwrap().values(), [full(0)]);
        assert_eq!(get_replica_context().unwrap().devices().unwrap().len(), 1);
    });
}

// 6. merge_call

#[test]
fn mc_1_the_merge_function_runs_once_with_all_values_in_cross_replica_context() {
    watched(|| {
        let (strategy, calls) = (mirrored(3), AtomicUsize::new(0));
        let sums = strategy.run((), |ctx, ()| {
            ctx.merge_call((ctx.replica_id_in_sync_group(), "same"), |current, values| {
                calls.fetch_add(1, Ordering::SeqCst);
                assert!(current == &strategy && in_cross_replica_context());
                assert_eq!(values.values(), [(0, "same"), (1, "same"), (2, "same")]);
                Ok(values.iter().map(|v| v.0).sum::<usize>())
            })
        });
        assert_eq!(sums.unwrap().values(), [3, 3, 3]);
        assert_eq!(calls.into_inner(), 1);
    });
}

#[test]
fn mc_2_it_is_replica_0s_function_that_is_called() {
    watched(|| {
        let made = mirrored(2).run((), |ctx, ()| {
            let mine = ctx.replica_id_in_sync_group();
            ctx.merge_call((), move |_, _| Ok(mine))
        });
        assert_eq!(made.unwrap().values(), [0, 0]);
    });
}

#[test]
fn mc_3_of_distributed_results_each_replica_gets_its_part() {
    watched(|| {
        let strategy = mirrored(2);
        let parts = strategy.run((), |ctx, ()| {
            ctx.merge_call(ctx.replica_id_in_sync_group() as i32, |_, ids| {
                Ok((ids.map(|id| id * 10), Mirrored::new(7i32), vec![per_replica(["a", "b"])], 1.5f64))
            })
        });
        assert_eq!(parts.unwrap().values(), [(0, 7, vec!["a"], 1.5), (10, 7, vec!["b"], 1.5)]);
        let error =
            strategy.run((), |ctx, ()| ctx.merge_call((), |_, _| Ok(per_replica([1i32, 2, 3])))).unwrap_err();
        assert!(
            error.to_string().contains("3 parts") && error.to_string().contains("2 local replicas"),
            "{error}"
        );
    });
}

#[test]
fn mc_4_different_numbers_of_merge_calls_name_who_made_fewer() {
    watched(|| {
        let strategy = mirrored(2);
        for fewer in [0, 1] {
            let error = strategy.run((), |ctx, ()| {
                ctx.merge_call((), |_, _| Ok(()))?;
                if ctx.replica_id_in_sync_group() != fewer {
                    ctx.merge_call((), |_, _| Ok(()))?;
                }
                Ok(())
            });
            let error = error.unwrap_err();
            let blame = error.blame().unwrap();
            assert_eq!((blame.fault, blame.culprits.as_slice()), (Fault::Returned, &[fewer][..]), "{error}");
            assert!(error.to_string().contains("contexts.rs"), "{error}");
        }
        assert_eq!(strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1)).unwrap().values(), [2, 2]);
    });
}

#[test]
fn mc_5_an_error_of_the_merge_function_comes_out_of_run() {
    watched(|| {
        let strategy = mirrored(2);
        let error =
            strategy.run((), |ctx, ()| ctx.merge_call((), |_, _| Err::<i32, _>(Error::other("nope"))));
        assert_eq!(error.unwrap_err().root_cause().to_string(), "nope");
        let error = strategy.run((), |ctx, ()| ctx.merge_call((), |_, _| -> Result<i32> { panic!("boom") }));
        assert_eq!(error.unwrap_err().root_cause().to_string(), "panicked: boom");
        assert!(strategy.run((), |ctx, ()| ctx.merge_call((), |_, _| Ok(1i32))).is_ok());
    });
}

#[test]
fn mc_6_inside_there_is_no_replica_context_and_no_nested_merge() {
    watched(|| {
        let strategy = mirrored(2);
        let nested = strategy.run((), |ctx, ()| {
            ctx.merge_call((), |strategy, _| {
                assert!(get_replica_context().is_none());
                let error = ctx.merge_call((), |_, _| Ok(())).unwrap_err();
                assert!(is_wrong_context(&error, ContextKind::Replica, ContextKind::CrossReplica), "{error}");
                // But a nested run is allowed: it has its own team.
                let inner = strategy.run((), |ctx, ()| {
                    ctx.all_reduce(ReduceOp::Sum, 1 + ctx.replica_id_in_sync_group() as i32)
                })?;
                Ok(inner)
            })
        });
        assert_eq!(nested.unwrap().values(), [3, 3]);
    });
}

#[test]
fn mc_7_in_the_default_context_and_on_one_device_the_function_is_called_directly() {
    let default = get_strategy();
    let value = get_replica_context().unwrap().merge_call(5i32, |strategy, values| {
        assert!(strategy == &default && in_cross_replica_context() && get_replica_context().is_none());
        assert!(!has_strategy());
        Ok(values.values()[0] + 1)
    });
    assert_eq!(value.unwrap(), 6);
    assert!(!in_cross_replica_context());
    let strategy = one_device();
    let value = strategy.run((), |ctx, ()| {
        ctx.merge_call(5i32, |current, values| {
            assert!(current == &strategy && in_cross_replica_context());
            Ok(values.values()[0] + 1)
        })
    });
    assert_eq!(value.unwrap().values(), [6]);
}

// 7. Distributed values

#[test]
fn dv_1_a_mirrored_value_is_read_without_asking_and_reaches_every_replica() {
    watched(|| {
        let value = Mirrored::new(tensor(&[1., 2.]));
        assert_eq!(floats(value.get()), [1., 2.]);
        let seen = mirrored(3).run(&value, |_, mine| Ok(floats(mine))).unwrap();
        assert_eq!(seen.values(), [[1., 2.], [1., 2.], [1., 2.]]);
    });
}

#[test]
fn dv_3_a_per_replica_has_its_values_in_order() {
    let values = per_replica([1, 2]);
    assert_eq!(
        (values.values(), values.get(1), values.get(2), values.len()),
        (&[1, 2][..], Some(&2), None, 2)
    );
    let (a, b) = per_replica([(1, 'x'), (2, 'y')]).unzip();
    assert_eq!((a.values(), b.values()), (&[1, 2][..], &['x', 'y'][..]));
}

#[test]
fn local_1_local_results_are_this_processs_parts() {
    watched(|| {
        let strategy = mirrored(2);
        assert_eq!(strategy.local_results(per_replica([1, 2])).unwrap(), [1, 2]);
        assert_eq!(strategy.local_results((per_replica([1, 2]), 5)).unwrap(), [(1, 5), (2, 5)]);
        assert_eq!(
            strategy.local_results(vec![per_replica([1, 2]), per_replica([3, 4])]).unwrap(),
            [[1, 3], [2, 4]]
        );
        assert_eq!(strategy.local_results(5).unwrap(), [5]);
        assert_eq!(strategy.local_results(()).unwrap(), [(), ()]);
    });
}

#[test]
fn local_2_one_device_and_the_default_strategy_have_one() {
    for strategy in [one_device(), get_strategy()] {
        assert_eq!(strategy.local_results(per_replica([1])).unwrap(), [1]);
        assert_eq!(strategy.local_results((1, 2)).unwrap(), [(1, 2)]);
    }
}

#[test]
fn local_3_the_parts_of_a_run_are_its_results() {
    watched(|| {
        let strategy = mirrored(2);
        let results = strategy.run((), |ctx, ()| Ok(ctx.replica_id_in_sync_group())).unwrap();
        assert_eq!(strategy.local_results(results).unwrap(), [0, 1]);
    });
}

// 8. Values from a function

#[test]
fn vff_1_called_once_for_each_replica_in_order_in_the_callers_context() {
    let strategy = mirrored(3);
    let (thread, mut seen) = (std::thread::current().id(), Vec::new());
    let values = strategy.distribute_values_from_function(|ctx| {
        assert!(std::thread::current().id() == thread && !has_strategy());
        seen.push((ctx.replica_id_in_sync_group, ctx.num_replicas_in_sync));
        Ok(1)
    });
    assert_eq!(values.unwrap().values(), [1, 1, 1]);
    assert_eq!(seen, [(0, 3), (1, 3), (2, 3)]);
    // An error ends it and comes out.
    let mut calls = 0;
    let error = strategy.distribute_values_from_function(|ctx| {
        calls += 1;
        if ctx.replica_id_in_sync_group == 1 { Err(Error::other("no value")) } else { Ok(1) }
    });
    assert_eq!((error.unwrap_err().to_string().as_str(), calls), ("no value", 2));
}

#[test]
fn vff_2_nested_results_are_allowed() {
    watched(|| {
        let strategy = mirrored(2);
        let values = strategy
            .distribute_values_from_function(|ctx| Ok((ctx.replica_id_in_sync_group as i32, vec![1f32])))
            .unwrap();
        assert_eq!(values.regroup().unwrap().describe(&|leaf| leaf.len().to_string()), "(2, [2])");
    });
}

#[test]
fn vff_3_one_device_and_the_default_strategy_have_one_value() {
    for strategy in [one_device(), get_strategy()] {
        let values = strategy.distribute_values_from_function(Ok).unwrap();
        assert_eq!(values.values(), [ValueContext { replica_id_in_sync_group: 0, num_replicas_in_sync: 1 }]);
    }
}

#[test]
fn vff_4_a_value_context_prints_its_id_and_total() {
    let context = ValueContext::default();
    assert_eq!((context.replica_id_in_sync_group, context.num_replicas_in_sync), (0, 1));
    let text = ValueContext { replica_id_in_sync_group: 1, num_replicas_in_sync: 4 }.to_string();
    assert!(text.contains('1') && text.contains('4'), "{text}");
}

#[test]
fn vff_5_plain_numbers_can_be_reduced() {
    let strategy = mirrored(2);
    let values = strategy.distribute_values_from_function(|ctx| Ok(ctx.num_replicas_in_sync as i64)).unwrap();
    assert_eq!(strategy.reduce(ReduceOp::Sum, values, None).unwrap(), 4);
}

// 9. The default strategy

#[test]
fn def_2_the_default_strategy_does_everything_here() {
    let strategy = get_strategy();
    let results = strategy.run(per_replica([2]), |ctx, two| {
        assert_eq!((ctx.replica_id_in_sync_group(), ctx.num_replicas_in_sync()), (0, 1));
        assert!(!has_strategy());
        // AR-3: identities. What gathering refuses on two replicas it refuses on one (GA-3, GA-4).
        assert_eq!(ctx.all_reduce(ReduceOp::Mean, 5i32)?, 5);
        assert_eq!(ctx.all_gather(HostTensor::vector(vec![5i32]), 0)?, HostTensor::vector(vec![5i32]));
        assert!(
            ctx.all_gather(5i32, 0).is_err() && ctx.all_gather(HostTensor::vector(vec![5i32]), 1).is_err()
        );
        assert_eq!(ctx.merge_call(1i32, |_, values| Ok(values.values()[0]))?, 1i32);
        ctx.devices()?;
        Ok(two * 2)
    });
    assert_eq!(results.unwrap().values(), [4]);
    assert_eq!(strategy.reduce(ReduceOp::Sum, 3f32, None).unwrap(), 3.);
    assert_eq!(floats(&strategy.reduce(ReduceOp::Sum, tensor(&[1., 2.]), 0).unwrap()), [3.]);
    assert_eq!(floats(&strategy.reduce(ReduceOp::Mean, tensor(&[1., 2.]), 0).unwrap()), [1.5]);
    assert_eq!(floats(&strategy.gather(tensor(&[1., 2.]), 0).unwrap()), [1., 2.]);
    assert!(!has_strategy() && !in_cross_replica_context());
    // A closure that runs under the default strategy may use another one: none has been entered.
    let other = mirrored(2);
    let inside = strategy
        .run((), |_, ()| Ok(other.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1))?.into_values()));
    assert_eq!(inside.unwrap().values(), [[2, 2]]);
}

#[test]
fn def_3_the_default_strategy_has_one_replica_here() {
    let strategy = get_strategy();
    assert_eq!((strategy.num_replicas_in_sync(), strategy.extended().local_replicas()), (1, 1));
    assert!(strategy == get_strategy());
}

#[test]
fn def_4_a_dataset_stays_as_it_is() {
    use distribute::data::Dataset;
    let strategy = get_strategy();
    let batches = strategy.distribute_dataset(Dataset::range(5).batch(2)).unwrap();
    let sizes: Vec<usize> = batches.iter().map(|batch| batch.unwrap().values()[0].len()).collect();
    assert_eq!(sizes, [2, 2, 1]);
}

// 10. One device

#[test]
fn one_1_one_device_one_replica() {
    let strategy = one_device();
    assert_eq!(strategy.num_replicas_in_sync(), 1);
    let devices: Vec<String> = strategy.extended().worker_devices().iter().map(ToString::to_string).collect();
    assert_eq!(devices, ["/job:localhost/replica:0/task:0/device:CPU:0"]);
}

#[test]
fn one_2_reductions_are_identities_except_over_an_axis() {
    let strategy = one_device();
    assert_eq!(floats(&strategy.reduce(ReduceOp::Sum, tensor(&[1., 2.]), None).unwrap()), [1., 2.]);
    assert_eq!(floats(&strategy.reduce(ReduceOp::Mean, per_replica([tensor(&[1., 2.])]), 0).unwrap()), [1.5]);
    assert_eq!(floats(&strategy.gather(tensor(&[1.]), 0).unwrap()), [1.]);
    let same = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, tensor(&[3.]))).unwrap();
    assert_eq!(floats(&same.values()[0]), [3.]);
}

#[test]
fn one_3_a_dataset_is_not_cut() {
    use distribute::data::Dataset;
    let batches = one_device().distribute_dataset(Dataset::range(3).batch(3)).unwrap();
    assert_eq!(batches.iter().next().unwrap().unwrap().values()[0].dims(), [3]);
}

// 11. All strategies

#[test]
fn str_2_device_names_are_resolved_and_may_not_repeat() {
    let strategy = MirroredStrategy::new(["cpu:1", "/device:CPU:0"]).unwrap();
    let devices: Vec<String> = strategy.extended().worker_devices().iter().map(ToString::to_string).collect();
    assert_eq!(devices, [1, 0].map(|i| format!("/job:localhost/replica:0/task:0/device:CPU:{i}")));
    let error = MirroredStrategy::new(["cpu:0", "/job:localhost/replica:0/task:0/device:CPU:0"]).unwrap_err();
    assert!(
        matches!(error, Error::Device { .. }) && error.to_string().contains("CPU:0 is named twice"),
        "{error}"
    );
    assert_eq!(
        MirroredStrategy::all_cores().unwrap().num_replicas_in_sync(),
        std::thread::available_parallelism().unwrap().get()
    );
}

#[test]
fn str_3_devices_of_other_tasks_are_refused() {
    for names in [
        ["/job:worker/replica:0/task:0/device:CPU:0", "cpu:0"],
        ["cpu:0", "/job:localhost/replica:0/task:1/cpu:0"],
    ] {
        let error = MirroredStrategy::new(names).unwrap_err();
        assert!(
            matches!(error, Error::Device { .. }) && error.to_string().contains("not of this process"),
            "{error}"
        );
    }
}

#[test]
fn str_6_no_strategy_needs_static_shapes() {
    for strategy in [mirrored(2), one_device(), get_strategy()] {
        assert!(!strategy.extended().require_static_shapes());
    }
}

// Reduce operations

#[test]
fn op_1_sum_and_mean_are_read_in_any_case_and_others_are_refused() {
    for (text, op) in [("sum", ReduceOp::Sum), ("SUM", ReduceOp::Sum), ("Mean", ReduceOp::Mean)] {
        assert_eq!(text.parse::<ReduceOp>().unwrap(), op);
    }
    let error = "MAX".parse::<ReduceOp>().unwrap_err().to_string();
    assert!(error.contains("'MAX'") && error.contains("SUM"), "{error}");
}

#[test]
fn op_3_numbers_can_be_summed_bool_and_string_cannot() {
    watched(|| {
        let strategy = mirrored(2);
        fn twice<N: Nest + Clone>(strategy: &Strategy, value: N) -> Result<N> {
            strategy.reduce(ReduceOp::Sum, per_replica([value.clone(), value]), None)
        }
        assert_eq!(twice(&strategy, 3u8).unwrap(), 6);
        assert_eq!(twice(&strategy, 3i8).unwrap(), 6);
        assert_eq!(twice(&strategy, 3u16).unwrap(), 6);
        assert_eq!(twice(&strategy, 3u64).unwrap(), 6);
        assert_eq!(twice(&strategy, 3i64).unwrap(), 6);
        assert_eq!(twice(&strategy, 1.5f64).unwrap(), 3.);
        for error in [twice(&strategy, true).unwrap_err(), twice(&strategy, "x".to_string()).unwrap_err()] {
            assert!(matches!(error, Error::Tensor { operation: "reduce", .. }), "{error}");
        }
        let error = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, true)).unwrap_err();
        assert!(error.to_string().contains("bool"), "{error}");
    });
}

#[test]
fn op_4_a_mean_divides_truly_so_that_of_integers_is_a_float() {
    watched(|| {
        let strategy = mirrored(2);
        let ints = per_replica([HostTensor::scalar(1i32), HostTensor::scalar(2i32)]);
        let mean = strategy.reduce(ReduceOp::Mean, &ints, None).unwrap();
        assert_eq!((mean.dtype(), mean.item::<f64>().unwrap()), (HostDType::F64, 1.5));
        let mean = strategy.reduce(ReduceOp::Mean, per_replica([1f32, 2.]), None).unwrap();
        assert_eq!(mean, 1.5);
        // A Rust integer cannot hold it: an error, not a rounded number.
        let error = strategy.reduce(ReduceOp::Mean, per_replica([1i32, 2]), None).unwrap_err();
        assert!(matches!(error, Error::Tensor { .. }) && error.to_string().contains("float64"), "{error}");
    });
}

#[test]
fn op_5_mixed_dtypes_are_an_error_that_names_the_replica_and_spoils_nothing() {
    watched(|| {
        let strategy = mirrored(2);
        let mixed = per_replica([Leaf::from(HostTensor::scalar(1f32)), Leaf::from(HostTensor::scalar(1f64))]);
        let error = strategy.reduce(ReduceOp::Sum, mixed, None).unwrap_err().to_string();
        assert!(
            error.contains("replica 1") && error.contains("float32") && error.contains("float64"),
            "{error}"
        );
        let error = strategy.run((), |ctx, ()| {
            let dtype = [DType::F32, DType::F64][ctx.replica_id_in_sync_group()];
            ctx.all_reduce(ReduceOp::Sum, tensor(&[1.]).to_dtype(dtype)?)
        });
        let error = error.unwrap_err();
        assert_eq!(error.blame().unwrap().fault, Fault::Mismatch);
        assert!(
            error.to_string().contains("float32[1]") && error.to_string().contains("float64[1]"),
            "{error}"
        );
        // T2: TensorFlow's next collective would fail with the old error.
        assert_eq!(strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1)).unwrap().values(), [2, 2]);
    });
}

// Strategy::reduce

#[test]
fn red_3_without_axis_element_by_element() {
    watched(|| {
        let strategy = mirrored(2);
        let values = per_replica([tensor(&[0., 1., 2., 3.]), tensor(&[4., 5., 6., 7.])]);
        assert_eq!(floats(&strategy.reduce(ReduceOp::Sum, &values, None).unwrap()), [4., 6., 8., 10.]);
        assert_eq!(floats(&strategy.reduce(ReduceOp::Mean, &values, None).unwrap()), [2., 3., 4., 5.]);
        let error = strategy
            .reduce(ReduceOp::Sum, per_replica([tensor(&[1.]), tensor(&[1., 2., 3.])]), None)
            .unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error, Error::Tensor { .. }) && text.contains("replica 1") && text.contains("[3]"),
            "{text}"
        );
    });
}

#[test]
fn red_4_sum_over_an_axis_sums_within_replicas_first() {
    watched(|| {
        let strategy = mirrored(2);
        let values = per_replica([tensor(&[0., 1., 2., 3.]), tensor(&[4., 5.])]);
        assert_eq!(floats(&strategy.reduce(ReduceOp::Sum, &values, 0).unwrap()), [15.]);
        let rows = per_replica([host(vec![1i64, 2, 3, 4], [2, 2]), host(vec![5i64, 6], [1, 2])]);
        assert_eq!(strategy.reduce(ReduceOp::Sum, &rows, 0).unwrap(), host(vec![9i64, 12], [2]));
    });
}

#[test]
fn red_5_mean_divides_by_the_true_count() {
    watched(|| {
        let strategy = mirrored(2);
        let mean = |a: &[f32], b: &[f32]| {
            let values = per_replica([tensor(a), tensor(b)]);
            strategy.reduce(ReduceOp::Mean, values, 0).unwrap().to_scalar::<f32>().unwrap()
        };
        assert_eq!(mean(&[0., 1., 2., 3.], &[4., 5.]), 15. / 6.);
        assert_eq!(mean(&[1., 2.], &[]), 1.5);
        assert!(mean(&[], &[]).is_nan());
        let ints = per_replica([host(vec![1i32, 2], [2]), host(vec![4i32], [1])]);
        let mean = strategy.reduce(ReduceOp::Mean, ints, 0).unwrap();
        assert_eq!((mean.dtype(), mean.item::<f64>().unwrap()), (HostDType::F64, 7. / 3.));
        // Several axes: the product of their sizes.
        let values = per_replica([host(vec![1f32; 6], [2, 3]), host(vec![4f32; 3], [1, 3])]);
        assert_eq!(strategy.reduce(ReduceOp::Mean, values, [0, 1]).unwrap().item::<f32>().unwrap(), 2.);
    });
}

#[test]
fn red_6_an_axis_may_count_from_the_end_and_must_exist() {
    watched(|| {
        let strategy = mirrored(2);
        let values =
            per_replica([host(vec![1f32, 2., 3., 4.], [2, 2]), host(vec![5f32, 6., 7., 8.], [2, 2])]);
        let over = |axes: distribute::Axes| strategy.reduce(ReduceOp::Sum, &values, axes);
        assert_eq!(over((-1).into()).unwrap(), host(vec![14f32, 22.], [2]));
        assert_eq!(over((-1).into()).unwrap(), over(1.into()).unwrap());
        assert_eq!(over([0, -1].into()).unwrap().item::<f32>().unwrap(), 36.);
        assert_eq!(over(vec![0, 1].into()).unwrap().item::<f32>().unwrap(), 36.);
        for (axes, text) in [(2.into(), "axis 2"), ((-3).into(), "axis -3"), ([0, -2].into(), "given twice")]
        {
            let error = over(axes).unwrap_err();
            assert!(matches!(error, Error::Tensor { .. }) && error.to_string().contains(text), "{error}");
        }
        let error = strategy.reduce(ReduceOp::Sum, per_replica([1f32, 2.]), 0).unwrap_err().to_string();
        assert!(error.contains("axis 0") && error.contains("scalar"), "{error}");
    });
}

#[test]
fn red_7_with_an_axis_a_plain_value_is_what_every_replica_has() {
    watched(|| {
        let strategy = mirrored(2);
        let value = tensor(&[3., 4.]);
        assert_eq!(floats(&strategy.reduce(ReduceOp::Sum, &value, 0).unwrap()), [14.]);
        assert_eq!(floats(&strategy.reduce(ReduceOp::Mean, &value, 0).unwrap()), [3.5]);
        // A nest with an axis: each leaf, where TensorFlow gives a TypeError.
        let nest = per_replica([(tensor(&[1., 2.]), tensor(&[3.])), (tensor(&[4.]), tensor(&[5., 6.]))]);
        let (a, b) = strategy.reduce(ReduceOp::Sum, nest, 0).unwrap();
        assert_eq!((floats(&a), floats(&b)), (vec![7.], vec![14.]));
    });
}

#[test]
fn red_8_without_axis_a_plain_value_has_a_mean_but_no_sum() {
    watched(|| {
        let strategy = mirrored(2);
        assert_eq!(strategy.reduce(ReduceOp::Mean, 5f32, None).unwrap(), 5.);
        let error = strategy.reduce(ReduceOp::Sum, 5f32, None).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { operation: "reduce", .. }), "{error}");
        assert!(error.to_string().contains("not distributed"), "{error}");
        assert_eq!(mirrored(1).reduce(ReduceOp::Sum, 5f32, None).unwrap(), 5.);
    });
}

#[test]
fn red_9_a_mirrored_value_is_its_own_mean_and_is_summed_over_replicas() {
    watched(|| {
        let strategy = mirrored(3);
        let value = Mirrored::new(2f32);
        assert_eq!(strategy.reduce(ReduceOp::Mean, &value, None).unwrap(), 2.);
        assert_eq!(strategy.reduce(ReduceOp::Sum, &value, None).unwrap(), 6.);
    });
}

#[test]
fn red_10_nests_are_reduced_leaf_by_leaf() {
    watched(|| {
        let strategy = mirrored(2);
        let values = per_replica([(1f32, vec![tensor(&[1.])]), (2., vec![tensor(&[2.])])]);
        let (number, list) = strategy.reduce(ReduceOp::Sum, values, None).unwrap();
        assert_eq!((number, floats(&list[0])), (3., vec![3.]));
    });
}

#[test]
fn red_11_numbers_are_values_and_a_missing_one_is_named() {
    watched(|| {
        let strategy = mirrored(2);
        assert_eq!(strategy.reduce(ReduceOp::Mean, per_replica([1f64, 2.]), None).unwrap(), 1.5);
        let error =
            strategy.reduce(ReduceOp::Sum, per_replica([Some(1f32), None]), None).unwrap_err().to_string();
        assert!(error.contains("nothing"), "{error}");
    });
}

#[test]
fn red_12_the_operation_is_always_given_and_typed() {
    // There is no default to forget, and nothing else than these two exists.
    match "mean".parse().unwrap() {
        ReduceOp::Sum => panic!(),
        ReduceOp::Mean => {}
    }
}

// ReplicaContext::all_reduce

#[test]
fn ar_1_any_nest_and_the_result_has_its_structure() {
    watched(|| {
        let strategy = mirrored(2);
        let results = strategy.run((), |ctx, ()| {
            let r = ctx.replica_id_in_sync_group() as f32;
            let nest = (
                tensor(&[r, 1.]),
                vec![Some(r)],
                BTreeMap::from([("a".to_string(), host(vec![r as i32], [1]))]),
            );
            ctx.all_reduce(ReduceOp::Sum, nest)
        });
        for (t, list, map) in results.unwrap() {
            assert_eq!((floats(&t), list, &map["a"]), (vec![1., 2.], vec![Some(1.)], &host(vec![1i32], [1])));
        }
        let error = strategy.run((), |ctx, ()| {
            let list = vec![1f32; 1 + ctx.replica_id_in_sync_group()];
            ctx.all_reduce(ReduceOp::Sum, list)
        });
        let error = error.unwrap_err();
        assert_eq!(error.blame().unwrap().fault, Fault::Mismatch);
        assert!(
            error.to_string().contains("SUM [float32[]]")
                && error.to_string().contains("SUM [float32[], float32[]]"),
            "{error}"
        );
    });
}

#[test]
fn ar_1_sparse_rows_may_differ_in_number() {
    // SPARSE-1, SPARSE-2: rows and indices are concatenated in replica order.
    watched(|| {
        let strategy = mirrored(2);
        let slices = |rows: Vec<f32>, at: Vec<i32>| {
            let n = at.len();
            IndexedSlices::new(host(rows, [n, 1]), host(at, [n]), Some(vec![3, 1])).unwrap()
        };
        let results = strategy.run((), |ctx, ()| {
            let mine = match ctx.replica_id_in_sync_group() {
                0 => slices(vec![1., 2.], vec![0, 1]),
                _ => slices(vec![3.], vec![1]),
            };
            ctx.all_reduce(ReduceOp::Sum, mine)
        });
        for sum in results.unwrap() {
            assert_eq!(sum, slices(vec![1., 2., 3.], vec![0, 1, 1]));
        }
        // SPARSE-3: a dense tensor on another replica: all become dense.
        let results = strategy.run((), |ctx, ()| {
            let mine = match ctx.replica_id_in_sync_group() {
                0 => Leaf::from(slices(vec![1., 2.], vec![0, 2])),
                _ => Leaf::from(host(vec![10f32, 20., 30.], [3, 1])),
            };
            ctx.all_reduce(ReduceOp::Sum, mine)
        });
        for sum in results.unwrap() {
            assert_eq!(sum.to_host().unwrap(), host(vec![11f32, 20., 32.], [3, 1]));
        }
        // Another shape of the whole is still a mismatch.
        let error = strategy.run((), |ctx, ()| {
            let whole = 3 + ctx.replica_id_in_sync_group();
            ctx.all_reduce(
                ReduceOp::Sum,
                IndexedSlices { dense_shape: Some(vec![whole, 1]), ..slices(vec![1.], vec![0]) },
            )
        });
        assert_eq!(error.unwrap_err().blame().unwrap().fault, Fault::Mismatch);
    });
}

#[test]
fn ar_3_the_default_and_one_device_contexts_give_the_value_back() {
    let context = get_replica_context().unwrap();
    assert_eq!(context.all_reduce(ReduceOp::Mean, 3i32).unwrap(), 3);
    assert_eq!(one_device().run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 3i32)).unwrap().values(), [3]);
}

#[test]
fn ar_4_only_from_the_current_replica_context() {
    let strategy = mirrored(2);
    let context = get_replica_context().unwrap();
    let error = strategy.scope(|| context.all_reduce(ReduceOp::Sum, 1f32)).unwrap_err();
    assert!(is_wrong_context(&error, ContextKind::Replica, ContextKind::CrossReplica), "{error}");
}

#[test]
fn ar_5_different_operations_are_an_error_and_not_replica_0s() {
    watched(|| {
        let error = mirrored(2).run((), |ctx, ()| {
            ctx.all_reduce([ReduceOp::Sum, ReduceOp::Mean][ctx.replica_id_in_sync_group()], 1f32)
        });
        let error = error.unwrap_err();
        assert_eq!(error.blame().unwrap().fault, Fault::Mismatch);
        assert!(
            error.to_string().contains("SUM float32[]") && error.to_string().contains("MEAN float32[]"),
            "{error}"
        );
    });
}

#[test]
fn ar_6_numbers_are_values_and_an_empty_list_stays_empty() {
    watched(|| {
        let strategy = mirrored(2);
        assert_eq!(
            strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Mean, 1.5f64)).unwrap().values(),
            [1.5, 1.5]
        );
        let empty = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, Vec::<f32>::new())).unwrap();
        assert!(empty.iter().all(Vec::is_empty));
        assert_eq!(
            strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, None::<f32>)).unwrap().values(),
            [None, None]
        );
    });
}

#[test]
fn ar_t1_the_same_tensor_on_all_replicas_is_summed() {
    watched(|| {
        let strategy = mirrored(2);
        let captured = tensor(&[1.]);
        let sums = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, captured.clone())).unwrap();
        assert!(sums.iter().all(|sum| floats(sum) == [2.]));
        let all = strategy.run((), |ctx, ()| ctx.all_gather(captured.clone(), 0)).unwrap();
        assert!(all.iter().all(|all| floats(all) == [1., 1.]));
        let model = strategy
            .replicate(|vb: VarBuilder| vb.get_with_hints(1, "w", candle_nn::Init::Const(3.)))
            .unwrap();
        let sums = strategy.run(&model, |ctx, w| ctx.all_reduce(ReduceOp::Sum, w.clone())).unwrap();
        assert!(sums.iter().all(|sum| floats(sum) == [6.]));
    });
}

/// The gradient at x of `loss(ctx, x)` on each replica, for `x[r]`.
fn gradients(
    x: &[&[f32]],
    loss: impl Fn(&distribute::ReplicaContext, &Tensor) -> Result<Tensor> + Sync,
) -> Result<PerReplica<Vec<f32>>> {
    mirrored(x.len()).run((), |ctx, ()| {
        let x = Var::from_tensor(&tensor(x[ctx.replica_id_in_sync_group()]))?;
        let grads = loss(ctx, x.as_tensor())?.backward()?;
        Ok(grads.get(&x).map_or(Vec::new(), floats))
    })
}

#[test]
fn ar_7_the_gradient_is_the_reduced_upstream() {
    watched(|| {
        for (op, expected) in [(ReduceOp::Sum, [6., 12.]), (ReduceOp::Mean, [3., 6.])] {
            let grads = gradients(&[&[1.], &[2.]], |ctx, x| {
                let reduced = ctx.all_reduce(op, x.sqr()?)?;
                Ok((reduced.sum_all()? * (ctx.replica_id_in_sync_group() + 1) as f64)?)
            });
            assert_eq!(grads.unwrap().values(), [[expected[0]], [expected[1]]], "{op}");
        }
    });
}

#[test]
fn ar_7_a_result_used_twice_and_a_reduction_of_a_reduction() {
    watched(|| {
        // y = s + s², s = Σx: dy/dx = Σ over replicas of (1 + 2s) = 2 (1 + 2·3).
        let grads = gradients(&[&[1.], &[2.]], |ctx, x| {
            let s = ctx.all_reduce(ReduceOp::Sum, x.clone())?;
            Ok((&s + s.sqr()?)?.sum_all()?)
        });
        assert_eq!(grads.unwrap().values(), [[14.], [14.]]);
        // Σ of Σ: each backward sums over 2 replicas.
        let grads = gradients(&[&[1.], &[2.]], |ctx, x| {
            let s = ctx.all_reduce(ReduceOp::Sum, x.clone())?;
            Ok(ctx.all_reduce(ReduceOp::Sum, s)?.sum_all()?)
        });
        assert_eq!(grads.unwrap().values(), [[4.], [4.]]);
        // Several leaves of one call, of which a leaf without graph needs nothing.
        let grads = gradients(&[&[1., 5.], &[2., 7.]], |ctx, x| {
            let (a, b, constant) = (x.narrow(0, 0, 1)?, x.narrow(0, 1, 1)?, tensor(&[10.]));
            let (a, b, c) = ctx.all_reduce(ReduceOp::Sum, (a, b, constant))?;
            Ok(((a * 2.)? + (b * c)?)?.sum_all()?)
        });
        assert_eq!(grads.unwrap().values(), [[4., 40.], [4., 40.]]);
    });
}

#[test]
fn ar_7_a_result_that_one_replica_does_not_use_is_an_error_in_its_gradient_not_a_hang() {
    watched(|| {
        for unused_on in [0, 1] {
            let error = gradients(&[&[1.], &[2.]], |ctx, x| {
                let s = ctx.all_reduce(ReduceOp::Sum, x.clone())?;
                let used = if ctx.replica_id_in_sync_group() == unused_on { x } else { &s };
                Ok(used.sum_all()?)
            });
            let error = error.unwrap_err();
            let blame = error.blame().unwrap_or_else(|| panic!("{error:?}"));
            assert_eq!(
                (blame.fault, blame.culprits.as_slice()),
                (Fault::Returned, &[unused_on][..]),
                "{error}"
            );
            assert!(error.to_string().contains("the gradient of call 1"), "{error}");
        }
    });
}

#[test]
fn ar_7_gradients_of_several_calls_are_told_apart() {
    watched(|| {
        // On replica 1 the graph runs its two collectives in another order than on replica 0.
        let error = gradients(&[&[1.], &[2.]], |ctx, x| {
            let a = ctx.all_reduce(ReduceOp::Sum, x.clone())?;
            let b = ctx.all_reduce(ReduceOp::Sum, x.sqr()?)?;
            Ok(match ctx.replica_id_in_sync_group() {
                0 => (a.sqr()? + b)?.sum_all()?,
                _ => (b.sqr()? + a)?.sum_all()?,
            })
        });
        // candle orders backward by the graph: either both agree and the numbers are right, or it is told.
        match error {
            Ok(grads) => assert_eq!(grads.len(), 2),
            Err(error) => assert_eq!(error.blame().unwrap().fault, Fault::Mismatch, "{error}"),
        }
    });
}

#[test]
fn ar_7_an_error_in_backward_that_was_handled_is_not_told_again() {
    watched(|| {
        let strategy = mirrored(2);
        let handled = strategy.run((), |ctx, ()| {
            let x = Var::from_tensor(&tensor(&[1.]))?;
            let s = ctx.all_reduce(ReduceOp::Sum, x.as_tensor().clone())?;
            if ctx.replica_id_in_sync_group() == 0 {
                assert!(s.sum_all()?.backward().is_err());
            }
            Ok(())
        });
        handled.unwrap();
        // A later error of candle on the same thread is that one.
        let error = strategy.run((), |_, ()| Ok(tensor(&[1.]).reshape((2, 2))?)).unwrap_err();
        assert!(matches!(error.root_cause(), Error::Candle(_)), "{error}");
    });
}

#[test]
fn ar_8_the_order_within_one_call_does_not_matter_the_number_of_calls_does() {
    watched(|| {
        let strategy = mirrored(2);
        let swapped = strategy.run((), |ctx, ()| {
            let [a, b] = ctx.all_reduce(ReduceOp::Sum, [1f32, 10.])?;
            let [c, d] = ctx.all_reduce(ReduceOp::Sum, [10f32, 1.])?;
            Ok((a, b) == (d, c))
        });
        assert_eq!(swapped.unwrap().values(), [true, true]);
        let error = strategy.run((), |ctx, ()| {
            for _ in 0..=ctx.replica_id_in_sync_group() {
                ctx.all_reduce(ReduceOp::Sum, 1f32)?;
            }
            Ok(())
        });
        let error = error.unwrap_err();
        assert_eq!(error.blame().unwrap().culprits, [0]);
        assert!(error.to_string().contains("call 2"), "{error}");
    });
}

// Gather

#[test]
fn ga_1_components_are_joined_in_replica_order_and_may_differ_along_the_axis() {
    watched(|| {
        let strategy = mirrored(2);
        let values = per_replica([host(vec![0i32; 6], [1, 2, 3]), host(vec![1i32; 9], [1, 3, 3])]);
        let gathered = strategy.gather(&values, 1).unwrap();
        assert_eq!(gathered.dims(), [1, 5, 3]);
        assert_eq!(gathered.as_slice::<i32>().unwrap(), [vec![0; 6], vec![1; 9]].concat());
        // A value that is the same on all replicas is there as often as there are replicas.
        let mirrored = strategy.gather(Mirrored::new(tensor(&[1.])), 0).unwrap();
        assert_eq!(floats(&mirrored), [1., 1.]);
    });
}

#[test]
fn ga_2_other_differences_are_errors_that_spoil_nothing() {
    watched(|| {
        let strategy = mirrored(2);
        let shapes = |a: &[usize], b: &[usize]| {
            let zeros = |shape: &[usize]| HostTensor::zeros(HostDType::F32, shape).unwrap();
            per_replica([zeros(a), zeros(b)])
        };
        for (a, b, axis) in
            [(&[1, 2, 3][..], &[1, 3, 3][..], 0), (&[1, 2, 3], &[1, 3, 3], 2), (&[2], &[2, 1], 0)]
        {
            let error = strategy.gather(shapes(a, b), axis).unwrap_err();
            assert!(matches!(error, Error::Tensor { operation: "gather", .. }), "{error}");
            assert!(error.to_string().contains("replica 1"), "{error}");
            let values = shapes(a, b);
            let error = strategy.run(&values, |ctx, value| ctx.all_gather(value.clone(), axis)).unwrap_err();
            assert_eq!(error.blame().unwrap().fault, Fault::Mismatch, "{error}");
        }
        assert_eq!(strategy.gather(shapes(&[1], &[2]), 0).unwrap().dims(), [3]);
        assert!(strategy.run((), |ctx, ()| ctx.all_gather(tensor(&[1.]), 0)).is_ok());
    });
}

#[test]
fn ga_3_scalars_cannot_be_gathered() {
    watched(|| {
        let strategy = mirrored(2);
        let error = strategy.gather(per_replica([1f32, 2.]), 0).unwrap_err();
        assert!(matches!(error, Error::Tensor { .. }) && error.to_string().contains("unsqueeze"), "{error}");
        let error = strategy.run((), |ctx, ()| ctx.all_gather(1f32, 0)).unwrap_err();
        assert!(error.to_string().contains("unsqueeze"), "{error}");
    });
}

#[test]
fn ga_4_the_axis_is_in_0_to_rank() {
    watched(|| {
        let strategy = mirrored(2);
        // A negative axis does not compile: it is a usize.
        let error = strategy.gather(per_replica([tensor(&[1.]), tensor(&[2.])]), 1).unwrap_err().to_string();
        assert!(error.contains("axis 1 is outside of [0, 1)"), "{error}");
        let error = strategy.run((), |ctx, ()| ctx.all_gather(tensor(&[1.]), 1)).unwrap_err().to_string();
        assert!(error.contains("axis 1 is outside of [0, 1)"), "{error}");
        let error = strategy.run((), |ctx, ()| ctx.all_gather(tensor(&[1.]), ctx.replica_id_in_sync_group()));
        assert_eq!(error.unwrap_err().blame().unwrap().fault, Fault::Mismatch);
    });
}

#[test]
fn ga_5_empty_components_are_fine() {
    watched(|| {
        let values =
            per_replica([HostTensor::zeros(HostDType::F32, [0, 2]).unwrap(), host(vec![1f32, 2.], [1, 2])]);
        assert_eq!(mirrored(2).gather(values, 0).unwrap(), host(vec![1f32, 2.], [1, 2]));
    });
}

#[test]
fn ga_6_a_plain_value_comes_back_as_it_is() {
    let value = mirrored(2).gather(tensor(&[1., 2.]), 0).unwrap();
    assert_eq!(floats(&value), [1., 2.]);
}

#[test]
fn ga_7_bool_and_string_can_be_gathered_too() {
    watched(|| {
        let strategy = mirrored(2);
        let bools = strategy
            .run((), |ctx, ()| ctx.all_gather(host(vec![ctx.replica_id_in_sync_group() == 0], [1]), 0))
            .unwrap();
        assert_eq!(bools.values()[1], host(vec![true, false], [2]));
        let strings = per_replica([host(vec![b"a".to_vec()], [1]), host(vec![b"b".to_vec()], [1])]);
        assert_eq!(strategy.gather(strings, 0).unwrap(), host(vec![b"a".to_vec(), b"b".to_vec()], [2]));
    });
}

#[test]
fn ga_8_every_replica_gets_the_concatenation_of_each_leaf() {
    watched(|| {
        let strategy = mirrored(2);
        let gathered = strategy.run((), |ctx, ()| {
            let r = ctx.replica_id_in_sync_group();
            let b = [host(vec![0i32, 1], [1, 2]), host(vec![2i32, 3, 4, 5], [2, 2])][r].clone();
            ctx.all_gather((host(vec![r as f32], [1]), b), 0)
        });
        for (a, b) in gathered.unwrap() {
            assert_eq!(a, host(vec![0f32, 1.], [2]));
            assert_eq!(b, host((0..6).collect::<Vec<i32>>(), [3, 2]));
        }
        // SPARSE-4: sparse values are refused.
        let slices = || IndexedSlices::new(host(vec![1f32], [1, 1]), host(vec![0i32], [1]), None).unwrap();
        assert!(
            strategy
                .gather(per_replica([slices(), slices()]), 0)
                .unwrap_err()
                .to_string()
                .contains("indexed slices")
        );
        let error = strategy.run((), |ctx, ()| ctx.all_gather(slices(), 0)).unwrap_err().to_string();
        assert!(error.contains("indexed slices"), "{error}");
    });
}

#[test]
fn ga_9_the_gradient_is_this_replicas_part_of_the_summed_upstream() {
    watched(|| {
        let weights = tensor(&[1., 10., 100.]);
        let grads = gradients(&[&[1.], &[2., 3.]], |ctx, x| {
            let all = ctx.all_gather(x.clone(), 0)?;
            Ok(((all * &weights)? * (ctx.replica_id_in_sync_group() + 1) as f64)?.sum_all()?)
        });
        assert_eq!(grads.unwrap().values(), [vec![3.], vec![30., 300.]]);
        // Along another axis, and with a piece that is empty.
        let grads = gradients(&[&[1., 2.], &[]], |ctx, x| {
            let all = ctx.all_gather(x.reshape((1, x.elem_count()))?, 1)?;
            Ok((all.narrow(1, 1, 1)? * 5.)?.sum_all()?)
        });
        assert_eq!(grads.unwrap().values(), [vec![0., 10.], vec![]]);
    });
}
