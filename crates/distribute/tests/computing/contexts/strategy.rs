//! Tests of the methods in the documentation of StrategyExtended that no other test checks as strictly.

use crate::contexts::{bits, each, everywhere, mirrored, on_one, per_replica, tensor};
use candle_core::Tensor;
use distribute::context::{ContextKind, get_strategy, get_update_context};
use distribute::strategy::{Destinations, DeviceName, StrategyExtended, VariablePlacement};
use distribute::values::Mirrored;
use distribute::{
    CentralStorageStrategy, Error, HostTensor, PerReplica, ReduceOp, Result, Strategy, Variable,
};
use distribute_testing::watched;

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
fn str_6_a_custom_strategy_can_require_static_shapes() {
    watched(|| {
        everywhere(|strategy| assert!(!strategy.extended().require_static_shapes(), "{strategy}"));
    });
    let own = Strategy::new(Compiled([DeviceName::cpu(0)])).unwrap();
    assert!(own.extended().require_static_shapes());
    // The author sets nothing else, and everything works.
    assert_eq!(own.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 3f32)).unwrap().values(), [3.]);
}

#[test]
fn one_1_worker_devices_run_replicas_and_parameter_devices_have_variables() {
    watched(|| {
        everywhere(|strategy| {
            let parameters = strategy.extended().parameter_devices();
            // Servers get the variables in turn; other devices have all of them.
            let make = |number: usize| strategy.scope(|| Variable::new(format!("v{number}"), 1f32)).unwrap();
            let variables: Vec<_> = (0..parameters.len()).map(make).collect();
            let mut devices: Vec<_> = variables.iter().flat_map(Variable::devices).collect();
            devices.sort_unstable();
            devices.dedup();
            assert_eq!(devices, parameters, "{strategy}");
            // ONE-1: a model's running statistics are each replica's own, wherever variables are.
            let model = strategy.replicate(|vb| distribute::nn::batch_norm(2, 1e-5, vb)).unwrap();
            let mean = model.variables.variable("running_mean").unwrap();
            assert_eq!(mean.devices(), strategy.extended().worker_devices(), "{strategy}");
            let ran = strategy.run((), |ctx, ()| ctx.device()).unwrap().into_values();
            let workers: Vec<_> =
                strategy.extended().worker_devices().iter().map(ToString::to_string).collect();
            assert_eq!(ran, workers, "{strategy}");
        });
    });
}

// reduce_to, batch_reduce_to

/// Returns a tensor for each replica. The sum of the tensors depends on the order of additions.
fn uneven(strategy: &Strategy, turn: usize) -> PerReplica<Tensor> {
    let value = |id: usize| tensor(&[0.1 * 7f32.powi((id + turn) as i32), 1. / (id + 3) as f32]);
    strategy.distribute_values_from_function(|ctx| Ok(value(ctx.replica_id_in_sync_group))).unwrap()
}

fn all_bits(copies: &Mirrored<Tensor>) -> Vec<Vec<u32>> {
    copies.copies().into_iter().map(bits).collect()
}

#[test]
fn rto_4_a_batch_is_bit_identical_to_its_single_calls() {
    let check = |strategy: &Strategy| {
        let values: Vec<_> = (0..3).map(|turn| uneven(strategy, turn)).collect();
        for op in [ReduceOp::Sum, ReduceOp::Mean] {
            let batch = strategy.batch_reduce_to(op, values.iter().map(|v| (v, v))).unwrap();
            for (value, from_batch) in values.iter().zip(batch) {
                let single = strategy.reduce_to(op, value, value).unwrap();
                assert_eq!(all_bits(&from_batch), all_bits(&single), "{op} of {strategy}");
                assert_eq!(single.copies().len(), strategy.world().replicas());
                // RTO-2: given itself, a reduction is an all-reduction.
                let reduced = strategy.run(value, |ctx, value| ctx.all_reduce(op, value.clone())).unwrap();
                assert_eq!(reduced.iter().map(bits).collect::<Vec<_>>(), all_bits(&single), "{strategy}");
            }
        }
    };
    watched(move || {
        [1, 3, 4].map(mirrored).iter().for_each(check);
        everywhere(check);
    });
}

/// Checks that candle tensors, host tensors and numbers are reduced to a variable, to its devices, to all parameter
/// devices, and to each device by name.
#[test]
fn rto_1_values_of_any_kind_are_reduced_to_the_devices_of_variables() {
    watched(|| {
        everywhere(|strategy| {
            let make = || {
                let (tensors, numbers) =
                    (Variable::new("tensors", tensor(&[1., 1.]))?, Variable::new("n", 1f32)?);
                let table = Variable::new("table", HostTensor::vector(vec![1f32, 1.]))?;
                Ok([tensors, numbers, table])
            };
            let variables = strategy.scope(make).unwrap();
            let non_slot = strategy.non_slot_devices(&variables.each_ref()).unwrap();
            let parameters = strategy.extended().parameter_devices();
            let mut destinations: Vec<Destinations> = variables.iter().map(Destinations::from).collect();
            destinations.extend([(&non_slot).into(), (&parameters).into()]);
            destinations.extend(parameters.iter().map(|device| device.to_string().as_str().into()));
            let counts = variables.iter().map(|v| v.devices().len());
            let counts: Vec<_> =
                counts.chain([non_slot.len(), parameters.len()]).chain(vec![1; parameters.len()]).collect();

            let tensors = uneven(strategy, 2);
            let numbers = tensors.clone().map(|tensor| tensor.to_vec1::<f32>().unwrap()[0]);
            let hosts = tensors.clone().map(|tensor| HostTensor::from_candle(&tensor).unwrap());
            for op in [ReduceOp::Sum, ReduceOp::Mean] {
                let reduced = strategy.run(&tensors, |ctx, value| ctx.all_reduce(op, value.clone())).unwrap();
                let expected = bits(&reduced.values()[0]);
                let pairs = || destinations.iter().cloned();
                let batch = strategy.batch_reduce_to(op, pairs().map(|to| (&tensors, to))).unwrap();
                for ((to, count), from_batch) in pairs().zip(&counts).zip(&batch) {
                    let single = strategy.reduce_to(op, &tensors, to.clone()).unwrap();
                    assert_eq!(all_bits(&single), vec![expected.clone(); *count], "{strategy}: {to:?}");
                    assert!(single.copies().iter().all(|copy| copy.device().is_cpu()), "{strategy}: {to:?}");
                    assert_eq!(all_bits(from_batch), all_bits(&single), "{strategy}: {to:?}");
                    let number = strategy.reduce_to(op, &numbers, to.clone()).unwrap();
                    assert_eq!(number.copies(), vec![&f32::from_bits(expected[0]); *count], "{strategy}");
                    let host = strategy.reduce_to(op, &hosts, to.clone()).unwrap();
                    let as_host = HostTensor::from_candle(single.get()).unwrap();
                    assert!(host.copies().iter().all(|copy| **copy == as_host), "{strategy}: {to:?}");
                    let copies = strategy.broadcast_to(tensor(&[5., 6.]), to.clone()).unwrap();
                    let sent = vec![bits(&tensor(&[5., 6.])); *count];
                    assert_eq!(all_bits(&copies), sent, "{strategy}: {to:?}");
                    // A value that is the same everywhere goes there, too.
                    let same = strategy.reduce_to(ReduceOp::Mean, copies, to.clone()).unwrap();
                    assert_eq!(all_bits(&same), sent, "{strategy}: {to:?}");
                }
                // UPD-1: what was reduced to a variable updates it.
                let total = strategy.reduce_to(op, &tensors, &variables[0]).unwrap();
                strategy.update(&variables[0], total, |v, total| v.assign(total)).unwrap();
                let copies: Vec<Tensor> = variables[0].copies().unwrap();
                assert!(copies.iter().all(|copy| bits(copy) == expected), "{strategy}");
            }
        });
    });
}

#[test]
fn rto_4_a_value_has_one_part_for_each_replica() {
    let check = |strategy: &Strategy| {
        let error = strategy.reduce_to(ReduceOp::Sum, per_replica([1f32; 9]), "cpu:0").unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { operation: "reduce_to", .. }), "{error}");
        let replicas = strategy.world().replicas();
        let text = error.to_string();
        assert!(text.contains(&format!("9 parts for {replicas} replica")), "{strategy}: {text}");
    };
    watched(move || drop(everywhere(check)));
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
fn colo_1_it_belongs_into_the_strategys_scope() {
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
        let error = other.scope(colocate).unwrap_err();
        assert!(matches!(error, Error::MixedStrategies { .. }), "{error}");
        // The default strategy's scope enters nothing, and its variables only are its.
        let own = Variable::new("own", 0f32).unwrap();
        get_strategy().colocate_vars_with(&own, || Ok(())).unwrap();
        let error = get_strategy().colocate_vars_with(&v, || Ok(())).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        strategy.run((), |ctx, ()| ctx.merge_call((), |_, _| colocate())).unwrap();
    });
}

// Non-slot variables

#[test]
fn ns_1_non_slot_devices_create_and_update_for_each_order_of_the_variables() {
    let check = |strategy: &Strategy| {
        let make = |name: &str| Variable::new(name, 0f32);
        let (a, b) = strategy.scope(|| Ok((make("a")?, make("b")?))).unwrap();
        let devices = strategy.non_slot_devices(&[&a, &b]).unwrap();
        assert_eq!(devices, strategy.non_slot_devices(&[&b, &a]).unwrap(), "{strategy}");
        // If there is a single copy of each variable, the variables must be passed.
        let placement = strategy.extended().variable_placement();
        let has_one_copy = matches!(placement, VariablePlacement::Central(_) | VariablePlacement::Servers);
        assert_eq!(strategy.non_slot_devices(&[]).is_err(), has_one_copy, "{strategy}");
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
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn ns_1_variables_that_were_placed_elsewhere_have_their_non_slot_devices_there() {
    let strategy: Strategy = CentralStorageStrategy::new(["cpu:1", "cpu:2"], "cpu:2").unwrap();
    // On a worker, on the host, on both workers.
    for places in [vec![1], vec![0], vec![1, 2]] {
        let places: Vec<_> = places.into_iter().map(DeviceName::cpu).collect();
        let make = |name: &'static str| {
            strategy.scope(|| strategy.colocate_vars_with(&places, || Variable::new(name, 0i64))).unwrap()
        };
        let (v, steps) = (make("v"), make("steps"));
        let devices = strategy.non_slot_devices(&[&v]).unwrap();
        strategy.update_non_slot(&devices, (), |()| steps.assign_add(1i64)).unwrap();
        assert_eq!((devices, steps.copies::<i64>().unwrap()), (v.devices(), vec![1; places.len()]));
    }
    for unknown in [&[][..], &[DeviceName::cpu(7)]] {
        let error = strategy.update_non_slot(unknown, (), |()| Ok(())).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { operation: "update_non_slot", .. }), "{error}");
    }
}

#[test]
fn upd_7_its_arguments_are_unwrapped_and_its_results_merged() {
    let check = |strategy: &Strategy| {
        let v = strategy.scope(|| Variable::new("v", 0f32)).unwrap();
        let devices = strategy.non_slot_devices(&[&v]).unwrap();
        let copies: Vec<_> = (1..=devices.len() as i32).collect();
        let args = (Mirrored::from_copies(copies.clone()).unwrap(), 10);
        let results = strategy.update_non_slot(&devices, args, |(copy, ten)| Ok(ten * copy)).unwrap();
        let expected: Vec<_> = copies.iter().map(|copy| 10 * copy).collect();
        assert_eq!(results.into_copies(), expected, "{strategy}");
        let error = strategy.update_non_slot(&devices, each(strategy, |id| id), |_| Ok(())).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("update_non_slot") && text.contains("per replica"), "{strategy}: {text}");
    };
    watched(move || drop(everywhere(check)));
}

// update

#[test]
fn upd_1_mirrored_arguments_are_unwrapped_however_deep_they_are() {
    let check = |strategy: &Strategy| {
        let v = strategy.scope(|| Variable::new("v", 0f32)).unwrap();
        let copies: Vec<f32> = (1..=v.devices().len()).map(|copy| copy as f32).collect();
        let args = (
            vec![Mirrored::from_copies(copies.clone()).unwrap(), Mirrored::new(10.)],
            (tensor(&[100.]), 1000f32),
        );
        strategy
            .update(&v, args, |v, (list, (hundred, thousand))| {
                v.assign(list[0] + list[1] + hundred.to_vec1::<f32>()?[0] + thousand)
            })
            .unwrap();
        let expected: Vec<f32> = copies.iter().map(|copy| 1110. + copy).collect();
        assert_eq!(v.copies::<f32>().unwrap(), expected, "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn upd_8_a_variable_of_one_copy_is_updated_once_where_it_is() {
    let check = |strategy: &Strategy| {
        let v = strategy.scope(|| Variable::new("v", 1f32)).unwrap();
        let has_one = v.devices().len() == 1;
        if has_one {
            let mut ran_on = Vec::new();
            let result = strategy.update(&v, Mirrored::new(4f32), |v, x| {
                ran_on.push(get_update_context().unwrap().device());
                v.assign_add(x)?;
                v.read::<f32>()
            });
            assert_eq!((result.unwrap().into_copies(), ran_on), (vec![5.], v.devices()), "{strategy}");
        }
        has_one
    };
    watched(move || {
        // All but those that mirror variables over several replicas of a process: those of 2 and 3, and 2 workers of 2.
        let found = everywhere(check).into_iter().flat_map(|(_, workers)| workers);
        assert_eq!(found.filter(|has_one| !has_one).count(), 4);
    });
}

// value_container, variable_created_in_scope

#[test]
fn vc_1_the_container_of_each_copy_has_that_copy_and_other_values_have_none() {
    watched(|| {
        everywhere(|strategy| {
            let v = strategy.scope(|| Variable::new("v", tensor(&[1.]))).unwrap();
            let found = strategy.run(&v, |_, v| {
                let copy = v.as_tensor()?;
                let Some(container) = strategy.value_container(&copy) else { return Ok(false) };
                Ok(container == *v && container.as_tensor()?.id() == copy.id())
            });
            assert!(found.unwrap().iter().all(|found| *found), "{strategy}");
        });
        let strategy = mirrored(2);
        let v = strategy.scope(|| Variable::new("v", tensor(&[1.]))).unwrap();
        let results = strategy.run(&v, |_, v| Ok((v.as_tensor()? * 1.)?)).unwrap();
        assert!(results.iter().all(|result| strategy.value_container(result).is_none()));
        // A variable is its own container, also as the result of a run, for any type of its value.
        let numbers = strategy.scope(|| Variable::new("numbers", 1f32)).unwrap();
        let results = strategy.run(&numbers, |_, v| Ok(v.clone())).unwrap();
        assert!(results.iter().all(|v| strategy.value_container(v).as_ref() == Some(&numbers)));
        assert!(mirrored(2).value_container(&numbers).is_none());
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
        everywhere(|strategy| {
            let in_scope = strategy.scope(make).unwrap();
            let in_run = strategy.run((), |_, ()| make()).unwrap().into_values().remove(0);
            for v in [&in_scope, &in_run] {
                assert!(
                    strategy.variable_created_in_scope(v) && !other.variable_created_in_scope(v),
                    "{strategy}"
                );
            }
        });
        // What is created outside belongs to the default strategy.
        let outside = make().unwrap();
        assert!(!strategy.variable_created_in_scope(&outside));
        assert!(get_strategy().variable_created_in_scope(&outside));
    });
}
