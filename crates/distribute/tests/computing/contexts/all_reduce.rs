//! `ReplicaContext::all_reduce`, and its gradient.

use crate::contexts::{
    each, everywhere, floats, gradients, has_others, host, is_other, is_wrong_context, mirrored, of_all,
    one_device, tensor,
};
use candle_core::Var;
use candle_nn::VarBuilder;
use distribute::cluster::Fault;
use distribute::context::{ContextKind, get_replica_context};
use distribute::tensor::{IndexedSlices, Leaf};
use distribute::{Error, ReduceOp, Strategy};
use distribute_testing::watched;
use std::collections::BTreeMap;

#[test]
fn ar_1_any_nest_and_the_result_has_its_structure() {
    let check = |strategy: &Strategy| {
        let results = strategy.run((), |ctx, ()| {
            let r = ctx.replica_id_in_sync_group() as f32;
            let nest = (
                tensor(&[r, 1.]),
                vec![Some(r)],
                BTreeMap::from([("a".to_string(), host(vec![r as i32], [1]))]),
            );
            ctx.all_reduce(ReduceOp::Sum, nest)
        });
        let ids: f32 = of_all(strategy, |id| id as f32).iter().sum();
        let count = strategy.num_replicas_in_sync();
        for (t, list, map) in results.unwrap() {
            assert_eq!(floats(&t), [ids, count as f32], "{strategy}");
            assert_eq!((list, &map["a"]), (vec![Some(ids)], &host(vec![ids as i32], [1])), "{strategy}");
        }
        if !has_others(strategy) {
            return;
        }
        let error = strategy.run((), |ctx, ()| {
            let list = vec![1f32; 1 + is_other(ctx)];
            ctx.all_reduce(ReduceOp::Sum, list)
        });
        let error = error.unwrap_err();
        assert_eq!(error.blame().unwrap().fault, Fault::Mismatch);
        let text = error.to_string();
        assert!(
            text.contains("SUM [float32[]]") && text.contains("SUM [float32[], float32[]]"),
            "{strategy}: {text}"
        );
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn ar_1_sparse_rows_may_differ_in_number() {
    // SPARSE-1, SPARSE-2: each index once, ascending.
    let check = |strategy: &Strategy| {
        let slices = |rows: Vec<f32>, at: Vec<i32>| {
            let n = at.len();
            IndexedSlices::new(host(rows, [n, 1]), host(at, [n]), Some(vec![3, 1])).unwrap()
        };
        let others = strategy.num_replicas_in_sync() as f32 - 1.;
        let results = strategy.run((), |ctx, ()| {
            let mine = match ctx.replica_id_in_sync_group() {
                0 => slices(vec![1., 2.], vec![0, 1]),
                _ => slices(vec![3.], vec![1]),
            };
            ctx.all_reduce(ReduceOp::Sum, mine)
        });
        for sum in results.unwrap() {
            assert_eq!(sum, slices(vec![1., 2. + 3. * others], vec![0, 1]), "{strategy}");
        }
        // The rows of one replica are merged as those of several.
        let results = strategy
            .run((), |ctx, ()| ctx.all_reduce(ReduceOp::Mean, slices(vec![1., 2., 4.], vec![2, 0, 2])));
        for mean in results.unwrap() {
            assert_eq!(mean, slices(vec![2., 5.], vec![0, 2]), "{strategy}");
        }
        if !has_others(strategy) {
            return;
        }
        // SPARSE-3: a dense tensor on another replica: all become dense.
        let results = strategy.run((), |ctx, ()| {
            let mine = match ctx.replica_id_in_sync_group() {
                0 => Leaf::from(slices(vec![1., 2.], vec![0, 2])),
                _ => Leaf::from(host(vec![10f32, 20., 30.], [3, 1])),
            };
            ctx.all_reduce(ReduceOp::Sum, mine)
        });
        let expected = vec![1. + 10. * others, 20. * others, 2. + 30. * others];
        for sum in results.unwrap() {
            assert_eq!(sum.to_host().unwrap(), host(expected.clone(), [3, 1]), "{strategy}");
        }
        // Another dense shape is still a mismatch.
        let error = strategy.run((), |ctx, ()| {
            let whole = 3 + is_other(ctx);
            ctx.all_reduce(
                ReduceOp::Sum,
                IndexedSlices { dense_shape: Some(vec![whole, 1]), ..slices(vec![1.], vec![0]) },
            )
        });
        assert_eq!(error.unwrap_err().blame().unwrap().fault, Fault::Mismatch, "{strategy}");
    };
    watched(move || {
        check(&mirrored(1));
        everywhere(check);
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
    let check = |strategy: &Strategy| {
        let reduced =
            strategy.run((), |ctx, ()| ctx.all_reduce([ReduceOp::Sum, ReduceOp::Mean][is_other(ctx)], 1f32));
        if !has_others(strategy) {
            assert_eq!(reduced.unwrap().values(), [1.], "{strategy}");
            return;
        }
        let error = reduced.unwrap_err();
        assert_eq!(error.blame().unwrap().fault, Fault::Mismatch);
        let text = error.to_string();
        assert!(text.contains("SUM float32[]") && text.contains("MEAN float32[]"), "{strategy}: {text}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn ar_6_numbers_are_values_and_an_empty_list_stays_empty() {
    let check = |strategy: &Strategy| {
        let replicas = strategy.world().replicas();
        let mean = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Mean, 1.5f64)).unwrap();
        assert_eq!(mean.values(), vec![1.5; replicas], "{strategy}");
        let empty = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, Vec::<f32>::new())).unwrap();
        assert!(empty.iter().all(Vec::is_empty), "{strategy}");
        let none = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, None::<f32>)).unwrap();
        assert_eq!(none.values(), vec![None; replicas], "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn ar_t1_the_same_tensor_on_all_replicas_is_summed() {
    let check = |strategy: &Strategy| {
        let count = strategy.num_replicas_in_sync();
        let captured = tensor(&[1.]);
        let sums = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, captured.clone())).unwrap();
        assert!(sums.iter().all(|sum| floats(sum) == [count as f32]), "{strategy}");
        let all = strategy.run((), |ctx, ()| ctx.all_gather(captured.clone(), 0)).unwrap();
        assert!(all.iter().all(|all| floats(all) == vec![1.; count]), "{strategy}");
        let model = strategy
            .replicate(|vb: VarBuilder| vb.get_with_hints(1, "w", candle_nn::Init::Const(3.)))
            .unwrap();
        let sums = strategy.run(&model, |ctx, w| ctx.all_reduce(ReduceOp::Sum, w.clone())).unwrap();
        assert!(sums.iter().all(|sum| floats(sum) == [3. * count as f32]), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn ar_7_the_gradient_is_the_reduced_upstream() {
    let check = |strategy: &Strategy| {
        // The upstream gradients are 1, 2, …
        let upstream: f32 = of_all(strategy, |id| 1. + id as f32).iter().sum();
        let mean = upstream / strategy.num_replicas_in_sync() as f32;
        for (op, upstream) in [(ReduceOp::Sum, upstream), (ReduceOp::Mean, mean)] {
            let x = |id: usize| 1. + id as f32;
            let grads = gradients(
                strategy,
                |id| vec![x(id)],
                |ctx, x| {
                    let reduced = ctx.all_reduce(op, x.sqr()?)?;
                    Ok((reduced.sum_all()? * (ctx.replica_id_in_sync_group() + 1) as f64)?)
                },
            );
            let expected = each(strategy, |id| vec![2. * x(id) * upstream]);
            assert_eq!(grads.unwrap().values(), expected.values(), "{op}: {strategy}");
        }
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn ar_7_a_result_used_twice_and_a_reduction_of_a_reduction() {
    let check = |strategy: &Strategy| {
        let x = |id: usize| 1. + id as f32;
        let (sum, count) = (of_all(strategy, x).iter().sum::<f32>(), strategy.num_replicas_in_sync() as f32);
        let all = |expected: Vec<f32>| each(strategy, |_| expected.clone()).into_values();
        // y = s + s², s = Σx: dy/dx = Σ over replicas of (1 + 2s).
        let grads = gradients(
            strategy,
            |id| vec![x(id)],
            |ctx, x| {
                let s = ctx.all_reduce(ReduceOp::Sum, x.clone())?;
                Ok((&s + s.sqr()?)?.sum_all()?)
            },
        );
        assert_eq!(grads.unwrap().into_values(), all(vec![count * (1. + 2. * sum)]), "{strategy}");
        // Σ of Σ: each backward sums over the replicas.
        let grads = gradients(
            strategy,
            |id| vec![x(id)],
            |ctx, x| {
                let s = ctx.all_reduce(ReduceOp::Sum, x.clone())?;
                Ok(ctx.all_reduce(ReduceOp::Sum, s)?.sum_all()?)
            },
        );
        assert_eq!(grads.unwrap().into_values(), all(vec![count * count]), "{strategy}");
        // Several leaves of one call, of which a leaf without graph needs nothing.
        let grads = gradients(
            strategy,
            |id| vec![x(id), 5. + 2. * id as f32],
            |ctx, x| {
                let (a, b, constant) = (x.narrow(0, 0, 1)?, x.narrow(0, 1, 1)?, tensor(&[10.]));
                let (a, b, c) = ctx.all_reduce(ReduceOp::Sum, (a, b, constant))?;
                Ok(((a * 2.)? + (b * c)?)?.sum_all()?)
            },
        );
        let expected = vec![2. * count, 10. * count * count];
        assert_eq!(grads.unwrap().into_values(), all(expected), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn ar_7_a_result_that_one_replica_does_not_use_is_an_error_in_its_gradient_not_a_hang() {
    let check = |strategy: &Strategy| {
        if !has_others(strategy) {
            return;
        }
        for unused_on in of_all(strategy, |id| id) {
            let error = gradients(
                strategy,
                |id| vec![1. + id as f32],
                |ctx, x| {
                    let s = ctx.all_reduce(ReduceOp::Sum, x.clone())?;
                    let used = if ctx.replica_id_in_sync_group() == unused_on { x } else { &s };
                    Ok(used.sum_all()?)
                },
            );
            let error = error.unwrap_err();
            let blame = error.blame().unwrap_or_else(|| panic!("{error:?}"));
            assert_eq!(
                (blame.fault, blame.culprits.as_slice()),
                (Fault::Returned, &[unused_on][..]),
                "{strategy}: {error}"
            );
            assert!(error.to_string().contains("the gradient of call 1"), "{strategy}: {error}");
        }
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn ar_7_gradients_of_several_calls_are_distinguished() {
    let check = |strategy: &Strategy| {
        // On other replicas, the graph has its two collectives in another order than on replica 0.
        let error = gradients(
            strategy,
            |id| vec![1. + id as f32],
            |ctx, x| {
                let a = ctx.all_reduce(ReduceOp::Sum, x.clone())?;
                let b = ctx.all_reduce(ReduceOp::Sum, x.sqr()?)?;
                Ok(match ctx.replica_id_in_sync_group() {
                    0 => (a.sqr()? + b)?.sum_all()?,
                    _ => (b.sqr()? + a)?.sum_all()?,
                })
            },
        );
        // The graph determines the order of backward: either replicas agree on it, or it is an error.
        match error {
            Ok(grads) => assert_eq!(grads.len(), strategy.world().replicas(), "{strategy}"),
            Err(error) => assert_eq!(error.blame().unwrap().fault, Fault::Mismatch, "{strategy}: {error}"),
        }
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn ar_7_a_handled_error_in_backward_is_not_reported_again() {
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
        // A later error of candle on the same thread is not replaced by the handled one.
        let error = strategy.run((), |_, ()| Ok(tensor(&[1.]).reshape((2, 2))?)).unwrap_err();
        assert!(matches!(error.root_cause(), Error::Candle(_)), "{error}");
    });
}

#[test]
fn ar_8_the_order_within_one_call_does_not_matter_the_number_of_calls_does() {
    let check = |strategy: &Strategy| {
        let swapped = strategy.run((), |ctx, ()| {
            let [a, b] = ctx.all_reduce(ReduceOp::Sum, [1f32, 10.])?;
            let [c, d] = ctx.all_reduce(ReduceOp::Sum, [10f32, 1.])?;
            Ok((a, b) == (d, c))
        });
        assert!(swapped.unwrap().iter().all(|same| *same), "{strategy}");
        if !has_others(strategy) {
            return;
        }
        let error = strategy.run((), |ctx, ()| {
            for _ in 0..=is_other(ctx) {
                ctx.all_reduce(ReduceOp::Sum, 1f32)?;
            }
            Ok(())
        });
        let error = error.unwrap_err();
        assert_eq!(error.blame().unwrap().culprits, [0], "{strategy}: {error}");
        assert!(error.to_string().contains("call 2"), "{strategy}: {error}");
    };
    watched(move || drop(everywhere(check)));
}
