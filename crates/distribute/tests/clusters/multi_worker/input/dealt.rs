//! Files that are dealt to workers, in the calls in which the workers agree on steps.

use super::{Ids, all_workers, files, sorted, steps};
use crate::multi_worker::{errors, on_workers, one_message};
use distribute::data::{AutoShardPolicy, DistributeOptions, Distribution, Layout, Location, text_lines};
use distribute::{Error, HostTensor, InputOptions};

fn dealt(per_replica_buffer_size: usize) -> InputOptions {
    InputOptions { auto_shard_policy: AutoShardPolicy::Dealt, per_replica_buffer_size, ..Default::default() }
}

/// Checks that workers get the rows of the plan, each once, regardless of how early they prepare steps.
// INV-10, INV-36, INV-99
#[test]
fn workers_follow_the_plan_and_have_every_row_once() {
    let sizes: [&[usize]; 5] = [&[9, 1, 2, 1, 3, 1], &[0, 0, 5, 0, 1], &[7], &[1; 23], &[]];
    for (workers, replicas) in [(2, 1), (2, 2), (3, 1), (3, 2), (2, 3)] {
        for buffer in [0, 1, 3] {
            let each: Vec<Vec<Vec<Vec<Ids>>>> = on_workers(workers, replicas, move |strategy| {
                let of = |sizes: &&[usize]| {
                    let data = strategy.distribute_dataset_with(files(sizes).batch(4), dealt(buffer))?;
                    steps(&data)
                };
                sizes.iter().map(of).collect()
            });
            for (data, sizes) in sizes.iter().enumerate() {
                let options = DistributeOptions {
                    policy: AutoShardPolicy::Dealt,
                    prefetch: buffer,
                    ..Default::default()
                };
                let plan = Distribution::new(&files(sizes).batch(4), Layout { workers, replicas }, options);
                let step = |step: distribute::data::Result<Vec<Vec<HostTensor>>>| {
                    step.unwrap().concat().iter().map(|piece| piece.to_vec().unwrap()).collect()
                };
                let expected: Vec<Vec<Ids>> = plan.unwrap().lockstep(0).unwrap().map(step).collect();
                let all: Vec<_> = each.iter().map(|datasets| datasets[data].clone()).collect();
                let all = all_workers(&all);
                assert_eq!(all, expected, "{workers} × {replicas}, {buffer} early, {sizes:?}");
                let rows = sizes.iter().sum::<usize>() as i64;
                assert_eq!(sorted(all.concat().concat()), (0..rows).collect::<Vec<_>>());
            }
        }
    }
}

#[test]
fn workers_that_need_files_at_different_elements_are_refused_before_the_first_step() {
    let refused = errors(2, 1, |strategy| {
        let threads = 1 + strategy.world().worker();
        strategy.distribute_dataset_with(files(&[4, 4]).map_parallel(threads, |id| id).batch(4), dealt(1))
    });
    one_message(
        &refused,
        &[
            "distribute_dataset: ",
            "policy DEALT (as asked)",
            "of its buffers and threads ",
            "with the same numbers of threads in map_parallel and the same sizes of buffers, whatever machine it has",
        ],
    );
    let refused = errors(2, 1, |strategy| {
        strategy.distribute_dataset_with(files(&[4, 4]).repeat(2).batch(4), dealt(1))
    });
    one_message(
        &refused,
        &["the files cannot be dealt to the workers: \"repeat 2 times\" reads its input again"],
    );
}

// INV-2
#[test]
fn a_broken_file_ends_the_pass_of_all_with_an_error_that_names_its_worker() {
    for buffer in [0, 1] {
        let failed = on_workers(3, 1, move |strategy| {
            let texts = ["0\n1\n2\n3\n", "4\n5\n", "6\n", "7\nx\n"];
            let all: Vec<_> = texts
                .iter()
                .enumerate()
                .map(|(i, text)| Location::bytes(format!("file {i}"), *text))
                .collect();
            let numbers = text_lines(all).try_map(|line: String| line.parse::<i64>());
            let data = strategy.distribute_dataset_with(numbers.batch(3), dealt(buffer))?;
            let error = data.iter().find_map(Result::err).expect("a file is broken");
            // The next pass deals again, and finds it again.
            assert!(data.iter().any(|step| step.is_err()));
            Ok(error)
        });
        // Workers 1 and 2 need more rows for a batch. Worker 1 is dealt the last file.
        one_message(&failed, &["worker 1 failed: ", "map failed at element 3"]);
        assert!(matches!(failed[1].root_cause(), Error::Data(_)));
    }
}
