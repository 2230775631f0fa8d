//! The destinations of results, and the contents of batches.

use crate::cross_device::{mirrored, per_replica, rows, with_ops};
use crate::support::{floats, tensor};
use distribute::{
    ContextKind, Destinations, DeviceName, Error, HierarchicalCopyAllReduce, HostTensor, Leaf, Mirrored,
    NcclAllReduce, OneDeviceStrategy, ReduceOp, Strategy, get_strategy,
};
use distribute_testing::watched;

#[test]
fn rto_1_destinations_are_devices_or_values_and_others_are_refused_with_why() {
    let strategy = mirrored(2);
    let value = per_replica([1f32, 2.]);
    let to = |destinations: Destinations| strategy.reduce_to(ReduceOp::Sum, &value, destinations);
    let copies = |destinations: Destinations| to(destinations).unwrap().copies().len();
    assert_eq!(copies("cpu:1".into()), 1);
    assert_eq!(copies("/job:localhost/replica:0/task:0/device:CPU:0".to_string().into()), 1);
    assert_eq!(copies(DeviceName::cpu(1).into()), 1);
    assert_eq!(copies(Destinations::devices([DeviceName::cpu(1), DeviceName::cpu(0)])), 2);
    assert_eq!(copies(Destinations::replicas()), 2);
    assert_eq!(copies((&value).into()), 2);
    assert_eq!(copies((&Mirrored::new("a model's variable")).into()), 2);

    for empty in [Destinations::from(""), Destinations::devices([])] {
        let error = to(empty).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { operation: "reduce_to", .. }), "{error}");
        assert!(error.to_string().contains("destinations are empty"), "{error}");
    }
    let error = to("tpu:0".into()).unwrap_err();
    assert!(matches!(error, Error::Device { .. }) && error.to_string().contains("unknown kind"), "{error}");
    let error = to("cpu:2".into()).unwrap_err();
    assert!(matches!(error, Error::Device { .. }) && error.to_string().contains("device:CPU:1,"), "{error}");
    let error = to((&per_replica([1, 2, 3])).into()).unwrap_err();
    assert!(error.to_string().contains("3 components") && error.to_string().contains("2 local"), "{error}");
}

#[test]
fn rto_2_there_is_a_copy_for_each_destination_and_of_one_memory_it_is_one_tensor() {
    let strategy = mirrored(3);
    let value = per_replica([tensor(&[1., 2.]), tensor(&[10., 20.]), tensor(&[100., 200.])]);
    let all = strategy.reduce_to(ReduceOp::Sum, &value, &value).unwrap();
    assert_eq!(all.copies().into_iter().map(floats).collect::<Vec<_>>(), vec![[111., 222.]; 3]);
    let first = all.get().id();
    assert!(all.copies().iter().all(|copy| copy.id() == first));
    // One device or one replica gives the same type.
    let one = strategy.reduce_to(ReduceOp::Mean, &value, "cpu:2").unwrap();
    assert_eq!(floats(&one.into_inner()), [37., 74.]);
    let alone = mirrored(1).reduce_to(ReduceOp::Sum, per_replica([tensor(&[5.])]), Destinations::replicas());
    assert_eq!(floats(alone.unwrap().get()), [5.]);
}

#[test]
fn rto_3_values_are_never_broadcast_and_the_replica_that_differs_is_named() {
    let error = mirrored(2)
        .reduce_to(ReduceOp::Sum, per_replica([tensor(&[1.]), tensor(&[1., 2., 3.])]), "cpu:0")
        .unwrap_err();
    assert!(matches!(error, Error::Tensor { .. }) && error.to_string().contains("replica 1"), "{error}");
}

#[test]
fn rto_4_results_are_in_the_order_of_the_pairs_and_no_pair_gives_none() {
    let strategy = mirrored(2);
    let values: Vec<_> = (0..5).map(|i| per_replica([i as f32, 10.])).collect();
    let sums = strategy.batch_reduce_to(ReduceOp::Sum, values.iter().map(|v| (v, "cpu:1"))).unwrap();
    assert_eq!(sums.into_iter().map(Mirrored::into_inner).collect::<Vec<_>>(), [10., 11., 12., 13., 14.]);
    let none: Vec<(f32, &str)> = Vec::new();
    assert!(strategy.batch_reduce_to(ReduceOp::Sum, none).unwrap().is_empty());
}

#[test]
fn rto_4_a_value_that_is_not_distributed_has_a_mean_but_no_sum() {
    let strategy = mirrored(2);
    let both = strategy.reduce_to(ReduceOp::Mean, 5f32, Destinations::replicas()).unwrap();
    assert_eq!(both.copies(), [&5., &5.]);
    let error = strategy.batch_reduce_to(ReduceOp::Sum, [(5f32, "cpu:0")]).unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { operation: "batch_reduce_to", .. }), "{error}");
    assert!(error.to_string().contains("not distributed"), "{error}");
    assert_eq!(*mirrored(1).reduce_to(ReduceOp::Sum, 5f32, "cpu:0").unwrap().get(), 5.);
}

#[test]
fn rto_5_integers_can_be_batched_with_anything() {
    let value = |dtype| Leaf::Host(HostTensor::vector(vec![1f64, 2.]).cast(dtype).unwrap());
    use distribute::tensor::DType::{F16, F32, I32, U8};
    let pairs = [I32, F32, I32, U8, F16].map(|dtype| (per_replica([value(dtype), value(dtype)]), "cpu:0"));
    let sums = mirrored(2).batch_reduce_to(ReduceOp::Sum, pairs).unwrap();
    for (sum, dtype) in sums.iter().zip([I32, F32, I32, U8, F16]) {
        let expected = HostTensor::vector(vec![2f64, 4.]).cast(dtype).unwrap();
        assert_eq!(sum.get().to_host().unwrap(), expected);
    }
}

#[test]
fn rto_6_a_mirrored_value_is_there_once_for_each_replica() {
    let strategy = mirrored(2);
    let five = Mirrored::new(5f32);
    assert_eq!(*strategy.batch_reduce_to(ReduceOp::Sum, [(&five, "cpu:0")]).unwrap()[0].get(), 10.);
    assert_eq!(*strategy.reduce_to(ReduceOp::Sum, &five, "cpu:0").unwrap().get(), 10.);
    assert_eq!(strategy.reduce_to(ReduceOp::Mean, &five, &five).unwrap().copies(), [&5., &5.]);
    // T1: whether parts are one object plays no part.
    let same = tensor(&[1.]);
    let sum = strategy.reduce_to(ReduceOp::Sum, per_replica([same.clone(), same]), "cpu:0").unwrap();
    assert_eq!(floats(sum.get()), [2.]);
}

#[test]
fn rto_7_and_sparse_5_destinations_may_differ_and_dense_and_sparse_stand_side_by_side() {
    let strategy = mirrored(2);
    let dense = || per_replica([1f32, 2.].map(|x| Leaf::Host(HostTensor::vector(vec![x; 5]))));
    let sparse = || per_replica([rows(vec![1., 2.], vec![0, 1]), rows(vec![3.], vec![1])]);
    let mixed = || per_replica([rows(vec![1.], vec![4]), Leaf::Host(HostTensor::vector(vec![2f32; 5]))]);
    let all = Destinations::replicas;
    let pairs = [(sparse(), all()), (dense(), "cpu:1".into()), (mixed(), all()), (sparse(), "cpu:0".into())];
    let sums = strategy.batch_reduce_to(ReduceOp::Sum, pairs).unwrap();
    let copies: Vec<usize> = sums.iter().map(|sum| sum.copies().len()).collect();
    assert_eq!(copies, [2, 1, 2, 1]);
    let host = |i: usize| sums[i].get().to_host().unwrap().to_vec::<f32>().unwrap();
    assert_eq!(host(0), [1., 5., 0., 0., 0.]);
    assert_eq!(host(1), [3.; 5]);
    assert_eq!(host(2), [2., 2., 2., 2., 3.]);
    assert_eq!(host(3), host(0));
    assert!(matches!(sums[0].get(), Leaf::Slices(_)) && matches!(sums[2].get(), Leaf::Host(_)));
}

#[test]
fn sparse_1_rows_are_merged_by_every_algorithm_and_for_one_replica_too() {
    let algorithms: [fn(usize) -> Strategy; 3] = [
        mirrored,
        |replicas| with_ops(replicas, HierarchicalCopyAllReduce::default()),
        |replicas| with_ops(replicas, NcclAllReduce::default()),
    ];
    for strategy in algorithms {
        for replicas in [1, 2] {
            let value = per_replica(
                [rows(vec![1., 2., 4.], vec![3, 1, 3]), rows(vec![8.], vec![3])].into_iter().take(replicas),
            );
            let sums = strategy(replicas).reduce_to(ReduceOp::Sum, &value, &value).unwrap();
            let Leaf::Slices(merged) = sums.get() else { panic!("not slices") };
            assert_eq!(merged.to_rows().unwrap(), [1, 3]);
            assert_eq!(merged.values.to_vec::<f32>().unwrap(), [2., if replicas == 1 { 5. } else { 13. }]);
        }
    }
}

#[test]
fn nests_are_reduced_leaf_by_leaf_onto_each_device() {
    let value = per_replica([(1f32, vec![2i32, 3]), (10., vec![20, 30])]);
    let sums = mirrored(2).reduce_to(ReduceOp::Sum, &value, &value).unwrap();
    assert_eq!(sums.copies(), [&(11., vec![22, 33]), &(11., vec![22, 33])]);
    // A structure without leaves.
    let nothing = per_replica([Vec::<f32>::new(), Vec::new()]);
    assert!(mirrored(2).reduce_to(ReduceOp::Sum, &nothing, "cpu:0").unwrap().get().is_empty());
}

#[test]
fn err_1_reductions_belong_in_cross_replica_context() {
    watched(|| {
        let strategy = mirrored(2);
        let outside = strategy.clone();
        let check = |error: Error, operation: &str| {
            let expected = (ContextKind::CrossReplica, ContextKind::Replica);
            assert!(
                matches!(&error, Error::WrongContext { operation: o, required, found, .. }
                    if (*o, (*required, *found)) == (operation, expected)),
                "{error}"
            );
        };
        strategy
            .run((), |_, ()| {
                check(outside.reduce_to(ReduceOp::Sum, 1f32, "cpu:0").unwrap_err(), "reduce_to");
                let pairs = [(1f32, "cpu:0")];
                check(outside.batch_reduce_to(ReduceOp::Sum, pairs).unwrap_err(), "batch_reduce_to");
                check(outside.broadcast_to(1f32, "cpu:0").unwrap_err(), "broadcast_to");
                Ok(())
            })
            .unwrap();
        let other = mirrored(2);
        let mixed = other.scope(|| strategy.reduce_to(ReduceOp::Mean, 1f32, "cpu:0")).unwrap_err();
        assert!(matches!(mixed, Error::MixedStrategies { operation: "reduce_to", .. }), "{mixed}");
        strategy.scope(|| strategy.reduce_to(ReduceOp::Mean, 1f32, "cpu:0")).unwrap();
    });
}

#[test]
fn ext_merge_functions_reduce_to_the_devices_of_their_values() {
    watched(|| {
        let strategy = mirrored(3);
        let sums = strategy.run((), |ctx, ()| {
            let id = ctx.replica_id_in_sync_group() as f32;
            ctx.merge_call((id, 10. * id), |strategy, pairs| {
                let (ids, tens) = pairs.unzip();
                let pairs = [(&ids, &ids), (&tens, &tens)];
                strategy.batch_reduce_to(ReduceOp::Sum, pairs)
            })
        });
        assert_eq!(sums.unwrap().values(), vec![[3., 30.]; 3]);
    });
}

#[test]
fn def_2_and_one_2_one_replica_has_its_value_back() {
    for strategy in [get_strategy(), OneDeviceStrategy::new("cpu:0").unwrap().into()] {
        for op in [ReduceOp::Sum, ReduceOp::Mean] {
            assert_eq!(*strategy.reduce_to(op, 3f32, "cpu:0").unwrap().get(), 3.);
            let one = per_replica([HostTensor::vector(vec![1f32, 2.])]);
            assert_eq!(strategy.reduce_to(op, &one, &one).unwrap().get(), &one.values()[0]);
            // What has no reduction over two replicas has none over one.
            let bools = per_replica([HostTensor::vector(vec![true, false])]);
            assert!(matches!(strategy.reduce_to(op, &bools, &bools), Err(Error::Tensor { .. })));
        }
        assert_eq!(*strategy.broadcast_to(3f32, "cpu:0").unwrap().get(), 3.);
    }
}

#[test]
fn xd_11_a_value_is_copied_to_the_destinations() {
    watched(|| {
        let strategy = mirrored(2);
        let copies = strategy.broadcast_to((tensor(&[1.]), 7i32), Destinations::replicas()).unwrap();
        assert_eq!(copies.copies().len(), 2);
        let sums =
            strategy.run(&copies, |ctx, (x, n)| ctx.all_reduce(ReduceOp::Sum, (x.clone(), *n))).unwrap();
        assert_eq!((floats(&sums.values()[1].0), sums.values()[1].1), (vec![2.], 14));
        let error = strategy.broadcast_to(1f32, "").unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { operation: "broadcast_to", .. }), "{error}");
    });
}
