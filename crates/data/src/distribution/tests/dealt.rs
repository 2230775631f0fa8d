//! Tests: elements of files that are dealt to the workers during a pass.

use super::*;
use crate::csv::{ColumnType, Csv};
use crate::{Compression, Files, Interleave, Location, TfRecord, TfRecordWriter, text_lines};
use distribute_testing::{SplitMix, watched};
use std::sync::mpsc;
use std::time::Duration;

/// The files of a dataset, and the operations on their elements.
#[derive(Clone, Debug)]
struct Shape {
    /// The number of lines of each file.
    files: Vec<usize>,
    /// The buffer of a shuffle; 0 for none.
    shuffle: usize,
    /// The number of threads of a function; 0 for none.
    threads: usize,
    /// Whether the function is applied before the shuffle.
    before_shuffle: bool,
    /// The way in which files are read in turn if their names are elements.
    by_name: Option<Interleave>,
    /// Whether the pipeline has a `prefetch`, and with `by_name` the dataset of each file another one.
    prefetch: bool,
    batch: usize,
}

fn shape() -> impl Strategy<Value = Shape> {
    let files = proptest::collection::vec(0usize..12, 0..16);
    let turns = (1usize..4, 1usize..4, 0usize..3);
    let turns = turns.prop_map(|(cycle_length, block_length, ahead)| Interleave {
        cycle_length,
        block_length,
        ahead,
    });
    let batch = prop_oneof![1usize..7, 1usize..65];
    (files, 0usize..8, 0usize..3, any::<bool>(), proptest::option::of(turns), any::<bool>(), batch).prop_map(
        |(files, shuffle, threads, before_shuffle, by_name, prefetch, batch)| Shape {
            files,
            shuffle,
            threads,
            before_shuffle,
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
    let lines = if let Some(turns) = shape.by_name {
        let (read, early) = (all.clone(), if shape.prefetch { 3 } else { 0 });
        Dataset::list_files(all)
            .try_interleave(
                move |name: String| {
                    let file = name.parse::<usize>().ok().and_then(|file| read.get(file).cloned());
                    file.map(|file| text_lines(Files::from([file])).prefetch(early)).ok_or("no such file")
                },
                turns,
            )
            .try_map(number)
    } else {
        text_lines(all).try_map(number)
    };
    let lines = if shape.prefetch { lines.prefetch(2) } else { lines };
    let on_threads = |lines: Dataset<i64>, here: bool| {
        if here && shape.threads > 0 { lines.map_parallel(shape.threads, |n| n) } else { lines }
    };
    let lines = on_threads(lines, shape.before_shuffle);
    let lines = if shape.shuffle > 0 { lines.shuffle(shape.shuffle, 3) } else { lines };
    on_threads(lines, !shape.before_shuffle).batch(shape.batch)
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

/// Returns the position of the passes, after checking that all have the same one.
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

/// Returns the shape of a dataset without files, and with no operation except batching.
fn plain() -> Shape {
    let (files, shuffle, threads, before_shuffle) = (Vec::new(), 0, 0, false);
    Shape { files, shuffle, threads, before_shuffle, by_name: None, prefetch: false, batch: 1 }
}

/// Returns a dataset of lines in files of these sizes, in batches of `batch`.
fn lines(files: &[usize], batch: usize) -> Dataset<HostTensor> {
    dataset(&Shape { files: files.to_vec(), batch, ..plain() })
}

/// Checks that a worker with a large file leaves the small ones to the other worker, so that both need the same number
/// of steps.
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
        // The errors have changed nothing.
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
            (Some(vec![0, 1, 2]), "a file had been dealt to worker 2, but the pass had 2 workers"),
            (Some(vec![0, 1, 0, 1]), "4 files had been dealt, but there are 3 here"),
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
        }
    });
}

// INV-3
#[test]
fn threads_end_with_the_pass_while_they_read_and_while_they_wait_for_a_file() {
    /// An endless iterator that sends a message when its thread drops it.
    struct Held(mpsc::Sender<()>, i64);
    impl Iterator for Held {
        type Item = std::result::Result<i64, &'static str>;
        fn next(&mut self) -> Option<Self::Item> {
            self.1 += 1;
            Some(Ok(self.1))
        }
    }
    impl Drop for Held {
        fn drop(&mut self) {
            // The other end is dropped if the test has failed.
            let _ = self.0.send(());
        }
    }
    watched(|| {
        let files = || Files::from(["a", "b", "c", "d"].map(|name| Location::bytes(name, "")));
        // With two files in turn, each worker needs a second one for its first step, and holds the first one open.
        for (cycle_length, dealt) in [(1, true), (2, false)] {
            let (sender, ended) = mpsc::channel();
            let turns = Interleave { cycle_length, block_length: 1, ahead: 0 };
            let endless = move |_: String| {
                let sender = sender.clone();
                Dataset::from_generator(move || Held(sender.clone(), 0))
            };
            let plan =
                plan(&Dataset::list_files(files()).interleave(endless, turns).batch(2), 2, 1, &options(1));
            let mut passes = begin(&plan, None);
            if dealt {
                assert_eq!(step(&mut passes).unwrap(), [[1], [1]]);
            } else {
                // Files are dealt only for the first round, so the workers need others.
                let counts: Vec<_> = passes.iter_mut().map(|pass| pass.prepare().unwrap()).collect();
                passes.iter_mut().for_each(|pass| assert!(pass.deal(&counts).unwrap()));
                assert!(passes.iter_mut().all(|pass| pass.prepare().unwrap().lacks_file == 1));
            }
            drop(passes);
            for worker in 0..2 {
                let end = ended.recv_timeout(Duration::from_secs(20));
                assert!(end.is_ok(), "a thread has not let go of its file, only {worker} have");
            }
        }
    });
}

/// Checks that workers with different deals notice it before they take a step: with the layout of the deals, and with
/// another one.
// INV-99
#[test]
fn workers_that_deal_differently_take_no_step() {
    watched(|| {
        let data = lines(&[4, 2, 4, 2, 4], 2);
        let two = plan(&data, 2, 1, &options(0));
        let mut passes = begin(&two, None);
        step(&mut passes);
        let mine = position(&passes);
        let theirs = Position { deals: Some(Deals::from(vec![1, 0])), ..mine.clone() };
        assert_eq!(mine.deals, Some(Deals::from(vec![0, 1])));
        for after in [two, plan(&data, 3, 1, &options(0)), plan(&data, 3, 1, &DistributeOptions::default())] {
            let pass = |worker| after.resume(worker, if worker == 1 { &theirs } else { &mine }).unwrap();
            let mut passes: Vec<_> = (0..after.layout().workers).map(pass).collect();
            let counts: Vec<_> = passes.iter_mut().map(|pass| pass.prepare().unwrap()).collect();
            for pass in &mut passes {
                let error = pass.deal(&counts).map(|_| ()).and(pass.total(&counts)).unwrap_err();
                assert!(matches!(error, Error::OtherData { step: 1, worker: 1, .. }), "{error:?}");
                assert!(
                    error.to_string().contains(
                        "at step 1, worker 1 has dealt other files than worker 0: the workers read"
                    )
                );
            }
        }
    });
}

/// Checks that a pass that dealt files resumes with [`UnevenEnds::Drop`] only if the pipeline determines which steps
/// are full. Otherwise the first step would determine it, but the resumed pass skips that step.
#[test]
fn full_steps_are_known_without_the_skipped_ones() {
    watched(|| {
        let dropping = DistributeOptions { ends: UnevenEnds::Drop, ..options(0) };
        let known = lines(&[4, 4, 4], 2);
        for (data, fits) in [(known.clone(), true), (known.map(|batch: HostTensor| batch), false)] {
            let mut passes = begin(&plan(&data, 2, 1, &options(0)), None);
            let mut seen = step(&mut passes).unwrap().concat();
            let position = position(&passes);
            let one = plan(&data, 1, 1, &dropping);
            assert_eq!(one.decision().unwrap().taken, AutoShardPolicy::Data);
            if fits {
                let mut rest = begin(&one, Some(&position));
                seen.extend(std::iter::from_fn(|| step(&mut rest)).flatten().flatten());
                let all = sorted(seen);
                let mut once = all.clone();
                once.dedup();
                assert_eq!(once, all);
            } else {
                let error = one.resume(0, &position).err().unwrap();
                assert!(matches!(error, Error::Position { .. }), "{error:?}");
                assert!(error.to_string().contains("UnevenEnds::Drop needs batches whose size"), "{error}");
            }
        }
    });
}

/// Checks that deals do not depend on timing, although a stage with a thread returns as many elements at once as are
/// ready: single ones if reading is slow, and several if the function is.
// INV-99
#[test]
fn files_are_dealt_alike_whichever_thread_is_slow() {
    fn work(is_slow: bool) {
        if is_slow {
            (0..100).for_each(|_| std::thread::yield_now());
        }
    }
    let deals = |slow_reading: bool| {
        let sizes = [30, 41, 5, 17, 64, 9, 50, 3, 22, 12, 40, 7];
        let names = sizes.iter().enumerate().map(|(i, size)| Location::bytes(format!("{i} {size}"), ""));
        let read = move |name: String| {
            let size =
                name.split_once(' ').and_then(|(_, size)| size.parse::<i64>().ok()).ok_or("no size")?;
            let read = Dataset::range(size).map(move |row| {
                work(slow_reading);
                row
            });
            Ok::<_, &str>(read.prefetch(8))
        };
        let rows = Dataset::list_files(names.collect::<Files>()).try_flat_map(read);
        let rows = rows.map_parallel(1, move |row| {
            work(!slow_reading);
            row
        });
        let mut passes = begin(&plan(&rows.batch(64), 2, 1, &options(0)), None);
        let mut deals = Vec::new();
        while step(&mut passes).is_some() {
            deals.push(position(&passes).deals.map(Vec::from));
        }
        deals
    };
    watched(move || {
        let expected = deals(true);
        for slow_reading in [false, true, false] {
            assert_eq!(deals(slow_reading), expected);
        }
    });
}

/// Checks that a pass over files whose sections are parsed on several threads resumes on the same number of workers and
/// on another one. `data` returns a dataset of the numbers in these files.
fn assert_asks_after_the_elements_of_the_others(data: impl Fn(Vec<Vec<i64>>) -> Dataset<HostTensor>) {
    let rows = [700usize, 0, 3, 1200, 40, 90, 1, 350];
    let mut next = 0i64..;
    let files = rows.iter().map(|rows| next.by_ref().take(*rows).collect());
    let data = data(files.collect()).batch(64);
    let two = plan(&data, 2, 1, &options(1));
    let mut passes = begin(&two, None);
    let mut seen: Vec<i64> = (0..4).flat_map(|_| step(&mut passes).unwrap().concat()).collect();
    let position = position(&passes);
    let mut same = begin(&two, Some(&position));
    let rest: Vec<_> = std::iter::from_fn(|| step(&mut passes)).collect();
    assert_eq!(std::iter::from_fn(|| step(&mut same)).collect::<Vec<_>>(), rest);
    let mut others = begin(&plan(&data, 3, 1, &options(1)), Some(&position));
    seen.extend(std::iter::from_fn(|| step(&mut others)).flatten().flatten());
    assert_eq!(sorted(seen), (0..rows.iter().sum::<usize>() as i64).collect::<Vec<_>>());
}

// INV-99
#[test]
fn a_source_with_threads_asks_for_a_file_after_the_elements_of_the_others() {
    watched(|| {
        assert_asks_after_the_elements_of_the_others(|files| {
            let file = |(i, numbers): (usize, Vec<i64>)| {
                let text: String = numbers.into_iter().map(|n| format!("{n},{n}\n")).collect();
                Location::bytes(format!("{i}.csv"), text)
            };
            let files: Files = files.into_iter().enumerate().map(file).collect();
            let csv = Csv::files(files).without_header().threads(3);
            let data = csv.columns([(0, ColumnType::I64)]).unwrap();
            data.map(|columns| columns.into_values().next().unwrap())
        });
    });
}

// INV-99
#[test]
fn records_that_threads_read_ask_for_a_file_after_the_elements_of_the_others() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        assert_asks_after_the_elements_of_the_others(|files| {
            let file = |(i, numbers): (usize, Vec<i64>)| {
                let path = folder.path().join(format!("{i}.tfrecord"));
                let mut writer = TfRecordWriter::create(&path, Compression::None).unwrap();
                // Records of some size, so that a file has several sections.
                let record = |n: i64| [n.to_le_bytes().to_vec(), vec![b'x'; 999]].concat();
                numbers.into_iter().for_each(|n| writer.write(&record(n)).unwrap());
                writer.finish().unwrap();
                path
            };
            let paths: Vec<_> = files.into_iter().enumerate().map(file).collect();
            let number = |record: HostTensor| {
                let bytes: Vec<Vec<u8>> = record.into_vec()?;
                Ok::<_, distribute_tensor::Error>(HostTensor::scalar(i64::from_le_bytes(
                    bytes[0][..8].try_into().unwrap(),
                )))
            };
            TfRecord::new(paths).threads(3).records().try_map(number)
        });
    });
}

#[test]
fn explain_tells_which_operation_takes_names_of_files_ahead() {
    let names = || Dataset::list_files(Files::from(["a", "b", "c"].map(|name| Location::bytes(name, ""))));
    let text = |names: Dataset<String>| {
        let lines = names.flat_map(|name| text_lines(Files::from([Location::bytes(name, "7\n")])));
        let numbers = lines.try_map(|line: String| line.parse::<i64>()).shuffle(3, 1).batch(2);
        plan(&numbers, 2, 1, &options(0)).explain()
    };
    for (data, expected) in [
        (names(), None),
        (names().shuffle(9, 1), Some("\"shuffle, buffer 9, seed 1\" takes names of files ahead")),
        (
            names().map_parallel(3, |name| name),
            Some("\"map_parallel on 3 threads\" takes names of files ahead"),
        ),
        // The names come from an earlier operation.
        (
            names().map(|name| name).shuffle(8, 1),
            Some("\"shuffle, buffer 8, seed 1\" takes names of files ahead"),
        ),
    ] {
        let text = text(data);
        assert_eq!(text.contains("takes names of files ahead"), expected.is_some(), "{text}");
        assert!(text.contains(expected.unwrap_or_default()), "{text}");
    }
}

#[test]
fn workers_predict_each_others_requests_only_with_equal_buffers_and_threads() {
    let of = |threads: usize, prefetch: usize| {
        let shape = Shape { files: vec![4, 4], threads, batch: 2, ..plain() };
        plan(&dataset(&shape), 2, 1, &options(prefetch)).pull_checksum()
    };
    assert_eq!((of(1, 1), of(1, 2)), (of(1, 1), of(1, 1)));
    assert_ne!(of(1, 1), of(2, 1));
    assert_ne!(of(1, 1), of(1, 0));
    let file = DistributeOptions { policy: AutoShardPolicy::File, ..options(1) };
    assert_eq!(plan(&lines(&[4, 4], 2), 2, 1, &file).pull_checksum(), None);
}
