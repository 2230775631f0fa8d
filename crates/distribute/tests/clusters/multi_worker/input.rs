//! Datasets that are sharded over workers: the elements of each worker, and the step in which all end.

mod dealt;
mod faults;
mod look_ahead;

use crate::multi_worker::{errors, on_workers, one_message};
use distribute::data::{
    AutoShardPolicy, Dataset, DistributeOptions, Distribution, InputContext, Layout, Location, SplitRule,
    UnevenEnds, text_lines,
};
use distribute::input::{DistributedDataset, InputReplicationMode};
use distribute::legacy::{InputSource, Legacy};
use distribute::{
    Error, HostTensor, InputOptions, MirroredStrategy, OneDeviceStrategy, PerReplica, Result, Strategy,
};
use std::sync::atomic::{AtomicI64, Ordering};

const LAYOUTS: [(usize, usize); 6] = [(1, 2), (2, 1), (2, 2), (3, 1), (3, 2), (2, 3)];
const RULES: [SplitRule; 2] = [SplitRule::Even, SplitRule::TensorFlow];
const ENDS: [UnevenEnds; 3] = [UnevenEnds::PadEmpty, UnevenEnds::StopAll, UnevenEnds::Drop];

type Ids = Vec<i64>;

fn ids(step: Result<PerReplica<HostTensor>>) -> Result<Vec<Ids>> {
    step?.into_iter().map(|piece| Ok(piece.to_vec()?)).collect()
}

/// Returns the ids of this worker, by step and replica.
fn steps(data: &DistributedDataset<HostTensor>) -> Result<Vec<Vec<Ids>>> {
    data.iter().map(ids).collect()
}

/// Joins the ids that each worker reported: returns those of all replicas, by step and replica.
fn all_workers(workers: &[Vec<Vec<Ids>>]) -> Vec<Vec<Ids>> {
    let count = workers[0].len();
    assert!(workers.iter().all(|steps| steps.len() == count), "{workers:?}");
    (0..count).map(|step| workers.iter().flat_map(|steps| steps[step].clone()).collect()).collect()
}

fn sorted(mut ids: Ids) -> Ids {
    ids.sort_unstable();
    ids
}

/// Returns the ids from 0 on, in files with the given numbers of lines.
fn files(sizes: &[usize]) -> Dataset<i64> {
    let mut next = 0..;
    let file = |(number, size): (usize, &usize)| {
        let lines: String = next.by_ref().take(*size).map(|id| format!("{id}\n")).collect();
        Location::bytes(format!("file {number}"), lines)
    };
    let files: Vec<_> = sizes.iter().enumerate().map(file).collect();
    text_lines(files).try_map(|line: String| line.parse::<i64>())
}

/// Checks INV-10 for any number of rows in the last batch, even if a worker gets none of them.
#[test]
fn inv_10_workers_together_have_the_batches_of_one_process_with_the_same_replicas() {
    for workers in 1..=3 {
        for replicas in 1..=3 {
            let plans = || {
                let policies = [AutoShardPolicy::Auto, AutoShardPolicy::Data];
                policies.into_iter().flat_map(|policy| (0..=13).map(move |n| (policy, n)))
            };
            let run = move |strategy: &Strategy| {
                plans()
                    .map(|(auto_shard_policy, n)| {
                        let options = InputOptions { auto_shard_policy, ..Default::default() };
                        steps(&strategy.distribute_dataset_with(Dataset::range(n).batch(5), options)?)
                    })
                    .collect::<Result<Vec<_>>>()
            };
            let each = on_workers(workers, replicas, run);
            let one = run(&MirroredStrategy::cpus(workers * replicas).unwrap()).unwrap();
            for (plan, (_, n)) in plans().enumerate() {
                let all: Vec<_> = each.iter().map(|plans| plans[plan].clone()).collect();
                assert_eq!(all_workers(&all), one[plan], "{workers} × {replicas}, {n} elements");
            }
        }
    }
}

/// Checks, for each policy, rule and end (ITER-4), that workers get the elements of the plan, and end in the same step.
#[test]
fn iter_4_workers_follow_the_plan_and_end_in_the_same_step() {
    let cases = || {
        let policies =
            [AutoShardPolicy::Auto, AutoShardPolicy::Data, AutoShardPolicy::Off, AutoShardPolicy::File];
        let each = policies.into_iter().flat_map(|policy| RULES.map(|rule| (policy, rule)));
        each.flat_map(|(policy, rule)| ENDS.map(|ends| (policy, rule, ends)))
    };
    // The third worker reads no file of the second of these, and an empty one of the third.
    let sizes: [&[usize]; 4] = [&[4, 3, 6], &[7, 5, 0], &[2, 9, 0, 1], &[1, 0, 0]];
    for (workers, replicas) in LAYOUTS {
        let each = on_workers(workers, replicas, move |strategy| {
            let run = |(auto_shard_policy, split_rule, uneven_ends)| {
                let options =
                    InputOptions { auto_shard_policy, split_rule, uneven_ends, ..Default::default() };
                let of = |sizes: &&[usize]| {
                    steps(&strategy.distribute_dataset_with(files(sizes).batch(4), options)?)
                };
                sizes.iter().map(of).collect::<Result<Vec<_>>>()
            };
            cases().map(run).collect::<Result<Vec<_>>>()
        });
        for (case, (policy, rule, ends)) in cases().enumerate() {
            for (data, sizes) in sizes.iter().enumerate() {
                let options = DistributeOptions { policy, rule, ends, ..Default::default() };
                let plan = Distribution::new(&files(sizes).batch(4), Layout { workers, replicas }, options);
                let step = |step: distribute::data::Result<Vec<Vec<HostTensor>>>| {
                    let pieces = step.unwrap().concat();
                    pieces.iter().map(|piece| piece.to_vec().unwrap()).collect()
                };
                let expected: Vec<Vec<Ids>> = plan.unwrap().lockstep(0).unwrap().map(step).collect();
                let all: Vec<_> = each.iter().map(|cases| cases[case][data].clone()).collect();
                assert_eq!(
                    all_workers(&all),
                    expected,
                    "{workers} × {replicas}, {policy}, {rule:?}, {ends:?}, {sizes:?}"
                );
            }
        }
    }
}

#[test]
fn as_1_the_policy_decides_how_workers_partition_the_data() {
    let parted = |auto_shard_policy| {
        on_workers(2, 1, move |strategy| {
            let options = InputOptions { auto_shard_policy, ..Default::default() };
            let data = strategy.distribute_dataset_with(files(&[4, 4]).batch(4), options)?;
            Ok(steps(&data)?.concat())
        })
    };
    // Each worker reads its own files, or all of them and takes its own pieces, or simply all of them.
    let by_file = [[[0, 1], [2, 3]], [[4, 5], [6, 7]]];
    assert_eq!(parted(AutoShardPolicy::File), by_file);
    assert_eq!(parted(AutoShardPolicy::Auto), by_file);
    assert_eq!(parted(AutoShardPolicy::Data), [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]);
    assert_eq!(parted(AutoShardPolicy::Off), [[[0, 1], [2, 3], [4, 5], [6, 7]]; 2]);
}

// AS-6
#[test]
fn as_6_workers_take_their_partition_of_each_batch() {
    let each = on_workers(2, 1, |strategy| {
        let data = strategy.distribute_dataset(Dataset::range(5).batch(4))?;
        Ok(steps(&data)?.concat())
    });
    assert_eq!(each, [[vec![0, 1], vec![4]], [vec![2, 3], vec![]]]);
}

// AS-5, AS-8
#[test]
fn as_8_auto_parts_by_files_where_there_are_enough() {
    let explain = |count: usize| {
        let each = on_workers(2, 1, move |strategy| {
            Ok(strategy.distribute_dataset(files(&vec![3; count]).batch(2))?.explain())
        });
        assert_eq!(each[0], each[1]);
        each[1].clone()
    };
    let enough = explain(3);
    assert!(enough.contains("policy FILE (AUTO)"), "{enough}");
    assert!(enough.contains("worker 0 reads lines of text from 'file 0', 'file 2'"), "{enough}");
    assert!(enough.contains("worker 1 reads lines of text from 'file 1'"), "{enough}");
    let few = explain(1);
    assert!(few.contains("policy DATA (AUTO): a source has 1 file(s), not enough for 2 workers"), "{few}");
    assert!(few.contains("worker 1 reads everything, and takes its rows of each batch"), "{few}");
}

/// Checks that too few files are one error on all workers (AS-5). TensorFlow fails on some workers, and returns an
/// empty dataset on others.
#[test]
fn as_5_too_few_files_are_one_error_on_all_workers_before_the_first_step() {
    let errors = errors(3, 1, |strategy| {
        let options = InputOptions { auto_shard_policy: AutoShardPolicy::File, ..Default::default() };
        strategy.distribute_dataset_with(files(&[2, 2]).batch(2), options)
    });
    one_message(&errors, &["2 file(s)", "3 "]);
    assert!(errors.iter().all(|error| matches!(error.root_cause(), Error::Data(_))), "{errors:?}");
}

/// Checks that a shuffle has the same order on all workers (DIST-13). TensorFlow's has a separate state on each worker,
/// so rows are repeated or missing.
#[test]
fn dist_13_a_shuffle_has_the_same_order_on_every_worker_and_another_in_every_epoch() {
    let data = || Dataset::range(40).shuffle(16, 7).repeat(2).batch(8);
    let each = on_workers(2, 1, move |strategy| {
        let batches = strategy.distribute_dataset(data())?;
        // Random numbers that one process draws elsewhere do not change the order.
        let other = Dataset::range(strategy.world().worker() as i64 * 5).shuffle(5, 7);
        other.iter().for_each(|element| assert!(element.is_ok()));
        [(); 2].into_iter().map(|()| steps(&batches)).collect::<Result<Vec<_>>>()
    });
    let epoch =
        |number: usize| all_workers(&[each[0][number].clone(), each[1][number].clone()]).concat().concat();
    let alone = OneDeviceStrategy::new("cpu:0").unwrap().distribute_dataset(data()).unwrap();
    for number in [0, 1] {
        assert_eq!(epoch(number), steps(&alone).unwrap().concat().concat(), "as one worker has them");
        assert_eq!(sorted(epoch(number)), (0..80).map(|i| i / 2).collect::<Vec<_>>());
    }
    assert_ne!(epoch(0), epoch(1));
}

#[test]
fn dist_11_the_rows_of_batches_are_unknown_before_the_first_if_workers_take_turns() {
    let specs = on_workers(2, 2, |strategy| {
        let data = strategy.distribute_dataset(Dataset::range(9).batch_exact(4))?;
        let specs = data.element_spec().expect("a range tells");
        Ok(specs.iter().map(|spec| spec.describe(&ToString::to_string)).collect::<Vec<_>>())
    });
    assert_eq!(specs, [["int64 [?]"; 2]; 2]);
}

// FN-1, IN-2, ITER-4
#[test]
fn iter_4_workers_of_a_function_take_the_same_number_of_steps() {
    let seen = on_workers(2, 1, |strategy| {
        let make = |context: InputContext| {
            assert_eq!((context.num_input_pipelines, context.num_replicas_in_sync), (2, 2));
            Ok(Dataset::range([3, 5][context.input_pipeline_id]).batch(2))
        };
        Ok(steps(&strategy.distribute_datasets_from_function(make)?)?.concat())
    });
    assert_eq!(seen, [[vec![0, 1], vec![2], vec![]], [vec![0, 1], vec![2, 3], vec![4]]]);
}

/// Checks candle tensors of which one worker has none (FN-1, ITER-2).
#[test]
fn a_worker_without_elements_has_empty_batches_of_candle_tensors() {
    let seen = on_workers(2, 2, |strategy| {
        let make = |context: InputContext| {
            let rows = [3, 0][context.input_pipeline_id];
            let x = candle_core::Tensor::ones((rows, 2), candle_core::DType::F32, &candle_core::Device::Cpu)
                .map_err(Error::other)?;
            let labels = HostTensor::vector(vec![0u8; rows]);
            Ok(Dataset::from_slices((x, labels))?.batch(2))
        };
        let data = strategy.distribute_datasets_from_function(make)?;
        let steps = data.iter().map(|step| {
            let rows = |(x, labels): (candle_core::Tensor, HostTensor)| (x.dims().to_vec(), labels.len());
            Ok(strategy.run(step?, |_, piece| Ok(rows(piece)))?.into_values())
        });
        steps.collect::<Result<Vec<_>>>()
    });
    let piece = |rows: usize| (vec![rows, 2], rows);
    assert_eq!(seen, [[[piece(2), piece(1)]], [[piece(0), piece(0)]]]);
}

/// Checks datasets of any sizes, some of them empty. All per-replica batches arrive except those that an end omits, and
/// all workers make the same number of steps.
#[test]
fn datasets_of_a_function_end_together_under_each_end() {
    let sizes: [[i64; 3]; 4] = [[0, 0, 0], [0, 5, 2], [7, 1, 0], [4, 4, 4]];
    for (workers, replicas) in LAYOUTS {
        let each = on_workers(workers, replicas, move |strategy| {
            let run = |(ends, sizes): (UnevenEnds, [i64; 3])| {
                let options = InputOptions { uneven_ends: ends, ..Default::default() };
                let make = move |context: InputContext| {
                    Ok(Dataset::range(sizes[context.input_pipeline_id]).batch(2))
                };
                steps(&strategy.distribute_datasets_from_function_with(options, make)?)
            };
            ENDS.into_iter()
                .flat_map(|ends| sizes.map(|sizes| (ends, sizes)))
                .map(run)
                .collect::<Result<Vec<_>>>()
        });
        for (case, (ends, sizes)) in
            ENDS.into_iter().flat_map(|ends| sizes.map(|sizes| (ends, sizes))).enumerate()
        {
            let all: Vec<_> = each.iter().map(|cases| cases[case].clone()).collect();
            let elements = |worker: usize| (sizes[worker] as usize).div_ceil(2);
            let count = match ends {
                UnevenEnds::PadEmpty => (0..workers).map(|worker| elements(worker).div_ceil(replicas)).max(),
                UnevenEnds::StopAll => (0..workers).map(|worker| elements(worker) / replicas).min(),
                // A batch that is shorter than in the first step is not used.
                _ => (0..workers).map(|worker| sizes[worker] as usize / 2 / replicas).min(),
            };
            let steps = all_workers(&all);
            let what = format!("{workers} × {replicas}, {ends:?}, {sizes:?}: {steps:?}");
            match ends {
                UnevenEnds::PadEmpty | UnevenEnds::StopAll => assert_eq!(Some(steps.len()), count, "{what}"),
                _ => assert!(Some(steps.len()) >= count, "{what}"),
            }
            if ends == UnevenEnds::PadEmpty {
                let ids = (0..workers).flat_map(|worker| 0..sizes[worker]).collect();
                assert_eq!(sorted(steps.concat().concat()), sorted(ids), "{what}");
            }
        }
    }
}

#[test]
fn vff_1_each_worker_creates_the_values_of_its_replicas() {
    let each = on_workers(3, 2, |strategy| {
        let values = strategy.distribute_values_from_function(|context| Ok(context.to_string()))?;
        strategy.local_results(values)
    });
    assert_eq!(each[2], ["replica 4 of 6", "replica 5 of 6"]);
}

// LEG-1, LEG-3, LEG-4
#[test]
fn leg_1_older_names_partition_the_data_as_newer_ones() {
    let each = on_workers(2, 2, |strategy| {
        let mut inputs = strategy.make_dataset_iterator(Dataset::range(8).batch(4))?;
        let mut seen = Vec::new();
        for _ in 0..2 {
            inputs.initialize();
            seen.push(ids(inputs.get_next())?);
        }
        // A callable that ends sooner on one worker.
        let mine = 2 + 2 * strategy.world().worker() as i64;
        let callable = move |_| {
            let calls = AtomicI64::new(0);
            Ok(InputSource::callable(move || {
                let call = calls.fetch_add(1, Ordering::Relaxed);
                Ok((call < mine).then(|| HostTensor::vector(vec![call])))
            }))
        };
        let mut inputs = strategy.make_input_fn_iterator(callable, InputReplicationMode::PerWorker)?;
        while let Some(step) = inputs.get_next_as_optional()? {
            seen.push(ids(Ok(step))?);
        }
        Ok(seen)
    });
    let step = |pieces: [&[i64]; 2]| pieces.map(<[i64]>::to_vec).to_vec();
    assert_eq!(each[0], [step([&[0], &[1]]), step([&[0], &[1]]), step([&[0], &[1]]), step([&[], &[]])]);
    assert_eq!(each[1], [step([&[2], &[3]]), step([&[2], &[3]]), step([&[0], &[1]]), step([&[2], &[3]])]);
}

// IN-5
#[test]
fn in_5_a_dataset_for_each_replica_is_refused_over_workers() {
    let errors = errors(2, 2, |strategy| {
        let options =
            InputOptions { replication_mode: InputReplicationMode::PerReplica, ..Default::default() };
        strategy.distribute_datasets_from_function_with(options, |_| Ok(Dataset::range(4).batch(2)))
    });
    one_message(&errors, &["MultiWorkerMirroredStrategy does not support InputReplicationMode::PerReplica"]);
}
