//! The data that each worker reads.

use crate::between_graph::support::worker;
use crate::support::log_of;
use distribute::between_graph::AsyncWorkerStrategy;
use distribute::data::AutoShardPolicy;
use distribute::{LocalCluster, prelude::*};
use distribute_testing::watched;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns the ids of each replica of a strategy, step by step.
fn steps(batches: &distribute::input::DistributedDataset<HostTensor>) -> Vec<Vec<Vec<i64>>> {
    let ids = |piece: &HostTensor| piece.to_vec::<i64>().unwrap();
    batches.iter().map(|step| step.unwrap().iter().map(ids).collect()).collect()
}

pub fn two(replicas: usize) -> [AsyncWorkerStrategy; 2] {
    let cluster = LocalCluster::new(2, 1).unwrap();
    [0, 1].map(|number| worker(&cluster, number, replicas))
}

// PSV1-12
#[test]
fn psv1_12_workers_take_global_batches_in_turn_and_cut_them_for_their_replicas() {
    watched(|| {
        let of =
            two(2).map(|strategy| steps(&strategy.distribute_dataset(Dataset::range(10).batch(4)).unwrap()));
        assert_eq!(of[0], [[vec![0, 1], vec![2, 3]], [vec![8], vec![9]]]);
        assert_eq!(of[1], [[vec![4, 5], vec![6, 7]]]);
    });
}

// PSV1-12
#[test]
fn psv1_12_workers_read_separate_files_if_there_are_enough() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..3).map(|file| folder.path().join(format!("{file}.txt"))).collect();
        for (file, path) in paths.iter().enumerate() {
            std::fs::write(path, format!("{file}a\n{file}b\n")).unwrap();
        }
        let lines = two(1).map(|strategy| {
            let data = distribute::data::text_lines(paths.clone()).batch(2);
            let batches = strategy.distribute_dataset(data).unwrap();
            batches
                .iter()
                .flat_map(|step| step.unwrap().values()[0].to_vec::<Vec<u8>>().unwrap())
                .collect::<Vec<_>>()
        });
        assert_eq!(
            lines,
            [["0a", "0b", "2a", "2b"].map(Vec::from).to_vec(), ["1a", "1b"].map(Vec::from).to_vec()]
        );
    });
}

// PSV1-12
#[test]
fn psv1_12_sharding_over_workers_can_be_disabled_and_replicas_still_share() {
    watched(|| {
        let off = InputOptions { auto_shard_policy: AutoShardPolicy::Off, ..Default::default() };
        for strategy in two(2) {
            let batches = strategy.distribute_dataset_with(Dataset::range(4).batch(4), off).unwrap();
            assert_eq!(steps(&batches), [[vec![0, 1], vec![2, 3]]]);
        }
    });
}

// PSV1-3, PSV1-12, FN-1
#[test]
fn psv1_3_a_function_is_called_once_for_each_worker_with_its_index() {
    watched(|| {
        let of = two(2).map(|strategy| {
            let batches = strategy.distribute_datasets_from_function(|context| {
                assert_eq!((context.num_input_pipelines, context.num_replicas_in_sync), (2, 2));
                let batch = context.get_per_replica_batch_size(4)?;
                let mine = Dataset::range(8).shard(context.num_input_pipelines, context.input_pipeline_id);
                Ok(mine.batch(batch))
            });
            steps(&batches.unwrap())
        });
        assert_eq!(of[0], [[vec![0, 2], vec![4, 6]]]);
        assert_eq!(of[1], [[vec![1, 3], vec![5, 7]]]);
    });
}

// PSV1-12, AS-5
#[test]
fn psv1_12_with_fewer_files_than_workers_batches_are_split_with_a_warning() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.txt");
        std::fs::write(&path, "a\nb\nc\n").unwrap();
        let told = log_of(|| {
            let lines = two(1).map(|strategy| {
                let batches =
                    strategy.distribute_dataset(distribute::data::text_lines(&path).batch(1)).unwrap();
                batches
                    .iter()
                    .flat_map(|step| step.unwrap().values()[0].to_vec::<Vec<u8>>().unwrap())
                    .collect::<Vec<_>>()
            });
            assert_eq!(lines, [vec![b"a".to_vec(), b"c".to_vec()], vec![b"b".to_vec()]]);
        });
        assert_eq!(told.matches("WARN").count(), 2, "one of each worker: {told}");
        assert!(
            told.contains("every worker reads all of the dataset")
                && told.contains("distribute_datasets_from_function"),
            "{told}"
        );
        // The warning is also logged if there are no files.
        let told = log_of(|| drop(two(1)[0].distribute_dataset(Dataset::range(4).batch(2)).unwrap()));
        assert_eq!(told.matches("WARN").count(), 1, "{told}");
    });
}

// PSV1-12
#[test]
fn psv1_12_by_data_every_worker_reads_its_elements_and_skips_the_others() {
    watched(|| {
        for strategy in two(1) {
            let made = Arc::new(AtomicUsize::new(0));
            let counted = made.clone();
            let data = Dataset::range(8).map(move |id: i64| {
                counted.fetch_add(1, Ordering::Relaxed);
                id
            });
            let batches = strategy.distribute_dataset(data.batch(2)).unwrap();
            assert_eq!(batches.iter().count(), 2);
            // TensorFlow's strategy would make all 8.
            assert_eq!(made.load(Ordering::Relaxed), 4);
        }
    });
}
