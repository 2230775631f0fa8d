//! The errors of operations in the wrong context.

use crate::contexts::{each, everywhere, floats, is_mixed, is_wrong_context, mirrored, of_all, tensor};
use candle_nn::{VarBuilder, linear};
use distribute::context::{ContextKind, get_strategy, has_strategy};
use distribute::{Error, HostTensor, ReduceOp, Strategy};
use distribute_testing::watched;
use std::sync::Mutex;

#[test]
fn err_1_cross_replica_operations_inside_run_give_advice() {
    let check = |strategy: &Strategy| {
        let wrong = |error: Error, advice: &str| {
            assert!(is_wrong_context(&error, ContextKind::CrossReplica, ContextKind::Replica), "{error}");
            assert!(error.to_string().contains(advice), "{strategy}: {error}");
        };
        let ones = each(strategy, |_| 1f32);
        wrong(
            strategy.run((), |_, ()| strategy.reduce(ReduceOp::Sum, &ones, None)).unwrap_err(),
            "all_reduce",
        );
        wrong(
            strategy
                .run((), |_, ()| strategy.replicate(|vb: VarBuilder| linear(1, 1, vb)).map(|_| ()))
                .unwrap_err(),
            "before run",
        );
        // ERR-1c: of another strategy. The default strategy has no scope to leave.
        let other = mirrored(3);
        if *strategy == get_strategy() {
            let inside = strategy.run((), |_, ()| other.reduce(ReduceOp::Mean, 1f32, None)).unwrap();
            assert_eq!(inside.values(), [1.]);
            return;
        }
        assert!(is_mixed(strategy.run((), |_, ()| other.reduce(ReduceOp::Mean, 1f32, None))));
        assert!(is_mixed(strategy.scope(|| other.reduce(ReduceOp::Mean, 1f32, None))));
        assert!(is_mixed(strategy.scope(|| other.gather(1f32, 0))));
        assert!(is_mixed(strategy.scope(|| other.run((), |_, ()| Ok(())))));
    };
    watched(move || drop(everywhere(check)));
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
        // Outside any run the context is stale, and mixes no strategies.
        let stale = |error: Error| matches!(error, Error::StaleContext { step: 1, .. });
        assert!(stale(old.device().unwrap_err()));
        assert!(stale(old.all_reduce(ReduceOp::Sum, 1f32).unwrap_err()));
        // In cross-replica context there is no replica context.
        let error = strategy.scope(|| old.merge_call(1i32, |_, _| Ok(1i32))).unwrap_err();
        assert!(is_wrong_context(&error, ContextKind::Replica, ContextKind::CrossReplica), "{error}");
        // In a later run of the same strategy, the context belongs to an earlier step.
        let error = strategy.run((), |_, ()| old.all_gather(HostTensor::vector(vec![1f32]), 0)).unwrap_err();
        assert!(
            matches!(error.root_cause(), Error::StaleContext { operation: "all_gather", step: 1, .. }),
            "{error}"
        );
        // A run of another strategy.
        assert!(is_mixed(mirrored(2).run((), |_, ()| old.device())));
        // The context of another thread of the same run.
        let shared = Mutex::new(None);
        let error = strategy.run((), |ctx, ()| {
            if ctx.replica_id_in_sync_group() == 0 {
                *shared.lock().unwrap() = Some(ctx.clone());
            }
            ctx.all_reduce(ReduceOp::Sum, 0f32)?;
            let zero = shared.lock().unwrap().clone().unwrap();
            zero.device()
        });
        assert!(matches!(error.unwrap_err().root_cause(), Error::StaleContext { .. }));
    });
}

#[test]
fn err_3_gather_in_replica_context_points_at_all_gather() {
    let check = |strategy: &Strategy| {
        let error = strategy.run((), |_, ()| strategy.gather(HostTensor::vector(vec![1]), 0));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("all_gather"), "{strategy}: {error}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn err_4_the_default_context_is_accepted_everywhere() {
    let check = |strategy: &Strategy| {
        assert!(!has_strategy());
        let count = strategy.num_replicas_in_sync();
        let values = strategy.run((), |_, ()| Ok(tensor(&[1., 2.]))).unwrap();
        let sum = strategy.reduce(ReduceOp::Sum, &values, None).unwrap();
        assert_eq!(floats(&sum), [count as f32, 2. * count as f32], "{strategy}");
        let all = strategy.gather(&values, 0).unwrap();
        assert_eq!(floats(&all), of_all(strategy, |_| [1., 2.]).concat(), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}
