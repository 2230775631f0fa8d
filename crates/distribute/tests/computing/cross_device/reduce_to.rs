//! The destinations of results, and the contents of batches.

use crate::cross_device::{mirrored, per_replica, rows, with_ops};
use crate::everywhere::{each, everywhere, of_all};
use crate::support::{floats, tensor};
use distribute::context::{ContextKind, get_strategy};
use distribute::strategy::{Destinations, HierarchicalCopyAllReduce, NcclAllReduce};
use distribute::tensor::Leaf;
use distribute::values::Mirrored;
use distribute::{Error, HostTensor, OneDeviceStrategy, ReduceOp, Strategy};
use distribute_testing::watched;

#[test]
fn rto_1_destinations_are_devices_or_values_and_others_are_refused_with_reasons() {
    let check = |strategy: &Strategy| {
        let (replicas, sum) = (strategy.world().replicas(), sum_of_all(strategy));
        let value = each(strategy, one_more);
        let to = |destinations: Destinations| strategy.reduce_to(ReduceOp::Sum, &value, destinations);
        let copies = |destinations: Destinations, count: usize| {
            assert_eq!(to(destinations).unwrap().copies(), vec![&sum; count], "{strategy}");
        };
        let [devices, parameters] =
            [strategy.extended().worker_devices(), &strategy.extended().parameter_devices()]
                .map(<[_]>::to_vec);
        for device in devices.iter().chain(&parameters) {
            copies((*device).into(), 1);
            copies(device.to_string().into(), 1);
        }
        copies(Destinations::devices(devices.iter().rev().copied()), devices.len());
        copies((&parameters).into(), parameters.len());
        copies(Destinations::replicas(), replicas);
        copies((&value).into(), replicas);
        copies((&Mirrored::new("a model's variable")).into(), replicas);

        for empty in [Destinations::from(""), Destinations::devices([])] {
            let error = to(empty).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { operation: "reduce_to", .. }), "{error}");
            assert!(error.to_string().contains("destinations are empty"), "{strategy}: {error}");
        }
        let error = to("tpu:0".into()).unwrap_err();
        assert!(matches!(error, Error::Device { .. }), "{strategy}: {error}");
        assert!(error.to_string().contains("unknown kind"), "{strategy}: {error}");
        let error = to("cpu:9".into()).unwrap_err();
        assert!(matches!(error, Error::Device { .. }), "{strategy}: {error}");
        assert!(error.to_string().contains(&devices[0].to_string()), "{strategy}: {error}");
        let error = to((&per_replica([0; 9])).into()).unwrap_err().to_string();
        let local = format!("{replicas} local");
        assert!(error.contains("9 components") && error.contains(&local), "{strategy}: {error}");
    };
    watched(move || drop(everywhere(check)));
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
    let check = |strategy: &Strategy| {
        if strategy.num_replicas_in_sync() == 1 {
            return;
        }
        let value = each(strategy, |id| tensor(&[1., 2., 3.][..if id == 0 { 1 } else { 3 }]));
        let error = strategy.reduce_to(ReduceOp::Sum, &value, "cpu:0").unwrap_err();
        assert!(matches!(error, Error::Tensor { .. } | Error::Collective(_)), "{strategy}: {error}");
        // Over workers, the error names all that differ from the first.
        let text = error.to_string();
        assert!(text.contains("replica 1") || text.contains("replicas 1"), "{strategy}: {text}");
    };
    watched(move || drop(everywhere(check)));
}

/// Returns the id of a replica plus 1.
fn one_more(id: usize) -> f32 {
    1. + id as f32
}

fn sum_of_all(strategy: &Strategy) -> f32 {
    of_all(strategy, one_more).iter().sum()
}

#[test]
fn rto_4_results_are_in_the_order_of_the_pairs_and_no_pair_gives_none() {
    let check = |strategy: &Strategy| {
        let values: Vec<_> = (0..5).map(|i| each(strategy, |id| i as f32 * one_more(id))).collect();
        let sums = strategy.batch_reduce_to(ReduceOp::Sum, values.iter().map(|v| (v, "cpu:0"))).unwrap();
        let sums: Vec<_> = sums.into_iter().map(Mirrored::into_inner).collect();
        let sum = sum_of_all(strategy);
        assert_eq!(sums, [0., 1., 2., 3., 4.].map(|i| i * sum), "{strategy}");
        let none: Vec<(f32, &str)> = Vec::new();
        assert!(strategy.batch_reduce_to(ReduceOp::Sum, none).unwrap().is_empty(), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

/// Checks a plain value. With several workers, each worker has one (RED-13).
#[test]
fn rto_4_a_value_that_is_not_distributed_has_a_mean_but_no_sum() {
    let check = |strategy: &Strategy| {
        let world = strategy.world();
        let all = strategy.reduce_to(ReduceOp::Mean, 5f32, Destinations::replicas()).unwrap();
        assert_eq!(all.copies(), vec![&5.; world.replicas()], "{strategy}");
        let sums = strategy.batch_reduce_to(ReduceOp::Sum, [(5f32, "cpu:0")]);
        if world.is_multi_worker() || world.replicas() == 1 {
            assert_eq!(*sums.unwrap()[0].get(), 5. * world.workers() as f32, "{strategy}");
            return;
        }
        let error = sums.unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { operation: "batch_reduce_to", .. }), "{error}");
        assert!(error.to_string().contains("not distributed"), "{strategy}: {error}");
    };
    watched(move || {
        check(&mirrored(1));
        everywhere(check);
    });
}

#[test]
fn rto_5_integers_can_be_batched_with_anything() {
    let check = |strategy: &Strategy| {
        use distribute::tensor::DType::{F16, F32, I32, U8};
        let value = |dtype| Leaf::Host(HostTensor::vector(vec![1f64, 2.]).cast(dtype).unwrap());
        let dtypes = [I32, F32, I32, U8, F16];
        let pairs = dtypes.map(|dtype| (each(strategy, |_| value(dtype)), "cpu:0"));
        let sums = strategy.batch_reduce_to(ReduceOp::Sum, pairs).unwrap();
        let count = strategy.num_replicas_in_sync() as f64;
        for (sum, dtype) in sums.iter().zip(dtypes) {
            let expected = HostTensor::vector(vec![count, 2. * count]).cast(dtype).unwrap();
            assert_eq!(sum.get().to_host().unwrap(), expected, "{strategy}");
        }
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn rto_6_a_mirrored_value_is_there_once_for_each_replica() {
    let check = |strategy: &Strategy| {
        let (replicas, count) = (strategy.world().replicas(), strategy.num_replicas_in_sync() as f32);
        let five = Mirrored::new(5f32);
        let sums = strategy.batch_reduce_to(ReduceOp::Sum, [(&five, "cpu:0")]).unwrap();
        assert_eq!(*sums[0].get(), 5. * count, "{strategy}");
        assert_eq!(*strategy.reduce_to(ReduceOp::Sum, &five, "cpu:0").unwrap().get(), 5. * count);
        let mean = strategy.reduce_to(ReduceOp::Mean, &five, &five).unwrap();
        assert_eq!(mean.copies(), vec![&5.; replicas], "{strategy}");
        // T1: it plays no part whether the values of the replicas are one object.
        let same = tensor(&[1.]);
        let sum = strategy.reduce_to(ReduceOp::Sum, each(strategy, |_| same.clone()), "cpu:0").unwrap();
        assert_eq!(floats(sum.get()), [count], "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn rto_7_and_sparse_5_destinations_may_differ_and_dense_and_sparse_can_be_mixed() {
    let check = |strategy: &Strategy| {
        let (replicas, sum) = (strategy.world().replicas(), sum_of_all(strategy));
        let others = strategy.num_replicas_in_sync() as f32 - 1.;
        let dense = || each(strategy, |id| Leaf::Host(HostTensor::vector(vec![one_more(id); 5])));
        let sparse = || {
            each(strategy, |id| match id {
                0 => rows(vec![1., 2.], vec![0, 1]),
                _ => rows(vec![3.], vec![1]),
            })
        };
        let mixed = || {
            each(strategy, |id| match id {
                0 => rows(vec![1.], vec![4]),
                _ => Leaf::Host(HostTensor::vector(vec![2f32; 5])),
            })
        };
        let all = Destinations::replicas;
        let pairs =
            [(sparse(), all()), (dense(), "cpu:0".into()), (mixed(), all()), (sparse(), "cpu:0".into())];
        let sums = strategy.batch_reduce_to(ReduceOp::Sum, pairs).unwrap();
        let copies: Vec<usize> = sums.iter().map(|sum| sum.copies().len()).collect();
        assert_eq!(copies, [replicas, 1, replicas, 1], "{strategy}");
        let host = |i: usize| sums[i].get().to_host().unwrap().to_vec::<f32>().unwrap();
        assert_eq!(host(0), [1., 2. + 3. * others, 0., 0., 0.], "{strategy}");
        assert_eq!(host(1), [sum; 5], "{strategy}");
        let twos = 2. * others;
        assert_eq!(host(2), [twos, twos, twos, twos, twos + 1.], "{strategy}");
        assert_eq!(host(3), host(0), "{strategy}");
        assert!(matches!(sums[0].get(), Leaf::Slices(_)), "{strategy}");
        // Beside a dense value rows become dense.
        assert_eq!(matches!(sums[2].get(), Leaf::Host(_)), others > 0., "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn sparse_1_rows_are_merged_by_every_algorithm_and_for_one_replica() {
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
    let check = |strategy: &Strategy| {
        let value = each(strategy, |id| (one_more(id), vec![2 + id as i32, 3]));
        let sums = strategy.reduce_to(ReduceOp::Sum, &value, &value).unwrap();
        let (sum, count) = (sum_of_all(strategy), strategy.num_replicas_in_sync() as i32);
        let expected = (sum, vec![sum as i32 + count, 3 * count]);
        assert_eq!(sums.copies(), vec![&expected; strategy.world().replicas()], "{strategy}");
        // A structure without leaves.
        let nothing = each(strategy, |_| Vec::<f32>::new());
        let none = strategy.reduce_to(ReduceOp::Sum, &nothing, "cpu:0").unwrap();
        assert!(none.get().is_empty(), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn err_1_reductions_belong_in_cross_replica_context() {
    let check = |strategy: &Strategy| {
        let outside = strategy.clone();
        let is_refused = |error: Error, operation: &str| {
            let expected = (ContextKind::CrossReplica, ContextKind::Replica);
            assert!(
                matches!(&error, Error::WrongContext { operation: o, required, found, .. }
                    if (*o, (*required, *found)) == (operation, expected)),
                "{strategy}: {error}"
            );
        };
        strategy
            .run((), |_, ()| {
                is_refused(outside.reduce_to(ReduceOp::Sum, 1f32, "cpu:0").unwrap_err(), "reduce_to");
                let pairs = [(1f32, "cpu:0")];
                is_refused(outside.batch_reduce_to(ReduceOp::Sum, pairs).unwrap_err(), "batch_reduce_to");
                is_refused(outside.broadcast_to(1f32, "cpu:0").unwrap_err(), "broadcast_to");
                Ok(())
            })
            .unwrap();
        let other = mirrored(2);
        let mixed = other.scope(|| strategy.reduce_to(ReduceOp::Mean, 1f32, "cpu:0")).unwrap_err();
        assert!(matches!(mixed, Error::MixedStrategies { operation: "reduce_to", .. }), "{mixed}");
        strategy.scope(|| strategy.reduce_to(ReduceOp::Mean, 1f32, "cpu:0")).unwrap();
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn ext_merge_functions_reduce_to_the_devices_of_their_values() {
    let check = |strategy: &Strategy| {
        let sums = strategy.run((), |ctx, ()| {
            let value = one_more(ctx.replica_id_in_sync_group());
            ctx.merge_call((value, 10. * value), |strategy, pairs| {
                let (ones, tens) = pairs.unzip();
                let pairs = [(&ones, &ones), (&tens, &tens)];
                strategy.batch_reduce_to(ReduceOp::Sum, pairs)
            })
        });
        let sum = sum_of_all(strategy);
        assert!(sums.unwrap().iter().all(|sums| *sums == [sum, 10. * sum]), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn def_2_and_one_2_one_replica_has_its_value_back() {
    for strategy in [get_strategy(), OneDeviceStrategy::new("cpu:0").unwrap()] {
        for op in [ReduceOp::Sum, ReduceOp::Mean] {
            assert_eq!(*strategy.reduce_to(op, 3f32, "cpu:0").unwrap().get(), 3.);
            let one = per_replica([HostTensor::vector(vec![1f32, 2.])]);
            assert_eq!(strategy.reduce_to(op, &one, &one).unwrap().get(), &one.values()[0]);
            // A type that cannot be reduced over two replicas cannot be reduced over one.
            let bools = per_replica([HostTensor::vector(vec![true, false])]);
            assert!(matches!(strategy.reduce_to(op, &bools, &bools), Err(Error::Tensor { .. })));
        }
        assert_eq!(*strategy.broadcast_to(3f32, "cpu:0").unwrap().get(), 3.);
    }
}

#[test]
fn xd_11_a_value_is_copied_to_the_destinations() {
    let check = |strategy: &Strategy| {
        let count = strategy.num_replicas_in_sync();
        let copies = strategy.broadcast_to((tensor(&[1.]), 7i32), Destinations::replicas()).unwrap();
        assert_eq!(copies.copies().len(), strategy.world().replicas(), "{strategy}");
        let sums =
            strategy.run(&copies, |ctx, (x, n)| ctx.all_reduce(ReduceOp::Sum, (x.clone(), *n))).unwrap();
        for (x, n) in sums.values() {
            assert_eq!((floats(x), *n), (vec![count as f32], 7 * count as i32), "{strategy}");
        }
        let error = strategy.broadcast_to(1f32, "").unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { operation: "broadcast_to", .. }), "{error}");
    };
    watched(move || drop(everywhere(check)));
}
