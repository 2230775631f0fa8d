//! The methods update and update_non_slot, and colocation (sections 3 and 4 of semantics/variables.md).

use super::{Aggregation, Rules, Synchronization, copies, everywhere, on_copies, own, own_of_all, ten, two};
use candle_nn::{Init, VarBuilder};
use distribute::context::{
    ContextKind, get_replica_context, get_strategy, get_update_context, in_cross_replica_context,
};
use distribute::values::Mirrored;
use distribute::{CentralStorageStrategy, Error, prelude::*};
use distribute_testing::watched;

#[test]
fn upd_1_the_function_is_called_once_for_each_copy_in_order() {
    let check = |strategy: &Strategy| {
        let v = ten(strategy, Synchronization::OnWrite, Aggregation::None);
        let mut calls = Vec::new();
        let results = strategy.update(&v, (3f32, Mirrored::new(4f32)), |v, (x, y)| {
            let context = get_update_context().unwrap();
            calls.push((context.copy(), context.device()));
            v.assign_add(x * y)?;
            v.read::<f32>()
        });
        assert_eq!(calls, v.devices().into_iter().enumerate().collect::<Vec<_>>(), "{strategy}");
        // UPD-3, UPD-4: the results are mirrored, and can be accessed individually.
        assert_eq!(results.unwrap().into_copies(), on_copies(&v, 22.), "{strategy}");
        assert_eq!(copies(&v), on_copies(&v, 22.), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn upd_a_mirrored_value_is_unwrapped_for_each_copy() {
    let check = |strategy: &Strategy| {
        let v = ten(strategy, Synchronization::OnWrite, Aggregation::None);
        let each: Vec<f32> = (0..v.devices().len()).map(|copy| 1. + copy as f32).collect();
        let values = Mirrored::from_copies(each.clone()).unwrap();
        strategy.update(&v, values, |v, x| v.assign(x)).unwrap();
        assert_eq!(copies(&v), each, "{strategy}");
        assert_eq!(v.copies_agree().unwrap(), each.len() == 1, "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn upd_2_values_per_replica_are_refused() {
    let check = |strategy: &Strategy| {
        let v = ten(strategy, Synchronization::OnWrite, Aggregation::None);
        let value = || crate::everywhere::each(strategy, |id| id as f32);
        for error in [
            strategy.update(&v, value(), |v, x| v.assign(x)).unwrap_err(),
            strategy.update(&v, (1f32, vec![value()]), |v, (x, _)| v.assign(x)).unwrap_err(),
            // WR-2, WR-6: nor are they written.
            v.assign(value()).unwrap_err(),
        ] {
            assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("per replica") && text.contains("reduce"), "{text}");
        }
        assert_eq!(copies(&v), on_copies(&v, 10.), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

// CTX-4, CTX-5
#[test]
fn ctx_4_update_context_is_cross_replica_and_nests() {
    let check = |strategy: &Strategy| {
        let v = ten(strategy, Synchronization::OnWrite, Aggregation::None);
        assert!(get_update_context().is_none());
        strategy
            .update(&v, (), |v, ()| {
                assert!(in_cross_replica_context() && get_replica_context().is_none(), "{strategy}");
                assert!(get_strategy() == *strategy);
                let outer = get_update_context().unwrap().copy();
                strategy.update(v, (), |_, ()| Ok(())).unwrap();
                assert_eq!(get_update_context().unwrap().copy(), outer);
                strategy.update(v, (), |_, ()| Err::<(), _>(Error::other("no"))).unwrap_err();
                assert_eq!(get_update_context().unwrap().copy(), outer);
                Ok(())
            })
            .unwrap();
        assert!(get_update_context().is_none() && !in_cross_replica_context(), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

// CTX-3: the operations of the table that merge functions can call and replicas cannot.
#[test]
fn upd_5_update_belongs_into_cross_replica_context() {
    let check = |strategy: &Strategy| {
        let v = ten(strategy, Synchronization::OnWrite, Aggregation::None);
        let devices = strategy.non_slot_devices(&[&v]).unwrap();
        for result in [
            strategy.run((), |_, ()| strategy.update(&v, 1f32, |v, x| v.assign_add(x)).map(drop)),
            strategy.run((), |_, ()| strategy.update_non_slot(&devices, (), |()| Ok(())).map(drop)),
        ] {
            let error = result.unwrap_err();
            let Error::WrongContext { required, found, .. } = error.root_cause() else { panic!("{error}") };
            assert_eq!((*required, *found), (ContextKind::CrossReplica, ContextKind::Replica));
            assert!(error.to_string().contains("merge_call"), "{error}");
        }
        assert_eq!(copies(&v), on_copies(&v, 10.), "{strategy}");
        strategy
            .run((), |ctx, ()| {
                ctx.merge_call((), |strategy, _| strategy.update(&v, 1f32, |v, x| v.assign_add(x)).map(drop))
            })
            .unwrap();
        assert_eq!(copies(&v), on_copies(&v, 11.), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn upd_1_only_variables_of_this_strategy() {
    let check = |strategy: &Strategy| {
        let other = two();
        let v = ten(&other, Synchronization::OnWrite, Aggregation::None);
        let error = strategy.update(&v, (), |_, ()| Ok(())).unwrap_err();
        assert!(error.to_string().contains("not of"), "{error}");
        assert!(strategy.non_slot_devices(&[&v]).is_err(), "{strategy}");
        assert_eq!(copies(&v), [10., 10.]);
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn upd_7_and_ns_1_non_slot_variables_are_updated_once_on_each_device() {
    let strategy = two();
    let v = ten(&strategy, Synchronization::OnWrite, Aggregation::None);
    let devices = strategy.non_slot_devices(&[&v]).unwrap();
    assert_eq!(devices, strategy.extended().worker_devices());
    let steps = strategy.scope(|| Variable::new("steps", 0i32)).unwrap();
    for _ in 0..3 {
        strategy.update_non_slot(&devices, 2i32, |x| steps.assign_add(x)).unwrap();
    }
    assert_eq!(steps.copies::<i32>().unwrap(), [6, 6]);
    let other = [distribute::strategy::DeviceName::cpu(7)];
    assert!(strategy.update_non_slot(&other, (), |()| Ok(())).is_err());
    assert!(strategy.update_non_slot(&[], (), |()| Ok(())).is_err());
    // Some of the devices only, or one of them twice.
    assert!(strategy.update_non_slot(&devices[1..], (), |()| Ok(())).is_err());
    assert!(strategy.update_non_slot(&[devices[0], devices[0]], (), |()| Ok(())).is_err());

    let central = CentralStorageStrategy::new(["cpu:0", "cpu:1"], "cpu:1").unwrap();
    let (a, b) = central.scope(|| Ok((Variable::new("a", 1f32)?, Variable::new("b", 1f32)?))).unwrap();
    assert_eq!(central.non_slot_devices(&[&b, &a]).unwrap(), a.devices());
    assert!(central.non_slot_devices(&[]).is_err());
}

#[test]
fn colo_1_to_3_new_variables_get_the_devices_of_a_variable_or_the_given_ones() {
    let check = |strategy: &Strategy| {
        let v = ten(strategy, Synchronization::OnWrite, Aggregation::None);
        let slot = || strategy.colocate_vars_with(&v, || Variable::new("slot", 0f32));
        let slot = strategy.scope(slot).unwrap();
        assert_eq!(slot.devices(), v.devices(), "{strategy}");
        // UPD: `fn` runs on every device of `v`. The other variable has a copy on each of them.
        strategy
            .update(&v, &slot, |v, slot| {
                slot.assign_add(v.read::<f32>()?)?;
                v.assign_sub(slot.read::<f32>()?)
            })
            .unwrap();
        assert_eq!((copies(&v), copies(&slot)), (on_copies(&v, 0.), on_copies(&v, 10.)), "{strategy}");
        // COLO-3: the result of non_slot_devices is accepted.
        let devices = strategy.non_slot_devices(&[&v]).unwrap();
        let steps = || strategy.colocate_vars_with(&devices, || Variable::new("steps", 0i64));
        assert_eq!(strategy.scope(steps).unwrap().devices(), devices, "{strategy}");

        let outside = strategy.colocate_vars_with(&v, || Ok(()));
        // The default strategy needs no scope (SCOPE-5).
        if *strategy == get_strategy() {
            outside.unwrap();
        } else {
            let error = outside.unwrap_err();
            assert!(matches!(error, Error::WrongContext { found: ContextKind::Default, .. }), "{error}");
        }
        let foreign = ten(&two(), Synchronization::OnWrite, Aggregation::None);
        let error = strategy.scope(|| strategy.colocate_vars_with(&foreign, || Ok(()))).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    };
    watched(move || {
        everywhere(check);
        let strategy = two();
        let one = || strategy.colocate_vars_with("cpu:1", || Variable::new("one", 0i64));
        assert_eq!(strategy.scope(one).unwrap().devices(), [distribute::strategy::DeviceName::cpu(1)]);
    });
}

#[test]
fn rto_1_and_upd_the_documents_pattern_run_merge_reduce_to_update() {
    let check = |strategy: &Strategy| {
        let variables = [10f32, 20.].map(|initial| strategy.scope(|| Variable::new("v", initial)).unwrap());
        strategy
            .run((), |ctx, ()| {
                let gradients = [own(ctx), 10. * own(ctx)];
                ctx.merge_call(gradients, |strategy, gradients| {
                    let pairs = variables.iter().enumerate();
                    let pairs = pairs.map(|(i, variable)| (gradients.clone().map(|g| g[i]), variable));
                    let totals = strategy.batch_reduce_to(ReduceOp::Sum, pairs)?;
                    for (variable, total) in variables.iter().zip(totals) {
                        assert_eq!(total.copies().len(), variable.devices().len());
                        strategy.update(variable, total, |variable, total| variable.assign_sub(total))?;
                    }
                    Ok(())
                })
            })
            .unwrap();
        let total: f32 = own_of_all(strategy).iter().sum();
        let [a, b] = &variables;
        assert_eq!(copies(a), on_copies(a, 10. - total), "{strategy}");
        assert_eq!(copies(b), on_copies(b, 20. - 10. * total), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn set_1_a_global_scope_lasts_until_it_is_ended() {
    let strategy = two();
    distribute::context::set_strategy(Some(&strategy)).unwrap();
    assert!(in_cross_replica_context() && get_strategy() == strategy && get_replica_context().is_none());
    let v = Variable::new("v", 1f32).unwrap();
    assert_eq!(copies(&v), [1., 1.]);
    // The same strategy's scope may be entered, and leaves it as it is.
    strategy.scope(|| Ok(())).unwrap();
    assert!(get_strategy() == strategy);
    let error = two().scope(|| Ok(())).unwrap_err();
    assert!(matches!(error, Error::MixedStrategies { .. }), "{error}");
    // Another takes its place.
    let other = two();
    distribute::context::set_strategy(Some(&other)).unwrap();
    assert!(get_strategy() == other);
    // Inside of a scope it is an error, and the one set before is gone.
    let error = other.scope(|| distribute::context::set_strategy(Some(&strategy))).unwrap_err();
    assert!(matches!(error, Error::MixedStrategies { .. }), "{error}");
    assert!(!distribute::context::has_strategy());
    distribute::context::set_strategy(None).unwrap();
}

// Copies of an ON_WRITE variable that is not where the updated one is would drift apart, or be written more than once.
#[test]
fn upd_6_a_variable_written_in_update_has_a_copy_for_each_updated_one() {
    let strategy = two();
    let v = ten(&strategy, Synchronization::OnWrite, Aggregation::None);
    let on = |device: &str| {
        strategy.scope(|| strategy.colocate_vars_with(device, || Variable::new("one", 10f32))).unwrap()
    };
    let (here, there) = (on("cpu:0"), on("cpu:1"));
    for (updated, written) in [(&v, &here), (&here, &v), (&there, &v)] {
        let error = strategy.update(updated, (), |_, ()| written.assign_add(1f32)).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        assert!(error.to_string().contains("colocate_vars_with"), "{error}");
        assert!(written.copies::<f32>().unwrap().iter().all(|copy| *copy == 10.), "{written}");
    }
    // A read is permitted, and so is another device for a variable that is written once.
    strategy.update(&v, (), |v, ()| v.assign(here.read::<f32>()? + 1.)).unwrap();
    strategy.update(&here, (), |_, ()| there.assign(1f32)).unwrap();
    assert_eq!((copies(&v), copies(&there)), (vec![11.; 2], vec![1.]));
}

// A model's variable has one copy, which its replicas share.
#[test]
fn upd_a_models_variable_is_updated_once_with_colocated_slots() {
    let check = |strategy: &Strategy| {
        let build = |vb: VarBuilder| vb.get_with_hints(1, "w", Init::Const(1.));
        let model = strategy.replicate(build).unwrap();
        let w = model.variables.variable("w").unwrap();
        let slot = || Variable::new("m", HostTensor::vector(vec![0f32]));
        let apart = strategy.scope(slot).unwrap();
        let step = |w: &Variable, m: &Variable| {
            m.assign_add(w)?;
            w.assign_sub(m)
        };
        assert_eq!(w.devices().len(), 1, "{strategy}");
        if apart.devices().len() > 1 {
            strategy.update(&w, &apart, step).unwrap_err();
        }
        let beside = strategy.scope(|| strategy.colocate_vars_with(&w, slot)).unwrap();
        strategy.update(&w, &beside, step).unwrap();
        strategy.update(&w, &beside, step).unwrap();
        assert_eq!(model.variables.get("w").unwrap().to_vec1::<f32>().unwrap(), [-1.], "{strategy}");
        let value: HostTensor = beside.read().unwrap();
        assert_eq!(value.to_vec::<f32>().unwrap(), [1.], "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

// A variable that is passed as a value is read on the device of the update.
#[test]
fn upd_a_variable_is_a_value_of_the_copy_that_is_updated() {
    let check = |strategy: &Strategy| {
        let w = ten(strategy, Synchronization::OnWrite, Aggregation::Mean);
        let m = ten(strategy, Synchronization::OnRead, Aggregation::Sum);
        strategy.run((), |ctx, ()| m.assign(own(ctx))).unwrap();
        strategy.update(&w, &m, |w, m| w.assign_sub(m)).unwrap();
        let all = own_of_all(strategy);
        let rules = Rules::of(strategy);
        if rules != Rules::Mirrored {
            // PSV-3: one value for all replicas.
            let of_m = rules.aggregate(Aggregation::Sum, &all).unwrap();
            assert_eq!(copies(&w), [10. - of_m], "{strategy}");
            strategy.run((), |_, ()| w.assign(&m)).unwrap();
            assert_eq!(copies(&w), [of_m], "{strategy}");
            w.assign(&m).unwrap();
            return;
        }
        let each = strategy.world().local_replicas().map(|id| 10. - all[id]);
        assert_eq!(copies(&w), each.collect::<Vec<_>>(), "{strategy}");
        strategy.run((), |_, ()| w.assign(&m)).unwrap();
        let mean = rules.aggregate(Aggregation::Mean, &all).unwrap();
        assert_eq!(copies(&w), on_copies(&w, mean), "{strategy}");
        // Outside both, replicas' copies are no single value.
        assert!(w.assign(&m).unwrap_err().to_string().contains("per replica"));
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn colo_2_an_on_read_variable_of_one_copy_is_aggregated_as_it_is_written() {
    watched(|| {
        let strategy = two();
        let v = strategy.scope(|| {
            strategy.colocate_vars_with("cpu:1", || {
                let v = Variable::builder("v", 10f32).synchronization(Synchronization::OnRead);
                v.aggregation(Aggregation::Sum).create()
            })
        });
        let v = v.unwrap();
        strategy.run((), |ctx, ()| v.assign_add(own(ctx))).unwrap();
        assert_eq!((copies(&v), v.read::<f32>().unwrap()), (vec![13.], 13.));
        let three: Strategy = MirroredStrategy::cpus(3).unwrap();
        let devices =
            distribute::strategy::Destinations::devices([0, 1].map(distribute::strategy::DeviceName::cpu));
        let error =
            three.scope(|| three.colocate_vars_with(devices, || Variable::new("v", 1f32))).unwrap_err();
        assert!(error.to_string().contains("one for all"), "{error}");
    });
}

#[test]
fn a_tensor_from_get_does_not_change_with_the_variable() {
    let check = |strategy: &Strategy| {
        let model = strategy.replicate(|vb: VarBuilder| vb.get_with_hints(2, "w", Init::Const(1.))).unwrap();
        let get = || model.variables.get("w").unwrap();
        let before = get();
        let optimizer = Sgd::new(&model.variables, 0.5).unwrap();
        strategy.run(&model, |ctx, w| optimizer.minimize(ctx, w.sum_all()?, 1)).unwrap();
        assert_eq!(before.to_vec1::<f32>().unwrap(), [1., 1.], "{strategy}");
        assert_eq!(get().to_vec1::<f32>().unwrap(), [0.5, 0.5], "{strategy}");
        model.variables.set("w", &before).unwrap();
        assert_eq!(get().to_vec1::<f32>().unwrap(), [1., 1.], "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}
