//! The method `run`: the arguments and the context of each replica, and its errors.

use crate::contexts::{
    each, everywhere, floats, is_wrong_context, mirrored, of_all, one_device, per_replica, tensor,
};
use candle_core::DType;
use candle_nn::{VarBuilder, linear};
use distribute::context::{ContextKind, get_replica_context, get_strategy};
use distribute::values::Mirrored;
use distribute::{Error, ReduceOp, Result, Strategy};
use distribute_testing::watched;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};

#[test]
fn run_3_each_replica_gets_its_component_of_distributed_values_and_all_other_values() {
    let check = |strategy: &Strategy| {
        let names = || each(strategy, |id| format!("name {id}"));
        let list = vec![each(strategy, |id| id), each(strategy, |id| 10 * id)];
        let args = (names(), (list, Mirrored::new(5)), (tensor(&[6.]), 7u8, "x".to_string()));
        let seen = strategy.run(args, |_, (name, (list, five), (t, seven, x))| {
            Ok(format!("{name} {list:?} {five} {:?} {seven} {x}", floats(&t)))
        });
        let expected = each(strategy, |id| format!("name {id} [{id}, {}] 5 [6.0] 7 x", 10 * id));
        assert_eq!(seen.unwrap().values(), expected.values(), "{strategy}");
        // Arguments by reference are not copied, and each replica receives its own part of a model.
        let (values, model) = (names(), strategy.replicate(|vb: VarBuilder| linear(1, 1, vb)).unwrap());
        let first = strategy.world().local_replicas().start;
        let same = strategy.run((&values, &model), |ctx, (value, mine)| {
            let local = ctx.replica_id_in_sync_group() - first;
            Ok(std::ptr::eq(value, &values.values()[local])
                && std::ptr::eq(mine, &model.models().values()[local]))
        });
        assert!(same.unwrap().iter().all(|same| *same), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn run_4_the_context_inside_has_ids_and_counts() {
    let check = |strategy: &Strategy| {
        // Tests share the default strategy, and its steps.
        let is_shared = *strategy == get_strategy();
        let start = strategy.run((), |ctx, ()| Ok(ctx.step())).unwrap().values()[0];
        for step in 1..=2 {
            let seen = strategy.run((), |ctx, ()| {
                assert!(ctx.strategy() == strategy && get_strategy() == *strategy);
                assert_eq!(ctx.num_replicas_in_sync(), strategy.num_replicas_in_sync());
                assert!(is_shared || ctx.step() == start + step, "{strategy}");
                assert_eq!(
                    get_replica_context().unwrap().replica_id_in_sync_group(),
                    ctx.replica_id_in_sync_group()
                );
                Ok(ctx.replica_id_in_sync_group())
            });
            assert_eq!(seen.unwrap().values(), each(strategy, |id| id).values(), "{strategy}");
        }
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn run_6_replicas_run_at_once_with_merge_call_as_the_barrier() {
    let check = |strategy: &Strategy| {
        let replicas = strategy.world().replicas();
        // This only ends if all replicas of this worker run at the same time. TensorFlow runs them one after another.
        let (meet, before, order) = (Barrier::new(replicas), AtomicUsize::new(0), Mutex::new(Vec::new()));
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
        let expected: Vec<_> = [replicas].into_iter().chain(vec![9; replicas]).collect();
        assert_eq!(*order.lock().unwrap(), expected, "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn run_7_the_error_of_a_replica_reaches_the_caller_with_its_kind_and_the_replica() {
    #[derive(Debug, thiserror::Error, PartialEq)]
    #[error("out of cheese")]
    struct Cheese;

    let check = |strategy: &Strategy| {
        let (local, devices) = (strategy.world().local_replicas(), strategy.extended().worker_devices());
        for guilty in of_all(strategy, |id| id) {
            let error = strategy.run((), |ctx, ()| {
                if ctx.replica_id_in_sync_group() == guilty {
                    return Err(Error::other(Cheese));
                }
                ctx.all_reduce(ReduceOp::Sum, 1f32)
            });
            let error = error.unwrap_err();
            // The other workers get a blame that names the replica.
            if !local.contains(&guilty) {
                assert_eq!(error.blame().unwrap().culprits, [guilty], "{strategy}: {error}");
                continue;
            }
            let Error::Replica { replica, device, source, .. } = &error else { panic!("{error}") };
            let expected = devices[guilty - local.start].to_string();
            assert_eq!((*replica, device.as_str()), (guilty, &*expected), "{strategy}");
            let Error::Other(cause) = source.root_cause() else { panic!("{source}") };
            assert_eq!(cause.downcast_ref::<Cheese>(), Some(&Cheese));
        }
        // The error is that of the lowest replica, after all have run (in TensorFlow, those after it never start).
        let ran = AtomicUsize::new(0);
        let error = strategy.run((), |ctx, ()| -> Result<()> {
            ran.fetch_add(1, Ordering::SeqCst);
            Err(Error::other(format!("replica {}", ctx.replica_id_in_sync_group())))
        });
        let first = format!("replica {}", local.start);
        assert_eq!(error.unwrap_err().root_cause().to_string(), first, "{strategy}");
        assert_eq!(ran.into_inner(), local.len(), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn run_9_later_replicas_find_the_variables_of_replica_0_by_name() {
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
            [(0, r#"did not request the variables ["extra"]"#), (1, r#"requested ["extra"]"#)]
        {
            let error = build(extra_on).unwrap_err().to_string();
            assert!(error.contains("replica 1") && error.contains(text), "{error}");
        }
        // All replicas get the same answer whether a variable exists, no matter which of them builds first.
        let model = strategy.replicate(|vb: VarBuilder| -> Result<bool> {
            let old_name = vb.contains_tensor("gamma");
            vb.get(1, if old_name { "beta" } else { "gamma" })?;
            Ok(old_name)
        });
        assert_eq!(model.unwrap().models().values(), [false, false]);
    });
}

#[test]
fn run_11_a_nested_run_is_an_error() {
    let check = |strategy: &Strategy| {
        let inside = strategy.run((), |_, ()| strategy.run((), |_, ()| Ok(())).map(|_| ()));
        let error = inside.unwrap_err();
        assert!(is_wrong_context(&error, ContextKind::CrossReplica, ContextKind::Replica), "{error}");
        assert!(error.to_string().contains("merge_call"), "{strategy}: {error}");
    };
    watched(move || drop(everywhere(check)));
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
