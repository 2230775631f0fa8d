//! `Strategy::gather`, `ReplicaContext::all_gather`, and its gradient.

use crate::contexts::{
    each, everywhere, floats, gradients, has_others, host, is_other, mirrored, of_all, tensor,
};
use distribute::cluster::Fault;
use distribute::tensor::{DType as HostDType, IndexedSlices};
use distribute::values::Mirrored;
use distribute::{Error, HostTensor, Strategy};
use distribute_testing::watched;

fn zeros(shape: &[usize]) -> HostTensor {
    HostTensor::zeros(HostDType::F32, shape).unwrap()
}

#[test]
fn ga_1_components_are_joined_in_replica_order_and_may_differ_along_the_axis() {
    let check = |strategy: &Strategy| {
        let part = |id: usize| vec![id as i32; 3 * (2 + id)];
        let values = each(strategy, |id| host(part(id), [1, 2 + id, 3]));
        let gathered = strategy.gather(&values, 1).unwrap();
        let expected = of_all(strategy, part).concat();
        assert_eq!(gathered.dims(), [1, expected.len() / 3, 3], "{strategy}");
        assert_eq!(gathered.as_slice::<i32>().unwrap(), expected, "{strategy}");
        // A value that is the same on all replicas is repeated for each replica.
        let mirrored = strategy.gather(Mirrored::new(tensor(&[1.])), 0).unwrap();
        assert_eq!(floats(&mirrored), vec![1.; strategy.num_replicas_in_sync()], "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn ga_2_other_differences_are_errors_that_spoil_nothing() {
    let check = |strategy: &Strategy| {
        let count = strategy.num_replicas_in_sync();
        for (a, b, axis) in
            [(&[1, 2, 3][..], &[1, 3, 3][..], 0), (&[1, 2, 3], &[1, 3, 3], 2), (&[2], &[2, 1], 0)]
        {
            if !has_others(strategy) {
                continue;
            }
            let values = each(strategy, |id| zeros(if id == 0 { a } else { b }));
            let error = strategy.gather(&values, axis).unwrap_err();
            // Over several workers, the call with the others finds the difference.
            if strategy.world().is_multi_worker() {
                assert_eq!(error.blame().unwrap().fault, Fault::Mismatch, "{strategy}: {error}");
            } else {
                assert!(matches!(error, Error::Tensor { operation: "gather", .. }), "{error}");
                assert!(error.to_string().contains("replica 1"), "{error}");
            }
            let error = strategy.run(&values, |ctx, value| ctx.all_gather(value.clone(), axis)).unwrap_err();
            assert_eq!(error.blame().unwrap().fault, Fault::Mismatch, "{strategy}: {error}");
        }
        let all = strategy.gather(each(strategy, |id| zeros(&[1 + id])), 0).unwrap();
        assert_eq!(all.dims(), [count * (count + 1) / 2], "{strategy}");
        assert!(strategy.run((), |ctx, ()| ctx.all_gather(tensor(&[1.]), 0)).is_ok(), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn ga_3_scalars_cannot_be_gathered() {
    let check = |strategy: &Strategy| {
        let error = strategy.gather(each(strategy, |id| id as f32), 0).unwrap_err();
        assert!(matches!(error, Error::Tensor { .. }), "{strategy}: {error}");
        assert!(error.to_string().contains("unsqueeze"), "{strategy}: {error}");
        let error = strategy.run((), |ctx, ()| ctx.all_gather(1f32, 0)).unwrap_err();
        assert!(error.to_string().contains("unsqueeze"), "{strategy}: {error}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn ga_4_the_axis_is_in_0_to_rank() {
    let check = |strategy: &Strategy| {
        // A negative axis does not compile: it is a usize.
        let values = each(strategy, |id| tensor(&[id as f32]));
        let error = strategy.gather(&values, 1).unwrap_err().to_string();
        assert!(error.contains("axis 1 is outside [0, 1)"), "{strategy}: {error}");
        let error = strategy.run((), |ctx, ()| ctx.all_gather(tensor(&[1.]), 1)).unwrap_err().to_string();
        assert!(error.contains("axis 1 is outside [0, 1)"), "{strategy}: {error}");
        if has_others(strategy) {
            let error = strategy.run((), |ctx, ()| ctx.all_gather(tensor(&[1.]), is_other(ctx)));
            let error = error.unwrap_err();
            assert_eq!(error.blame().unwrap().fault, Fault::Mismatch, "{strategy}: {error}");
        }
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn ga_5_empty_components_are_fine() {
    let check = |strategy: &Strategy| {
        let part = |id: usize| if id == 0 { Vec::new() } else { vec![id as f32, 2.] };
        let rows = |id: usize| host(part(id), [part(id).len() / 2, 2]);
        let expected = of_all(strategy, part).concat();
        let expected = host(expected.clone(), [expected.len() / 2, 2]);
        assert_eq!(strategy.gather(each(strategy, rows), 0).unwrap(), expected, "{strategy}");
        let all = strategy.run(each(strategy, rows), |ctx, mine| ctx.all_gather(mine, 0)).unwrap();
        assert!(all.iter().all(|all| *all == expected), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

/// Checks a plain value. With several workers, each worker has one.
#[test]
fn ga_6_a_plain_value_comes_back_as_it_is() {
    let check = |strategy: &Strategy| {
        let workers = strategy.world().workers();
        let value = strategy.gather(tensor(&[1., 2.]), 0).unwrap();
        assert_eq!(floats(&value), [1., 2.].repeat(workers), "{strategy}");
        let bools = strategy.gather(host(vec![true, false], [1, 2]), 1).unwrap();
        assert_eq!(bools, host([true, false].repeat(workers), [1, 2 * workers]), "{strategy}");
    };
    watched(move || {
        check(&mirrored(1));
        everywhere(check);
    });
}

#[test]
fn ga_3_and_ga_4_a_plain_value_is_refused_like_values_of_replicas() {
    let check = |strategy: &Strategy| {
        let error = strategy.gather(1f32, 0).unwrap_err().to_string();
        assert!(error.contains("unsqueeze"), "{strategy}: {error}");
        let error = strategy.gather(tensor(&[1.]), 5).unwrap_err();
        assert!(matches!(error, Error::Tensor { operation: "gather", .. }), "{strategy}: {error}");
        assert!(error.to_string().contains("axis 5 is outside [0, 1)"), "{strategy}: {error}");
        // SPARSE-4
        let slices = IndexedSlices::new(host(vec![1f32], [1, 1]), host(vec![0i32], [1]), None).unwrap();
        let error = strategy.gather(slices, 0).unwrap_err().to_string();
        assert!(error.contains("indexed slices"), "{strategy}: {error}");
    };
    watched(move || {
        check(&mirrored(1));
        everywhere(check);
    });
}

#[test]
fn ga_7_bool_and_string_can_be_gathered() {
    let check = |strategy: &Strategy| {
        let count = strategy.num_replicas_in_sync();
        let bools = strategy
            .run((), |ctx, ()| ctx.all_gather(host(vec![ctx.replica_id_in_sync_group() == 0], [1]), 0))
            .unwrap();
        let expected = host(of_all(strategy, |id| id == 0), [count]);
        assert!(bools.iter().all(|bools| *bools == expected), "{strategy}");
        let word = |id: usize| format!("replica {id}").into_bytes();
        let strings = strategy.gather(each(strategy, |id| host(vec![word(id)], [1])), 0).unwrap();
        assert_eq!(strings, host(of_all(strategy, word), [count]), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn ga_8_every_replica_gets_the_concatenation_of_each_leaf() {
    let check = |strategy: &Strategy| {
        // One row more on each replica.
        let rows = |id: usize| vec![id as i32; 2 * (id + 1)];
        let gathered = strategy.run((), |ctx, ()| {
            let id = ctx.replica_id_in_sync_group();
            ctx.all_gather((host(vec![id as f32], [1]), host(rows(id), [id + 1, 2])), 0)
        });
        let all = of_all(strategy, rows).concat();
        for (a, b) in gathered.unwrap() {
            assert_eq!(a, HostTensor::vector(of_all(strategy, |id| id as f32)), "{strategy}");
            assert_eq!(b, host(all.clone(), [all.len() / 2, 2]), "{strategy}");
        }
        // SPARSE-4: sparse values are refused.
        let slices = || IndexedSlices::new(host(vec![1f32], [1, 1]), host(vec![0i32], [1]), None).unwrap();
        let error = strategy.gather(each(strategy, |_| slices()), 0).unwrap_err().to_string();
        assert!(error.contains("indexed slices"), "{strategy}: {error}");
        let error = strategy.run((), |ctx, ()| ctx.all_gather(slices(), 0)).unwrap_err().to_string();
        assert!(error.contains("indexed slices"), "{strategy}: {error}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn ga_9_the_gradient_is_this_replicas_part_of_the_summed_upstream() {
    let check = |strategy: &Strategy| {
        // One element more on each replica, with a weight of its own, and upstream gradients of 1, 2, … times it.
        let upstream: f32 = of_all(strategy, |id| 1. + id as f32).iter().sum();
        let first = |id: usize| id * (id + 1) / 2;
        let weights = |range: std::ops::Range<usize>| range.map(|at| 1. + at as f32).collect::<Vec<_>>();
        let all = tensor(&weights(0..first(strategy.num_replicas_in_sync())));
        let grads = gradients(
            strategy,
            |id| vec![2.; id + 1],
            |ctx, x| {
                let gathered = ctx.all_gather(x.clone(), 0)?;
                Ok(((gathered * &all)? * (ctx.replica_id_in_sync_group() + 1) as f64)?.sum_all()?)
            },
        );
        let scaled = |id: usize| {
            weights(first(id)..first(id + 1)).into_iter().map(|weight| weight * upstream).collect::<Vec<_>>()
        };
        assert_eq!(grads.unwrap().values(), each(strategy, scaled).values(), "{strategy}");
        // Along another axis, of which only one column is used, and with parts that are empty.
        let count = strategy.num_replicas_in_sync() as f32;
        let x = |id: usize| if id == 0 { vec![1., 2.] } else { Vec::new() };
        let grads = gradients(strategy, x, |ctx, x| {
            let all = ctx.all_gather(x.reshape((1, x.elem_count()))?, 1)?;
            Ok((all.narrow(1, 1, 1)? * 5.)?.sum_all()?)
        });
        let expected = each(strategy, |id| if id == 0 { vec![0., 5. * count] } else { Vec::new() });
        assert_eq!(grads.unwrap().values(), expected.values(), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}
