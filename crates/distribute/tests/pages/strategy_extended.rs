//! The page of StrategyExtended: what no other test asserts as strongly as the page says it.

use crate::watched::watched;
use crate::{bits, central, everywhere, mirrored, on_one, per_replica, tensor};
use candle_core::{DType, Tensor};
use candle_nn::{Init, VarBuilder};
use distribute::optimizer::Gradients;
use distribute::optimizer::rules::Sgd;
use distribute::{
    ContextKind, DeviceName, Error, Mirrored, Optimizer, ReduceOp, Result, Strategy, StrategyExtended,
    Variable, VariableAggregation as Aggregation, VariableSynchronization as Synchronization,
    get_replica_context, get_strategy, get_update_context, in_cross_replica_context,
};
use std::sync::Mutex;

// Lower-level concepts

#[test]
fn run_5_each_replica_runs_on_its_worker_device_with_its_own_component() {
    watched(|| {
        let strategy = distribute::MirroredStrategy::new(["cpu:3", "cpu:1", "cpu:4"]).unwrap();
        let seen = strategy.run(per_replica(["w0", "w1", "w2"]), |ctx, w| Ok((w, ctx.devices()?))).unwrap();
        let devices = strategy.extended().worker_devices().iter().map(|device| vec![device.to_string()]);
        let expected: Vec<_> = ["w0", "w1", "w2"].into_iter().zip(devices).collect();
        assert_eq!(seen.values(), expected);
        assert!(expected[0].1[0].ends_with("CPU:3") && expected[1].1[0].ends_with("CPU:1"));
    });
}

#[test]
fn merge_7_copies_of_a_variable_stay_one_for_each_replica_and_are_known_to_be_its() {
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
fn dv_1_a_replica_reads_any_variable_as_often_as_it_likes_without_the_others() {
    watched(|| {
        let strategy = mirrored(2);
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
                assert_eq!(read.unwrap().values(), [vec![], vec![10.; 3]], "{synchronization} {aggregation}");
            }
        }
    });
}

#[test]
fn ctx_2_a_layer_can_tell_where_it_is_and_aggregate_with_the_context_it_finds() {
    watched(|| {
        /// Centres its input over all replicas where there are some.
        struct Centre(Tensor);
        impl Centre {
            fn new(vb: VarBuilder) -> Result<Self> {
                // Models are defined once for all replicas.
                assert!(in_cross_replica_context() && get_replica_context().is_none());
                Ok(Self(vb.get_with_hints(1, "offset", Init::Const(0.))?))
            }
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                assert!(!in_cross_replica_context());
                let context = get_replica_context().unwrap();
                Ok(((x - context.all_reduce(ReduceOp::Mean, x.clone())?)? + &self.0)?)
            }
        }
        let strategy = mirrored(2);
        let model = strategy.replicate(Centre::new).unwrap();
        let x = per_replica([tensor(&[1.]), tensor(&[5.])]);
        let out = strategy.run((&model, x), |_, (layer, x)| layer.forward(&x)).unwrap();
        assert_eq!(
            out.into_values().iter().map(bits).collect::<Vec<_>>(),
            [bits(&tensor(&[-2.])), bits(&tensor(&[2.]))]
        );
    });
}

// Sync on read variables

#[test]
fn onr_3_copies_of_on_read_variables_go_their_own_ways_until_they_are_read() {
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
fn onr_a_moving_average_reads_and_writes_the_replicas_own_copy() {
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
    watched(|| {
        for replicas in 1..=5 {
            // Numbers whose sum depends on the order in which it is taken.
            let sums = mirrored(replicas).run((), |ctx, ()| {
                let mine = 0.1 * 10f32.powi(3 * ctx.replica_id_in_sync_group() as i32 - 5);
                ctx.all_reduce(ReduceOp::Sum, tensor(&[mine, 1.]))
            });
            let sums: Vec<_> = sums.unwrap().iter().map(bits).collect();
            assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
            assert_eq!(f32::from_bits(sums[0][1]), replicas as f32);
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
            assert_eq!(sums, [sum.clone()]);
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
fn wr_3_an_assignment_in_run_does_what_merge_call_reduce_to_and_update_do() {
    watched(|| {
        let strategy = mirrored(3);
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
            assert_eq!(v, w, "{op}");
            assert_ne!(v[0], bits(&tensor(&[0.3, -1e6])));
        }
    });
}

#[test]
fn rto_2_apply_gradients_in_run_does_what_merge_call_reduce_to_and_update_do() {
    watched(|| {
        let strategy = mirrored(3);
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
        assert_eq!(expected[0], -2.);
        assert!(by_hand.copies::<Tensor>().unwrap().iter().all(|copy| numbers(copy) == expected));
    });
}

// What the author gives

#[derive(Debug)]
struct Compiled([DeviceName; 1]);

impl StrategyExtended for Compiled {
    fn kind(&self) -> &'static str {
        "Compiled"
    }
    fn worker_devices(&self) -> &[DeviceName] {
        &self.0
    }
    fn require_static_shapes(&self) -> bool {
        true
    }
}

#[test]
fn str_6_static_shapes_are_needed_where_the_strategys_author_says_so() {
    assert!(everywhere().iter().all(|strategy| !strategy.extended().require_static_shapes()));
    let own = Strategy::new(Compiled([DeviceName::cpu(0)]));
    assert!(own.extended().require_static_shapes());
    // Nothing else is given, and everything works: what a strategy is, is all in this trait.
    assert_eq!(own.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 3f32)).unwrap().values(), [3.]);
}

#[test]
fn one_1_worker_devices_run_replicas_and_parameter_devices_have_variables() {
    watched(|| {
        for strategy in everywhere() {
            let v = strategy.scope(|| Variable::new("v", 1f32)).unwrap();
            assert_eq!(v.devices(), strategy.extended().parameter_devices(), "{strategy}");
            let ran = strategy.run((), |ctx, ()| ctx.devices()).unwrap().into_values().concat();
            let workers: Vec<_> =
                strategy.extended().worker_devices().iter().map(ToString::to_string).collect();
            assert_eq!(ran, workers, "{strategy}");
        }
    });
}

// reduce_to, batch_reduce_to

#[test]
fn rto_4_a_batch_gives_the_bits_of_its_calls_one_by_one() {
    watched(|| {
        for replicas in 1..=4 {
            let strategy = mirrored(replicas);
            let value = |i: usize| {
                per_replica(
                    (0..replicas).map(|r| tensor(&[0.1 * 7f32.powi((r + i) as i32), 1. / (r + 3) as f32])),
                )
            };
            let values: Vec<_> = (0..3).map(value).collect();
            for op in [ReduceOp::Sum, ReduceOp::Mean] {
                let batch = strategy.batch_reduce_to(op, values.iter().map(|v| (v, v))).unwrap();
                for (value, from_batch) in values.iter().zip(batch) {
                    let single = strategy.reduce_to(op, value, value).unwrap();
                    let all =
                        |copies: &Mirrored<Tensor>| copies.copies().into_iter().map(bits).collect::<Vec<_>>();
                    assert_eq!(all(&from_batch), all(&single), "{op} of {replicas}");
                    assert_eq!(single.copies().len(), replicas);
                    // RTO-2: given itself, a reduction is an all-reduction.
                    let reduced =
                        strategy.run(value, |ctx, value| ctx.all_reduce(op, value.clone())).unwrap();
                    assert_eq!(reduced.iter().map(bits).collect::<Vec<_>>(), all(&single));
                }
            }
        }
    });
}

#[test]
fn rto_4_a_value_has_one_part_for_each_replica() {
    let error = mirrored(2).reduce_to(ReduceOp::Sum, per_replica([1f32, 2., 3.]), "cpu:0").unwrap_err();
    assert!(matches!(error, Error::InvalidArgument { operation: "reduce_to", .. }), "{error}");
    assert!(error.to_string().contains("3 parts for 2 replicas"), "{error}");
}

// colocate_vars_with

#[test]
fn colo_2_variables_go_where_the_given_one_is_until_the_body_ends() {
    let strategy = mirrored(2);
    let var1 = on_one(&strategy, "cpu:1", "var1").unwrap();
    let var4 = || Variable::new("var4", 0f32);
    let (var2, var3, var4) = strategy
        .scope(|| {
            let (var2, var3) = strategy.colocate_vars_with(&var1, || {
                Ok((Variable::new("var2", 2f32)?, Variable::new("var3", 3f32)?))
            })?;
            assert!(strategy.colocate_vars_with(&var1, || Err::<(), _>(Error::other("no"))).is_err());
            Ok((var2, var3, var4()?))
        })
        .unwrap();
    assert_eq!(
        (var1.devices(), var2.devices(), var3.devices()),
        (vec![DeviceName::cpu(1)], var1.devices(), var1.devices())
    );
    assert_eq!(var4.devices(), strategy.extended().parameter_devices());
    // Updated together on every device of the first, which is one.
    let mut ran_on = Vec::new();
    strategy
        .update(&var1, (&var2, &var3), |v1, (v2, v3)| {
            ran_on.push(get_update_context().unwrap().device());
            v1.assign(v2.read::<f32>()? * v3.read::<f32>()?)
        })
        .unwrap();
    assert_eq!((ran_on, var1.copies::<f32>().unwrap()), (var1.devices(), vec![6.]));
}

#[test]
fn colo_1_it_belongs_into_the_strategys_own_scope() {
    watched(|| {
        let (strategy, other) = (mirrored(2), mirrored(2));
        let v = strategy.scope(|| Variable::new("v", 0f32)).unwrap();
        let colocate = || strategy.colocate_vars_with(&v, || Ok(()));
        let found = |result: Result<()>| {
            let error = result.unwrap_err();
            let Error::WrongContext { operation: "colocate_vars_with", required, found, .. } =
                error.root_cause()
            else {
                panic!("{error}")
            };
            assert_eq!(*required, ContextKind::CrossReplica);
            *found
        };
        assert_eq!(found(colocate()), ContextKind::Default);
        assert_eq!(found(strategy.run((), |_, ()| colocate()).map(drop)), ContextKind::Replica);
        assert_eq!(found(strategy.update(&v, (), |_, ()| colocate()).map(drop)), ContextKind::Update);
        for error in [other.scope(colocate).unwrap_err(), other.run((), |_, ()| colocate()).unwrap_err()] {
            assert!(matches!(error.root_cause(), Error::MixedStrategies { .. }), "{error}");
        }
        strategy.run((), |ctx, ()| ctx.merge_call((), |_, _| colocate())).unwrap();
    });
}

// Non-slot variables

#[test]
fn ns_1_non_slot_devices_are_for_creating_and_for_updating_whatever_the_order_of_the_variables() {
    for strategy in everywhere() {
        let make = |name: &str| Variable::new(name, 0f32);
        let (a, b) = strategy.scope(|| Ok((make("a")?, make("b")?))).unwrap();
        let devices = strategy.non_slot_devices(&[&a, &b]).unwrap();
        assert_eq!(devices, strategy.non_slot_devices(&[&b, &a]).unwrap(), "{strategy}");
        let parameters = strategy.extended().parameter_devices();
        assert!(
            !devices.is_empty() && devices.iter().all(|device| parameters.contains(device)),
            "{strategy}"
        );

        let create = || Ok((Variable::new("steps", 0i64)?, Variable::new("power", 1f64)?));
        let (steps, power) = strategy.scope(|| strategy.colocate_vars_with(&devices, create)).unwrap();
        assert_eq!((steps.devices(), power.devices()), (devices.clone(), devices.clone()), "{strategy}");
        let mut ran_on = Vec::new();
        let results = strategy.update_non_slot(&devices, Mirrored::new(2i64), |by| {
            ran_on.push(get_update_context().unwrap().device());
            steps.assign_add(by)?;
            power.assign(power.read::<f64>()? * 0.5)?;
            steps.read::<i64>()
        });
        assert_eq!(
            (results.unwrap().into_copies(), &ran_on),
            (vec![2; devices.len()], &devices),
            "{strategy}"
        );
        assert_eq!(power.copies::<f64>().unwrap(), vec![0.5; devices.len()], "{strategy}");
    }
}

#[test]
fn ns_1_variables_that_were_placed_elsewhere_have_their_non_slot_devices_there() {
    let strategy = central();
    let v = on_one(&strategy, "cpu:0", "v").unwrap();
    assert_ne!(v.devices(), strategy.extended().parameter_devices());
    let devices = strategy.non_slot_devices(&[&v]).unwrap();
    let steps =
        strategy.scope(|| strategy.colocate_vars_with(&devices, || Variable::new("steps", 0i64))).unwrap();
    strategy.update_non_slot(&devices, (), |()| steps.assign_add(1i64)).unwrap();
    assert_eq!((steps.devices(), steps.copies::<i64>().unwrap()), (v.devices(), vec![1]));
}

#[test]
fn upd_7_its_arguments_are_unwrapped_and_its_results_merged() {
    let strategy = mirrored(2);
    let devices = strategy.non_slot_devices(&[]).unwrap();
    let args = (Mirrored::from_copies([1, 2]).unwrap(), 10);
    let results = strategy.update_non_slot(&devices, args, |(copy, ten)| Ok(ten * copy)).unwrap();
    assert_eq!(results.into_copies(), [10, 20]);
    let error = strategy.update_non_slot(&devices, per_replica([1, 2]), |_| Ok(())).unwrap_err();
    assert!(
        error.to_string().contains("update_non_slot") && error.to_string().contains("per replica"),
        "{error}"
    );
}

// update

#[test]
fn upd_1_mirrored_arguments_are_unwrapped_however_deep_they_are() {
    let strategy = mirrored(2);
    let v = strategy.scope(|| Variable::new("v", 0f32)).unwrap();
    let args =
        (vec![Mirrored::from_copies([1f32, 2.]).unwrap(), Mirrored::new(10.)], (tensor(&[100.]), 1000f32));
    strategy
        .update(&v, args, |v, (list, (hundred, thousand))| {
            v.assign(list[0] + list[1] + hundred.to_vec1::<f32>()?[0] + thousand)
        })
        .unwrap();
    assert_eq!(v.copies::<f32>().unwrap(), [1111., 1112.]);
}

#[test]
fn upd_8_a_variable_of_one_copy_is_updated_once_where_it_is() {
    let strategies = everywhere();
    for strategy in strategies.iter().filter(|strategy| strategy.extended().parameter_devices().len() == 1) {
        let v = strategy.scope(|| Variable::new("v", 1f32)).unwrap();
        let mut ran_on = Vec::new();
        let result = strategy.update(&v, Mirrored::new(4f32), |v, x| {
            ran_on.push(get_update_context().unwrap().device());
            v.assign_add(x)?;
            v.read::<f32>()
        });
        assert_eq!((result.unwrap().into_copies(), ran_on), (vec![5.], v.devices()), "{strategy}");
    }
    assert_eq!(strategies.len(), 4);
}

// value_container, variable_created_in_scope

#[test]
fn vc_1_the_container_of_each_copy_has_that_copy_and_other_values_have_none() {
    watched(|| {
        let strategy = mirrored(2);
        let v = strategy.scope(|| Variable::new("v", tensor(&[1.]))).unwrap();
        let found = strategy.run(&v, |_, v| {
            let copy = v.as_tensor()?;
            let Some(container) = strategy.value_container(&copy) else { return Ok(false) };
            Ok(container == *v && container.as_tensor()?.id() == copy.id())
        });
        assert_eq!(found.unwrap().values(), [true, true]);
        let results = strategy.run(&v, |_, v| Ok((v.as_tensor()? * 1.)?)).unwrap();
        assert!(results.iter().all(|result| strategy.value_container(result).is_none()));
        // Another strategy's are not this one's.
        assert!(mirrored(2).value_container(&v.as_tensor().unwrap()).is_none());
    });
}

#[test]
fn created_1_variables_are_owned_wherever_the_strategy_is_current() {
    watched(|| {
        let (strategy, other) = (mirrored(2), mirrored(2));
        let make = || Variable::new("v", 1f32);
        let in_run = strategy.run((), |_, ()| make()).unwrap().into_values().remove(0);
        let in_merge = strategy.run((), |ctx, ()| {
            ctx.merge_call((), |_, _| {
                let v = make()?;
                Ok(per_replica([v.name() == "v" && v.strategy() == &strategy, v.devices().len() == 2]))
            })
        });
        assert_eq!(in_merge.unwrap().values(), [true, true]);
        let in_update = strategy.update(&in_run, (), |_, ()| make()).unwrap().into_inner();
        for v in [&in_run, &in_update] {
            assert!(strategy.variable_created_in_scope(v) && !other.variable_created_in_scope(v));
        }
        // What is created outside belongs to the default strategy.
        let outside = make().unwrap();
        assert!(!strategy.variable_created_in_scope(&outside));
        assert!(get_strategy().variable_created_in_scope(&outside));
    });
}
