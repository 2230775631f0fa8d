//! The legacy API, whose meaning the documentation of TensorFlow 1.15 describes.

use crate::between_graph::input::two;
use crate::between_graph::support::worker;
use distribute::between_graph::AsyncWorkerStrategy;
use distribute::input::InputReplicationMode;
use distribute::legacy::{Legacy, SessionConfig};
use distribute::{CentralStorageStrategy, Error, LocalCluster, prelude::*};
use distribute_testing::watched;

/// Returns the ids of each replica in each step, until the end of the input.
fn all(
    strategy: &Strategy,
    inputs: &mut distribute::legacy::InputIterator<HostTensor>,
) -> Vec<Vec<Vec<i64>>> {
    let mut steps = Vec::new();
    loop {
        match strategy.experimental_run(|_, ids| Ok(ids.to_vec::<i64>()?), &mut *inputs) {
            Ok(step) => steps.push(step.into_values()),
            Err(error) => {
                assert!(matches!(&error, Error::OutOfRange { .. }), "{error}");
                return steps;
            }
        }
    }
}

// LEG-1, PSV1-12
#[test]
fn leg_1_and_psv1_12_between_graphs_each_replica_takes_the_next_complete_batch() {
    watched(|| {
        let of = two(2).map(|strategy| {
            let mut inputs = strategy.make_dataset_iterator(Dataset::range(14).batch(2)).unwrap();
            inputs.initialize();
            let first = all(&strategy, &mut inputs);
            inputs.initialize();
            assert_eq!(all(&strategy, &mut inputs), first, "it begins anew when it is initialized");
            first
        });
        // Evenly over all replicas: workers take batches in turn, and so do the replicas of each.
        assert_eq!(of[0], [[vec![0, 1], vec![4, 5]], [vec![8, 9], vec![12, 13]]]);
        assert_eq!(of[1], [[vec![2, 3], vec![6, 7]], [vec![10, 11], vec![]]]);
    });
}

// LEG-1
#[test]
fn leg_1_a_dataset_iterator_of_other_strategies_splits_global_batches() {
    let strategy = MirroredStrategy::cpus(2).unwrap();
    let mut inputs = strategy.make_dataset_iterator(Dataset::range(4).batch(4)).unwrap();
    assert_eq!(all(&strategy, &mut inputs), [[vec![0, 1], vec![2, 3]]]);
}

// LEG-3, PSV1-3
#[test]
fn leg_3_between_graphs_an_input_function_gets_its_worker() {
    watched(|| {
        let of = two(2).map(|strategy| {
            let make = |context: distribute::data::InputContext| {
                let mine = Dataset::range(8).shard(context.num_input_pipelines, context.input_pipeline_id);
                Ok(mine.batch(context.get_per_replica_batch_size(4)?))
            };
            let mut inputs = strategy.make_input_fn_iterator(make, InputReplicationMode::PerWorker).unwrap();
            inputs.initialize();
            all(&strategy, &mut inputs)
        });
        assert_eq!(of[0], [[vec![0, 2], vec![4, 6]]]);
        assert_eq!(of[1], [[vec![1, 3], vec![5, 7]]]);
    });
}

#[test]
fn experimental_run_consumes_one_element_for_each_replica_and_call() {
    let strategy = MirroredStrategy::cpus(2).unwrap();
    let made =
        strategy.make_input_fn_iterator(|_| Ok(Dataset::range(6).batch(1)), InputReplicationMode::PerWorker);
    let mut inputs = made.unwrap();
    let run = |inputs: &mut distribute::legacy::InputIterator<HostTensor>| {
        strategy.experimental_run(|_, ids| Ok(ids.to_vec::<i64>()?[0]), inputs).unwrap().into_values()
    };
    assert_eq!(run(&mut inputs), [0, 1]);
    assert_eq!(run(&mut inputs), [2, 3]);
    assert_eq!(inputs.get_next().unwrap().map(|ids| ids.to_vec::<i64>().unwrap()[0]).into_values(), [4, 5]);
    // Without an iterator, the function gets no input.
    let ids = strategy.experimental_run(|ctx, ()| Ok(ctx.replica_id_in_sync_group()), ()).unwrap();
    assert_eq!(ids.values(), [0, 1]);
}

#[test]
fn call_for_each_replica_calls_a_function_with_each_replicas_part_also_of_one() {
    for replicas in [1, 3] {
        let cluster = LocalCluster::new(1, 1).unwrap();
        let strategy = worker(&cluster, 0, replicas);
        let parts =
            strategy.distribute_values_from_function(|ctx| Ok(10 * ctx.replica_id_in_sync_group)).unwrap();
        let add = |ctx: &ReplicaContext, part: usize| Ok(part + ctx.replica_id_in_sync_group());
        let sums = strategy.call_for_each_replica(add, parts).unwrap();
        assert_eq!(sums.values(), (0..replicas).map(|replica| 11 * replica).collect::<Vec<_>>());
        assert_eq!(strategy.local_results(sums).unwrap().len(), replicas);
    }
}

// LEG-5
#[test]
fn leg_5_arrays_are_datasets_that_are_then_distributed() {
    watched(|| {
        let of = two(2).map(|strategy| {
            let data =
                strategy.make_numpy_dataset(HostTensor::vector((0..8i64).collect::<Vec<_>>())).unwrap();
            let batches = strategy.distribute_dataset(data.batch(4)).unwrap();
            let step = batches.iter().next().unwrap().unwrap();
            step.into_values().iter().map(|piece| piece.to_vec::<i64>().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(of, [[vec![0, 1], vec![2, 3]], [vec![4, 5], vec![6, 7]]]);
    });
}

// PSV1-7, STR-4
#[test]
fn psv1_7_a_sessions_settings_are_updated_in_a_copy_as_each_strategy_needs_them() {
    let given = SessionConfig { device_filters: vec!["/job:old".into()], ..Default::default() };
    let [_, second] = two(1);
    let after = second.update_config_proto(&given).unwrap();
    assert_eq!(after.device_filters, ["/job:worker/task:1", "/job:ps"]);
    assert!(!after.isolate_session_state);
    let mirrored = MirroredStrategy::cpus(2).unwrap().update_config_proto(&given).unwrap();
    assert_eq!(mirrored, SessionConfig { isolate_session_state: true, ..given.clone() });
    let alone = AsyncWorkerStrategy::new(0).unwrap().update_config_proto(&given).unwrap();
    assert!(alone.isolate_session_state);
    // The others change nothing.
    let central = CentralStorageStrategy::new(["cpu:0", "cpu:1"], "cpu:0").unwrap();
    assert_eq!(central.update_config_proto(&given).unwrap(), given);
    // A coordinator need not be among the tasks of its cluster.
    let cluster = LocalCluster::new(2, 1).unwrap();
    let builder = distribute::ParameterServerStrategy::builder().cluster_resolver(cluster.resolver());
    assert_eq!(builder.build().unwrap().update_config_proto(&given).unwrap(), given);
    // MW-12
    let leaders =
        MultiWorkerMirroredStrategy::on_threads(2, 1, |strategy| strategy.update_config_proto(&given))
            .unwrap();
    assert!(leaders.iter().all(|config| config.scoped_allocator_ops == ["CollectiveReduce"]));
}
