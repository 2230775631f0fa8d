//! `ReplicaContext::all_reduce`, and its gradient.

use crate::contexts::{floats, gradients, host, is_wrong_context, mirrored, one_device, tensor};
use candle_core::Var;
use candle_nn::VarBuilder;
use distribute::cluster::Fault;
use distribute::{ContextKind, Error, IndexedSlices, Leaf, ReduceOp, get_replica_context};
use distribute_testing::watched;
use std::collections::BTreeMap;

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
    // SPARSE-1, SPARSE-2: each index once, ascending.
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
            assert_eq!(sum, slices(vec![1., 5.], vec![0, 1]));
        }
        // With one replica as with several.
        let strategies = [mirrored(1), one_device(), distribute::get_strategy()];
        for strategy in strategies {
            let results = strategy
                .run((), |ctx, ()| ctx.all_reduce(ReduceOp::Mean, slices(vec![1., 2., 4.], vec![2, 0, 2])));
            assert_eq!(results.unwrap().values(), [slices(vec![2., 5.], vec![0, 2])]);
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
    assert_eq!(context.all_reduce(ReduceOp::Mean, 3f32).unwrap(), 3.);
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
