//! Reduce operations, and `Strategy::reduce`.

use crate::contexts::{
    each, everywhere, floats, has_others, host, is_other, mirrored, of_all, others, tensor,
};
use candle_core::{DType, Tensor};
use distribute::cluster::Fault;
use distribute::strategy::{CommunicationOptions, Destinations, HierarchicalCopyAllReduce};
use distribute::tensor::{DType as HostDType, Leaf};
use distribute::values::Mirrored;
use distribute::variables::{VariableAggregation, VariableSynchronization};
use distribute::{Error, HostTensor, MirroredStrategy, Nest, ReduceOp, Result, Strategy, Variable};
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
    fn sum<N: Nest + Clone>(strategy: &Strategy, value: N) -> Result<N> {
        strategy.reduce(ReduceOp::Sum, each(strategy, |_| value.clone()), None)
    }
    let check = |strategy: &Strategy| {
        let count = strategy.num_replicas_in_sync() as u8;
        assert_eq!(sum(strategy, 3u8).unwrap(), 3 * count, "{strategy}");
        assert_eq!(sum(strategy, 3i8).unwrap(), 3 * count as i8, "{strategy}");
        assert_eq!(sum(strategy, 3u16).unwrap(), 3 * u16::from(count), "{strategy}");
        assert_eq!(sum(strategy, 3u64).unwrap(), 3 * u64::from(count), "{strategy}");
        assert_eq!(sum(strategy, 3i64).unwrap(), 3 * i64::from(count), "{strategy}");
        assert_eq!(sum(strategy, 1.5f64).unwrap(), 1.5 * f64::from(count), "{strategy}");
        for error in [sum(strategy, true).unwrap_err(), sum(strategy, "x".to_string()).unwrap_err()] {
            assert!(matches!(error, Error::Tensor { operation: "reduce", .. }), "{strategy}: {error}");
        }
        let error = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, true)).unwrap_err();
        assert!(error.to_string().contains("bool"), "{strategy}: {error}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn op_4_a_mean_divides_truly_so_that_of_integers_is_a_float() {
    let check = |strategy: &Strategy| {
        let value = |id: usize| 1 + id as i32;
        let expected =
            f64::from(of_all(strategy, value).iter().sum::<i32>()) / strategy.num_replicas_in_sync() as f64;
        let ints = each(strategy, |id| HostTensor::scalar(value(id)));
        let mean = strategy.reduce(ReduceOp::Mean, &ints, None).unwrap();
        assert_eq!((mean.dtype(), mean.item::<f64>().unwrap()), (HostDType::F64, expected), "{strategy}");
        let mean = strategy.reduce(ReduceOp::Mean, each(strategy, |id| value(id) as f32), None).unwrap();
        assert_eq!(mean, expected as f32, "{strategy}");
        // A Rust integer cannot hold it: an error, not a rounded number.
        let error = strategy.reduce(ReduceOp::Mean, each(strategy, value), None).unwrap_err();
        assert!(matches!(error, Error::Tensor { .. }), "{strategy}: {error}");
        assert!(error.to_string().contains("float64"), "{strategy}: {error}");
    };
    watched(move || drop(everywhere(check)));
}

/// Checks every function that reduces, with every number of replicas.
#[test]
fn op_4_a_mean_of_integers_does_not_wrap_on_any_path() {
    fn all_ways(strategy: &Strategy, leaf: &Leaf) -> Result<Vec<Leaf>> {
        let parts = || each(strategy, |_| leaf.clone());
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
    fn check(strategy: &Strategy, len: usize) {
        let cpu = &candle_core::Device::Cpu;
        let leaves: [(Leaf, f64); 4] = [
            (host(vec![200u8; len], [len]).into(), 200.),
            (host(vec![i32::MAX; len], [len]).into(), f64::from(i32::MAX)),
            (Tensor::full(200u8, len, cpu).unwrap().into(), 200.),
            (Tensor::full(i64::MIN, len, cpu).unwrap().into(), i64::MIN as f64),
        ];
        for (leaf, expected) in leaves {
            for mean in all_ways(strategy, &leaf).unwrap() {
                assert_eq!(mean.dtype().unwrap(), leaf.dtype().unwrap().mean().unwrap());
                let mean = mean.to_host().unwrap().cast(HostDType::F64).unwrap();
                assert!(mean.to_vec::<f64>().unwrap().iter().all(|x| *x == expected), "{strategy}");
            }
            // The sum over an axis exceeds the range as well.
            let parts = each(strategy, |_| leaf.clone());
            let mean = strategy.reduce(ReduceOp::Mean, parts, 0).unwrap().to_host().unwrap();
            let mean: f64 = mean.cast(HostDType::F64).unwrap().item().unwrap();
            assert_eq!(mean, expected, "{strategy}, {len} along the axis");
        }
    }
    watched(|| {
        for replicas in 1..=3 {
            let names: Vec<String> = (0..replicas).map(|i| format!("cpu:{i}")).collect();
            let builder = || MirroredStrategy::builder().devices(names.iter().map(String::as_str));
            let packs = CommunicationOptions { bytes_per_pack: 100, ..Default::default() };
            let strategies: [Strategy; 3] = [
                builder().build().unwrap(),
                builder().cross_device_ops(HierarchicalCopyAllReduce::default()).build().unwrap(),
                builder().communication_options(packs).build().unwrap(),
            ];
            // More than 64 KiB are reduced by all threads together.
            strategies.iter().for_each(|strategy| [1, 70_000].iter().for_each(|len| check(strategy, *len)));
        }
        everywhere(|strategy| check(strategy, 1));
    });
}

/// Checks that one replica rejects the same reductions as several, and that a MEAN is a float on one replica as well.
#[test]
fn op_3_and_op_4_one_replica_reduces_as_two_do() {
    let check = |strategy: &Strategy| {
        let of = |leaf: Leaf| each(strategy, |_| leaf.clone());
        for leaf in [Leaf::from(host(vec![true], [1])), host(vec![b"a".to_vec()], [1]).into()] {
            for op in [ReduceOp::Sum, ReduceOp::Mean] {
                assert!(strategy.reduce(op, of(leaf.clone()), None).is_err(), "{leaf}: {strategy}");
                let to = strategy.reduce_to(op, of(leaf.clone()), "cpu:0");
                assert!(to.is_err(), "{leaf}: {strategy}");
                let all = strategy.run(of(leaf.clone()), |ctx, leaf| ctx.all_reduce(op, leaf));
                assert!(all.is_err(), "{leaf}: {strategy}");
            }
            let plain = strategy.reduce(ReduceOp::Sum, leaf.clone(), None);
            assert!(plain.is_err(), "{leaf}, not distributed: {strategy}");
        }
        let int: Leaf = host(vec![3i32], [1]).into();
        let mean = strategy.reduce(ReduceOp::Mean, of(int.clone()), None).unwrap();
        let all = strategy.run(of(int), |ctx, leaf| ctx.all_reduce(ReduceOp::Mean, leaf)).unwrap();
        for mean in all.into_values().into_iter().chain([mean]) {
            assert_eq!(mean.to_host().unwrap(), HostTensor::vector(vec![3f64]), "{strategy}");
        }
    };
    watched(move || {
        check(&mirrored(1));
        everywhere(check);
    });
}

/// Checks the copies of an ON_READ variable with any aggregation (RED-9).
#[test]
fn op_4_a_mean_of_an_integer_variables_copies_does_not_wrap() {
    let check = |strategy: &Strategy| {
        let copies = || {
            Variable::builder("copies", HostTensor::scalar(200u8))
                .synchronization(VariableSynchronization::OnRead)
                .aggregation(VariableAggregation::Sum)
                .create()
        };
        let copies = strategy.scope(copies).unwrap();
        let mean = strategy.reduce(ReduceOp::Mean, &copies, None).unwrap().to_host().unwrap();
        assert_eq!(mean.cast(HostDType::F64).unwrap().item::<f64>().unwrap(), 200., "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn op_5_mixed_dtypes_are_an_error_that_names_the_replica_and_spoils_nothing() {
    let check = |strategy: &Strategy| {
        if has_others(strategy) {
            let one = |id: usize| match id {
                0 => Leaf::from(HostTensor::scalar(1f32)),
                _ => Leaf::from(HostTensor::scalar(1f64)),
            };
            let error = strategy.reduce(ReduceOp::Sum, each(strategy, one), None).unwrap_err().to_string();
            assert!(
                error.contains(others(strategy)) && error.contains("float32") && error.contains("float64"),
                "{strategy}: {error}"
            );
            let error = strategy.run((), |ctx, ()| {
                let dtype = [DType::F32, DType::F64][is_other(ctx)];
                ctx.all_reduce(ReduceOp::Sum, tensor(&[1.]).to_dtype(dtype)?)
            });
            let error = error.unwrap_err();
            assert_eq!(error.blame().unwrap().fault, Fault::Mismatch);
            let text = error.to_string();
            assert!(text.contains("float32[1]") && text.contains("float64[1]"), "{strategy}: {text}");
        }
        // T2: TensorFlow's next collective would fail with the old error.
        let count = strategy.num_replicas_in_sync() as i32;
        let sums = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1)).unwrap();
        assert!(sums.iter().all(|sum| *sum == count), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

// Strategy::reduce

/// Returns four elements of each replica: 0, 1, 2, 3 of replica 0, then 4, 5, 6, 7, …
fn four(id: usize) -> Vec<f32> {
    (0..4).map(|at| (4 * id + at) as f32).collect()
}

/// Returns `id` + 1 different elements.
fn uneven(id: usize) -> Vec<f32> {
    (0..=id).map(|at| (4 * id + at) as f32).collect()
}

#[test]
fn red_3_without_axis_element_by_element() {
    let check = |strategy: &Strategy| {
        let values = each(strategy, |id| tensor(&four(id)));
        let all = of_all(strategy, four);
        let sum: Vec<f32> = (0..4).map(|at| all.iter().map(|of| of[at]).sum()).collect();
        let mean: Vec<f32> = sum.iter().map(|sum| sum / all.len() as f32).collect();
        assert_eq!(floats(&strategy.reduce(ReduceOp::Sum, &values, None).unwrap()), sum, "{strategy}");
        assert_eq!(floats(&strategy.reduce(ReduceOp::Mean, &values, None).unwrap()), mean, "{strategy}");
        if has_others(strategy) {
            let values = each(strategy, |id| tensor(&[1., 2., 3.][..1 + 2 * id.min(1)]));
            let error = strategy.reduce(ReduceOp::Sum, values, None).unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, Error::Tensor { .. } | Error::Collective(_)), "{strategy}: {text}");
            assert!(text.contains(others(strategy)) && text.contains("[3]"), "{strategy}: {text}");
        }
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn red_4_sum_over_an_axis_sums_within_replicas_first() {
    let check = |strategy: &Strategy| {
        let values = each(strategy, |id| tensor(&uneven(id)));
        let sum: f32 = of_all(strategy, uneven).concat().iter().sum();
        assert_eq!(floats(&strategy.reduce(ReduceOp::Sum, &values, 0).unwrap()), [sum], "{strategy}");
        // One row more on each replica: 1 and 2, …
        let rows = each(strategy, |id| host([1i64, 2].repeat(id + 1), [id + 1, 2]));
        let count = of_all(strategy, |id| id as i64 + 1).iter().sum::<i64>();
        let sum = strategy.reduce(ReduceOp::Sum, &rows, 0).unwrap();
        assert_eq!(sum, host(vec![count, 2 * count], [2]), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn red_5_mean_divides_by_the_true_count() {
    let check = |strategy: &Strategy| {
        let mean = |of: &dyn Fn(usize) -> Vec<f32>| {
            let values = each(strategy, |id| tensor(&of(id)));
            strategy.reduce(ReduceOp::Mean, values, 0).unwrap().to_scalar::<f32>().unwrap()
        };
        let all = of_all(strategy, uneven).concat();
        assert_eq!(mean(&uneven), all.iter().sum::<f32>() / all.len() as f32, "{strategy}");
        // Some replicas, or all of them, have no elements.
        assert_eq!(mean(&|id| if id == 0 { vec![1., 2.] } else { Vec::new() }), 1.5, "{strategy}");
        assert!(mean(&|_| Vec::new()).is_nan(), "{strategy}");
        let ints = each(strategy, |id| host(vec![1 + id as i32; id + 1], [id + 1]));
        let squares = of_all(strategy, |id| (id + 1) * (id + 1)).iter().sum::<usize>() as f64;
        let mean = strategy.reduce(ReduceOp::Mean, ints, 0).unwrap();
        let expected = squares / all.len() as f64;
        assert_eq!((mean.dtype(), mean.item::<f64>().unwrap()), (HostDType::F64, expected), "{strategy}");
        // Several axes: the product of their sizes.
        let rows = each(strategy, |id| host(vec![1. + id as f32; 3 * (id + 1)], [id + 1, 3]));
        let mean = strategy.reduce(ReduceOp::Mean, rows, [0, 1]).unwrap().item::<f32>().unwrap();
        assert_eq!(mean, squares as f32 / all.len() as f32, "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn red_6_an_axis_may_count_from_the_end_and_must_exist() {
    let check = |strategy: &Strategy| {
        let values = each(strategy, |id| host(four(id), [2, 2]));
        let all = of_all(strategy, four);
        let over = |axes: distribute::values::Axes| strategy.reduce(ReduceOp::Sum, &values, axes);
        let row = |at: usize| all.iter().map(|of| of[2 * at] + of[2 * at + 1]).sum::<f32>();
        let total = row(0) + row(1);
        assert_eq!(over((-1).into()).unwrap(), host(vec![row(0), row(1)], [2]), "{strategy}");
        assert_eq!(over((-1).into()).unwrap(), over(1.into()).unwrap(), "{strategy}");
        assert_eq!(over([0, -1].into()).unwrap().item::<f32>().unwrap(), total, "{strategy}");
        assert_eq!(over(vec![0, 1].into()).unwrap().item::<f32>().unwrap(), total, "{strategy}");
        for (axes, text) in [(2.into(), "axis 2"), ((-3).into(), "axis -3"), ([0, -2].into(), "given twice")]
        {
            let error = over(axes).unwrap_err();
            assert!(matches!(error, Error::Tensor { .. }), "{strategy}: {error}");
            assert!(error.to_string().contains(text), "{strategy}: {error}");
        }
        let scalars = each(strategy, |id| id as f32);
        let error = strategy.reduce(ReduceOp::Sum, scalars, 0).unwrap_err().to_string();
        assert!(error.contains("axis 0") && error.contains("scalar"), "{strategy}: {error}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn red_7_with_an_axis_a_plain_value_counts_once_for_every_replica() {
    let check = |strategy: &Strategy| {
        let count = strategy.num_replicas_in_sync() as f32;
        let value = tensor(&[3., 4.]);
        assert_eq!(floats(&strategy.reduce(ReduceOp::Sum, &value, 0).unwrap()), [7. * count], "{strategy}");
        assert_eq!(floats(&strategy.reduce(ReduceOp::Mean, &value, 0).unwrap()), [3.5], "{strategy}");
        // A nest with an axis: each leaf, where TensorFlow gives a TypeError.
        let nest = each(strategy, |id| (tensor(&uneven(id)), tensor(&[3.])));
        let (a, b) = strategy.reduce(ReduceOp::Sum, nest, 0).unwrap();
        let sum: f32 = of_all(strategy, uneven).concat().iter().sum();
        assert_eq!((floats(&a), floats(&b)), (vec![sum], vec![3. * count]), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

/// Checks a plain value. With several workers, each worker has one (RED-13).
#[test]
fn red_8_without_axis_a_plain_value_has_a_mean_but_no_sum() {
    let check = |strategy: &Strategy| {
        assert_eq!(strategy.reduce(ReduceOp::Mean, 5f32, None).unwrap(), 5., "{strategy}");
        let (sum, world) = (strategy.reduce(ReduceOp::Sum, 5f32, None), strategy.world());
        if world.is_multi_worker() || !has_others(strategy) {
            assert_eq!(sum.unwrap(), 5. * world.workers() as f32, "{strategy}");
            return;
        }
        let error = sum.unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { operation: "reduce", .. }), "{strategy}: {error}");
        assert!(error.to_string().contains("not distributed"), "{strategy}: {error}");
    };
    watched(move || {
        check(&mirrored(1));
        everywhere(check);
    });
}

#[test]
fn red_9_a_mirrored_value_is_its_own_mean_and_is_summed_over_replicas() {
    let check = |strategy: &Strategy| {
        let (value, count) = (Mirrored::new(2f32), strategy.num_replicas_in_sync() as f32);
        assert_eq!(strategy.reduce(ReduceOp::Mean, &value, None).unwrap(), 2., "{strategy}");
        assert_eq!(strategy.reduce(ReduceOp::Sum, &value, None).unwrap(), 2. * count, "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn red_10_nests_are_reduced_leaf_by_leaf() {
    let check = |strategy: &Strategy| {
        let value = |id: usize| 1. + id as f32;
        let values = each(strategy, |id| (value(id), vec![tensor(&[10. * value(id)])]));
        let (number, list) = strategy.reduce(ReduceOp::Sum, values, None).unwrap();
        let sum: f32 = of_all(strategy, value).iter().sum();
        assert_eq!((number, floats(&list[0])), (sum, vec![10. * sum]), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn red_11_numbers_are_values_and_a_missing_one_is_named() {
    let check = |strategy: &Strategy| {
        let value = |id: usize| 1. + id as f64;
        let expected = of_all(strategy, value).iter().sum::<f64>() / strategy.num_replicas_in_sync() as f64;
        let mean = strategy.reduce(ReduceOp::Mean, each(strategy, value), None).unwrap();
        assert_eq!(mean, expected, "{strategy}");
        if !has_others(strategy) {
            return;
        }
        let some = || each(strategy, |id| (id == 0).then_some(HostTensor::vector(vec![1f32])));
        for error in [
            strategy.reduce(ReduceOp::Sum, some(), None).unwrap_err(),
            strategy.reduce(ReduceOp::Sum, some(), 0).unwrap_err(),
            strategy.reduce_to(ReduceOp::Mean, some(), "cpu:0").unwrap_err(),
            strategy.gather(some(), 0).unwrap_err(),
        ] {
            // A worker without any value makes the call as well, and all get the error.
            match error.blame() {
                Some(blame) if strategy.world().replicas() == 1 => {
                    assert_eq!(blame.fault, Fault::Mismatch, "{strategy}: {error}");
                }
                // The worker whose replicas differ fails before the call, and the others learn it there.
                Some(_) => assert!(strategy.world().worker() > 0, "{strategy}: {error}"),
                None => assert!(error.to_string().contains("nothing"), "{strategy}: {error}"),
            }
        }
        let mine =
            |ctx: &distribute::ReplicaContext| (is_other(ctx) == 0).then_some(HostTensor::vector(vec![1f32]));
        for error in [
            strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, mine(ctx))).unwrap_err(),
            strategy.run((), |ctx, ()| ctx.all_gather(mine(ctx), 0)).unwrap_err(),
        ] {
            assert_eq!(error.blame().unwrap().fault, Fault::Mismatch, "{strategy}: {error}");
        }
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn red_12_the_operation_is_always_given_and_typed() {
    // These are the only operations, and there is no default.
    match "mean".parse().unwrap() {
        ReduceOp::Sum => panic!(),
        ReduceOp::Mean => {}
    }
}
