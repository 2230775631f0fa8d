//! Tests: elements of files that are sharded by files.

use super::*;
use crate::text_lines;
use std::path::Path;

/// The files of a dataset, and the operations on their elements.
#[derive(Clone, Debug)]
struct Shape {
    /// The number of lines of each file.
    files: Vec<i64>,
    shuffle: bool,
    repeat: usize,
    batch: usize,
    exact: bool,
    /// Whether the pipeline determines the batch size.
    known: bool,
}

fn shape() -> impl Strategy<Value = Shape> {
    let files = proptest::collection::vec(0i64..9, 3..6);
    (files, any::<bool>(), 1usize..3, 1usize..7, any::<bool>(), any::<bool>()).prop_map(
        |(files, shuffle, repeat, batch, exact, known)| Shape { files, shuffle, repeat, batch, exact, known },
    )
}

/// Creates the files in `folder`, with consecutive numbers as lines. Returns a dataset of batches of these numbers.
fn dataset(shape: &Shape, folder: &Path) -> Dataset<HostTensor> {
    let mut next = 0;
    let mut names = Vec::new();
    for (i, lines) in shape.files.iter().enumerate() {
        let path = folder.join(i.to_string());
        let text: String = (next..next + lines).map(|n| format!("{n}\n")).collect();
        std::fs::write(&path, text).unwrap();
        next += lines;
        names.push(path.display().to_string());
    }
    let lines = text_lines(names).map(|line: String| line.parse::<i64>().unwrap());
    let lines = if shape.shuffle { lines.shuffle(5, 3) } else { lines };
    let lines = lines.repeat(shape.repeat);
    let batches = if shape.exact { lines.batch_exact(shape.batch) } else { lines.batch(shape.batch) };
    if shape.known { batches } else { batches.map(|batch| batch) }
}

fn all_ends() -> impl Strategy<Value = UnevenEnds> {
    prop_oneof![Just(UnevenEnds::PadEmpty), Just(UnevenEnds::StopAll), Just(UnevenEnds::Drop)]
}

fn all_policies() -> impl Strategy<Value = AutoShardPolicy> {
    use AutoShardPolicy::{Auto, Data, File, Off};
    prop_oneof![Just(Auto), Just(Data), Just(File), Just(Off)]
}

/// Runs up to `stop` steps of passes that agree on each step. Returns the number of steps and their elements.
fn run_together(passes: &mut [WorkerPass<HostTensor>], stop: usize) -> (usize, Vec<i64>) {
    let (mut steps, mut seen) = (0, Vec::new());
    while steps < stop {
        let counts: Vec<_> = passes.iter_mut().map(|pass| pass.prepare().unwrap()).collect();
        let all = counts.into_iter().fold(StepCounts::default(), |a, b| a + b);
        let step: Option<Vec<_>> = passes.iter_mut().map(|pass| pass.finish(all).unwrap()).collect();
        let Some(step) = step else { break };
        seen.extend(step.into_iter().flatten().flat_map(|p| p.as_slice::<i64>().unwrap().to_vec()));
        steps += 1;
    }
    (steps, seen)
}

proptest! {
    // AS-3, AS-8: AUTO gives the same elements as reading everything.
    #[test]
    fn auto_gives_every_element_that_one_worker_would_get(shape in shape(), workers in 1usize..4, replicas in 1usize..3) {
        let folder = tempfile::tempdir().unwrap();
        let data = dataset(&shape, folder.path());
        let mut one = values_of(&data, 1);
        let mut all = counted(ids(plan(&data, workers, replicas, &DistributeOptions::default()).lockstep(1).unwrap()));
        one.sort_unstable();
        all.sort_unstable();
        // With shuffles, the elements of a dropped last batch depend on the order.
        if shape.exact && shape.shuffle {
            prop_assert_eq!(one.len(), all.len());
        } else {
            prop_assert_eq!(one, all);
        }
    }

    #[test]
    fn a_pass_over_files_resumes_at_its_position(
        shape in shape(), policy in all_policies(), ends in all_ends(), prefetch in 0usize..2,
        rule in prop_oneof![Just(SplitRule::Even), Just(SplitRule::TensorFlow)],
        layouts in proptest::collection::vec((1usize..4, 1usize..4), 3),
        stops in proptest::collection::vec(1usize..5, 2),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let data = dataset(&shape, folder.path());
        let options = DistributeOptions { policy, ends, rule, prefetch };
        let whole = counted(ids(plan(&data, layouts[0].0, layouts[0].1, &options).lockstep(1).unwrap()));
        let mut seen = Vec::new();
        let mut position: Option<Position> = None;
        for (i, (workers, replicas)) in layouts.into_iter().enumerate() {
            let plan = plan(&data, workers, replicas, &options);
            let mut passes: Vec<_> = (0..workers).map(|worker| match &position {
                None => plan.worker(worker, 1).unwrap(),
                Some(position) => plan.resume(worker, position).unwrap(),
            }).collect();
            let stop = stops.get(i).copied().unwrap_or(usize::MAX);
            let (steps, ids) = run_together(&mut passes, stop);
            seen.extend(ids);
            // At the end, the next pass is the next epoch.
            if steps < stop {
                break;
            }
            position = passes.first().map(WorkerPass::position);
        }
        seen.sort_unstable();
        prop_assert_eq!(seen, whole);
    }
}

/// Checks that each worker has a separate cache file if workers read separate files.
#[test]
fn workers_with_separate_files_have_separate_caches() {
    let folder = tempfile::tempdir().unwrap();
    let shape =
        Shape { files: vec![3, 2, 4], shuffle: false, repeat: 1, batch: 2, exact: false, known: true };
    let cache = folder.path().join("cache");
    let data = dataset(&shape, folder.path()).cache_to(&cache);
    for policy in [AutoShardPolicy::File, AutoShardPolicy::Auto] {
        let plan = plan(&data, 2, 1, &DistributeOptions { policy, ..Default::default() });
        assert_eq!(plan.decision().unwrap().taken, AutoShardPolicy::File);
        for epoch in 0..3 {
            assert_eq!(counted(ids(plan.lockstep(epoch).unwrap())), (0..9).collect::<Vec<_>>());
        }
    }
    assert!(!cache.exists() && folder.path().join("cache.1-of-2").exists());
}

/// Checks AS-4: with one worker, the pipeline is not sharded, so its assertion remains.
#[test]
fn an_assertion_is_removed_only_from_shards() {
    let folder = tempfile::tempdir().unwrap();
    let shape =
        Shape { files: vec![3, 2, 4], shuffle: false, repeat: 1, batch: 2, exact: false, known: true };
    let data = dataset(&shape, folder.path()).assert_cardinality(4);
    let file = DistributeOptions { policy: AutoShardPolicy::File, ..Default::default() };
    assert!(plan(&data, 1, 2, &file).lockstep(0).unwrap().last().unwrap().is_err());
    assert_eq!(counted(ids(plan(&data, 2, 2, &file).lockstep(0).unwrap())), (0..9).collect::<Vec<_>>());
}
