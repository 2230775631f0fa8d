//! Tests: elements of files that are dealt to the workers during a pass.

use super::*;
use crate::{Files, Interleave, Location, text_lines};
use distribute_testing::{SplitMix, watched};

/// The files of a dataset, and the operations on their elements.
#[derive(Clone, Debug)]
struct Shape {
    /// The number of lines of each file.
    files: Vec<usize>,
    /// The buffer of a shuffle; 0 for none.
    shuffle: usize,
    /// The number of threads of a function; 0 for none.
    threads: usize,
    /// Whether the names of files are elements, and two files are read in turn.
    by_name: bool,
    /// Whether the pipeline has a prefetch in its middle.
    prefetch: bool,
    batch: usize,
}

fn shape() -> impl Strategy<Value = Shape> {
    let files = proptest::collection::vec(0usize..12, 0..16);
    (files, 0usize..8, 0usize..3, any::<bool>(), any::<bool>(), 1usize..7).prop_map(
        |(files, shuffle, threads, by_name, prefetch, batch)| Shape {
            files,
            shuffle,
            threads,
            by_name,
            prefetch,
            batch,
        },
    )
}

/// Returns batches of the numbers from 0 in files of these sizes.
fn dataset(shape: &Shape) -> Dataset<HostTensor> {
    let mut next = 0..;
    let all: Vec<Location> = shape
        .files
        .iter()
        .enumerate()
        .map(|(i, size)| {
            let text: String = next.by_ref().take(*size).map(|n: usize| format!("{n}\n")).collect();
            Location::bytes(i.to_string(), text)
        })
        .collect();
    let number = |line: String| line.parse::<i64>();
    let lines = if shape.by_name {
        let read = all.clone();
        let turns = Interleave { cycle_length: 2, block_length: 1, ahead: shape.threads };
        Dataset::list_files(all)
            .try_interleave(
                move |name: String| {
                    let file = name.parse::<usize>().ok().and_then(|file| read.get(file).cloned());
                    file.map(|file| text_lines(Files::from([file]))).ok_or("no such file")
                },
                turns,
            )
            .try_map(number)
    } else {
        text_lines(all).try_map(number)
    };
    let lines = if shape.prefetch { lines.prefetch(2) } else { lines };
    let lines = if shape.shuffle > 0 { lines.shuffle(shape.shuffle, 3) } else { lines };
    let lines = if shape.threads > 0 { lines.map_parallel(shape.threads, |n| n) } else { lines };
    lines.batch(shape.batch)
}

fn options(prefetch: usize) -> DistributeOptions {
    DistributeOptions { policy: AutoShardPolicy::Dealt, prefetch, ..Default::default() }
}

/// Takes the next step of passes that agree on it. Returns the elements of each worker; `None` at the end.
fn step(passes: &mut [WorkerPass<HostTensor>]) -> Option<Vec<Vec<i64>>> {
    let all: StepCounts = loop {
        let counts: Vec<_> = passes.iter_mut().map(|pass| pass.prepare().unwrap()).collect();
        let again: Vec<bool> = passes.iter_mut().map(|pass| pass.deal(&counts).unwrap()).collect();
        assert!(again.iter().all(|of| *of == again[0]));
        if !again[0] {
            let totals: Vec<_> = passes.iter().map(|pass| pass.total(&counts).unwrap()).collect();
            assert!(totals.iter().all(|total| *total == totals[0]));
            break totals[0];
        }
    };
    let taken: Option<Vec<_>> = passes.iter_mut().map(|pass| pass.finish(all).unwrap()).collect();
    let ids = |pieces: Vec<HostTensor>| {
        pieces.iter().flat_map(|piece| piece.as_slice::<i64>().unwrap().to_vec()).collect()
    };
    Some(taken?.into_iter().map(ids).collect())
}

fn begin(plan: &Distribution<HostTensor>, position: Option<&Position>) -> Vec<WorkerPass<HostTensor>> {
    let pass = |worker| match position {
        None => plan.worker(worker, 1).unwrap(),
        Some(position) => plan.resume(worker, position).unwrap(),
    };
    (0..plan.layout().workers).map(pass).collect()
}

/// Returns the common position of passes.
fn position(passes: &[WorkerPass<HostTensor>]) -> Position {
    let positions: Vec<_> = passes.iter().map(WorkerPass::position).collect();
    assert!(positions.iter().all(|position| *position == positions[0]), "{positions:?}");
    positions[0].clone()
}

fn sorted(mut ids: Vec<i64>) -> Vec<i64> {
    ids.sort_unstable();
    ids
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    // INV-10, INV-99
    #[test]
    fn each_element_is_in_one_batch_and_passes_are_those_of_lock_step(
        shape in shape(), workers in 1usize..5, replicas in 1usize..3, prefetch in 0usize..3,
        rule in prop_oneof![Just(SplitRule::Even), Just(SplitRule::TensorFlow)],
    ) {
        watched(move || {
            let options = DistributeOptions { rule, ..options(prefetch) };
            let plan = plan(&dataset(&shape), workers, replicas, &options);
            let worker = |worker: Vec<Vec<i64>>| worker.concat();
            let expected: Vec<Vec<_>> = ids(plan.lockstep(1).unwrap())
                .into_iter()
                .map(|step| step.into_iter().map(worker).collect())
                .collect();
            let mut passes = begin(&plan, None);
            let steps: Vec<_> = std::iter::from_fn(|| step(&mut passes)).collect();
            assert_eq!(steps, expected);
            let all = shape.files.iter().sum::<usize>() as i64;
            assert_eq!(sorted(steps.concat().concat()), (0..all).collect::<Vec<_>>());
        });
    }

    // INV-99: workers are killed at random, and resume at the latest saved position, as many as before or others.
    #[test]
    fn each_element_is_used_once_whoever_resumes(
        shape in shape(), seed: u64, layouts in proptest::collection::vec((1usize..4, 1usize..3), 1..4),
    ) {
        watched(move || {
            let data = dataset(&shape);
            let mut random = SplitMix(seed);
            let (mut saved, mut before, mut since) = (None, Vec::new(), Vec::new());
            let mut passes: Vec<WorkerPass<HostTensor>> = Vec::new();
            let mut kills = 0;
            loop {
                match random.below(5) {
                    _ if passes.is_empty() => {
                        let (workers, replicas) = layouts[random.below(layouts.len())];
                        passes = begin(&plan(&data, workers, replicas, &options(random.below(2))), saved.as_ref());
                    }
                    0 => {
                        saved = Some(position(&passes));
                        before.append(&mut since);
                    }
                    1 if kills < 12 => {
                        kills += 1;
                        passes.clear();
                        since.clear();
                    }
                    _ => match step(&mut passes) {
                        Some(step) => since.extend(step.concat()),
                        None => break,
                    },
                }
            }
            before.append(&mut since);
            let all = shape.files.iter().sum::<usize>() as i64;
            assert_eq!(sorted(before), (0..all).collect::<Vec<_>>());
        });
    }

    // INV-42, INV-99
    #[test]
    fn the_same_workers_resume_as_if_nothing_had_happened(
        shape in shape(), workers in 1usize..4, replicas in 1usize..3, prefetch in 0usize..2, stop in 0usize..9,
    ) {
        // Threads take elements ahead of others, and more of them after a position than within a pass.
        let shape = Shape { threads: 0, ..shape };
        watched(move || {
            let plan = plan(&dataset(&shape), workers, replicas, &options(prefetch));
            let mut passes = begin(&plan, None);
            (0..stop).for_each(|_| drop(step(&mut passes)));
            let mut resumed = begin(&plan, Some(&position(&passes)));
            loop {
                let (expected, found) = (step(&mut passes), step(&mut resumed));
                assert_eq!(found, expected);
                assert_eq!(position(&resumed), position(&passes));
                if found.is_none() {
                    break;
                }
            }
        });
    }
}

/// Returns a dataset of lines in files of these sizes, in batches of `batch`.
fn lines(files: &[usize], batch: usize) -> Dataset<HostTensor> {
    let shape =
        Shape { files: files.to_vec(), shuffle: 0, threads: 0, by_name: false, prefetch: false, batch };
    dataset(&shape)
}

/// Checks that a worker with a large file leaves small ones to others, and that they end within a file of each other.
#[test]
fn workers_with_small_files_read_more_of_them() {
    watched(|| {
        let data = lines(&[30, 5, 5, 5, 5, 5, 5], 2);
        let steps = |policy, prefetch| {
            let plan = plan(&data, 2, 1, &DistributeOptions { policy, ..options(prefetch) });
            plan.lockstep(0).unwrap().count()
        };
        assert_eq!(steps(AutoShardPolicy::File, 0), 45);
        assert_eq!([0, 1].map(|prefetch| steps(AutoShardPolicy::Dealt, prefetch)), [30; 2]);
        let plan = plan(&data, 2, 1, &options(0));
        let mut passes = begin(&plan, None);
        while step(&mut passes).is_some() {}
        let deals = position(&passes).deals.unwrap();
        assert_eq!([deals.of(0), deals.of(1)], [vec![0], vec![1, 2, 3, 4, 5, 6]]);
    });
}

#[test]
fn there_may_be_fewer_files_than_workers() {
    watched(|| {
        for prefetch in [0, 1] {
            for files in [&[][..], &[3], &[0, 0], &[0, 4]] {
                let plan = plan(&lines(files, 2), 3, 2, &options(prefetch));
                let all = files.iter().sum::<usize>() as i64;
                assert_eq!(counted(ids(plan.lockstep(0).unwrap())), (0..all).collect::<Vec<_>>());
            }
        }
    });
}

#[test]
fn many_small_files_need_few_rounds() {
    watched(|| {
        let plan = plan(&lines(&[1; 400], 100), 2, 1, &options(0));
        let mut passes = begin(&plan, None);
        let mut rounds = 0;
        loop {
            let counts: Vec<_> = passes.iter_mut().map(|pass| pass.prepare().unwrap()).collect();
            rounds += 1;
            let again = passes.iter_mut().map(|pass| pass.deal(&counts).unwrap()).fold(false, |a, b| a | b);
            if !again {
                break;
            }
        }
        assert!(rounds <= 8, "{rounds} rounds for 100 files of each worker");
    });
}

#[test]
fn each_pass_deals_again_and_one_worker_reads_everything() {
    watched(|| {
        let data = lines(&[3, 4, 5], 2);
        let two = plan(&data, 2, 1, &options(1));
        let text = two.explain();
        assert!(text.contains("over 2 workers of 1 replica, policy DEALT: as asked"), "{text}");
        assert!(text.contains("worker 1 reads the files that it is dealt"), "{text}");
        for epoch in 0..3 {
            assert_eq!(counted(ids(two.lockstep(epoch).unwrap())), (0..12).collect::<Vec<_>>());
        }
        let one = plan(&data, 1, 2, &options(1));
        assert_eq!(one.decision().unwrap().taken, AutoShardPolicy::Data);
        // A pass of two workers resumes with one, and the other way around.
        for (before, after) in [(&two, &one), (&one, &two)] {
            let mut passes = begin(before, None);
            let mut seen = step(&mut passes).unwrap().concat();
            let mut rest = begin(after, Some(&position(&passes)));
            seen.extend(std::iter::from_fn(|| step(&mut rest)).flatten().flatten());
            assert_eq!(sorted(seen), (0..12).collect::<Vec<_>>());
        }
    });
}

#[test]
fn what_cannot_be_dealt_is_refused_before_the_first_step() {
    let two = Layout { workers: 2, replicas: 1 };
    let refused = |data: Dataset<HostTensor>, options: DistributeOptions| {
        let error = Distribution::new(&data, two, options).err().unwrap();
        assert!(matches!(error, Error::NotDealt { .. }), "{error:?}");
        error.to_string()
    };
    let dealt = || options(0);
    let of = |files: &[usize]| lines(files, 2);
    for (data, expected) in [
        (Dataset::range(8).batch(4), "range 0..8 does not read files; use AutoShardPolicy::Auto"),
        (of(&[4, 4]).concatenate(&of(&[4])), "the dataset has 2 sources of files instead of one"),
        (of(&[4, 4]).repeat(2), "\"repeat 2 times\" reads its input again"),
        (of(&[4, 4]).cache(), "\"cache in memory\" reads its input again"),
        (of(&[4, 4]).take(1), "\"take 1\" has other results on some of the files"),
    ] {
        let text = refused(data, dealt());
        assert!(text.starts_with("the files cannot be dealt to the workers: "), "{text}");
        assert!(text.contains(expected), "{text}");
    }
    let drop = DistributeOptions { ends: UnevenEnds::Drop, ..dealt() };
    let text = refused(of(&[4, 4]).map(|batch: HostTensor| batch), drop);
    assert!(text.contains("UnevenEnds::Drop needs batches whose size the pipeline determines"), "{text}");
    let error = of(&[4, 4]).batches_of_worker(2, 0, &dealt()).err().unwrap();
    assert!(matches!(&error, Error::NotDealt { why } if why.contains("FileDeck")), "{error}");
}

#[test]
fn a_step_without_all_files_is_not_taken() {
    watched(|| {
        let plan = plan(&lines(&[4, 4], 2), 2, 1, &options(0));
        let mut passes = begin(&plan, None);
        let counts: Vec<_> = passes.iter_mut().map(|pass| pass.prepare().unwrap()).collect();
        let all = passes[0].total(&counts).unwrap();
        let error = passes[0].finish(all).unwrap_err().to_string();
        assert!(error.contains("step 0 needs a file: call WorkerPass::deal"), "{error}");
        assert!(matches!(passes[0].deal(&counts[..1]), Err(Error::NotDealt { .. })));
        // Nothing has been changed by that.
        assert_eq!(step(&mut passes), Some(vec![vec![0], vec![4]]));
    });
}

#[test]
fn a_position_without_fitting_deals_is_refused() {
    watched(|| {
        let plan = plan(&lines(&[4, 4, 4], 2), 2, 1, &options(0));
        let mut passes = begin(&plan, None);
        step(&mut passes);
        let position = position(&passes);
        plan.check_position(&position).unwrap();
        for (deals, expected) in [
            (None, "it does not say who has been dealt which file"),
            (Some(vec![0, 1, 2]), "3 files had been dealt to 2 workers, but there are 3 here"),
            (Some(vec![0, 1, 0, 1]), "4 files had been dealt to 2 workers, but there are 3 here"),
        ] {
            let wrong = Position { deals: deals.map(Deals::from), ..position.clone() };
            let error = plan.check_position(&wrong).unwrap_err();
            assert!(matches!(error, Error::Position { .. }), "{error:?}");
            assert!(error.to_string().contains(expected), "{error}");
            assert!(plan.resume(0, &wrong).is_err());
        }
    });
}

// INV-3
#[test]
fn a_broken_file_is_an_error_of_the_worker_that_was_dealt_it() {
    watched(|| {
        for prefetch in [0, 1] {
            let files = ["0\n1\n", "2\n3\n", "x\n"].map(|text| Location::bytes("file", text));
            let data = text_lines(Files::from(files)).try_map(|line: String| line.parse::<i64>()).batch(2);
            let plan = plan(&data, 2, 1, &options(prefetch));
            let error = plan.lockstep(0).unwrap().find_map(Result::err).unwrap();
            assert!(matches!(error, Error::Function { operation: "map", .. }), "{error:?}");
            let mut pass = plan.lockstep(0).unwrap();
            // Dropped in the middle, its threads end.
            assert!(pass.next().is_some());
        }
    });
}

#[test]
fn workers_predict_each_others_requests_only_with_equal_buffers_and_threads() {
    let of = |threads: usize, prefetch: usize| {
        let shape =
            Shape { files: vec![4, 4], shuffle: 0, threads, by_name: false, prefetch: false, batch: 2 };
        plan(&dataset(&shape), 2, 1, &options(prefetch)).pull_checksum()
    };
    assert_eq!((of(1, 1), of(1, 2)), (of(1, 1), of(1, 1)));
    assert_ne!(of(1, 1), of(2, 1));
    assert_ne!(of(1, 1), of(1, 0));
    let file = DistributeOptions { policy: AutoShardPolicy::File, ..options(1) };
    assert_eq!(plan(&lines(&[4, 4], 2), 2, 1, &file).pull_checksum(), None);
}
