//! Distributed values, and those that a function creates.

use crate::contexts::{floats, mirrored, one_device, per_replica, tensor};
use distribute::{Error, Mirrored, ReduceOp, ValueContext, get_strategy, has_strategy};
use distribute_testing::watched;

// 7. Distributed values

#[test]
fn dv_1_a_mirrored_value_is_read_without_asking_and_reaches_every_replica() {
    watched(|| {
        let value = Mirrored::new(tensor(&[1., 2.]));
        assert_eq!(floats(value.get()), [1., 2.]);
        let seen = mirrored(3).run(&value, |_, mine| Ok(floats(mine))).unwrap();
        assert_eq!(seen.values(), [[1., 2.], [1., 2.], [1., 2.]]);
    });
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
    watched(|| {
        let strategy = mirrored(2);
        assert_eq!(strategy.local_results(per_replica([1, 2])).unwrap(), [1, 2]);
        assert_eq!(strategy.local_results((per_replica([1, 2]), 5)).unwrap(), [(1, 5), (2, 5)]);
        assert_eq!(
            strategy.local_results(vec![per_replica([1, 2]), per_replica([3, 4])]).unwrap(),
            [[1, 3], [2, 4]]
        );
        assert_eq!(strategy.local_results(5).unwrap(), [5]);
        assert_eq!(strategy.local_results(()).unwrap(), [(), ()]);
    });
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
    watched(|| {
        let strategy = mirrored(2);
        let results = strategy.run((), |ctx, ()| Ok(ctx.replica_id_in_sync_group())).unwrap();
        assert_eq!(strategy.local_results(results).unwrap(), [0, 1]);
    });
}

// 8. Values from a function

#[test]
fn vff_1_called_once_for_each_replica_in_order_in_the_callers_context() {
    let strategy = mirrored(3);
    let (thread, mut seen) = (std::thread::current().id(), Vec::new());
    let values = strategy.distribute_values_from_function(|ctx| {
        assert!(std::thread::current().id() == thread && !has_strategy());
        seen.push((ctx.replica_id_in_sync_group, ctx.num_replicas_in_sync));
        Ok(1)
    });
    assert_eq!(values.unwrap().values(), [1, 1, 1]);
    assert_eq!(seen, [(0, 3), (1, 3), (2, 3)]);
    // An error ends it and comes out.
    let mut calls = 0;
    let error = strategy.distribute_values_from_function(|ctx| {
        calls += 1;
        if ctx.replica_id_in_sync_group == 1 { Err(Error::other("no value")) } else { Ok(1) }
    });
    assert_eq!((error.unwrap_err().to_string().as_str(), calls), ("no value", 2));
}

#[test]
fn vff_2_nested_results_are_allowed() {
    watched(|| {
        let strategy = mirrored(2);
        let values = strategy
            .distribute_values_from_function(|ctx| Ok((ctx.replica_id_in_sync_group as i32, vec![1f32])))
            .unwrap();
        assert_eq!(values.regroup().unwrap().describe(&|leaf| leaf.len().to_string()), "(2, [2])");
    });
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
    let strategy = mirrored(2);
    let values = strategy.distribute_values_from_function(|ctx| Ok(ctx.num_replicas_in_sync as i64)).unwrap();
    assert_eq!(strategy.reduce(ReduceOp::Sum, values, None).unwrap(), 4);
}
