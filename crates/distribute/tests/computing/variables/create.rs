//! Creating variables (section 1 of semantics/variables.md).

use super::{AGGREGATIONS, Aggregation, Rules, Synchronization, copies, everywhere, on_copies, own, two};
use candle_core::{Device, Tensor};
use distribute::tensor::{DType, Leaf};
use distribute::{CentralStorageStrategy, Error, Result, prelude::*};
use distribute_testing::watched;

#[test]
fn var_1_to_var_3_auto_is_on_write_and_none_is_refused() {
    let check = |strategy: &Strategy| {
        let v = strategy.scope(|| Variable::new("v", 1f32)).unwrap();
        assert_eq!((v.synchronization(), v.aggregation()), (Synchronization::Auto, Aggregation::None));
        assert_eq!(copies(&v), on_copies(&v, 1.), "{strategy}");
        let none = || Variable::builder("weight", 1f32).synchronization(Synchronization::None).create();
        let made = strategy.scope(none);
        if Rules::of(strategy) == Rules::Ordinary {
            assert_eq!(made.unwrap().read::<f32>().unwrap(), 1., "{strategy}");
            return;
        }
        let error = made.unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        assert!(error.to_string().contains("weight"), "{error}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn var_4_a_mean_is_for_floats() {
    let check = |strategy: &Strategy| {
        for synchronization in [Synchronization::OnWrite, Synchronization::OnRead] {
            let make = |initial: Leaf, aggregation| {
                strategy.scope(|| {
                    Variable::builder("v", initial)
                        .synchronization(synchronization)
                        .aggregation(aggregation)
                        .create()
                })
            };
            let of = |tensor: HostTensor| Leaf::Host(tensor);
            for initial in [of(HostTensor::scalar(1i64)), of(HostTensor::scalar(true))] {
                // A single replica has no mean to make.
                let mean = make(initial.clone(), Aggregation::Mean);
                assert_eq!(mean.is_ok(), Rules::of(strategy) == Rules::Ordinary, "{strategy}");
                make(initial, Aggregation::Sum).unwrap();
            }
            make(of(HostTensor::scalar(1f64)), Aggregation::Mean).unwrap();
        }
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn var_6_copies_have_names_and_devices() {
    let check = |strategy: &Strategy| {
        let v = strategy.scope(|| Variable::new("v", HostTensor::vector(vec![1u8, 2]))).unwrap();
        let devices = v.devices();
        let count = if Rules::of(strategy) == Rules::Mirrored { strategy.world().replicas() } else { 1 };
        assert_eq!(devices.len(), count, "{strategy}");
        let parameters = strategy.extended().parameter_devices();
        assert!(devices.iter().all(|device| parameters.contains(device)), "{strategy}: {devices:?}");
        if count > 1 {
            assert_eq!(devices, strategy.extended().worker_devices(), "{strategy}");
        }
        let name = |copy: usize| if copy == 0 { "v".into() } else { format!("v/replica_{copy}") };
        assert_eq!(v.copy_names(), (0..count).map(name).collect::<Vec<_>>(), "{strategy}");
        assert_eq!((v.name(), v.dims(), v.dtype()), ("v", &[2][..], DType::U8));
        let line = |copy: usize| format!("  {copy}: <Tensor: shape=(2,), dtype=uint8, data=[1, 2]>");
        let lines: Vec<_> = (0..count).map(line).collect();
        assert_eq!(v.to_string(), format!("Variable v:{{\n{}\n}}", lines.join(",\n")), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn var_9_a_deep_copy_is_an_independent_variable() {
    let check = |strategy: &Strategy| {
        let v = strategy.scope(|| Variable::new("v", 1f32)).unwrap();
        let copy = v.deep_copy().unwrap();
        v.assign(2f32).unwrap();
        assert_eq!((copies(&v), copies(&copy)), (on_copies(&v, 2.), on_copies(&v, 1.)), "{strategy}");
        assert!(copy != v && copy.strategy() == strategy && copy.aggregation() == v.aggregation());
        assert_eq!(copy.devices(), v.devices(), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn run_9_all_replicas_of_a_run_create_one_variable() {
    let check = |strategy: &Strategy| {
        let variables = strategy.run((), |ctx, ()| {
            // VAR-5: all replicas of all workers have replica 0's value.
            let v = Variable::builder("v", own(ctx)).aggregation(Aggregation::Sum).create()?;
            v.assign_add(1f32)?;
            Ok(v)
        });
        let variables = variables.unwrap().into_values();
        assert!(variables.iter().all(|v| *v == variables[0]), "{strategy}");
        let expected = 1. + strategy.num_replicas_in_sync() as f32;
        assert_eq!(copies(&variables[0]), on_copies(&variables[0], expected), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

/// Checks the equivalent of TensorFlow's `get_variable`: the first step creates the variable, and all replicas and
/// later steps find it.
#[test]
fn run_9_a_variable_got_by_name_is_one_for_all_replicas_and_steps() {
    let check = |strategy: &Strategy| {
        let get = |initial: f32| {
            Variable::builder("got by name", initial)
                .aggregation(Aggregation::OnlyFirstReplica)
                .get_or_create()
        };
        let step = |strategy: &Strategy| {
            strategy.run((), |ctx, ()| {
                let v = get(10. * own(ctx))?;
                v.assign_add(1f32)?;
                Ok(v)
            })
        };
        let first = step(strategy).unwrap().into_values();
        assert!(first.iter().all(|v| *v == first[0]), "{strategy}");
        // VAR-5: the first value is that of replica 0. When the variable exists, first values are not used.
        assert_eq!(copies(&first[0]), on_copies(&first[0], 11.), "{strategy}");
        let again = step(strategy).unwrap().into_values();
        let outside = strategy.scope(|| get(0.)).unwrap();
        assert!(again.iter().chain([&outside]).all(|v| *v == first[0]), "{strategy}");
        assert_eq!(copies(&outside), on_copies(&outside, 12.), "{strategy}");
        // `new` and other strategies create another variable, as does `get` after all handles are dropped.
        assert_ne!(strategy.scope(|| Variable::new("got by name", 0f32)).unwrap(), outside);
        assert_ne!(two().scope(|| get(0.)).unwrap(), outside);
        drop((first, again, outside));
        let later = strategy.scope(|| get(5.)).unwrap();
        assert_eq!(copies(&later), on_copies(&later, 5.), "{strategy}");
        if strategy.num_replicas_in_sync() > 1 {
            // One replica that asks for another name is named.
            let name = |ctx: &ReplicaContext| format!("v{}", ctx.replica_id_in_sync_group());
            let error =
                strategy.run((), |ctx, ()| Variable::builder(name(ctx), 1f32).get_or_create()).unwrap_err();
            let text = error.to_string();
            // With several workers, the error names the variables of one of them.
            let others = (1..4).filter(|id| text.contains(&format!(" v{id} float32"))).count();
            assert!(others >= 1 && error.blame().is_some(), "{strategy}: {text}");
        }
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn run_10_replicas_that_create_other_variables_are_named() {
    let check = |strategy: &Strategy| {
        if strategy.num_replicas_in_sync() == 1 {
            return;
        }
        let name = |ctx: &ReplicaContext| format!("v{}", ctx.replica_id_in_sync_group());
        let error = strategy.run((), |ctx, ()| Variable::new(name(ctx), 1f32)).unwrap_err();
        let text = error.to_string();
        // Over several workers, those of one of them.
        let named = (0..4).filter(|id| text.contains(&format!("(v{id} float32"))).count();
        assert!(named >= 2 && error.blame().is_some(), "{strategy}: {text}");
        let only_first = |ctx: &ReplicaContext| match ctx.replica_id_in_sync_group() {
            0 => Variable::new("v", 1f32).map(drop),
            _ => Ok(()),
        };
        let error = strategy.run((), |ctx, ()| only_first(ctx)).unwrap_err();
        assert!(error.to_string().contains("creation of a variable"), "{error}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn one_1_one_device_has_ordinary_variables_for_all_settings() {
    watched(|| {
        let one: Strategy = OneDeviceStrategy::new("cpu:0").unwrap();
        for synchronization in [Synchronization::None, Synchronization::OnWrite, Synchronization::OnRead] {
            for aggregation in AGGREGATIONS {
                let v =
                    Variable::builder("v", 1f32).synchronization(synchronization).aggregation(aggregation);
                let v = one.scope(|| v.create()).unwrap();
                one.run((), |_, ()| v.assign_add(2f32)).unwrap();
                v.assign_sub(1f32).unwrap();
                one.update(&v, 5f32, |v, x| v.assign_add(x)).unwrap();
                assert_eq!((v.read::<f32>().unwrap(), copies(&v)), (7., vec![7.]));
            }
        }
    });
}

#[test]
fn psv_1_to_3_central_storage_has_one_copy_and_aggregates_writes() {
    watched(|| {
        let central = CentralStorageStrategy::new(["cpu:0", "cpu:1"], "cpu:0").unwrap();
        for synchronization in [Synchronization::OnWrite, Synchronization::OnRead] {
            for (aggregation, expected) in
                [(Aggregation::Sum, 13f32), (Aggregation::Mean, 11.5), (Aggregation::OnlyFirstReplica, 11.)]
            {
                let v = super::ten(&central, synchronization, aggregation);
                central.run((), |ctx, ()| v.assign_add(own(ctx))).unwrap();
                assert_eq!(copies(&v), [expected], "{synchronization} {aggregation}");
            }
            let v = super::ten(&central, synchronization, Aggregation::None);
            let error = central.run((), |ctx, ()| v.assign_add(own(ctx))).unwrap_err();
            assert!(matches!(error.root_cause(), Error::VariableAccess { .. }), "{error}");
            // UPD-8
            let mut calls = 0;
            central
                .update(&v, 3f32, |v, x| {
                    calls += 1;
                    v.assign_add(x)
                })
                .unwrap();
            assert_eq!((calls, copies(&v)), (1, vec![13.]));
        }
        assert_eq!(central.extended().parameter_devices().len(), 1);
    });
}

#[test]
fn var_8_a_variable_is_used_with_its_strategy() {
    let check = |ours: &Strategy| {
        let other = two();
        let v = ours.scope(|| Variable::new("v", 1f32)).unwrap();
        let reads =
            [other.scope(|| v.read::<f32>()).map(drop), other.run((), |_, ()| v.read::<f32>()).map(drop)];
        let writes = [other.scope(|| v.assign(1f32)), other.run((), |_, ()| v.assign(1f32)).map(drop)];
        let is_mixed = |result: Result<()>| {
            let error = result.unwrap_err();
            assert!(matches!(error.root_cause(), Error::MixedStrategies { .. }), "{error}");
            assert!(error.to_string().contains("variable v"), "{error}");
        };
        if Rules::of(ours) == Rules::Ordinary {
            // Any strategy can read an ordinary variable, but none can write it once for each replica.
            let [in_scope, in_run] = writes;
            reads.into_iter().chain([in_scope]).for_each(Result::unwrap);
            is_mixed(in_run);
        } else {
            reads.into_iter().chain(writes).for_each(is_mixed);
        }
        // All strategies can read a variable that was created without one, but their replicas cannot write it.
        let plain = Variable::new("plain", 1f32).unwrap();
        let ones = vec![1.; ours.world().replicas()];
        assert_eq!(ours.run((), |_, ()| plain.read::<f32>()).unwrap().values(), ones, "{ours}");
        ours.scope(|| plain.assign(2f32)).unwrap();
        let v = ours.scope(|| Variable::new("v", 1f32)).unwrap();
        let in_run = ours.run((), |_, ()| plain.assign(3f32)).map(drop);
        let in_update = ours.update(&v, (), |_, ()| plain.assign_add(1f32)).map(drop);
        if *ours == distribute::context::get_strategy() {
            in_run.and(in_update).unwrap();
            assert_eq!(plain.read::<f32>().unwrap(), 4.);
            return;
        }
        for error in [in_run, in_update].map(Result::unwrap_err) {
            assert!(matches!(error.root_cause(), Error::MixedStrategies { .. }), "{error}");
        }
        assert_eq!(plain.read::<f32>().unwrap(), 2., "{ours}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn var_10_the_live_tensor_is_of_this_replica_and_carries_gradients() {
    let check = |strategy: &Strategy| {
        let one = Tensor::new(&[1f32, 2.], &Device::Cpu).unwrap();
        let v = strategy.scope(|| Variable::new("v", one)).unwrap();
        let gradients = strategy.run(&v, |ctx, v| {
            let live = v.as_tensor()?;
            let grads = (&live * f64::from(own(ctx)))?.sum_all()?.backward()?;
            Ok(grads.get(&live).map(|g| g.to_vec1::<f32>()).transpose()?)
        });
        let expected = strategy.world().local_replicas().map(|id| Some(vec![1. + id as f32; 2]));
        assert_eq!(gradients.unwrap().into_values(), expected.collect::<Vec<_>>(), "{strategy}");
        let number = strategy.scope(|| Variable::new("n", 1f32)).unwrap();
        assert!(number.as_tensor().unwrap_err().to_string().contains("no candle tensor"), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn created_1_and_vc_1_variables_have_their_strategy_and_tensors_their_variable() {
    let check = |strategy: &Strategy| {
        let is_default = *strategy == distribute::context::get_strategy();
        let inside = strategy.scope(|| Variable::new("v", Tensor::new(1f32, &Device::Cpu)?)).unwrap();
        let outside = Variable::new("v", Tensor::new(1f32, &Device::Cpu).unwrap()).unwrap();
        assert!(strategy.variable_created_in_scope(&inside), "{strategy}");
        assert_eq!(strategy.variable_created_in_scope(&outside), is_default, "{strategy}");
        let live = inside.as_tensor().unwrap();
        assert!(strategy.value_container(&live).is_some_and(|container| container == inside), "{strategy}");
        let of_outside = strategy.value_container(&outside.as_tensor().unwrap());
        assert_eq!(of_outside.is_some(), is_default, "{strategy}");
        drop(inside);
        assert!(strategy.value_container(&live).is_none(), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}
