//! The method `run`: arguments and context of each replica, and its errors.

use crate::contexts::{floats, is_wrong_context, mirrored, one_device, per_replica, tensor};
use candle_core::DType;
use candle_nn::{VarBuilder, linear};
use distribute::{ContextKind, Error, Mirrored, ReduceOp, Result, get_replica_context, get_strategy};
use distribute_testing::watched;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex};

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
