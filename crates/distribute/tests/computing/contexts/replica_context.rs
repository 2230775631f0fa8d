//! Tests of statements in the documentation of ReplicaContext, which no other test checks as strictly.

use crate::contexts::{bits, each, everywhere, has_others, is_other, mirrored, of_all, tensor};
use distribute::cluster::Fault;
use distribute::context::ContextKind;
use distribute::strategy::{CommunicationOptions, DeviceName};
use distribute::tensor::{Leaf, Tree};
use distribute::{Error, HostTensor, Nest, ReduceOp, Strategy};
use distribute_testing::watched;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

fn zeros(shape: &[usize]) -> HostTensor {
    HostTensor::zeros(distribute::tensor::DType::F32, shape).unwrap()
}

// all_gather

#[test]
fn ga_8_all_gather_belongs_into_replica_context() {
    let check = |strategy: &Strategy| {
        let is_refused = |error: Error| {
            let Error::WrongContext { operation, required, found, advice } = error else { panic!("{error}") };
            assert_eq!(
                (operation, required, found),
                ("all_gather", ContextKind::Replica, ContextKind::CrossReplica)
            );
            assert!(advice.contains("inside the closure passed to run"), "{advice}");
        };
        // In the default strategy's scope the default context goes on (SCOPE-5).
        let default = distribute::context::get_replica_context().unwrap();
        let in_scope = strategy.scope(|| default.all_gather(zeros(&[1]), 0));
        if *strategy == distribute::context::get_strategy() {
            assert_eq!(in_scope.unwrap().dims(), [1]);
        } else {
            is_refused(in_scope.unwrap_err());
        }
        let merged = strategy.run((), |ctx, ()| {
            ctx.merge_call((), |strategy, _| {
                is_refused(ctx.all_gather(zeros(&[1]), 0).unwrap_err());
                // Operations for cross-replica context are permitted.
                strategy.gather(each(strategy, |id| zeros(&[1 + id])), 0)
            })
        });
        let rows = of_all(strategy, |id| 1 + id).iter().sum::<usize>();
        assert!(merged.unwrap().iter().all(|all| all.dims() == [rows]), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn ga_8_sizes_may_differ_along_the_axis_and_ranks_may_not() {
    let check = |strategy: &Strategy| {
        let shapes = each(strategy, |id| zeros(&[1, 2 + id, 3]));
        let columns = of_all(strategy, |id| 2 + id).iter().sum::<usize>();
        let all = strategy.run(&shapes, |ctx, value| ctx.all_gather(value.clone(), 1)).unwrap();
        assert!(all.iter().all(|all| all.dims() == [1, columns, 3]), "{strategy}");
        if !has_others(strategy) {
            return;
        }
        for axis in [0, 2] {
            let error = strategy.run(&shapes, |ctx, value| ctx.all_gather(value.clone(), axis)).unwrap_err();
            assert_eq!(error.blame().unwrap().fault, Fault::Mismatch, "{strategy}: {error}");
        }
        let ranks = each(strategy, |id| zeros(&[2, 3, 1][..if id == 0 { 2 } else { 3 }]));
        let error = strategy.run(&ranks, |ctx, value| ctx.all_gather(value.clone(), 0)).unwrap_err();
        assert_eq!(error.blame().unwrap().fault, Fault::Mismatch, "{strategy}: {error}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn ga_8_the_structure_is_the_same_on_all_replicas() {
    let check = |strategy: &Strategy| {
        let leaf = || zeros(&[1]).into_tree();
        if !has_others(strategy) {
            return;
        }
        let error = strategy.run((), |ctx, ()| {
            let nest: Tree<Leaf> = match ctx.replica_id_in_sync_group() {
                0 => Tree::Tuple(vec![leaf(), leaf()]),
                _ => Tree::List(vec![leaf(), leaf()]),
            };
            ctx.all_gather(nest, 0)
        });
        let error = error.unwrap_err();
        assert_eq!(error.blame().unwrap().fault, Fault::Mismatch, "{strategy}: {error}");
        assert!(error.to_string().contains("(float32[*], float32[*])"), "{strategy}: {error}");
        assert!(error.to_string().contains("[float32[*], float32[*]]"), "{strategy}: {error}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn t7_an_all_gather_that_one_replica_leaves_out_names_it_and_does_not_hang() {
    let check = |strategy: &Strategy| {
        if has_others(strategy) {
            for absent in of_all(strategy, |id| id) {
                let error = strategy.run((), |ctx, ()| {
                    if ctx.replica_id_in_sync_group() == absent {
                        Ok(zeros(&[0]))
                    } else {
                        ctx.all_gather(zeros(&[1]), 0)
                    }
                });
                let error = error.unwrap_err();
                let blame = error.blame().unwrap();
                let found = (blame.fault, blame.culprits.as_slice());
                assert_eq!(found, (Fault::Returned, &[absent][..]), "{strategy}: {error}");
                assert!(error.to_string().contains("in all_gather"), "{strategy}: {error}");
            }
        }
        assert!(strategy.run((), |ctx, ()| ctx.all_gather(zeros(&[1]), 0)).is_ok(), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn co_6_options_of_an_all_gather_come_before_the_strategys() {
    watched(|| {
        let strategy = mirrored(2);
        let hurried = CommunicationOptions { timeout: Some(Duration::from_millis(50)), ..Default::default() };
        let (tell, wait) = mpsc::channel();
        let (tell, wait) = (Mutex::new(tell), Mutex::new(wait));
        let error = strategy.run((), |ctx, ()| {
            let is_late = ctx.replica_id_in_sync_group() == 1;
            if is_late {
                wait.lock().unwrap().recv_timeout(MINUTE).unwrap();
            }
            let gathered = ctx.with_options(hurried)?.all_gather(zeros(&[1]), 0);
            if !is_late {
                tell.lock().unwrap().send(()).unwrap();
            }
            gathered
        });
        let error = error.unwrap_err();
        assert_eq!(error.blame().unwrap().culprits, [1], "{error}");
        assert!(error.to_string().contains("waited 50ms in all_gather"), "{error}");
    });
}

// all_reduce

#[test]
fn red_2_the_cross_replica_reductions_are_bit_identical_to_all_reduce() {
    let check = |strategy: &Strategy| {
        let of = |id: usize| tensor(&[0.1 * 11f32.powi(id as i32), 1. / (id + 3) as f32]);
        let value =
            strategy.distribute_values_from_function(|ctx| Ok(of(ctx.replica_id_in_sync_group))).unwrap();
        let parameter = strategy.extended().parameter_devices()[0];
        for op in [ReduceOp::Sum, ReduceOp::Mean] {
            let reduced = strategy.run(&value, |ctx, value| ctx.all_reduce(op, value.clone())).unwrap();
            let expected = bits(&reduced.values()[0]);
            assert_eq!(bits(&strategy.reduce(op, &value, None).unwrap()), expected, "{strategy}");
            assert_eq!(bits(strategy.reduce_to(op, &value, "cpu:0").unwrap().get()), expected, "{strategy}");
            let pairs = [DeviceName::cpu(0), parameter].map(|device| (&value, device));
            let batch = strategy.batch_reduce_to(op, pairs).unwrap();
            assert!(batch.iter().all(|one| bits(one.get()) == expected), "{strategy}");
        }
    };
    watched(move || {
        [3, 4].map(mirrored).iter().for_each(check);
        everywhere(check);
    });
}

#[test]
fn ar_1_shapes_are_the_same_on_all_replicas() {
    let check = |strategy: &Strategy| {
        if !has_others(strategy) {
            return;
        }
        // Not even what could be broadcast.
        let error = strategy.run((), |ctx, ()| {
            let len = [1, 3][is_other(ctx)];
            ctx.all_reduce(ReduceOp::Sum, (zeros(&[2]), zeros(&[len])))
        });
        let error = error.unwrap_err();
        assert_eq!(error.blame().unwrap().fault, Fault::Mismatch);
        let text = error.to_string();
        assert!(text.contains("float32[1]") && text.contains("float32[3]"), "{strategy}: {text}");
    };
    watched(move || drop(everywhere(check)));
}
