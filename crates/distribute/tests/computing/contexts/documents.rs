//! Tests of statements in the documentation of Strategy about `run`, `reduce`, `gather` and values, which no other test
//! checks as strictly.

use crate::contexts::{everywhere, mirrored, per_replica, tensor};
use candle_core::{Device, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::context::{get_replica_context, get_strategy};
use distribute::data::{Dataset, Error as DataError};
use distribute::optimizer::Gradients;
use distribute::optimizer::rules::Sgd;
use distribute::values::Mirrored;
use distribute::{
    Error, HostTensor, MultiWorkerMirroredStrategy, Nest, OneDeviceStrategy, Optimizer, PerReplica, ReduceOp,
    Strategy, Variable,
};
use distribute_testing::watched;
use std::sync::Mutex;

fn ints(values: impl IntoIterator<Item = i32>, dims: &[usize]) -> HostTensor {
    HostTensor::new(values.into_iter().collect::<Vec<_>>(), dims).unwrap()
}

// Attributes

#[test]
fn run_4_gradients_are_added_up_over_num_replicas_in_sync() {
    watched(|| {
        let check = |strategy: &Strategy| {
            let weight = |vb: VarBuilder| vb.get_with_hints((), "w", Init::Const(0.));
            let model = strategy.replicate(weight).unwrap();
            let optimizer = Optimizer::with_rule(Sgd, &model.variables, 1.).unwrap();
            // Each replica has a gradient of -1.
            let step = |ctx: &distribute::ReplicaContext, w: &Tensor| {
                let gradients = Gradients::of(&optimizer, &w.neg()?)?;
                optimizer.apply_gradients(ctx, gradients, ReduceOp::Sum)
            };
            strategy.run(&model, step).unwrap();
            let moved = model.variables.get("w").unwrap().to_scalar::<f32>().unwrap();
            assert_eq!(moved, strategy.num_replicas_in_sync() as f32, "{strategy}");
        };
        check(&mirrored(3));
        everywhere(check);
    });
}

// run

#[test]
fn run_8_every_step_calls_the_function_once_for_each_replica() {
    watched(|| {
        everywhere(|strategy| {
            let calls = Mutex::new(Vec::new());
            for step in 0..4 {
                let note = |ctx: &distribute::ReplicaContext| {
                    calls.lock().unwrap().push((step, ctx.replica_id_in_sync_group()));
                    Ok(())
                };
                strategy.run((), |ctx, ()| note(ctx)).unwrap();
            }
            let mut calls = calls.into_inner().unwrap();
            calls.sort_unstable();
            let replicas = strategy.world().local_replicas();
            let expected: Vec<_> =
                (0..4).flat_map(|step| replicas.clone().map(move |id| (step, id))).collect();
            assert_eq!(calls, expected, "{strategy}");
        });
    });
}

#[test]
fn run_3_the_documents_examples_print_their_results() {
    watched(|| {
        everywhere(|strategy| {
            let printed = |dtype: &str, value: String| {
                let one = format!("<Tensor: shape=(), dtype={dtype}, data={value}>");
                let each = (0..strategy.world().replicas()).map(|replica| format!("  {replica}: {one}"));
                format!("PerReplica:{{\n{}\n}}", each.collect::<Vec<_>>().join(",\n"))
            };
            let count = strategy.num_replicas_in_sync() as i32;
            let three = Tensor::new(3f32, &Device::Cpu).unwrap();
            let doubled = strategy.run(three, |_, input| Ok((input * 2.)?)).unwrap();
            assert_eq!(doubled.to_string(), printed("float32", "6.0".into()), "{strategy}");
            let counts = strategy.distribute_values_from_function(|ctx| Ok(ctx.num_replicas_in_sync as i32));
            let doubled = strategy.run(counts.unwrap(), |_, input| Ok(input * 2)).unwrap();
            assert_eq!(doubled.to_string(), printed("int32", (2 * count).to_string()), "{strategy}");
            let ids = strategy.distribute_values_from_function(|ctx| Ok(ctx.replica_id_in_sync_group as i32));
            let all_reduce = |_: &_, id| get_replica_context().unwrap().all_reduce(ReduceOp::Sum, id);
            let sum = strategy.run(ids.unwrap(), all_reduce).unwrap();
            assert_eq!(
                sum.to_string(),
                printed("int32", (count * (count - 1) / 2).to_string()),
                "{strategy}"
            );
        });
    });
}

/// A tensor of several parts: rows of different lengths.
#[derive(Clone, Debug, PartialEq, Nest)]
struct Ragged {
    values: HostTensor,
    row_splits: HostTensor,
}

impl Ragged {
    fn new(rows: &[&[i32]]) -> Self {
        let ends = rows.iter().scan(0, |end, row| {
            *end += row.len() as i64;
            Some(*end)
        });
        let row_splits = HostTensor::vector([0].into_iter().chain(ends).collect::<Vec<i64>>());
        let values: Vec<i32> = rows.concat();
        Self { values: HostTensor::vector(values), row_splits }
    }
}

#[test]
fn run_3_a_composite_tensor_reaches_its_replica_as_one_value() {
    watched(|| {
        let strategy = mirrored(2);
        let batches = [Ragged::new(&[&[1], &[], &[2, 3]]), Ragged::new(&[&[4, 5, 6]])];
        // Values that were made by hand, and by a function, which returns a value for each replica.
        let of_function = batches.clone();
        let make = move |_| Ok(Dataset::from_items(of_function.clone()));
        let data = strategy.distribute_datasets_from_function(make).unwrap();
        for values in [per_replica(batches.clone()), data.iter().next().unwrap().unwrap()] {
            let same = strategy.run(values, |ctx, mine| Ok(mine == batches[ctx.replica_id_in_sync_group()]));
            assert_eq!(same.unwrap().values(), [true, true]);
        }
        // Its parts are leaves: of the same shapes they are reduced one by one.
        let sum = |_: &_, mine: Ragged| get_replica_context().unwrap().all_reduce(ReduceOp::Sum, mine.values);
        let ones = per_replica([Ragged::new(&[&[1, 2]]), Ragged::new(&[&[3], &[4]])]);
        assert_eq!(strategy.run(ones, sum).unwrap().values(), [ints([4, 6], &[2]), ints([4, 6], &[2])]);
    });
}

/// Checks that a ragged batch is an error (ITER-11). TensorFlow splits it by rows.
#[test]
fn iter_11_a_batch_whose_leaves_differ_in_rows_is_refused_when_it_is_split() {
    let batches = Dataset::from_items([Ragged::new(&[&[1], &[], &[2, 3]])]);
    let error = mirrored(2).distribute_dataset(batches).unwrap().iter().next().unwrap().unwrap_err();
    assert!(matches!(error, Error::Data(DataError::UnequalRows { .. })), "{error}");
}

// Values

#[test]
fn vff_1_values_come_from_the_function_and_keep_their_device() {
    watched(|| {
        everywhere(|strategy| {
            let placed: Vec<_> = (0..strategy.num_replicas_in_sync()).map(|_| tensor(&[1.])).collect();
            let values = strategy
                .distribute_values_from_function(|ctx| Ok(placed[ctx.replica_id_in_sync_group].clone()));
            let same = strategy.run(values.unwrap(), |ctx, mine| {
                Ok(mine.id() == placed[ctx.replica_id_in_sync_group()].id())
            });
            assert!(same.unwrap().iter().all(|same| *same), "{strategy}");
        });
    });
}

#[test]
fn local_3_each_worker_has_the_results_of_its_replicas() {
    watched(|| {
        let each = MultiWorkerMirroredStrategy::on_threads(2, 2, |strategy| {
            let ids = strategy.run((), |ctx, ()| Ok(ctx.replica_id_in_sync_group()))?;
            let made =
                strategy.distribute_values_from_function(|ctx| Ok(ctx.replica_id_in_sync_group * 10))?;
            Ok((
                strategy.local_results(&ids)?.into_iter().copied().collect::<Vec<_>>(),
                strategy.local_results(made)?,
            ))
        });
        assert_eq!(each.unwrap(), [(vec![0, 1], vec![0, 10]), (vec![2, 3], vec![20, 30])]);
    });
}

/// Checks that each result of a variable is the variable itself (LOCAL-1). TensorFlow returns the variable's
/// components.
#[test]
fn local_1_each_result_of_a_variable_is_the_variable_itself() {
    watched(|| {
        everywhere(|strategy| {
            let v = strategy.scope(|| Variable::new("v", 3f32)).unwrap();
            let (results, replicas) = (strategy.local_results(&v).unwrap(), strategy.world().replicas());
            assert!(results.len() == replicas && results.iter().all(|result| **result == v), "{strategy}");
            // VC-1: each is among the parts of what it belongs to, also where it is made of numbers.
            for result in &results {
                let container = strategy.value_container(result).unwrap();
                assert!(strategy.local_results(&container).unwrap().contains(result), "{strategy}");
            }
            assert!(v.copies::<f32>().unwrap().iter().all(|copy| *copy == 3.), "{strategy}");
            assert_eq!(strategy.local_results(Mirrored::new(7)).unwrap(), vec![7; replicas], "{strategy}");
        });
    });
}

// gather

#[test]
fn ga_1_the_documents_examples_along_each_axis() {
    watched(|| {
        let twice = mirrored(2).distribute_values_from_function(|_| Ok(ints([1, 2], &[2, 1]))).unwrap();
        assert_eq!(mirrored(2).gather(twice, 0).unwrap(), ints([1, 2, 1, 2], &[4, 1]));
        let strategy = mirrored(4);
        let single = |_| Ok(ints(0..6, &[1, 2, 3]));
        let values: PerReplica<_> = strategy.distribute_values_from_function(single).unwrap();
        let four = |rows: &[i32]| [rows; 4].concat();
        let expected = [
            ints(four(&[0, 1, 2, 3, 4, 5]), &[4, 2, 3]),
            ints(four(&[0, 1, 2, 3, 4, 5]), &[1, 8, 3]),
            ints([four(&[0, 1, 2]), four(&[3, 4, 5])].concat(), &[1, 2, 12]),
        ];
        for (axis, expected) in expected.into_iter().enumerate() {
            assert_eq!(strategy.gather(&values, axis).unwrap(), expected, "axis {axis}");
        }
    });
}

#[test]
fn ga_6_a_plain_value_is_for_one_device_and_the_default_strategy() {
    for strategy in [get_strategy(), OneDeviceStrategy::new("cpu:0").unwrap()] {
        assert_eq!(strategy.gather(ints(0..3, &[3]), 0).unwrap(), ints(0..3, &[3]), "{strategy}");
        assert_eq!(strategy.reduce(ReduceOp::Sum, 3f32, None).unwrap(), 3., "{strategy}");
        assert_eq!(strategy.reduce(ReduceOp::Mean, ints([1, 2], &[2]), 0).unwrap(), HostTensor::scalar(1.5));
    }
}

// reduce

#[test]
fn red_3_and_red_4_the_documents_batch_of_eight_over_two_replicas() {
    watched(|| {
        let strategy = mirrored(2);
        let ids = strategy.run((), |ctx, ()| Ok(ctx.replica_id_in_sync_group() as i32)).unwrap();
        assert_eq!(strategy.reduce("SUM".parse().unwrap(), ids, None).unwrap(), 1);
        let batches = strategy.distribute_dataset(Dataset::range(8).batch(8)).unwrap();
        let losses = strategy.run(batches.iter().next().unwrap().unwrap(), |_, mine| Ok(mine)).unwrap();
        let sum: ReduceOp = "sum".parse().unwrap();
        let over =
            |values: &PerReplica<HostTensor>, axis: Option<i64>| strategy.reduce(sum, values, axis).unwrap();
        assert_eq!(over(&losses, None), HostTensor::vector(vec![4i64, 6, 8, 10]));
        assert_eq!(over(&losses, Some(0)), HostTensor::scalar(28i64));
        // The sum over elements does not depend on the number of replicas that have parts of it.
        everywhere(|strategy| {
            let batches = strategy.distribute_dataset(Dataset::range(8).batch(8)).unwrap();
            let losses = strategy.run(batches.iter().next().unwrap().unwrap(), |_, mine| Ok(mine)).unwrap();
            assert_eq!(strategy.reduce(sum, &losses, 0).unwrap(), HostTensor::scalar(28i64), "{strategy}");
        });
    });
}

/// Checks the mean of six examples, of which one replica has four and the other two.
#[test]
fn red_5_means_of_replicas_weigh_examples_differently_and_an_axis_does_not() {
    watched(|| {
        let strategy: Strategy = mirrored(2);
        let examples = [0., 1., 2., 3., 4., 5f64];
        let parts = per_replica([
            HostTensor::vector(examples[..4].to_vec()),
            HostTensor::vector(examples[4..].to_vec()),
        ]);
        let error = strategy.reduce(ReduceOp::Mean, &parts, None).unwrap_err().to_string();
        assert!(error.contains("replica 1") && error.contains("[2]"), "{error}");
        let mean = strategy.reduce(ReduceOp::Mean, &parts, 0).unwrap();
        assert_eq!(mean, HostTensor::scalar(examples.iter().sum::<f64>() / 6.));
        let own = parts
            .map(|part| part.to_vec::<f64>().unwrap())
            .map(|part| part.iter().sum::<f64>() / part.len() as f64);
        let weighed =
            examples[..4].iter().map(|x| x / 8.).chain(examples[4..].iter().map(|x| x / 4.)).sum::<f64>();
        assert_eq!(strategy.reduce(ReduceOp::Mean, own, None).unwrap(), weighed);
        assert_ne!(weighed, 2.5);
        everywhere(|strategy| {
            let all = HostTensor::vector(examples.to_vec());
            let batches = strategy.distribute_dataset(Dataset::from_slices(all).unwrap().batch(6)).unwrap();
            let losses = strategy.run(batches.iter().next().unwrap().unwrap(), |_, mine| Ok(mine)).unwrap();
            let mean = strategy.reduce(ReduceOp::Mean, &losses, 0).unwrap();
            assert_eq!(mean, HostTensor::scalar(2.5), "{strategy}");
        });
    });
}
