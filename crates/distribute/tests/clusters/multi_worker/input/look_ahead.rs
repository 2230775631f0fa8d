//! Passes that take each step before they yield the previous one, on several workers.

use super::{Ids, files, ids, steps};
use crate::multi_worker::{links, on_workers, one_message};
use distribute::data::{AutoShardPolicy, Dataset, Location, text_lines};
use distribute::input::DistributedDataset;
use distribute::tensor::{Leaf, Nest, Tree};
use distribute::{Error, HostTensor, InputOptions, MultiWorkerMirroredStrategy, ReduceOp, Result, Strategy};
use distribute_testing::watched;

fn dealt(per_replica_buffer_size: usize) -> InputOptions {
    InputOptions { auto_shard_policy: AutoShardPolicy::Dealt, per_replica_buffer_size, ..Default::default() }
}

/// Returns the `[step][replica]` ids of this worker in a pass that takes each step early.
fn early_steps(data: &DistributedDataset<HostTensor>) -> Result<Vec<Vec<Ids>>> {
    data.iter().look_ahead(|_| distribute::Ok(())).map(ids).collect()
}

/// A pass that is left after any step has the positions of one that takes no step early, and is resumed.
// INV-103
fn assert_same_steps(
    strategy: &Strategy,
    data: impl Fn() -> Result<DistributedDataset<HostTensor>>,
) -> Result<()> {
    let all = steps(&data()?)?;
    assert_eq!(early_steps(&data()?)?, all);
    for count in 0..=all.len() {
        let (early, plain) = (data()?, data()?);
        let (mut early_pass, mut plain_pass) =
            (early.iter().look_ahead(|_| distribute::Ok(())), plain.iter());
        for step in &all[..count] {
            assert_eq!(ids(early_pass.next().unwrap())?, *step);
            plain_pass.next().unwrap()?;
        }
        assert_eq!(early.position(), plain.position(), "step {count} of {}", strategy.world());
        let resumed = data()?;
        resumed.resume(early.position())?;
        assert_eq!(early_steps(&resumed)?, all[count..]);
    }
    Ok(())
}

// INV-103
#[test]
fn dealt_files_are_the_same_if_steps_are_taken_early() {
    for (workers, replicas) in [(2, 1), (3, 1), (2, 2)] {
        on_workers(workers, replicas, move |strategy| {
            for (sizes, buffer) in [(&[9, 1, 2, 1, 3, 1][..], 0), (&[0, 0, 5, 0, 1], 2), (&[1; 17], 1)] {
                assert_same_steps(strategy, || {
                    strategy.distribute_dataset_with(files(sizes).batch(4), dealt(buffer))
                })?;
            }
            Ok(())
        });
    }
}

// INV-88, INV-103
#[test]
fn logical_replicas_have_the_same_batches_if_steps_are_taken_early() {
    watched(|| {
        for (replicas, workers) in [(5, 2), (4, 3), (3, 2)] {
            let builder = MultiWorkerMirroredStrategy::builder().logical_replicas(replicas);
            let same = |strategy: &Strategy| {
                let data = || strategy.distribute_dataset(Dataset::range(23).shuffle(23, 5).batch(7));
                assert_same_steps(strategy, data)
            };
            builder.on_threads(links(workers, replicas), workers, same).unwrap();
        }
    });
}

/// Trains until the data fails. Returns the number of steps that this worker has made, and the error.
fn steps_until_error<T: Nest + Clone + Send + Sync>(
    strategy: &Strategy,
    data: &DistributedDataset<T>,
    look: impl FnMut(&T) -> Result<()>,
) -> Result<(usize, Error)> {
    let (mut pass, mut made) = (data.iter().look_ahead(look), 0);
    let error = loop {
        match pass.next().expect("an error before the end") {
            // All workers make each step that one makes.
            Ok(_) => strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1f32))?,
            Err(error) => break error,
        };
        made += 1;
    };
    assert!(pass.next().is_none());
    assert_eq!(data.position().steps, made as u64);
    // Workers are in step: the next pass and the next run have nothing to do with the error.
    assert_eq!(strategy.distribute_dataset(Dataset::range(4).batch(4))?.iter().count(), 1);
    strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1f32))?;
    Ok((made, error))
}

fn assert_all_end(ended: Vec<(usize, Error)>, made: usize, worker: usize, text: &str) {
    let (counts, errors): (Vec<_>, Vec<_>) = ended.into_iter().unzip();
    assert!(counts.iter().all(|count| *count == made), "{counts:?}, not {made}: {errors:?}");
    let message = one_message(&errors, &[text]);
    assert!(message.starts_with(&format!("worker {worker} failed: ")), "{message}");
    assert!(errors.iter().all(|error| matches!(error, Error::Worker { .. })), "{errors:?}");
}

/// Fails at a step of one worker.
fn look_until(
    strategy: &Strategy,
    worker: usize,
    step: usize,
) -> impl FnMut(&HostTensor) -> Result<()> + use<> {
    let world = strategy.world();
    let (is_mine, local) = (world.worker() == worker, world.local_replicas().len());
    let mut looked = 0;
    move |_| {
        looked += 1;
        if is_mine && looked > step * local { Err(Error::other("unknown id")) } else { Ok(()) }
    }
}

/// The others have already taken the step, and do not make it.
// INV-2, INV-103
#[test]
fn all_workers_end_in_the_step_at_whose_batch_one_cannot_look() {
    for (workers, replicas, failing) in [(2, 1, 1), (2, 2, 0), (3, 1, 2)] {
        for step in [0, 1, 3] {
            let ended = on_workers(workers, replicas, move |strategy| {
                let data = strategy.distribute_dataset(Dataset::range(24).batch(6))?;
                steps_until_error(strategy, &data, look_until(strategy, failing, step))
            });
            assert_all_end(ended, step, failing, "unknown id");
            let ended = on_workers(workers, replicas, move |strategy| {
                let data = strategy.distribute_dataset_with(files(&[2; 12]).batch(6), dealt(1))?;
                steps_until_error(strategy, &data, look_until(strategy, failing, step))
            });
            assert_all_end(ended, step, failing, "unknown id");
        }
    }
    watched(|| {
        let builder = MultiWorkerMirroredStrategy::builder().logical_replicas(5);
        let ended = builder.on_threads(links(2, 5), 2, |strategy| {
            let data = strategy.distribute_dataset(Dataset::range(24).batch(6))?;
            steps_until_error(strategy, &data, look_until(strategy, 1, 2))
        });
        assert_all_end(ended.unwrap(), 2, 1, "unknown id");
    });
}

/// Ids of which one cannot be converted.
#[derive(Clone)]
struct NoNine(HostTensor);

impl Nest for NoNine {
    type Batch = Self;

    fn into_tree(self) -> Tree<Leaf> {
        self.0.into_tree()
    }

    fn from_tree(tree: Tree<Leaf>) -> distribute::tensor::Result<Self> {
        let ids = HostTensor::from_tree(tree)?;
        if ids.to_vec::<i64>()?.contains(&9) {
            let (path, expected, found) = ("value".into(), "ids without 9".into(), "9".into());
            return Err(distribute::tensor::Error::Structure { path, expected, found });
        }
        Ok(Self(ids))
    }
}

/// The error is found after the workers have agreed on the step.
// INV-2, INV-103
#[test]
fn all_workers_end_in_the_step_whose_batch_one_cannot_convert() {
    let ended = on_workers(2, 1, |strategy| {
        let data = strategy.distribute_dataset(Dataset::range(24).batch(4).map(NoNine))?;
        steps_until_error(strategy, &data, |_| Ok(()))
    });
    assert_all_end(ended, 2, 0, "ids without 9");
}

/// A step that cannot be prepared fails in its own place, after the steps before it.
// INV-2, INV-103
#[test]
fn all_workers_end_in_the_step_that_one_cannot_prepare() {
    let ended = on_workers(3, 1, |strategy| {
        let texts = ["0\n1\n2\n3\n", "4\n5\n", "6\n", "7\nx\n"];
        let file = |(number, text): (usize, &&'static str)| Location::bytes(format!("file {number}"), *text);
        let all: Vec<_> = texts.iter().enumerate().map(file).collect();
        let numbers = text_lines(all).try_map(|line: String| line.parse::<i64>());
        let data = || strategy.distribute_dataset_with(numbers.clone().batch(3), dealt(1));
        let plain = data()?.iter().take_while(Result::is_ok).count();
        Ok((plain, steps_until_error(strategy, &data()?, |_| Ok(()))?))
    });
    let plain = ended[0].0;
    assert_all_end(ended.into_iter().map(|(_, ended)| ended).collect(), plain, 1, "map failed at element 3");
    // Two workers fail: one holds the error of step 1, and the other fails at step 2.
    let ended = on_workers(2, 1, |strategy| {
        let fails = strategy.world().worker() == 0;
        let ids = Dataset::range(24).try_map(move |id: i64| {
            if fails && id == 8 { Err("the disk is gone".to_string()) } else { Ok(id) }
        });
        let data = strategy.distribute_dataset(ids.batch(4))?;
        steps_until_error(strategy, &data, look_until(strategy, 1, 1))
    });
    assert_all_end(ended, 1, 1, "unknown id");
}
