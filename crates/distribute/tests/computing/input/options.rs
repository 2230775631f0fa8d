//! Options: their defaults, combinations that are errors, and options that a strategy does not support.

use crate::input::{central, everywhere, mirrored, one_device, steps};
use candle_core::{Device, Tensor};
use distribute::data::{AutoShardPolicy, Dataset, SplitRule, UnevenEnds};
use distribute::input::InputReplicationMode;
use distribute::strategy::{DeviceName, StrategyExtended};
use distribute::{Error, HostTensor, InputOptions, Result, Strategy};
use distribute_testing::watched;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

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

/// A strategy of replicas on devices that do not exist, so transfers to them fail.
#[derive(Debug)]
struct Elsewhere([DeviceName; 2]);

impl Elsewhere {
    fn strategy() -> Strategy {
        Strategy::new(Elsewhere([98, 99].map(DeviceName::gpu))).unwrap()
    }
}

impl StrategyExtended for Elsewhere {
    fn kind(&self) -> &'static str {
        "Elsewhere"
    }
    fn worker_devices(&self) -> &[DeviceName] {
        &self.0
    }
}

fn candle_batches() -> Dataset<Tensor> {
    Dataset::from_slices(Tensor::arange(0u32, 4, &Device::Cpu).unwrap()).unwrap().batch(2)
}

#[test]
fn in_4_batches_are_transferred_to_their_replicas_devices_unless_disabled() {
    for fetch_to_device in [None, Some(true), Some(false)] {
        let options = InputOptions { fetch_to_device, ..Default::default() };
        let mut pass =
            Elsewhere::strategy().distribute_dataset_with(candle_batches(), options).unwrap().iter();
        match fetch_to_device {
            Some(false) => {
                let pieces = pass.next().unwrap().unwrap();
                assert!(pieces.iter().all(|piece| piece.device().is_cpu()));
            }
            _ => {
                let error = pass.next().unwrap().unwrap_err();
                assert!(matches!(&error, Error::Device { name, .. } if name.ends_with("GPU:98")), "{error}");
                assert!(error.to_string().contains("fetch_to_device: Some(false)"), "{error}");
            }
        }
    }
}

/// A dataset that counts the elements it has created, and reports the end of its pass.
struct Counted(Arc<AtomicUsize>, Sender<()>);

impl Iterator for Counted {
    type Item = Result<i64>;
    fn next(&mut self) -> Option<Result<i64>> {
        Some(Ok(self.0.fetch_add(1, Ordering::SeqCst) as i64))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let _ = self.1.send(());
    }
}

#[test]
fn in_7_the_configured_number_of_steps_is_prefetched() {
    watched(|| {
        for ahead in [0, 1, 4] {
            let (made, (ended, end)) = (Arc::new(AtomicUsize::new(0)), channel());
            let (count, ended) = (made.clone(), Mutex::new(ended));
            let data = Dataset::from_generator(move || Counted(count.clone(), ended.lock().unwrap().clone()));
            let options = InputOptions { per_replica_buffer_size: ahead, ..Default::default() };
            let data = mirrored(2).distribute_dataset_with(data.batch(2), options).unwrap();
            let mut pass = data.iter();
            assert_eq!(made.load(Ordering::SeqCst), 0);
            for step in 1..=3 {
                pass.next().unwrap().unwrap();
                // The elements are prepared without being requested.
                while made.load(Ordering::SeqCst) < 2 * (step + ahead) {
                    std::thread::yield_now();
                }
            }
            drop(pass);
            end.recv_timeout(Duration::from_secs(20)).unwrap();
            assert_eq!(made.load(Ordering::SeqCst), 2 * (3 + ahead), "{ahead}");
        }
    });
}

#[test]
fn in_4_and_in_7_the_way_to_transfer_data_does_not_change_it() {
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
    let check = move |strategy: &Strategy| {
        let error = strategy.distribute_dataset_with(batches(), options).unwrap_err();
        assert!(matches!(error.root_cause(), Error::NotSupported { .. }), "{strategy}: {error}");
        assert!(error.to_string().contains("use PerWorker"), "{error}");
        let made = from_function(strategy, options);
        match strategy.extended().kind() {
            "MirroredStrategy" => made.unwrap(),
            _ => {
                let error = made.unwrap_err();
                assert!(matches!(error.root_cause(), Error::NotSupported { .. }), "{strategy}: {error}");
            }
        }
    };
    watched(move || drop(everywhere(check)));
}

#[test]
fn in_6_a_dataset_on_the_device_belongs_to_one_replica_and_stays_there() {
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
fn in_6_a_tensor_that_is_not_on_the_device_where_it_was_to_be_placed_is_an_error() {
    for place_dataset_on_device in [true, false] {
        let options = InputOptions {
            place_dataset_on_device,
            fetch_to_device: Some(false),
            replication_mode: PER_REPLICA,
            ..Default::default()
        };
        let make = |_| Ok(candle_batches());
        let on_cpus = mirrored(2).distribute_datasets_from_function_with(options, make).unwrap();
        assert_eq!(on_cpus.iter().filter(Result::is_ok).count(), 2);
        let elsewhere = Elsewhere::strategy().distribute_datasets_from_function_with(options, make).unwrap();
        let first = elsewhere.iter().next().unwrap();
        if place_dataset_on_device {
            let error = first.unwrap_err().to_string();
            for part in ["local replica 0", "a candle tensor uint32[2] on Cpu", "device:GPU:98"] {
                assert!(error.contains(part), "{error}");
            }
            let host =
                Elsewhere::strategy().distribute_datasets_from_function_with(options, |_| Ok(batches()));
            assert!(host.unwrap().iter().next().unwrap().unwrap_err().to_string().contains("GPU:98"));
        } else {
            drop(first.unwrap())
        }
    }
}

#[test]
fn in_8_options_apply_to_one_call() {
    let strategy = mirrored(2);
    let options = InputOptions { replication_mode: PER_REPLICA, ..Default::default() };
    from_function(&strategy, options).unwrap();
    let data = strategy.distribute_datasets_from_function(|_| Ok(batches())).unwrap();
    assert_eq!(steps(&data), [[[0, 1], [2, 3]]]);
}

#[test]
fn in_9_every_strategy_accepts_options() {
    let options = InputOptions { split_rule: SplitRule::TensorFlow, ..Default::default() };
    let data = central().distribute_dataset_with(Dataset::range(3).batch(3), options).unwrap();
    assert_eq!(steps(&data), [[vec![0, 1], vec![2]]]);
    let data = one_device().distribute_dataset_with(batches(), options).unwrap();
    assert_eq!(steps(&data), [[[0, 1]], [[2, 3]]]);
}

/// Checks the option for a last step for which not all replicas have data (ITER-3).
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
fn dist_8_the_replicas_of_a_worker_share_its_data_for_each_policy() {
    use AutoShardPolicy::{Auto, Data, File, Hint, Off};
    for auto_shard_policy in [Auto, Data, File, Hint, Off] {
        let options = InputOptions { auto_shard_policy, ..Default::default() };
        let data = mirrored(3).distribute_dataset_with(Dataset::range(10).batch(4), options).unwrap();
        assert_eq!(steps(&data)[1..], [[vec![4, 5], vec![6], vec![7]], [vec![8], vec![9], vec![]]]);
    }
}
