//! Positions in passes, saved by one set of workers and restored by another.

use crate::multi_worker::on_workers;
use distribute::data::{AutoShardPolicy, Dataset, InputContext, Location, text_lines};
use distribute::input::DistributedDataset;
use distribute::{Checkpoint, HostTensor, InputOptions, PerReplica, Result, Strategy};
use std::path::Path;
use std::sync::{Arc, Mutex};

fn ids(step: Result<PerReplica<HostTensor>>) -> Vec<i64> {
    step.unwrap().into_iter().flat_map(|piece| piece.to_vec::<i64>().unwrap()).collect()
}

type Make = fn(&Strategy, AutoShardPolicy) -> Result<DistributedDataset<HostTensor>>;

fn from_memory(
    strategy: &Strategy,
    auto_shard_policy: AutoShardPolicy,
) -> Result<DistributedDataset<HostTensor>> {
    let options = InputOptions { auto_shard_policy, ..Default::default() };
    strategy.distribute_dataset_with(Dataset::range(47).shuffle(47, 3).batch(5), options)
}

fn from_files(
    strategy: &Strategy,
    auto_shard_policy: AutoShardPolicy,
) -> Result<DistributedDataset<HostTensor>> {
    let file = |number: i64| {
        let lines: String = (0..9 + number).map(|line| format!("{}\n", 100 * number + line)).collect();
        Location::bytes(format!("file {number}"), lines)
    };
    let lines: Dataset<i64> =
        text_lines((0..4).map(file).collect::<Vec<_>>()).try_map(|line: String| line.parse::<i64>());
    let options = InputOptions { auto_shard_policy, ..Default::default() };
    strategy.distribute_dataset_with(lines.batch(5), options)
}

/// Returns the ids of a pass over the data, which resumes from the checkpoint `from` and ends after `stop` steps. Saves
/// the position to `to`.
fn rest(
    make: Make,
    policy: AutoShardPolicy,
    (workers, replicas): (usize, usize),
    from: Option<&Path>,
    stop: usize,
    to: &Path,
) -> Vec<i64> {
    let (from, to) = (from.map(Path::to_path_buf), to.to_path_buf());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let all = seen.clone();
    on_workers(workers, replicas, move |strategy| {
        let data = make(strategy, policy)?;
        let checkpoint = Checkpoint::new().part("input", &data);
        if let Some(from) = &from {
            checkpoint.restore(from)?;
        }
        let ids: Vec<i64> = data.iter().take(stop).flat_map(ids).collect();
        all.lock().unwrap().extend(ids);
        checkpoint.save(&to)
    });
    let seen = seen.lock().unwrap();
    seen.clone()
}

#[test]
fn a_pass_saved_by_some_workers_resumes_with_others_with_every_element_once() {
    let changes = [
        ((2, 1), (3, 1)),
        ((2, 2), (3, 1)),
        ((3, 1), (1, 1)),
        ((1, 3), (2, 2)),
        ((3, 2), (2, 3)),
        ((2, 2), (2, 2)),
    ];
    let kinds: [(Make, AutoShardPolicy); 5] = [
        (from_memory, AutoShardPolicy::Auto),
        (from_files, AutoShardPolicy::File),
        (from_files, AutoShardPolicy::Dealt),
        (from_files, AutoShardPolicy::Data),
        (from_files, AutoShardPolicy::Auto),
    ];
    for (make, policy) in kinds {
        for (before, after) in changes {
            let folder = tempfile::tempdir().unwrap();
            let path = |name: &str| folder.path().join(name);
            let whole = rest(make, policy, (1, 1), None, usize::MAX, &path("whole"));
            let mut seen = rest(make, policy, before, None, 3, &path("first"));
            let first = seen.len();
            seen.extend(rest(make, policy, after, Some(&path("first")), 2, &path("second")));
            assert!(first > 0 && seen.len() < whole.len());
            seen.extend(rest(make, policy, (2, 1), Some(&path("second")), usize::MAX, &path("third")));
            let sorted = |mut ids: Vec<i64>| {
                ids.sort_unstable();
                ids
            };
            assert_eq!(sorted(seen), sorted(whole), "{policy}: {before:?}, then {after:?}");
            // The next pass is a complete one, of the next epoch.
            let next = rest(make, policy, after, Some(&path("third")), usize::MAX, &path("fourth"));
            assert_eq!(sorted(next), sorted(rest(make, policy, (1, 1), None, usize::MAX, &path("again"))));
        }
    }
}

/// Checks 47 elements in batches of 5, with a save at every step, including the beginning and the end.
#[test]
fn a_pass_of_two_workers_stopped_anywhere_resumes_with_three() {
    for (before, after) in [((2, 1), (3, 1)), ((2, 2), (3, 2))] {
        for stop in 0..=10 {
            let folder = tempfile::tempdir().unwrap();
            let path = |name: &str| folder.path().join(name);
            let mut seen = rest(from_memory, AutoShardPolicy::Auto, before, None, stop, &path("first"));
            assert_eq!(seen.len(), (5 * stop).min(47));
            let from = Some(path("first"));
            // If the checkpoint was saved at the end of a pass, nothing of that epoch is left.
            let left = if stop == 10 { 0 } else { usize::MAX };
            seen.extend(rest(
                from_memory,
                AutoShardPolicy::Auto,
                after,
                from.as_deref(),
                left,
                &path("second"),
            ));
            seen.sort_unstable();
            assert_eq!(seen, (0..47).collect::<Vec<_>>(), "{before:?} stopped at step {stop}");
        }
    }
}

/// Checks that three workers read the data of a function that was created for two as two workers would.
#[test]
fn a_pass_over_datasets_from_a_function_resumes_with_other_workers() {
    fn make(strategy: &Strategy, _: AutoShardPolicy) -> Result<DistributedDataset<HostTensor>> {
        strategy.distribute_datasets_from_function(|context: InputContext| {
            let mine = Dataset::range(23).shard(context.num_input_pipelines, context.input_pipeline_id);
            Ok(mine.batch(2))
        })
    }
    for (before, after) in [((2, 1), (3, 1)), ((3, 1), (1, 2)), ((1, 2), (2, 1))] {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let mut seen = rest(make, AutoShardPolicy::Auto, before, None, 2, &path("first"));
        seen.extend(rest(
            make,
            AutoShardPolicy::Auto,
            after,
            Some(&path("first")),
            usize::MAX,
            &path("second"),
        ));
        seen.sort_unstable();
        assert_eq!(seen, (0..23).collect::<Vec<_>>(), "{before:?}, then {after:?}");
    }
}
