//! The default strategy, the strategy of one device, and common behaviour of all strategies.

use crate::contexts::{floats, mirrored, one_device, per_replica, tensor};
use distribute::context::{get_strategy, has_strategy, in_cross_replica_context};
use distribute::{Error, HostTensor, MirroredStrategy, ReduceOp};

// 9. The default strategy

#[test]
fn def_2_the_default_strategy_does_everything_here() {
    let strategy = get_strategy();
    let results = strategy.run(per_replica([2]), |ctx, two| {
        assert_eq!((ctx.replica_id_in_sync_group(), ctx.num_replicas_in_sync()), (0, 1));
        assert!(!has_strategy());
        // AR-3: identities. What two replicas refuse, one refuses (OP-3, OP-4, GA-3, GA-4).
        assert_eq!(ctx.all_reduce(ReduceOp::Mean, 5f32)?, 5.);
        assert_eq!(ctx.all_reduce(ReduceOp::Sum, 5i32)?, 5);
        assert!(
            ctx.all_reduce(ReduceOp::Mean, 5i32).is_err() && ctx.all_reduce(ReduceOp::Sum, true).is_err()
        );
        assert_eq!(ctx.all_gather(HostTensor::vector(vec![5i32]), 0)?, HostTensor::vector(vec![5i32]));
        assert!(
            ctx.all_gather(5i32, 0).is_err() && ctx.all_gather(HostTensor::vector(vec![5i32]), 1).is_err()
        );
        assert_eq!(ctx.merge_call(1i32, |_, values| Ok(values.values()[0]))?, 1i32);
        ctx.device()?;
        Ok(two * 2)
    });
    assert_eq!(results.unwrap().values(), [4]);
    assert_eq!(strategy.reduce(ReduceOp::Sum, 3f32, None).unwrap(), 3.);
    assert_eq!(floats(&strategy.reduce(ReduceOp::Sum, tensor(&[1., 2.]), 0).unwrap()), [3.]);
    assert_eq!(floats(&strategy.reduce(ReduceOp::Mean, tensor(&[1., 2.]), 0).unwrap()), [1.5]);
    assert_eq!(floats(&strategy.gather(tensor(&[1., 2.]), 0).unwrap()), [1., 2.]);
    assert!(!has_strategy() && !in_cross_replica_context());
    // A closure that runs under the default strategy may use another one: none has been entered.
    let other = mirrored(2);
    let inside = strategy
        .run((), |_, ()| Ok(other.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1))?.into_values()));
    assert_eq!(inside.unwrap().values(), [[2, 2]]);
}

#[test]
fn def_3_the_default_strategy_has_one_replica_here() {
    let strategy = get_strategy();
    assert_eq!((strategy.num_replicas_in_sync(), strategy.world().replicas()), (1, 1));
    assert!(strategy == get_strategy());
}

#[test]
fn def_4_a_dataset_stays_as_it_is() {
    use distribute::data::Dataset;
    let strategy = get_strategy();
    let batches = strategy.distribute_dataset(Dataset::range(5).batch(2)).unwrap();
    let sizes: Vec<usize> = batches.iter().map(|batch| batch.unwrap().values()[0].len()).collect();
    assert_eq!(sizes, [2, 2, 1]);
}

// 10. One device

#[test]
fn one_1_one_device_one_replica() {
    let strategy = one_device();
    assert_eq!(strategy.num_replicas_in_sync(), 1);
    let devices: Vec<String> = strategy.extended().worker_devices().iter().map(ToString::to_string).collect();
    assert_eq!(devices, ["/job:localhost/replica:0/task:0/device:CPU:0"]);
}

#[test]
fn one_2_reductions_are_identities_except_over_an_axis() {
    let strategy = one_device();
    assert_eq!(floats(&strategy.reduce(ReduceOp::Sum, tensor(&[1., 2.]), None).unwrap()), [1., 2.]);
    assert_eq!(floats(&strategy.reduce(ReduceOp::Mean, per_replica([tensor(&[1., 2.])]), 0).unwrap()), [1.5]);
    assert_eq!(floats(&strategy.gather(tensor(&[1.]), 0).unwrap()), [1.]);
    let same = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, tensor(&[3.]))).unwrap();
    assert_eq!(floats(&same.values()[0]), [3.]);
}

#[test]
fn one_3_a_dataset_is_not_split() {
    use distribute::data::Dataset;
    let batches = one_device().distribute_dataset(Dataset::range(3).batch(3)).unwrap();
    assert_eq!(batches.iter().next().unwrap().unwrap().values()[0].dims(), [3]);
}

// 11. All strategies

#[test]
fn str_2_device_names_are_resolved_and_may_not_repeat() {
    let strategy = MirroredStrategy::new(["cpu:1", "/device:CPU:0"]).unwrap();
    let devices: Vec<String> = strategy.extended().worker_devices().iter().map(ToString::to_string).collect();
    assert_eq!(devices, [1, 0].map(|i| format!("/job:localhost/replica:0/task:0/device:CPU:{i}")));
    let error = MirroredStrategy::new(["cpu:0", "/job:localhost/replica:0/task:0/device:CPU:0"]).unwrap_err();
    assert!(
        matches!(error, Error::Device { .. }) && error.to_string().contains("CPU:0 is named twice"),
        "{error}"
    );
    assert_eq!(
        MirroredStrategy::all_cores().unwrap().num_replicas_in_sync(),
        std::thread::available_parallelism().unwrap().get()
    );
}

#[test]
fn str_3_devices_of_other_tasks_are_refused() {
    for names in [
        ["/job:worker/replica:0/task:0/device:CPU:0", "cpu:0"],
        ["cpu:0", "/job:localhost/replica:0/task:1/cpu:0"],
    ] {
        let error = MirroredStrategy::new(names).unwrap_err();
        assert!(
            matches!(error, Error::Device { .. }) && error.to_string().contains("not of this process"),
            "{error}"
        );
    }
}

#[test]
fn str_6_no_strategy_needs_static_shapes() {
    for strategy in [mirrored(2), one_device(), get_strategy()] {
        assert!(!strategy.extended().require_static_shapes());
    }
}

#[test]
fn str_7_strategies_of_one_process_save_checkpoints() {
    for strategy in [mirrored(2), one_device(), get_strategy()] {
        assert!(strategy.is_chief());
    }
}
