//! Reduce operations, and `Strategy::reduce`.

use crate::contexts::{floats, host, mirrored, per_replica, tensor};
use candle_core::{DType, Tensor};
use distribute::cluster::Fault;
use distribute::tensor::DType as HostDType;
use distribute::{
    CommunicationOptions, Destinations, Error, HierarchicalCopyAllReduce, HostTensor, Leaf, Mirrored,
    MirroredStrategy, Nest, ReduceOp, Result, Strategy, Variable, VariableAggregation,
    VariableSynchronization,
};
use distribute_testing::watched;

// Reduce operations

#[test]
fn op_1_sum_and_mean_are_read_in_any_case_and_others_are_refused() {
    for (text, op) in [("sum", ReduceOp::Sum), ("SUM", ReduceOp::Sum), ("Mean", ReduceOp::Mean)] {
        assert_eq!(text.parse::<ReduceOp>().unwrap(), op);
    }
    let error = "MAX".parse::<ReduceOp>().unwrap_err().to_string();
    assert!(error.contains("'MAX'") && error.contains("SUM"), "{error}");
}

#[test]
fn op_3_numbers_can_be_summed_bool_and_string_cannot() {
    watched(|| {
        let strategy = mirrored(2);
        fn twice<N: Nest + Clone>(strategy: &Strategy, value: N) -> Result<N> {
            strategy.reduce(ReduceOp::Sum, per_replica([value.clone(), value]), None)
        }
        assert_eq!(twice(&strategy, 3u8).unwrap(), 6);
        assert_eq!(twice(&strategy, 3i8).unwrap(), 6);
        assert_eq!(twice(&strategy, 3u16).unwrap(), 6);
        assert_eq!(twice(&strategy, 3u64).unwrap(), 6);
        assert_eq!(twice(&strategy, 3i64).unwrap(), 6);
        assert_eq!(twice(&strategy, 1.5f64).unwrap(), 3.);
        for error in [twice(&strategy, true).unwrap_err(), twice(&strategy, "x".to_string()).unwrap_err()] {
            assert!(matches!(error, Error::Tensor { operation: "reduce", .. }), "{error}");
        }
        let error = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, true)).unwrap_err();
        assert!(error.to_string().contains("bool"), "{error}");
    });
}

#[test]
fn op_4_a_mean_divides_truly_so_that_of_integers_is_a_float() {
    watched(|| {
        let strategy = mirrored(2);
        let ints = per_replica([HostTensor::scalar(1i32), HostTensor::scalar(2i32)]);
        let mean = strategy.reduce(ReduceOp::Mean, &ints, None).unwrap();
        assert_eq!((mean.dtype(), mean.item::<f64>().unwrap()), (HostDType::F64, 1.5));
        let mean = strategy.reduce(ReduceOp::Mean, per_replica([1f32, 2.]), None).unwrap();
        assert_eq!(mean, 1.5);
        // A Rust integer cannot hold it: an error, not a rounded number.
        let error = strategy.reduce(ReduceOp::Mean, per_replica([1i32, 2]), None).unwrap_err();
        assert!(matches!(error, Error::Tensor { .. }) && error.to_string().contains("float64"), "{error}");
    });
}

/// Checks every path that reduces, and every number of replicas.
#[test]
fn op_4_a_mean_of_integers_does_not_wrap_whichever_way_it_is_made() {
    fn each(strategy: &Strategy, leaf: &Leaf) -> Result<Vec<Leaf>> {
        let replicas = strategy.num_replicas_in_sync();
        let parts = || per_replica(vec![leaf.clone(); replicas]);
        let mean = ReduceOp::Mean;
        let mut all = strategy.run(parts(), |ctx, part| ctx.all_reduce(mean, part))?.into_values();
        all.push(strategy.reduce(mean, parts(), None)?);
        all.extend(strategy.reduce_to(mean, parts(), "cpu:0")?.into_copies());
        all.extend(strategy.reduce_to(mean, parts(), Destinations::replicas())?.into_copies());
        for batch in strategy.batch_reduce_to(mean, [(parts(), "cpu:0"), (parts(), "cpu:0")])? {
            all.extend(batch.into_copies());
        }
        Ok(all)
    }
    watched(|| {
        for replicas in 1..=3 {
            let names: Vec<String> = (0..replicas).map(|i| format!("cpu:{i}")).collect();
            let builder = || MirroredStrategy::builder().devices(names.iter().map(String::as_str));
            let packs = CommunicationOptions { bytes_per_pack: 100, ..Default::default() };
            let strategies: [Strategy; 3] = [
                builder().build().unwrap().into(),
                builder().cross_device_ops(HierarchicalCopyAllReduce::default()).build().unwrap().into(),
                builder().communication_options(packs).build().unwrap().into(),
            ];
            for strategy in strategies {
                // More than 64 KiB are reduced by all threads together.
                for len in [1, 70_000] {
                    let cpu = &candle_core::Device::Cpu;
                    let leaves: [(Leaf, f64); 4] = [
                        (host(vec![200u8; len], [len]).into(), 200.),
                        (host(vec![i32::MAX; len], [len]).into(), f64::from(i32::MAX)),
                        (Tensor::full(200u8, len, cpu).unwrap().into(), 200.),
                        (Tensor::full(i64::MIN, len, cpu).unwrap().into(), i64::MIN as f64),
                    ];
                    for (leaf, expected) in leaves {
                        for mean in each(&strategy, &leaf).unwrap() {
                            assert_eq!(mean.dtype().unwrap(), leaf.dtype().unwrap().mean().unwrap());
                            let mean = mean.to_host().unwrap().cast(HostDType::F64).unwrap();
                            assert!(
                                mean.to_vec::<f64>().unwrap().iter().all(|x| *x == expected),
                                "{strategy}"
                            );
                        }
                        // Over an axis, too: 200 200 … do not fit either.
                        let parts = per_replica(vec![leaf.clone(); replicas]);
                        let mean = strategy.reduce(ReduceOp::Mean, parts, 0).unwrap().to_host().unwrap();
                        let mean: f64 = mean.cast(HostDType::F64).unwrap().item().unwrap();
                        assert_eq!(mean, expected, "{strategy}, {len} along the axis");
                    }
                }
            }
        }
    });
}

/// One replica refuses the same reductions as two, and a MEAN is a float on one replica as well.
#[test]
fn op_3_and_op_4_one_replica_reduces_as_two_do() {
    watched(|| {
        for replicas in [1, 2] {
            let strategy = mirrored(replicas);
            let of = |leaf: Leaf| per_replica(vec![leaf; replicas]);
            for leaf in [Leaf::from(host(vec![true], [1])), host(vec![b"a".to_vec()], [1]).into()] {
                for op in [ReduceOp::Sum, ReduceOp::Mean] {
                    assert!(strategy.reduce(op, of(leaf.clone()), None).is_err(), "{leaf}");
                    assert!(strategy.reduce_to(op, of(leaf.clone()), "cpu:0").is_err(), "{leaf}");
                    assert!(strategy.run(of(leaf.clone()), |ctx, leaf| ctx.all_reduce(op, leaf)).is_err());
                }
                assert!(
                    strategy.reduce(ReduceOp::Sum, leaf.clone(), None).is_err(),
                    "{leaf}, not distributed"
                );
            }
            let int: Leaf = host(vec![3i32], [1]).into();
            let mean = strategy.reduce(ReduceOp::Mean, of(int.clone()), None).unwrap();
            let all = strategy.run(of(int), |ctx, leaf| ctx.all_reduce(ReduceOp::Mean, leaf)).unwrap();
            for mean in all.into_values().into_iter().chain([mean]) {
                assert_eq!(mean.to_host().unwrap(), HostTensor::vector(vec![3f64]));
            }
        }
    });
}

/// An ON_READ variable's copies, with any aggregation (RED-9).
#[test]
fn op_4_a_mean_of_an_integer_variables_copies_does_not_wrap() {
    let strategy = mirrored(2);
    let copies = || {
        Variable::builder("copies", HostTensor::scalar(200u8))
            .synchronization(VariableSynchronization::OnRead)
            .aggregation(VariableAggregation::Sum)
            .create()
    };
    let copies = strategy.scope(copies).unwrap();
    let mean = |value: &Variable| strategy.reduce(ReduceOp::Mean, value, None).unwrap().to_host().unwrap();
    assert_eq!(mean(&copies).item::<f32>().unwrap(), 200.);
}

#[test]
fn op_5_mixed_dtypes_are_an_error_that_names_the_replica_and_spoils_nothing() {
    watched(|| {
        let strategy = mirrored(2);
        let mixed = per_replica([Leaf::from(HostTensor::scalar(1f32)), Leaf::from(HostTensor::scalar(1f64))]);
        let error = strategy.reduce(ReduceOp::Sum, mixed, None).unwrap_err().to_string();
        assert!(
            error.contains("replica 1") && error.contains("float32") && error.contains("float64"),
            "{error}"
        );
        let error = strategy.run((), |ctx, ()| {
            let dtype = [DType::F32, DType::F64][ctx.replica_id_in_sync_group()];
            ctx.all_reduce(ReduceOp::Sum, tensor(&[1.]).to_dtype(dtype)?)
        });
        let error = error.unwrap_err();
        assert_eq!(error.blame().unwrap().fault, Fault::Mismatch);
        assert!(
            error.to_string().contains("float32[1]") && error.to_string().contains("float64[1]"),
            "{error}"
        );
        // T2: TensorFlow's next collective would fail with the old error.
        assert_eq!(strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1)).unwrap().values(), [2, 2]);
    });
}

// Strategy::reduce

#[test]
fn red_3_without_axis_element_by_element() {
    watched(|| {
        let strategy = mirrored(2);
        let values = per_replica([tensor(&[0., 1., 2., 3.]), tensor(&[4., 5., 6., 7.])]);
        assert_eq!(floats(&strategy.reduce(ReduceOp::Sum, &values, None).unwrap()), [4., 6., 8., 10.]);
        assert_eq!(floats(&strategy.reduce(ReduceOp::Mean, &values, None).unwrap()), [2., 3., 4., 5.]);
        let error = strategy
            .reduce(ReduceOp::Sum, per_replica([tensor(&[1.]), tensor(&[1., 2., 3.])]), None)
            .unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error, Error::Tensor { .. }) && text.contains("replica 1") && text.contains("[3]"),
            "{text}"
        );
    });
}

#[test]
fn red_4_sum_over_an_axis_sums_within_replicas_first() {
    watched(|| {
        let strategy = mirrored(2);
        let values = per_replica([tensor(&[0., 1., 2., 3.]), tensor(&[4., 5.])]);
        assert_eq!(floats(&strategy.reduce(ReduceOp::Sum, &values, 0).unwrap()), [15.]);
        let rows = per_replica([host(vec![1i64, 2, 3, 4], [2, 2]), host(vec![5i64, 6], [1, 2])]);
        assert_eq!(strategy.reduce(ReduceOp::Sum, &rows, 0).unwrap(), host(vec![9i64, 12], [2]));
    });
}

#[test]
fn red_5_mean_divides_by_the_true_count() {
    watched(|| {
        let strategy = mirrored(2);
        let mean = |a: &[f32], b: &[f32]| {
            let values = per_replica([tensor(a), tensor(b)]);
            strategy.reduce(ReduceOp::Mean, values, 0).unwrap().to_scalar::<f32>().unwrap()
        };
        assert_eq!(mean(&[0., 1., 2., 3.], &[4., 5.]), 15. / 6.);
        assert_eq!(mean(&[1., 2.], &[]), 1.5);
        assert!(mean(&[], &[]).is_nan());
        let ints = per_replica([host(vec![1i32, 2], [2]), host(vec![4i32], [1])]);
        let mean = strategy.reduce(ReduceOp::Mean, ints, 0).unwrap();
        assert_eq!((mean.dtype(), mean.item::<f64>().unwrap()), (HostDType::F64, 7. / 3.));
        // Several axes: the product of their sizes.
        let values = per_replica([host(vec![1f32; 6], [2, 3]), host(vec![4f32; 3], [1, 3])]);
        assert_eq!(strategy.reduce(ReduceOp::Mean, values, [0, 1]).unwrap().item::<f32>().unwrap(), 2.);
    });
}

#[test]
fn red_6_an_axis_may_count_from_the_end_and_must_exist() {
    watched(|| {
        let strategy = mirrored(2);
        let values =
            per_replica([host(vec![1f32, 2., 3., 4.], [2, 2]), host(vec![5f32, 6., 7., 8.], [2, 2])]);
        let over = |axes: distribute::Axes| strategy.reduce(ReduceOp::Sum, &values, axes);
        assert_eq!(over((-1).into()).unwrap(), host(vec![14f32, 22.], [2]));
        assert_eq!(over((-1).into()).unwrap(), over(1.into()).unwrap());
        assert_eq!(over([0, -1].into()).unwrap().item::<f32>().unwrap(), 36.);
        assert_eq!(over(vec![0, 1].into()).unwrap().item::<f32>().unwrap(), 36.);
        for (axes, text) in [(2.into(), "axis 2"), ((-3).into(), "axis -3"), ([0, -2].into(), "given twice")]
        {
            let error = over(axes).unwrap_err();
            assert!(matches!(error, Error::Tensor { .. }) && error.to_string().contains(text), "{error}");
        }
        let error = strategy.reduce(ReduceOp::Sum, per_replica([1f32, 2.]), 0).unwrap_err().to_string();
        assert!(error.contains("axis 0") && error.contains("scalar"), "{error}");
    });
}

#[test]
fn red_7_with_an_axis_a_plain_value_is_what_every_replica_has() {
    watched(|| {
        let strategy = mirrored(2);
        let value = tensor(&[3., 4.]);
        assert_eq!(floats(&strategy.reduce(ReduceOp::Sum, &value, 0).unwrap()), [14.]);
        assert_eq!(floats(&strategy.reduce(ReduceOp::Mean, &value, 0).unwrap()), [3.5]);
        // A nest with an axis: each leaf, where TensorFlow gives a TypeError.
        let nest = per_replica([(tensor(&[1., 2.]), tensor(&[3.])), (tensor(&[4.]), tensor(&[5., 6.]))]);
        let (a, b) = strategy.reduce(ReduceOp::Sum, nest, 0).unwrap();
        assert_eq!((floats(&a), floats(&b)), (vec![7.], vec![14.]));
    });
}

#[test]
fn red_8_without_axis_a_plain_value_has_a_mean_but_no_sum() {
    watched(|| {
        let strategy = mirrored(2);
        assert_eq!(strategy.reduce(ReduceOp::Mean, 5f32, None).unwrap(), 5.);
        let error = strategy.reduce(ReduceOp::Sum, 5f32, None).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { operation: "reduce", .. }), "{error}");
        assert!(error.to_string().contains("not distributed"), "{error}");
        assert_eq!(mirrored(1).reduce(ReduceOp::Sum, 5f32, None).unwrap(), 5.);
    });
}

#[test]
fn red_9_a_mirrored_value_is_its_own_mean_and_is_summed_over_replicas() {
    watched(|| {
        let strategy = mirrored(3);
        let value = Mirrored::new(2f32);
        assert_eq!(strategy.reduce(ReduceOp::Mean, &value, None).unwrap(), 2.);
        assert_eq!(strategy.reduce(ReduceOp::Sum, &value, None).unwrap(), 6.);
    });
}

#[test]
fn red_10_nests_are_reduced_leaf_by_leaf() {
    watched(|| {
        let strategy = mirrored(2);
        let values = per_replica([(1f32, vec![tensor(&[1.])]), (2., vec![tensor(&[2.])])]);
        let (number, list) = strategy.reduce(ReduceOp::Sum, values, None).unwrap();
        assert_eq!((number, floats(&list[0])), (3., vec![3.]));
    });
}

#[test]
fn red_11_numbers_are_values_and_a_missing_one_is_named() {
    watched(|| {
        let strategy = mirrored(2);
        assert_eq!(strategy.reduce(ReduceOp::Mean, per_replica([1f64, 2.]), None).unwrap(), 1.5);
        let error =
            strategy.reduce(ReduceOp::Sum, per_replica([Some(1f32), None]), None).unwrap_err().to_string();
        assert!(error.contains("nothing"), "{error}");
    });
}

#[test]
fn red_12_the_operation_is_always_given_and_typed() {
    // There is no default to forget, and nothing else than these two exists.
    match "mean".parse().unwrap() {
        ReduceOp::Sum => panic!(),
        ReduceOp::Mean => {}
    }
}
