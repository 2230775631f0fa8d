//! Tests: operations that keep elements or a state, distributed, resumed on other layouts, and sharded by files.

use super::*;
use crate::{AtDatasetEnd, Buckets, Files, Packing, Padding, text_lines};

/// Applies the operation with number `kind` to two sources of numbers, and returns batches of the result.
fn batches(kind: usize, data: &Dataset<i64>, other: &Dataset<i64>, batch: usize) -> Dataset<HostTensor> {
    let both = [data.clone(), other.clone()];
    let sequence = |x: i64| HostTensor::vector(vec![x; 1 + (x % 3) as usize]);
    match kind {
        0 => Dataset::sample_from_datasets(&both, &[2., 1.], 5, AtDatasetEnd::Skip).batch(batch),
        1 => {
            let choices = Dataset::from_items([0, 1, 0]).repeat_forever();
            Dataset::choose_from_datasets(&both, &choices, AtDatasetEnd::Stop).batch(batch)
        }
        2 => data
            .window(3)
            .shift(2)
            .batch()
            .map(|x| x.as_slice::<i64>().unwrap().iter().sum::<i64>())
            .batch(batch),
        3 => data.window(4).flat_map(|window| window.shuffle(4, 2)).batch(batch),
        4 => data.scan(0, |state, x| (state + x, state + x)).batch(batch),
        5 => data.group_by_window(|x| x % 3, |key| 1 + key as usize, |_, group| group).batch(batch),
        6 => {
            let buckets = Buckets::new([2, 3], [batch, batch, batch]);
            let padded = data.map(sequence).bucket_by_sequence_length(|x| x.dims()[0], buckets);
            padded.map(|x| x.narrow(1, 0, 1).unwrap().reshape([x.dims()[0]]).unwrap())
        }
        _ => {
            let rows = data.map(sequence).pack_sequences(Packing::new(5).open_rows(2).values(-1i64));
            rows.batch(batch).map(|rows| rows.values)
        }
    }
}

/// Returns the numbers of a per-replica batch, without padding.
fn numbers(piece: HostTensor) -> Vec<i64> {
    piece.to_vec::<i64>().unwrap().into_iter().filter(|x| *x >= 0).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// A pass that is stopped at any step and resumed with other layouts yields the same elements as an uninterrupted
    /// pass, on one worker or several.
    #[test]
    fn a_pass_resumes_in_the_middle_of_groups_and_windows(
        kind in 0usize..8, n in 0i64..40, batch in 1usize..5, repeats in 1usize..3, epoch in 0u64..3,
        layouts in proptest::collection::vec((1usize..4, 1usize..4), 3),
        stops in proptest::collection::vec(1usize..5, 2),
    ) {
        let (data, other) = (Dataset::range(n).shuffle(7, 3), Dataset::range(100..100 + n / 2).repeat(2));
        let data = batches(kind, &data, &other, batch).repeat(repeats);
        let alone: Vec<Vec<i64>> = data.epoch(epoch).map(|batch| numbers(batch.unwrap())).collect();
        let (mut seen, mut steps) = (Vec::new(), 0);
        let mut position: Option<Position> = None;
        for (i, (workers, replicas)) in layouts.into_iter().enumerate() {
            let plan = plan(&data, workers, replicas, &DistributeOptions::default());
            let mut passes: Vec<_> = (0..workers).map(|worker| match &position {
                None => plan.worker(worker, epoch).unwrap(),
                Some(position) => plan.resume(worker, position).unwrap(),
            }).collect();
            let stop = stops.get(i).copied().unwrap_or(usize::MAX);
            let mut taken = 0;
            while taken < stop {
                let counts: Vec<_> = passes.iter_mut().map(|pass| pass.prepare().unwrap()).collect();
                let all = passes[0].total(&counts).unwrap();
                let step: Option<Vec<_>> = passes.iter_mut().map(|pass| pass.finish(all).unwrap()).collect();
                let Some(step) = step else { break };
                let mut step: Vec<i64> = step.into_iter().flatten().flat_map(numbers).collect();
                let mut expected = alone[steps].clone();
                step.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(&step, &expected);
                seen.extend(step);
                (taken, steps) = (taken + 1, steps + 1);
            }
            position = passes.first().map(WorkerPass::position);
        }
        prop_assert_eq!(steps, alone.len());
    }
}

/// Workers read separate files if the operation then has the same elements; otherwise they take their rows of each
/// batch.
#[test]
fn auto_shards_by_files_only_if_all_elements_are_then_used_once() {
    let folder = tempfile::tempdir().unwrap();
    for file in 0..4 {
        let lines: Vec<String> = (10 * file..10 * file + 7).map(|x: i64| x.to_string()).collect();
        std::fs::write(folder.path().join(format!("{file}.txt")), lines.join("\n")).unwrap();
    }
    let files = || Files::glob(&format!("{}/*.txt", folder.path().display())).unwrap();
    let lines = || text_lines(files()).map(|line| line.parse::<i64>().unwrap());
    let numbers = |at_end| Dataset::sample_from_datasets(&[lines(), lines()], &[1., 2.], 1, at_end);
    let sequences = || lines().map(|x| HostTensor::vector(vec![x; 1 + (x % 3) as usize]));
    let bucketed = |buckets: Buckets| sequences().bucket_by_sequence_length(|x| x.dims()[0], buckets);
    let memory = [lines(), Dataset::range(9)];
    let cases = [
        (numbers(AtDatasetEnd::Skip).batch(4), true),
        (numbers(AtDatasetEnd::Stop).batch(4), false),
        (Dataset::sample_from_datasets(&memory, &[1., 2.], 1, AtDatasetEnd::Skip).batch(4), false),
        (
            Dataset::choose_from_datasets(&[lines(), lines()], &lines().map(|x| x % 2), AtDatasetEnd::Skip)
                .batch(4),
            false,
        ),
        (lines().window(2).batch().batch(4), false),
        (lines().scan(0, |state, x| (state + x, state + x)).batch(4), false),
        (lines().group_by_window(|x| x % 2, |_| 2, |_, group| group).batch(4), false),
        (bucketed(Buckets::new([2, 3], [2, 2, 2])), true),
        (bucketed(Buckets::new([2, 3], [2, 2, 2]).padding(Padding::new()).drop_remainder()), false),
        (sequences().pack_sequences(Packing::new(5)).batch(4).map(|rows| rows.values), true),
    ];
    for (i, (data, by_files)) in cases.iter().enumerate() {
        let plan = plan(data, 2, 1, &DistributeOptions::default());
        let policy = if *by_files { AutoShardPolicy::File } else { AutoShardPolicy::Data };
        assert_eq!(plan.decision().unwrap().taken, policy, "case {i}");
        let mut read = Vec::new();
        for step in plan.lockstep(0).unwrap() {
            read.extend(step.unwrap().into_iter().flatten().flat_map(|piece| piece.to_vec::<i64>().unwrap()));
        }
        let mut expected: Vec<i64> =
            data.epoch(0).flat_map(|batch| batch.unwrap().to_vec::<i64>().unwrap()).collect();
        // Groups of the files of a worker have other padding.
        (read, expected) = (counted_without_padding(read), counted_without_padding(expected));
        assert_eq!(read, expected, "case {i}");
    }
}

fn counted_without_padding(mut all: Vec<i64>) -> Vec<i64> {
    all.retain(|x| *x != 0);
    all.sort_unstable();
    all
}
