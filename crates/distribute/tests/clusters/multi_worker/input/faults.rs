//! Errors on all workers if the data of one worker fails, ends early or differs.

use super::files;
use crate::multi_worker::{errors, on_workers, one_message};
use distribute::data::{AutoShardPolicy, Dataset, InputContext, Location, text_lines};
use distribute::{Error, InputOptions, Result, Strategy};
use distribute_testing::watched;

/// Checks scalars, of which no empty batch can be made (ITER-2): workers that still have some do not continue alone.
#[test]
fn iter_2_a_step_that_one_worker_cannot_fill_is_an_error_on_all() {
    let taken = on_workers(2, 2, |strategy| {
        let make = |context: InputContext| Ok(Dataset::range([2, 4][context.input_pipeline_id]));
        let data = strategy.distribute_datasets_from_function(make)?;
        let mut steps = data.iter();
        assert!(steps.next().unwrap().is_ok());
        let error = steps.next().unwrap().expect_err("worker 0 has nothing");
        assert!(steps.next().is_none(), "it is over");
        Ok(error)
    });
    one_message(&taken, &["only 2 of 4 replicas have data for step 1", "no empty batch can be made"]);
    // If all workers end at the same step, this is a regular end.
    let counts = on_workers(2, 1, |strategy| {
        let data = strategy.distribute_datasets_from_function(|_| Ok(Dataset::range(3)))?;
        data.iter().map(|step| step.map(drop)).collect::<Result<Vec<_>>>().map(|steps| steps.len())
    });
    assert_eq!(counts, [3, 3]);
}

/// Returns a dataset that fails at element 6 on one worker only, like a broken disk.
fn broken_on(worker: usize, strategy: &Strategy) -> Dataset<i64> {
    let fails = strategy.world().worker() == worker;
    Dataset::range(12)
        .try_map(move |id: i64| if fails && id == 6 { Err("the disk is gone".to_string()) } else { Ok(id) })
}

#[test]
fn a_worker_whose_data_fails_ends_the_pass_of_all_with_its_error() {
    for policy in [AutoShardPolicy::Auto, AutoShardPolicy::Data, AutoShardPolicy::Off] {
        for (workers, replicas, broken) in [(2, 1, 1), (2, 2, 0), (3, 2, 2)] {
            let errors = on_workers(workers, replicas, move |strategy| {
                let options = InputOptions { auto_shard_policy: policy, ..Default::default() };
                let data = strategy.distribute_dataset_with(broken_on(broken, strategy).batch(4), options)?;
                let mut steps = data.iter();
                let mut taken = 0;
                let error = loop {
                    match steps.next().unwrap() {
                        Ok(_) => taken += 1,
                        Err(error) => break error,
                    }
                };
                assert!(taken > 0 && steps.next().is_none());
                // The next pass has nothing to do with it.
                assert_eq!(strategy.distribute_dataset(Dataset::range(4).batch(4))?.iter().count(), 1);
                Ok(error)
            });
            let text = one_message(&errors, &["element 6", "the disk is gone"]);
            assert!(text.starts_with(&format!("worker {broken} failed: ")), "{text}");
            assert!(matches!(errors[broken].root_cause(), Error::Data(_)));
        }
    }
}

/// Checks that all workers get an error that names the worker once, regardless of which worker returns it first.
#[test]
fn a_program_that_ends_with_the_error_of_the_data_names_its_worker() {
    let error = watched(|| {
        crate::multi_worker::on_threads(3, 1, |strategy| {
            let data = strategy.distribute_dataset(broken_on(2, strategy).batch(3))?;
            data.iter().try_for_each(|step| step.map(drop))
        })
        .unwrap_err()
    });
    assert!(matches!(error, Error::Worker { worker: 2, .. }), "{error}");
    assert_eq!(error.to_string().matches("worker 2 failed: ").count(), 1, "{error}");
}

#[test]
fn a_function_that_fails_on_one_worker_fails_on_all() {
    let errors = errors(2, 1, |strategy| {
        strategy.distribute_datasets_from_function(|context| match context.input_pipeline_id {
            0 => Err(Error::other("no such table")),
            _ => Ok(Dataset::range(4).batch(2)),
        })
    });
    one_message(&errors, &["worker 0 failed", "input pipeline id 0, total: 2: no such table"]);
}

/// Checks AS-8 if workers see different files: AUTO would choose FILE on one and DATA on the other, and rows would be
/// lost.
#[test]
fn workers_that_would_partition_the_data_differently_are_refused_before_the_first_step() {
    let errors = errors(2, 1, |strategy| {
        let count = [2, 1][strategy.world().worker()];
        strategy.distribute_dataset(files(&vec![4; count]).batch(4))
    });
    one_message(
        &errors,
        &[
            "distribute_dataset: the workers have other files: the number of files is 1 on worker 1, ",
            "but 2 (file 1 is 'file 1') on worker 0",
            "give all of them the same files",
        ],
    );
    let errors = super::errors(2, 2, |strategy| {
        strategy.distribute_dataset(Dataset::range(12).batch(3 + strategy.world().worker()))
    });
    one_message(&errors, &["batches of 4", "batches of 3"]);
}

/// Checks workers with different lists of files. Each would take its shard of its own list, and rows would be skipped.
#[test]
fn workers_with_other_files_are_refused_before_the_first_step() {
    let file = |name: &str, text: &str| Location::bytes(name, text.repeat(20));
    let refused = |policy, theirs: [Location; 2], texts: &[&str]| {
        let errors = errors(2, 1, move |strategy| {
            let first = [file("d/a", "1\n"), file("d/b", "2\n")];
            let lines = text_lines(if strategy.world().worker() == 0 { first } else { theirs.clone() });
            let options = InputOptions { auto_shard_policy: policy, ..Default::default() };
            strategy.distribute_dataset_with(lines.batch(4), options)
        });
        one_message(&errors, texts);
    };
    for policy in [AutoShardPolicy::Auto, AutoShardPolicy::File, AutoShardPolicy::Data] {
        let named = "the workers have other files: file 1 is 'd/c' on worker 1, but 'd/b' on worker 0";
        refused(
            policy,
            [file("d/a", "1\n"), file("d/c", "2\n")],
            &[named, "the same files in the same order"],
        );
        let longer = "the size of 'd/b' is 60 bytes on worker 1, but 40 bytes on worker 0";
        refused(policy, [file("d/a", "1\n"), file("d/b", "22\n")], &[longer]);
        let other = "the content of 'e/a' is of checksum ";
        refused(policy, [file("e/a", "7\n"), file("e/b", "2\n")], &[other, " on worker 1, but of checksum "]);
        refused(policy, [file("d/b", "2\n"), file("d/a", "1\n")], &["file 0 is 'd/b' on worker 1"]);
    }
    // Each worker may have its copies in another folder. With `Off`, each worker reads all of its files, which
    // may differ.
    for (policy, folders) in
        [(AutoShardPolicy::Auto, ["x", "/scratch/y"]), (AutoShardPolicy::Off, ["x/1", "x/2"])]
    {
        let steps = on_workers(2, 1, move |strategy| {
            let worker = strategy.world().worker();
            let text = if policy == AutoShardPolicy::Off { worker.to_string() } else { "0".into() };
            let named = |name: &str| file(&format!("{}/{name}", folders[worker]), &format!("{text}\n"));
            let options = InputOptions { auto_shard_policy: policy, ..Default::default() };
            let lines = text_lines([named("a"), named("b")]);
            Ok(strategy.distribute_dataset_with(lines.batch(4), options)?.iter().count())
        });
        assert_eq!(steps[0], steps[1]);
    }
}

/// Checks functions that return more elements on one worker, which would continue with batches of another order.
#[test]
fn a_worker_that_reads_the_same_data_and_is_at_its_end_before_the_others_is_named() {
    let taken = on_workers(2, 2, |strategy| {
        let lines = [12, 8][strategy.world().worker()];
        let options = InputOptions { auto_shard_policy: AutoShardPolicy::Data, ..Default::default() };
        let made = Dataset::from_generator(move || (0..lines).map(Ok::<i64, Error>));
        let data = strategy.distribute_dataset_with(made.batch(4), options)?;
        let mut steps = data.iter();
        let taken = steps.by_ref().take(2).filter(Result::is_ok).count();
        Ok((taken, steps.next().unwrap().expect_err("they differ")))
    });
    assert!(taken.iter().all(|(taken, _)| *taken == 2));
    let errors: Vec<_> = taken.into_iter().map(|(_, error)| error).collect();
    one_message(
        &errors,
        &["at step 2, worker 1 is at the end of the data", "the workers read different data"],
    );
    assert!(matches!(errors[0].root_cause(), Error::Data(_)));
}

/// Checks two passes whose steps the workers take in different orders: neither gets the batches of the other (T7).
#[test]
fn steps_of_different_datasets_are_independent() {
    let errors = errors(2, 1, |strategy| {
        let train = strategy.distribute_dataset(Dataset::range(8).batch(4))?;
        let test = strategy.distribute_dataset(Dataset::range(6).batch(4))?;
        let (mut train, mut test) = (train.iter(), test.iter());
        match strategy.world().worker() {
            0 => train.next().unwrap(),
            _ => test.next().unwrap(),
        }
    });
    one_message(&errors, &["the next batch (epoch 0, step 0 of pipeline ", "input/faults.rs"]);
    assert_eq!(errors[0].blame().unwrap().culprits, [0, 1]);
}

/// Checks a worker that leaves a pass early (T7). TensorFlow hangs.
#[test]
fn a_worker_that_leaves_a_pass_early_is_named() {
    let results = on_workers(3, 1, |strategy| {
        let data = strategy.distribute_dataset(Dataset::range(12).batch(3))?;
        let take = if strategy.world().worker() == 1 { 2 } else { usize::MAX };
        Ok(data.iter().take(take).map(|step| step.map(drop)).collect::<Result<Vec<_>>>().err())
    });
    assert!(results[1].is_none());
    for worker in [0, 2] {
        let error = results[worker].as_ref().expect("an error");
        assert_eq!(error.blame().unwrap().culprits, [1], "{error}");
        assert!(error.to_string().contains("the next batch (epoch 0, step 2"), "{error}");
    }
}

/// Checks an iterator adapter of the standard library, which calls `next` at its own source line.
#[test]
fn the_line_of_a_loop_is_named_also_where_an_adapter_takes_its_steps() {
    let errors = errors(2, 1, |strategy| {
        let data = strategy.distribute_dataset(Dataset::range(8).batch(2))?;
        for (number, step) in data.iter().enumerate() {
            step?;
            if number == 1 && strategy.world().worker() == 1 {
                strategy.run((), |ctx, ()| ctx.all_reduce(distribute::ReduceOp::Sum, 1f32))?;
            }
        }
        Ok(())
    });
    let text = errors[0].to_string();
    assert!(text.contains("faults.rs:") && !text.contains("enumerate.rs"), "{text}");
}
