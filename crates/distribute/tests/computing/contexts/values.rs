//! Distributed values, and values that a function creates for each replica.

use crate::contexts::{each, everywhere, floats, of_all, one_device, per_replica, tensor};
use distribute::context::{get_strategy, has_strategy};
use distribute::strategy::ValueContext;
use distribute::values::Mirrored;
use distribute::{Error, ReduceOp, Strategy};
use distribute_testing::watched;

// 7. Distributed values

#[test]
fn dv_1_a_mirrored_value_is_read_directly_and_reaches_every_replica() {
    let check = |strategy: &Strategy| {
        let value = Mirrored::new(tensor(&[1., 2.]));
        assert_eq!(floats(value.get()), [1., 2.]);
        let seen = strategy.run(&value, |_, mine| Ok(floats(mine))).unwrap();
        assert_eq!(seen.values(), vec![[1., 2.]; strategy.world().replicas()], "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn dv_3_a_per_replica_has_its_values_in_order() {
    let values = per_replica([1, 2]);
    assert_eq!(
        (values.values(), values.get(1), values.get(2), values.len()),
        (&[1, 2][..], Some(&2), None, 2)
    );
    let (a, b) = per_replica([(1, 'x'), (2, 'y')]).unzip();
    assert_eq!((a.values(), b.values()), (&[1, 2][..], &['x', 'y'][..]));
}

#[test]
fn local_1_local_results_are_this_processs_parts() {
    let check = |strategy: &Strategy| {
        let (ids, replicas) = (|| each(strategy, |id| id), strategy.world().replicas());
        let local: Vec<usize> = strategy.world().local_replicas().collect();
        assert_eq!(strategy.local_results(ids()).unwrap(), local, "{strategy}");
        let pairs: Vec<_> = local.iter().map(|id| (*id, 5)).collect();
        assert_eq!(strategy.local_results((ids(), 5)).unwrap(), pairs, "{strategy}");
        let lists: Vec<_> = local.iter().map(|id| [*id, 10 * id]).collect();
        let tens = ids().map(|id| 10 * id);
        assert_eq!(strategy.local_results(vec![ids(), tens]).unwrap(), lists, "{strategy}");
        assert_eq!(strategy.local_results(5).unwrap(), [5], "{strategy}");
        assert_eq!(strategy.local_results(()).unwrap(), vec![(); replicas], "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn local_2_one_device_and_the_default_strategy_have_one() {
    for strategy in [one_device(), get_strategy()] {
        assert_eq!(strategy.local_results(per_replica([1])).unwrap(), [1]);
        assert_eq!(strategy.local_results((1, 2)).unwrap(), [(1, 2)]);
    }
}

#[test]
fn local_3_the_parts_of_a_run_are_its_results() {
    let check = |strategy: &Strategy| {
        let results = strategy.run((), |ctx, ()| Ok(ctx.replica_id_in_sync_group())).unwrap();
        let local: Vec<usize> = strategy.world().local_replicas().collect();
        assert_eq!(strategy.local_results(results).unwrap(), local, "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

// 8. Values from a function

#[test]
fn vff_1_the_function_is_called_once_for_each_replica_in_order_in_the_callers_context() {
    let check = |strategy: &Strategy| {
        let (thread, mut seen) = (std::thread::current().id(), Vec::new());
        let values = strategy.distribute_values_from_function(|ctx| {
            assert!(std::thread::current().id() == thread && !has_strategy());
            seen.push((ctx.replica_id_in_sync_group, ctx.num_replicas_in_sync));
            Ok(1)
        });
        let (local, count) = (strategy.world().local_replicas(), strategy.num_replicas_in_sync());
        assert_eq!(values.unwrap().values(), vec![1; local.len()], "{strategy}");
        assert_eq!(seen, local.clone().map(|id| (id, count)).collect::<Vec<_>>(), "{strategy}");
        // An error ends it and comes out: here of the second, or of the only one.
        let (mut calls, most) = (0, local.len().min(2));
        let error = strategy.distribute_values_from_function(|_| {
            calls += 1;
            if calls == most { Err(Error::other("no value")) } else { Ok(1) }
        });
        assert_eq!((error.unwrap_err().to_string().as_str(), calls), ("no value", most), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn vff_2_nested_results_are_allowed() {
    let check = |strategy: &Strategy| {
        let values = each(strategy, |id| (id as i32, vec![1f32]));
        let shown = values.regroup().unwrap().describe(&|leaf| leaf.len().to_string());
        let replicas = strategy.world().replicas();
        assert_eq!(shown, format!("({replicas}, [{replicas}])"), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn vff_3_one_device_and_the_default_strategy_have_one_value() {
    for strategy in [one_device(), get_strategy()] {
        let values = strategy.distribute_values_from_function(Ok).unwrap();
        assert_eq!(values.values(), [ValueContext { replica_id_in_sync_group: 0, num_replicas_in_sync: 1 }]);
    }
}

#[test]
fn vff_4_a_value_context_prints_its_id_and_total() {
    let context = ValueContext::default();
    assert_eq!((context.replica_id_in_sync_group, context.num_replicas_in_sync), (0, 1));
    let text = ValueContext { replica_id_in_sync_group: 1, num_replicas_in_sync: 4 }.to_string();
    assert!(text.contains('1') && text.contains('4'), "{text}");
}

#[test]
fn vff_5_plain_numbers_can_be_reduced() {
    let check = |strategy: &Strategy| {
        let count = strategy.num_replicas_in_sync() as i64;
        let values = strategy.distribute_values_from_function(|ctx| Ok(ctx.num_replicas_in_sync as i64));
        let sum = strategy.reduce(ReduceOp::Sum, values.unwrap(), None).unwrap();
        assert_eq!(sum, count * count, "{strategy}");
        let ids = strategy.reduce(ReduceOp::Sum, each(strategy, |id| id as i64), None).unwrap();
        assert_eq!(ids, of_all(strategy, |id| id as i64).iter().sum::<i64>(), "{strategy}");
    };
    watched(move || drop(everywhere(check)));
}
