//! Options: what they are without a word, what doesn't go together, and what a strategy refuses.

use crate::{central, everywhere, mirrored, one_device, steps};
use distribute::data::{AutoShardPolicy, Dataset, SplitRule, UnevenEnds};
use distribute::{Error, HostTensor, InputOptions, InputReplicationMode, Result, Strategy};

const PER_REPLICA: InputReplicationMode = InputReplicationMode::PerReplica;

fn batches() -> Dataset<HostTensor> {
    Dataset::range(4).batch(2)
}

fn from_function(strategy: &Strategy, options: InputOptions) -> Result<()> {
    strategy.distribute_datasets_from_function_with(options, |_| Ok(batches())).map(drop)
}

#[test]
fn in_3_the_defaults() {
    let expected = InputOptions {
        fetch_to_device: None,
        replication_mode: InputReplicationMode::PerWorker,
        place_dataset_on_device: false,
        per_replica_buffer_size: 1,
        auto_shard_policy: AutoShardPolicy::Auto,
        split_rule: SplitRule::Even,
        uneven_ends: UnevenEnds::PadEmpty,
    };
    assert_eq!(InputOptions::default(), expected);
}

/// On CPUs there is nowhere else to bring tensors.
#[test]
fn in_4_and_in_7_how_data_is_brought_to_the_replicas_does_not_change_it() {
    for fetch_to_device in [None, Some(true), Some(false)] {
        for per_replica_buffer_size in [0, 1, 3] {
            let options = InputOptions { fetch_to_device, per_replica_buffer_size, ..Default::default() };
            let data = Dataset::range(6).map(|x| x + 1).batch(4).typed();
            let data = mirrored(2).distribute_dataset_with(data, options).unwrap();
            assert_eq!(steps(&data), [[vec![1, 2], vec![3, 4]], [vec![5], vec![6]]]);
        }
    }
}

#[test]
fn in_5_datasets_for_each_replica_come_from_functions_of_strategies_that_mirror() {
    let options = InputOptions { replication_mode: PER_REPLICA, ..Default::default() };
    for strategy in everywhere() {
        let error = strategy.distribute_dataset_with(batches(), options).unwrap_err();
        assert!(matches!(&error, Error::NotSupported { .. }), "{strategy}: {error}");
        assert!(error.to_string().contains("use PerWorker"), "{error}");
        let made = from_function(&strategy, options);
        match strategy.extended().kind() {
            "MirroredStrategy" => made.unwrap(),
            _ => assert!(matches!(made, Err(Error::NotSupported { .. })), "{strategy}"),
        }
    }
}

#[test]
fn in_6_a_dataset_on_the_device_is_that_of_one_replica_and_stays_there() {
    let strategy = mirrored(2);
    let on_device = InputOptions { place_dataset_on_device: true, ..Default::default() };
    let for_workers = strategy.distribute_dataset_with(batches(), on_device).unwrap_err();
    assert!(for_workers.to_string().contains("needs InputReplicationMode::PerReplica"), "{for_workers}");
    let per_replica = InputOptions { replication_mode: PER_REPLICA, ..on_device };
    let fetched = from_function(&strategy, per_replica).unwrap_err();
    assert!(fetched.to_string().contains("needs fetch_to_device: Some(false)"), "{fetched}");
    from_function(&strategy, InputOptions { fetch_to_device: Some(false), ..per_replica }).unwrap();
}

#[test]
fn in_8_options_are_those_of_one_call() {
    let strategy = mirrored(2);
    let options = InputOptions { replication_mode: PER_REPLICA, ..Default::default() };
    from_function(&strategy, options).unwrap();
    let data = strategy.distribute_datasets_from_function(|_| Ok(batches())).unwrap();
    assert_eq!(steps(&data), [[[0, 1], [2, 3]]]);
}

#[test]
fn in_9_every_strategy_takes_options() {
    let options = InputOptions { split_rule: SplitRule::TensorFlow, ..Default::default() };
    let data = central().distribute_dataset_with(Dataset::range(3).batch(3), options).unwrap();
    assert_eq!(steps(&data), [[vec![0, 1], vec![2]]]);
    let data = one_device().distribute_dataset_with(batches(), options).unwrap();
    assert_eq!(steps(&data), [[[0, 1]], [[2, 3]]]);
}

/// ITER-3: what happens to a last step that not all replicas have data for is chosen.
#[test]
fn iter_3_uneven_ends_are_padded_dropped_or_stop_all() {
    let run = |uneven_ends| {
        let options = InputOptions { uneven_ends, ..Default::default() };
        let make = |_| Ok(Dataset::range(5).batch(2));
        steps(&mirrored(2).distribute_datasets_from_function_with(options, make).unwrap())
    };
    let whole = [vec![0, 1], vec![2, 3]];
    assert_eq!(run(UnevenEnds::PadEmpty), [whole.clone(), [vec![4], vec![]]]);
    for ends in [UnevenEnds::StopAll, UnevenEnds::Drop] {
        assert_eq!(run(ends), std::slice::from_ref(&whole));
    }
}

#[test]
fn dist_8_whatever_the_policy_the_replicas_of_a_worker_share_its_data() {
    use AutoShardPolicy::{Auto, Data, File, Hint, Off};
    for auto_shard_policy in [Auto, Data, File, Hint, Off] {
        let options = InputOptions { auto_shard_policy, ..Default::default() };
        let data = mirrored(3).distribute_dataset_with(Dataset::range(10).batch(4), options).unwrap();
        assert_eq!(steps(&data)[1..], [[vec![4, 5], vec![6], vec![7]], [vec![8], vec![9], vec![]]]);
    }
}
