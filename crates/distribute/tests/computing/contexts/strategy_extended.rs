//! Tests of statements in the documentation of StrategyExtended about the strategy itself, which no other test checks
//! as strictly.

use crate::contexts::{bits, central, everywhere, mirrored, on_one, per_replica, tensor};
use candle_core::{DType, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::context::{get_replica_context, get_update_context, has_strategy, in_cross_replica_context};
use distribute::optimizer::Gradients;
use distribute::optimizer::rules::Sgd;
use distribute::strategy::DeviceName;
use distribute::variables::{VariableAggregation as Aggregation, VariableSynchronization as Synchronization};
use distribute::{Optimizer, ReduceOp, Result, Strategy, Variable};
use distribute_testing::watched;
use std::collections::BTreeMap;
use std::sync::Mutex;

// Lower-level concepts

#[test]
fn run_5_each_replica_runs_on_its_worker_device_with_its_own_component() {
    watched(|| {
        let strategy = distribute::MirroredStrategy::new(["cpu:3", "cpu:1", "cpu:4"]).unwrap();
        let seen = strategy.run(per_replica(["w0", "w1", "w2"]), |ctx, w| Ok((w, ctx.device()?))).unwrap();
        let devices = strategy.extended().worker_devices().iter().map(ToString::to_string);
        let expected: Vec<_> = ["w0", "w1", "w2"].into_iter().zip(devices).collect();
        assert_eq!(seen.values(), expected);
        assert!(expected[0].1.ends_with("CPU:3") && expected[1].1.ends_with("CPU:1"));
    });
}

#[test]
fn merge_7_copies_of_a_variable_stay_one_for_each_replica_and_lead_to_the_variable() {
    watched(|| {
        let strategy = mirrored(2);
        let v = strategy.scope(|| Variable::new("v", tensor(&[1.]))).unwrap();
        let copies = strategy.run(&v, |_, v| v.as_tensor()).unwrap();
        assert_ne!(copies.values()[0].id(), copies.values()[1].id());
        assert!(copies.iter().all(|copy| strategy.value_container(copy).as_ref() == Some(&v)));
        assert_eq!(copies.regroup().unwrap().leaves()[0].len(), 2);
    });
}

// Contexts

#[test]
fn ctx_3_a_replica_function_is_called_once_for_each_replica() {
    watched(|| {
        for replicas in 1..=4 {
            let calls = Mutex::new(Vec::new());
            let note = |ctx: &distribute::ReplicaContext| {
                assert!(!in_cross_replica_context());
                calls.lock().unwrap().push(ctx.replica_id_in_sync_group());
                Ok(())
            };
            mirrored(replicas).run((), |ctx, ()| note(ctx)).unwrap();
            let mut calls = calls.into_inner().unwrap();
            calls.sort_unstable();
            assert_eq!(calls, (0..replicas).collect::<Vec<_>>());
        }
    });
}

#[test]
fn dv_1_a_replica_reads_any_variable_any_number_of_times_alone() {
    let check = |strategy: &Strategy| {
        for synchronization in [Synchronization::OnWrite, Synchronization::OnRead] {
            for aggregation in
                [Aggregation::None, Aggregation::Sum, Aggregation::Mean, Aggregation::OnlyFirstReplica]
            {
                let v = Variable::builder("v", 10f32).synchronization(synchronization);
                let v = strategy.scope(|| v.aggregation(aggregation).create()).unwrap();
                let read = strategy.run(&v, |ctx, v| {
                    (0..3 * ctx.replica_id_in_sync_group())
                        .map(|_| v.read::<f32>())
                        .collect::<Result<Vec<_>>>()
                });
                let expected: Vec<_> =
                    strategy.world().local_replicas().map(|id| vec![10.; 3 * id]).collect();
                assert_eq!(read.unwrap().values(), expected, "{synchronization} {aggregation}: {strategy}");
            }
        }
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn ctx_2_a_layer_can_query_its_context_and_aggregate_with_it() {
    watched(|| {
        /// A model that subtracts the mean over all replicas from its input.
        struct Centre(Tensor);
        impl Centre {
            fn new(vb: VarBuilder) -> Result<Self> {
                // Models are defined once for all replicas; the default strategy has one, in which one always is.
                assert_eq!(in_cross_replica_context(), has_strategy());
                assert_eq!(get_replica_context().is_none(), has_strategy());
                Ok(Self(vb.get_with_hints(1, "offset", Init::Const(0.))?))
            }
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                assert!(!in_cross_replica_context());
                let context = get_replica_context().unwrap();
                Ok(((x - context.all_reduce(ReduceOp::Mean, x.clone())?)? + &self.0)?)
            }
        }
        everywhere(|strategy| {
            let model = strategy.replicate(Centre::new).unwrap();
            let x = |id: usize| tensor(&[1. + 4. * id as f32]);
            let all: Vec<f32> = (0..strategy.num_replicas_in_sync()).map(|id| 1. + 4. * id as f32).collect();
            let mean = all.iter().sum::<f32>() / all.len() as f32;
            let pieces = strategy.distribute_values_from_function(|ctx| Ok(x(ctx.replica_id_in_sync_group)));
            let out = strategy.run((&model, pieces.unwrap()), |_, (layer, x)| layer.forward(&x)).unwrap();
            let expected = strategy.world().local_replicas().map(|id| bits(&tensor(&[all[id] - mean])));
            assert!(out.iter().map(bits).eq(expected), "{strategy}");
        });
    });
}

// Sync on read variables

#[test]
fn onr_3_copies_of_on_read_variables_are_independent_until_they_are_read() {
    watched(|| {
        let strategy = mirrored(3);
        let seen = Variable::builder("seen", 0i64).synchronization(Synchronization::OnRead);
        let seen = strategy.scope(|| seen.aggregation(Aggregation::Sum).create()).unwrap();
        // One replica updates it never, another one twice: nobody waits for anybody.
        let add = |times: usize| (0..times).try_for_each(|_| seen.assign_add(1i64));
        strategy.run((), |ctx, ()| add(ctx.replica_id_in_sync_group())).unwrap();
        assert_eq!(seen.devices(), strategy.extended().worker_devices());
        assert_eq!(seen.copies::<i64>().unwrap(), [0, 1, 2]);
        assert!(!seen.copies_agree().unwrap());
        assert_eq!(strategy.scope(|| seen.read::<i64>()).unwrap(), 3);
        // Reading has changed no copy.
        assert_eq!(seen.copies::<i64>().unwrap(), [0, 1, 2]);
    });
}

#[test]
fn onr_a_moving_average_reads_and_writes_the_replicas_copy() {
    watched(|| {
        let strategy = mirrored(2);
        let average = Variable::builder("average", 10f64).synchronization(Synchronization::OnRead);
        let average = strategy.scope(|| average.aggregation(Aggregation::Mean).create()).unwrap();
        let next = |value: f64, update: f64| 0.9 * value + 0.1 * update;
        let updates = per_replica([20f64, 100.]);
        for _ in 0..2 {
            strategy.run(&updates, |_, update| average.assign(next(average.read()?, *update))).unwrap();
        }
        let expected = [20., 100.].map(|update| next(next(10., update), update));
        assert_eq!(average.copies::<f64>().unwrap(), expected);
        assert_eq!(average.read::<f64>().unwrap(), (expected[0] + expected[1]) / 2.);
    });
}

// Locality

#[test]
fn ar_1_all_reduce_makes_of_a_value_per_replica_one_that_is_the_same_on_all() {
    // Numbers whose sum depends on the order in which it is taken.
    let sums = |strategy: &Strategy| {
        let sums = strategy.run((), |ctx, ()| {
            let mine = 0.1 * 10f32.powi(3 * ctx.replica_id_in_sync_group() as i32 - 5);
            ctx.all_reduce(ReduceOp::Sum, tensor(&[mine, 1.]))
        });
        let sums: Vec<_> = sums.unwrap().iter().map(bits).collect();
        (strategy.num_replicas_in_sync(), sums)
    };
    watched(move || {
        let mut of_count = BTreeMap::new();
        let several = [1, 2, 3, 4, 5].map(mirrored);
        let several = several.iter().map(|strategy| ("mirrored".into(), vec![sums(strategy)]));
        for (name, workers) in several.chain(everywhere(sums)) {
            for (count, sums) in workers {
                let expected = of_count.entry(count).or_insert_with(|| sums[0].clone());
                assert!(sums.iter().all(|sum| sum == expected), "{name}: {sums:?}");
                assert_eq!(f32::from_bits(sums[0][1]), count as f32, "{name}");
            }
        }
    });
}

#[test]
fn rto_1_reduced_to_a_variable_a_value_has_its_devices_and_may_update_it() {
    watched(|| {
        let strategy = mirrored(2);
        let both = strategy.scope(|| Variable::new("both", 10f32)).unwrap();
        let one = on_one(&strategy, "cpu:1", "one").unwrap();
        let central = central();
        let shared = central.scope(|| Variable::new("shared", 10f32)).unwrap();
        for (strategy, v, devices) in
            [(&strategy, both, vec![0, 1]), (&strategy, one, vec![1]), (&central, shared, vec![1])]
        {
            assert_eq!(v.devices(), devices.iter().map(|i| DeviceName::cpu(*i)).collect::<Vec<_>>());
            let value = per_replica([1f32, 2.]);
            let sum = strategy.reduce_to(ReduceOp::Sum, &value, &v).unwrap();
            assert_eq!(sum.copies(), vec![&3.; devices.len()]);
            let sums = strategy.batch_reduce_to(ReduceOp::Sum, [(&value, &v)]).unwrap();
            assert_eq!(sums[0], sum);
            let mut seen = Vec::new();
            let update = |v: &Variable, sum: f32| {
                seen.push(get_update_context().unwrap().device());
                v.assign_sub(sum)
            };
            strategy.update(&v, sum, update).unwrap();
            assert_eq!((v.copies::<f32>().unwrap(), seen), (vec![7.; devices.len()], v.devices()));
        }
    });
}

// Updating variables

#[test]
fn wr_3_an_assignment_in_run_equals_merge_call_reduce_to_and_update() {
    let check = |strategy: &Strategy| {
        for (aggregation, op) in [(Aggregation::Sum, ReduceOp::Sum), (Aggregation::Mean, ReduceOp::Mean)] {
            let make = || Variable::builder("v", tensor(&[0.3, -1e6])).aggregation(aggregation).create();
            let (v, w) = strategy.scope(|| Ok((make()?, make()?))).unwrap();
            strategy
                .run((), |ctx, ()| {
                    let mine =
                        tensor(&[0.1, 1e5]).affine(1. + ctx.replica_id_in_sync_group() as f64 / 3., 0.)?;
                    v.assign_add(mine.clone())?;
                    ctx.merge_call(mine, |strategy, updates| {
                        let update = strategy.reduce_to(op, updates, &w)?;
                        strategy.update(&w, update, |w, update| w.assign_add(update)).map(drop)
                    })
                })
                .unwrap();
            let [v, w] = [v, w].map(|v| v.copies::<Tensor>().unwrap().iter().map(bits).collect::<Vec<_>>());
            assert_eq!(v, w, "{op} of {strategy}");
            assert_ne!(v[0], bits(&tensor(&[0.3, -1e6])));
        }
    };
    watched(move || {
        check(&mirrored(3));
        everywhere(check);
    });
}

#[test]
fn rto_2_apply_gradients_in_run_equals_merge_call_reduce_to_and_update() {
    let check = |strategy: &Strategy| {
        let build = |vb: VarBuilder| vb.get_with_hints_dtype(2, "w", Init::Const(0.), DType::F64);
        let model = strategy.replicate(build).unwrap();
        let optimizer = Optimizer::with_rule(Sgd, &model.variables, 0.5).unwrap();
        let zero = model.variables.get("w").unwrap().copy().unwrap();
        let by_hand = strategy.scope(|| Variable::new("w", zero)).unwrap();
        for _ in 0..2 {
            strategy
                .run((), |ctx, ()| {
                    let third = (1 + ctx.replica_id_in_sync_group()) as f64 / 3.;
                    let gradient = Tensor::new(&[third, -third * 1e9], &candle_core::Device::Cpu)?;
                    let mut gradients = Gradients::new(&optimizer);
                    gradients.insert("w", gradient.clone())?;
                    optimizer.apply_gradients(ctx, gradients, ReduceOp::Sum)?;
                    ctx.merge_call(gradient, |strategy, gradients| {
                        let total = strategy.reduce_to(ReduceOp::Sum, gradients, &by_hand)?;
                        strategy.update(&by_hand, total, |w, total| w.assign_sub((total * 0.5)?)).map(drop)
                    })
                })
                .unwrap();
        }
        let numbers = |tensor: &Tensor| tensor.to_vec1::<f64>().unwrap();
        let expected = numbers(&model.variables.get("w").unwrap());
        let count = strategy.num_replicas_in_sync() as f64;
        assert!((expected[0] + count * (count + 1.) / 6.).abs() < 1e-12, "{strategy}: {expected:?}");
        let copies: Vec<Tensor> = by_hand.copies().unwrap();
        assert!(copies.iter().all(|copy| numbers(copy) == expected), "{strategy}");
    };
    watched(move || {
        check(&mirrored(3));
        everywhere(check);
    });
}
