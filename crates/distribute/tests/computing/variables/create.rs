//! Section 1: creating variables.

use super::{AGGREGATIONS, Aggregation, Synchronization, copies, own, two};
use candle_core::{Device, Tensor};
use distribute::prelude::*;
use distribute::{CentralStorageStrategy, Error, Leaf, Variable, tensor::DType};
use distribute_testing::watched;

#[test]
fn var_1_to_var_3_auto_is_on_write_and_none_is_refused() {
    let strategy = two();
    let v = strategy.scope(|| Variable::new("v", 1f32)).unwrap();
    assert_eq!((v.synchronization(), v.aggregation()), (Synchronization::Auto, Aggregation::None));
    assert_eq!(copies(&v), [1., 1.]);
    let none = || Variable::builder("weight", 1f32).synchronization(Synchronization::None).create();
    let error = strategy.scope(none).unwrap_err();
    assert!(
        matches!(error, Error::InvalidArgument { .. }) && error.to_string().contains("weight"),
        "{error}"
    );
}

#[test]
fn var_4_a_mean_is_for_floats() {
    let strategy = two();
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
            make(initial.clone(), Aggregation::Mean).unwrap_err();
            make(initial, Aggregation::Sum).unwrap();
        }
        make(of(HostTensor::scalar(1f64)), Aggregation::Mean).unwrap();
    }
}

#[test]
fn var_6_copies_have_names_and_devices() {
    let strategy = two();
    let v = strategy.scope(|| Variable::new("v", HostTensor::vector(vec![1u8, 2]))).unwrap();
    assert_eq!(v.copy_names(), ["v", "v/replica_1"]);
    assert_eq!(v.devices(), strategy.extended().worker_devices());
    assert_eq!((v.name(), v.dims(), v.dtype()), ("v", &[2][..], DType::U8));
    assert_eq!(
        v.to_string(),
        "Variable v:{\n  0: <Tensor: shape=(2,), dtype=uint8, data=[1, 2]>,\n  1: <Tensor: shape=(2,), dtype=uint8, data=[1, 2]>\n}"
    );
}

#[test]
fn var_9_a_deep_copy_is_a_variable_of_its_own() {
    let strategy = two();
    let v = strategy.scope(|| Variable::new("v", 1f32)).unwrap();
    let copy = v.deep_copy().unwrap();
    v.assign(2f32).unwrap();
    assert_eq!((copies(&v), copies(&copy)), (vec![2.; 2], vec![1.; 2]));
    assert!(copy != v && copy.strategy() == &strategy && copy.aggregation() == v.aggregation());
}

#[test]
fn run_9_all_replicas_of_a_run_create_one_variable() {
    watched(|| {
        let strategy = two();
        let variables = strategy.run((), |ctx, ()| {
            // VAR-5: what replica 0 gives is everybody's.
            let v = Variable::builder("v", own(ctx)).aggregation(Aggregation::Sum).create()?;
            v.assign_add(1f32)?;
            Ok(v)
        });
        let variables = variables.unwrap().into_values();
        assert_eq!(variables[0], variables[1]);
        assert_eq!(copies(&variables[0]), [3., 3.]);
    });
}

/// TensorFlow's `get_variable`: the first step creates it, and all replicas and later steps find it.
#[test]
fn run_9_a_variable_got_by_name_is_one_for_all_replicas_and_steps() {
    watched(|| {
        let strategy = two();
        let get = |initial: f32| {
            Variable::builder("steps", initial).aggregation(Aggregation::OnlyFirstReplica).get_or_create()
        };
        let step = |strategy: &Strategy| {
            strategy.run((), |ctx, ()| {
                let v = get(10. * own(ctx))?;
                v.assign_add(1f32)?;
                Ok(v)
            })
        };
        let first = step(&strategy).unwrap().into_values();
        assert_eq!(first[0], first[1]);
        // VAR-5: the first value is replica 0's; later ones are not asked for any.
        assert_eq!(copies(&first[0]), [11., 11.]);
        let again = step(&strategy).unwrap().into_values();
        let outside = strategy.scope(|| get(0.)).unwrap();
        assert!(again.iter().chain([&outside]).all(|v| *v == first[0]));
        assert_eq!(copies(&outside), [12., 12.]);
        // Made anew, or by another strategy, it is another; and so is one that nobody has kept.
        assert_ne!(strategy.scope(|| Variable::new("steps", 0f32)).unwrap(), outside);
        assert_ne!(two().scope(|| get(0.)).unwrap(), outside);
        drop((first, again, outside));
        assert_eq!(copies(&strategy.scope(|| get(5.)).unwrap()), [5., 5.]);
        // One replica that asks for another name is named.
        let name = |ctx: &ReplicaContext| format!("v{}", ctx.replica_id_in_sync_group());
        let error =
            strategy.run((), |ctx, ()| Variable::builder(name(ctx), 1f32).get_or_create()).unwrap_err();
        assert!(error.blame().is_some() && error.to_string().contains("v1"), "{error}");
    });
}

#[test]
fn run_10_replicas_that_create_other_variables_are_named() {
    watched(|| {
        let strategy = two();
        let name = |ctx: &ReplicaContext| format!("v{}", ctx.replica_id_in_sync_group());
        let error = strategy.run((), |ctx, ()| Variable::new(name(ctx), 1f32)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("v0") && text.contains("v1") && error.blame().is_some(), "{text}");
        let only_first = |ctx: &ReplicaContext| match ctx.replica_id_in_sync_group() {
            0 => Variable::new("v", 1f32).map(drop),
            _ => Ok(()),
        };
        let error = strategy.run((), |ctx, ()| only_first(ctx)).unwrap_err();
        assert!(error.to_string().contains("creation of a variable"), "{error}");
    });
}

#[test]
fn one_1_one_device_has_ordinary_variables_whatever_is_asked() {
    watched(|| {
        let one: Strategy = OneDeviceStrategy::new("cpu:0").unwrap().into();
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
fn var_8_a_variable_is_used_with_its_own_strategy() {
    watched(|| {
        let (ours, other) = (two(), two());
        let v = ours.scope(|| Variable::new("v", 1f32)).unwrap();
        for error in [
            other.scope(|| v.read::<f32>()).unwrap_err(),
            other.scope(|| v.assign(1f32)).unwrap_err(),
            other.run((), |_, ()| v.read::<f32>()).unwrap_err(),
        ] {
            assert!(matches!(error.root_cause(), Error::MixedStrategies { .. }), "{error}");
            assert!(error.to_string().contains("variable v"), "{error}");
        }
        // One that is nobody's can be read by all, and written by no replica.
        let plain = Variable::new("plain", 1f32).unwrap();
        assert_eq!(ours.run((), |_, ()| plain.read::<f32>()).unwrap().values(), [1., 1.]);
        ours.scope(|| plain.assign(2f32)).unwrap();
        let error = ours.run((), |_, ()| plain.assign(3f32)).unwrap_err();
        assert!(matches!(error.root_cause(), Error::MixedStrategies { .. }), "{error}");
        let v = ours.scope(|| Variable::new("v", 1f32)).unwrap();
        let error = ours.update(&v, (), |_, ()| plain.assign_add(1f32)).unwrap_err();
        assert!(matches!(error, Error::MixedStrategies { .. }), "{error}");
        assert_eq!(plain.read::<f32>().unwrap(), 2.);
    });
}

#[test]
fn var_10_the_live_tensor_is_of_this_replica_and_carries_gradients() {
    watched(|| {
        let strategy = two();
        let one = Tensor::new(&[1f32, 2.], &Device::Cpu).unwrap();
        let v = strategy.scope(|| Variable::new("v", one)).unwrap();
        let gradients = strategy.run(&v, |ctx, v| {
            let live = v.as_tensor()?;
            let grads = (&live * f64::from(own(ctx)))?.sum_all()?.backward()?;
            Ok(grads.get(&live).map(|g| g.to_vec1::<f32>()).transpose()?)
        });
        assert_eq!(gradients.unwrap().into_values(), [Some(vec![1.; 2]), Some(vec![2.; 2])]);
        let number = strategy.scope(|| Variable::new("n", 1f32)).unwrap();
        assert!(number.as_tensor().unwrap_err().to_string().contains("no candle tensor"));
    });
}

#[test]
fn created_1_and_vc_1_variables_know_their_strategy_and_tensors_their_variable() {
    let strategy = two();
    let inside = strategy.scope(|| Variable::new("v", Tensor::new(1f32, &Device::Cpu)?)).unwrap();
    let outside = Variable::new("v", Tensor::new(1f32, &Device::Cpu).unwrap()).unwrap();
    assert!(strategy.variable_created_in_scope(&inside) && !strategy.variable_created_in_scope(&outside));
    let live = inside.as_tensor().unwrap();
    assert!(strategy.value_container(&live).is_some_and(|container| container == inside));
    assert!(strategy.value_container(&outside.as_tensor().unwrap()).is_none());
    drop(inside);
    assert!(strategy.value_container(&live).is_none());
}
