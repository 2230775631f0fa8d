//! `Strategy::gather`, `ReplicaContext::all_gather`, and its gradient.

use crate::contexts::{floats, gradients, host, mirrored, per_replica, tensor};
use distribute::cluster::Fault;
use distribute::tensor::DType as HostDType;
use distribute::{Error, HostTensor, IndexedSlices, Mirrored};
use distribute_testing::watched;

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
    for strategy in [mirrored(2), mirrored(1)] {
        let value = strategy.gather(tensor(&[1., 2.]), 0).unwrap();
        assert_eq!(floats(&value), [1., 2.]);
        assert_eq!(
            strategy.gather(host(vec![true, false], [1, 2]), 1).unwrap(),
            host(vec![true, false], [1, 2])
        );
    }
}

#[test]
fn ga_3_and_ga_4_what_cannot_be_gathered_of_replicas_cannot_be_gathered_of_a_plain_value() {
    for strategy in [mirrored(2), mirrored(1), distribute::get_strategy()] {
        let error = strategy.gather(1f32, 0).unwrap_err().to_string();
        assert!(error.contains("unsqueeze"), "{error}");
        let error = strategy.gather(tensor(&[1.]), 5).unwrap_err();
        assert!(matches!(error, Error::Tensor { operation: "gather", .. }), "{error}");
        assert!(error.to_string().contains("axis 5 is outside of [0, 1)"), "{error}");
        // SPARSE-4
        let slices = IndexedSlices::new(host(vec![1f32], [1, 1]), host(vec![0i32], [1]), None).unwrap();
        assert!(strategy.gather(slices, 0).unwrap_err().to_string().contains("indexed slices"));
    }
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
