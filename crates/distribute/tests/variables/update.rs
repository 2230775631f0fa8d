//! Sections 3 and 4: update, update_non_slot, colocation.

use super::support::watched;
use super::{Aggregation, Synchronization, copies, ten, two};
use distribute::prelude::*;
use distribute::{
    CentralStorageStrategy, ContextKind, Error, Variable, get_replica_context, get_strategy,
    get_update_context, in_cross_replica_context,
};

#[test]
fn upd_1_the_function_is_called_once_for_each_copy_in_order() {
    let strategy = two();
    let v = ten(&strategy, Synchronization::OnWrite, Aggregation::None);
    let mut calls = Vec::new();
    let results = strategy.update(&v, (3f32, Mirrored::new(4f32)), |v, (x, y)| {
        let context = get_update_context().unwrap();
        calls.push((context.copy(), context.device().index));
        v.assign_add(x * y)?;
        v.read::<f32>()
    });
    assert_eq!(calls, [(0, 0), (1, 1)]);
    // UPD-3, UPD-4: the results are mirrored, and can be had one by one.
    assert_eq!(results.unwrap().into_copies(), [22., 22.]);
    assert_eq!(copies(&v), [22., 22.]);
}

#[test]
fn upd_a_mirrored_value_is_unwrapped_for_each_copy() {
    let strategy = two();
    let v = ten(&strategy, Synchronization::OnWrite, Aggregation::None);
    let values = Mirrored::from_copies([1f32, 2.]).unwrap();
    strategy.update(&v, values, |v, x| v.assign(x)).unwrap();
    assert_eq!(copies(&v), [1., 2.]);
    assert!(!v.copies_agree().unwrap());
}

#[test]
fn upd_2_values_per_replica_are_refused() {
    let strategy = two();
    let v = ten(&strategy, Synchronization::OnWrite, Aggregation::None);
    let value = || PerReplica::from_values(vec![1f32, 2.]);
    for error in [
        strategy.update(&v, value(), |v, x| v.assign(x)).unwrap_err(),
        strategy.update(&v, (1f32, vec![value()]), |v, (x, _)| v.assign(x)).unwrap_err(),
        // WR-2, WR-6: nor are they written.
        v.assign(value()).unwrap_err(),
    ] {
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        assert!(error.to_string().contains("per replica") && error.to_string().contains("reduce"), "{error}");
    }
    assert_eq!(copies(&v), [10., 10.]);
}

// CTX-4, CTX-5
#[test]
fn ctx_4_update_context_is_cross_replica_and_nests() {
    let strategy = two();
    let v = ten(&strategy, Synchronization::OnWrite, Aggregation::None);
    assert!(get_update_context().is_none());
    strategy
        .update(&v, (), |v, ()| {
            assert!(
                in_cross_replica_context() && get_replica_context().is_none() && get_strategy() == strategy
            );
            let outer = get_update_context().unwrap().copy();
            strategy.update(v, (), |_, ()| Ok(())).unwrap();
            assert_eq!(get_update_context().unwrap().copy(), outer);
            strategy.update(v, (), |_, ()| Err::<(), _>(Error::other("no"))).unwrap_err();
            assert_eq!(get_update_context().unwrap().copy(), outer);
            Ok(())
        })
        .unwrap();
    assert!(get_update_context().is_none() && !in_cross_replica_context());
}

// CTX-3: of the table, what replicas cannot do but merge functions can.
#[test]
fn upd_5_update_belongs_into_cross_replica_context() {
    watched(|| {
        let strategy = two();
        let v = ten(&strategy, Synchronization::OnWrite, Aggregation::None);
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
        strategy
            .run((), |ctx, ()| {
                ctx.merge_call((), |strategy, _| strategy.update(&v, 1f32, |v, x| v.assign_add(x)).map(drop))
            })
            .unwrap();
        assert_eq!(copies(&v), [11., 11.]);
    });
}

#[test]
fn upd_1_only_variables_of_this_strategy() {
    let (strategy, other) = (two(), two());
    let v = ten(&other, Synchronization::OnWrite, Aggregation::None);
    let error = strategy.update(&v, (), |_, ()| Ok(())).unwrap_err();
    assert!(error.to_string().contains("not of"), "{error}");
    assert!(strategy.non_slot_devices(&[&v]).is_err());
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
    let other = [distribute::DeviceName::cpu(7)];
    assert!(strategy.update_non_slot(&other, (), |()| Ok(())).is_err());
    assert!(strategy.update_non_slot(&[], (), |()| Ok(())).is_err());

    let central = CentralStorageStrategy::new(["cpu:0", "cpu:1"], "cpu:1").unwrap();
    let (a, b) = central.scope(|| Ok((Variable::new("a", 1f32)?, Variable::new("b", 1f32)?))).unwrap();
    assert_eq!(central.non_slot_devices(&[&b, &a]).unwrap(), a.devices());
    assert!(central.non_slot_devices(&[]).is_err());
}
