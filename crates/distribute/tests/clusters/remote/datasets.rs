//! Datasets of workers, and the positions from which they resume.

use crate::remote::support::{
    Worker, call_of, context, making, resource, value, worker, worker_with, workers_of,
};
use crate::support::on_cluster;
use bytes::Bytes;
use distribute::input::DistributedDataset;
use distribute::remote::{Batches, RemoteFunction, WorkerContext};
use distribute::{Dataset, Error, HostTensor, InputOptions, ParameterServerStrategy, Result, Variable};
use distribute_coordinator::{Call, Failure, FailureKind, ResourceId};
use distribute_testing::watched;

/// Returns the numbers below `count` in batches of two. Each pass has a different order.
#[distribute::remote]
fn numbers(_worker: &WorkerContext, count: i64) -> Result<Dataset<HostTensor>> {
    Ok(Dataset::range(count).shuffle(10, 42).batch(2))
}

/// Returns the n-th part of the numbers for worker n.
#[distribute::remote]
fn part(worker: &WorkerContext) -> Result<DistributedDataset<HostTensor>> {
    let input = worker.input_context();
    worker.strategy().distribute_datasets_from_function(move |context| {
        let all = Dataset::range(8).shard(input.num_input_pipelines, input.input_pipeline_id);
        Ok(all.batch(context.get_per_replica_batch_size(2)?))
    })
}

#[distribute::remote]
fn draw(_worker: &WorkerContext, data: &Batches<HostTensor>) -> Result<Vec<Vec<i64>>> {
    let pieces = data.next()?;
    pieces.iter().map(|piece| Ok(piece.to_vec::<i64>()?)).collect()
}

#[distribute::remote]
fn begin(_worker: &WorkerContext, data: &Batches<HostTensor>) -> Result<()> {
    data.begin();
    Ok(())
}

fn make<F: RemoteFunction>(
    worker: &Worker,
    _: F,
    arguments: Vec<distribute_coordinator::Argument>,
    position: Option<&Bytes>,
) -> Result<(), Failure>
where
    F::Output: distribute::remote::IntoBatches,
{
    let call = Call { function: F::dataset_id(), arguments };
    worker.0.create(&making(), ResourceId(1), &call, position)
}

fn all(worker: &Worker) -> Vec<Vec<Vec<i64>>> {
    std::iter::from_fn(|| match worker.try_call(draw, [resource(1)]) {
        Ok(batch) => Some(batch),
        Err(failure) if failure.kind == FailureKind::EndOfData => None,
        Err(failure) => panic!("{failure}"),
    })
    .collect()
}

/// Returns the position of a worker's dataset; `None` if it has not changed.
fn moved(worker: &Worker) -> Option<Bytes> {
    let positions = worker.0.positions();
    assert!(positions.iter().all(|(id, _)| *id == ResourceId(1)) && positions.len() <= 1);
    positions.into_iter().next().map(|(_, position)| position)
}

// CC-12, INV-61
#[test]
fn a_dataset_resumes_at_its_position_on_a_restarted_worker() {
    watched(|| {
        let strategy = on_cluster(1, 2);
        let first = workers_of(&strategy).remove(0);
        let make_at = |worker: &Worker, position: Option<Bytes>| {
            make(worker, numbers, vec![value(24i64)], position.as_ref()).unwrap();
        };
        make_at(&first, None);
        assert_eq!(moved(&first), None);
        let undisturbed = {
            let worker = workers_of(&strategy).remove(0);
            make_at(&worker, None);
            let one = all(&worker);
            worker.call(begin, [resource(1)]);
            [one, all(&worker)].concat()
        };
        assert_eq!(undisturbed.len(), 24);
        assert_ne!(undisturbed[..12], undisturbed[12..]);

        let mut drawn: Vec<_> = (0..5).map(|_| first.call(draw, [resource(1)])).collect();
        let at_five = moved(&first).unwrap();
        assert_eq!(moved(&first), None);
        // An element that is drawn after the reported position is drawn again by the next worker.
        first.call(draw, [resource(1)]);
        let second = workers_of(&strategy).remove(0);
        make_at(&second, Some(at_five));
        assert_eq!(moved(&second), None);
        drawn.extend((0..4).map(|_| second.call(draw, [resource(1)])));
        let third = workers_of(&strategy).remove(0);
        make_at(&third, moved(&second));
        drawn.extend(all(&third));
        assert_eq!(drawn, undisturbed[..12]);

        // A dataset that has ended stays at its end.
        let fourth = workers_of(&strategy).remove(0);
        make_at(&fourth, moved(&third));
        assert!(all(&fourth).is_empty() && all(&fourth).is_empty());
        fourth.call(begin, [resource(1)]);
        drawn.push(fourth.call(draw, [resource(1)]));
        let fifth = workers_of(&strategy).remove(0);
        make_at(&fifth, moved(&fourth));
        drawn.extend(all(&fifth));
        assert_eq!(drawn, undisturbed);
    });
}

// INV-61
#[test]
fn the_inputs_of_a_retried_call_are_available_again() {
    watched(|| {
        let worker = worker();
        make(&worker, numbers, vec![value(8i64)], None).unwrap();
        worker.0.rewind();
        let first = worker.call(draw, [resource(1)]);
        worker.0.rewind();
        assert_eq!(worker.call(draw, [resource(1)]), first);
        moved(&worker).unwrap();
        worker.0.rewind();
        let rest = all(&worker);
        // From the end, which has not been reported.
        worker.0.rewind();
        assert_eq!(all(&worker), rest);
        assert_eq!(rest.len(), 3);
        moved(&worker).unwrap();
        worker.0.rewind();
        assert!(all(&worker).is_empty());
        // To the reported end, after another pass has begun.
        worker.call(begin, [resource(1)]);
        assert_ne!(worker.call(draw, [resource(1)]), first);
        worker.0.rewind();
        assert!(all(&worker).is_empty());
    });
}

#[test]
fn another_pass_can_be_begun_in_the_middle_of_one() {
    watched(|| {
        let worker = worker();
        make(&worker, numbers, vec![value(24i64)], None).unwrap();
        let one = all(&worker);
        worker.call(begin, [resource(1)]);
        let two = all(&worker);
        worker.call(begin, [resource(1)]);
        let three = all(&worker);
        // If a pass begins twice, no element is skipped. If another pass begins within one, the rest of it is skipped.
        make(&worker, numbers, vec![value(24i64)], None).unwrap();
        worker.call(begin, [resource(1)]);
        assert_eq!(worker.call(draw, [resource(1)]), one[0]);
        let position = moved(&worker).unwrap();
        worker.call(begin, [resource(1)]);
        worker.call(begin, [resource(1)]);
        assert!(moved(&worker).is_some());
        assert_eq!(all(&worker), two);
        worker.call(begin, [resource(1)]);
        assert_eq!(all(&worker), three);
        make(&worker, numbers, vec![value(24i64)], Some(&position)).unwrap();
        worker.call(begin, [resource(1)]);
        assert_eq!(all(&worker), two);
    });
}

// PSV2-DS
#[test]
fn psv2_ds_each_worker_has_the_complete_dataset_unless_it_shards_it() {
    watched(|| {
        let workers = workers_of(&on_cluster(2, 2));
        for worker in &workers {
            make(worker, numbers, vec![value(4i64)], None).unwrap();
            assert_eq!(all(worker).concat().concat().len(), 4);
        }
        for worker in &workers {
            make(worker, part, vec![], None).unwrap();
        }
        assert_eq!(all(&workers[0]), [[[0, 2]], [[4, 6]]]);
        assert_eq!(all(&workers[1]), [[[1, 3]], [[5, 7]]]);
    });
}

#[test]
fn a_batch_is_split_for_the_replicas_of_the_worker() {
    watched(|| {
        let worker = worker_with(ParameterServerStrategy::builder().devices(["cpu:0", "cpu:1"]));
        make(&worker, numbers, vec![value(5i64)], None).unwrap();
        let all = all(&worker);
        assert!(all.iter().all(|pieces| pieces.len() == 2));
        let mut drawn = all.concat().concat();
        drawn.sort_unstable();
        assert_eq!(drawn, [0, 1, 2, 3, 4]);
    });
}

/// Returns a dataset whose fourth batch fails the first time.
#[distribute::remote]
fn fails_once(_worker: &WorkerContext) -> Result<Dataset<HostTensor>> {
    let failed = std::sync::atomic::AtomicBool::new(false);
    let map = move |number: i64| match number {
        7 if !failed.swap(true, std::sync::atomic::Ordering::Relaxed) => Err("the disk was away"),
        number => Ok(number),
    };
    Ok(Dataset::range(12).try_map(map).batch(2))
}

#[test]
fn a_failed_dataset_resumes_after_the_last_element_taken() {
    watched(|| {
        let worker = worker();
        make(&worker, fails_once, vec![], None).unwrap();
        for first in [0, 2, 4] {
            assert_eq!(worker.call(draw, [resource(1)]), [[first, first + 1]]);
        }
        let failure = worker.try_call(draw, [resource(1)]).unwrap_err();
        assert!(
            failure.kind == FailureKind::Function && failure.text.contains("the disk was away"),
            "{failure:?}"
        );
        assert_eq!(all(&worker), [[[6, 7]], [[8, 9]], [[10, 11]]]);
    });
}

#[distribute::remote]
fn with_variable(worker: &WorkerContext) -> Result<Dataset<HostTensor>> {
    worker.strategy().scope(|| Variable::new("counted", 0i64))?;
    Ok(Dataset::range(2).batch(1))
}

#[distribute::remote]
fn unbatched(_worker: &WorkerContext) -> Result<Dataset<i64>> {
    Ok(Dataset::range(2))
}

#[distribute::remote]
fn elsewhere(_worker: &WorkerContext) -> Result<DistributedDataset<HostTensor>> {
    let other = distribute::OneDeviceStrategy::new("cpu:0")?;
    other.distribute_dataset_with(Dataset::range(2).batch(1), InputOptions::default())
}

// CC-11
#[test]
fn cc_11_values_that_are_no_worker_datasets_are_refused() {
    watched(|| {
        let worker = worker();
        let failure = make(&worker, with_variable, vec![], None).unwrap_err();
        assert_eq!(failure.kind, FailureKind::InvalidArgument);
        assert!(
            failure.text.contains("a function that creates a dataset cannot create variables"),
            "{failure:?}"
        );
        // A function that creates a value may create variables.
        worker.0.create(&making(), ResourceId(2), &call_of(with_variable, []), None).unwrap();
        let failure = make(&worker, unbatched, vec![], None).unwrap_err();
        assert!(failure.text.contains("batch"), "{failure:?}");
        let failure = make(&worker, elsewhere, vec![], None).unwrap_err();
        assert!(failure.text.contains("belongs to another strategy"), "{failure:?}");

        make(&worker, numbers, vec![value(24i64)], None).unwrap();
        worker.call(draw, [resource(1)]);
        let position = moved(&worker).unwrap();
        let failure = make(&worker, part, vec![], Some(&position)).unwrap_err();
        assert!(failure.text.contains("epoch 0, step 1"), "{failure:?}");
        let failure =
            make(&worker, numbers, vec![value(24i64)], Some(&Bytes::from_static(&[255; 3]))).unwrap_err();
        assert!(failure.text.contains("cannot be read"), "{failure:?}");
    });
}

/// Sums a dataset that every call reads completely.
#[distribute::remote]
fn total(worker: &WorkerContext, data: &Dataset<HostTensor>) -> Result<i64> {
    let mut sum = 0;
    for batch in &worker.strategy().distribute_dataset(data.clone())? {
        sum += batch?.values()[0].to_vec::<i64>()?.iter().sum::<i64>();
    }
    Ok(sum)
}

#[test]
fn a_dataset_can_be_kept_as_a_value() {
    watched(|| {
        let worker = worker();
        worker.0.create(&context(), ResourceId(1), &call_of(numbers, [value(5i64)]), None).unwrap();
        assert_eq!((worker.call(total, [resource(1)]), worker.call(total, [resource(1)])), (10, 10));
        assert_eq!(moved(&worker), None);
        let failure = worker.try_call(draw, [resource(1)]).unwrap_err();
        assert!(
            failure.kind == FailureKind::InvalidArgument && failure.text.contains("Batches<"),
            "{failure:?}"
        );
    });
}

/// Checks that a function that takes batches one by one sees their end: `next_or_end` returns `None`, and `next` an
/// error.
#[test]
fn the_end_is_an_error_or_none() {
    #[distribute::remote]
    fn ends(_worker: &WorkerContext, data: &Batches<HostTensor>) -> Result<bool> {
        let none = data.next_or_end()?.is_none();
        Ok(none && matches!(data.next(), Err(Error::OutOfRange { operation: "Batches::next" })))
    }
    watched(|| {
        let worker = worker();
        make(&worker, numbers, vec![value(2i64)], None).unwrap();
        worker.call(draw, [resource(1)]);
        assert!(worker.call(ends, [resource(1)]));
    });
}
