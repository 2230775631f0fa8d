//! The members that the page of StrategyExtended has: what no other test asserts as strongly.

use crate::{bits, everywhere, mirrored, on_one, per_replica, tensor};
use candle_core::Tensor;
use distribute::{
    CentralStorageStrategy, ContextKind, DeviceName, Error, Mirrored, ReduceOp, Result, Strategy,
    StrategyExtended, Variable, get_strategy, get_update_context,
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
fn str_6_static_shapes_are_needed_where_the_strategys_author_says_so() {
    assert!(everywhere().iter().all(|strategy| !strategy.extended().require_static_shapes()));
    let own = Strategy::new(Compiled([DeviceName::cpu(0)])).unwrap();
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
fn ns_1_non_slot_devices_are_for_creating_and_for_updating_whatever_the_order_of_the_variables() {
    for strategy in everywhere() {
        let make = |name: &str| Variable::new(name, 0f32);
        let (a, b) = strategy.scope(|| Ok((make("a")?, make("b")?))).unwrap();
        let devices = strategy.non_slot_devices(&[&a, &b]).unwrap();
        assert_eq!(devices, strategy.non_slot_devices(&[&b, &a]).unwrap(), "{strategy}");
        // Which variables it is for has to be said where there is one copy of each.
        let is_central = strategy.extended().kind() == "CentralStorageStrategy";
        assert_eq!(strategy.non_slot_devices(&[]).is_err(), is_central, "{strategy}");
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
    let strategy: Strategy = CentralStorageStrategy::new(["cpu:1", "cpu:2"], "cpu:2").unwrap().into();
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
