//! TensorFlow's older names for input.

use crate::input::{ids, mirrored};
use distribute::data::Dataset;
use distribute::data::numpy::write_npy;
use distribute::input::InputReplicationMode;
use distribute::legacy::{InputSource, Legacy};
use distribute::{Error, HostTensor};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

#[test]
fn leg_1_and_leg_4_a_dataset_iterator_splits_global_batches_and_restarts() {
    let mut inputs = mirrored(2).make_dataset_iterator(Dataset::range(8).batch(4)).unwrap();
    for _ in 0..2 {
        inputs.initialize();
        assert_eq!(ids(inputs.get_next()), [[0, 1], [2, 3]]);
        assert_eq!(ids(inputs.get_next()), [[4, 5], [6, 7]]);
        assert!(inputs.get_next_as_optional().unwrap().is_none());
        assert!(matches!(inputs.get_next(), Err(Error::OutOfRange { .. })));
    }
}

/// Checks that the first initialization begins the first epoch, in its order.
// LEG-4
#[test]
fn leg_4_the_first_initialization_skips_no_epoch() {
    let shuffled = || Dataset::range(32).shuffle(32, 5).batch(16);
    let of_epochs = |mut inputs: distribute::legacy::InputIterator<HostTensor>| {
        let epoch = |_| {
            inputs.initialize();
            [ids(inputs.get_next()), ids(inputs.get_next())]
        };
        (0..2).map(epoch).collect::<Vec<_>>()
    };
    let strategy = mirrored(2);
    let distributed = strategy.distribute_dataset(shuffled()).unwrap();
    let epoch = |_| {
        let mut pass = distributed.iter();
        let mut next = || ids(pass.next().unwrap());
        [next(), next()]
    };
    let expected: Vec<_> = (0..2).map(epoch).collect();
    assert_eq!(of_epochs(strategy.make_dataset_iterator(shuffled()).unwrap()), expected);
    // Without it, elements are of the first epoch as well, and the first initialization begins the second one.
    let mut inputs = strategy.make_dataset_iterator(shuffled()).unwrap();
    assert_eq!(ids(inputs.get_next()), expected[0][0]);
    assert_eq!(of_epochs(inputs)[0], expected[1]);
}

/// Checks the last batch (LEG-2). TensorFlow's graph mode loses the fifth element.
#[test]
fn leg_2_the_last_batch_is_not_lost() {
    let mut inputs = mirrored(2).make_dataset_iterator(Dataset::range(5).batch(4)).unwrap();
    inputs.get_next().unwrap();
    assert_eq!(ids(inputs.get_next()), [vec![4], vec![]]);
}

#[test]
fn leg_3_an_input_function_returns_a_dataset_or_a_function_for_each_replica() {
    let strategy = mirrored(2);
    let mode = InputReplicationMode::PerWorker;
    let mut inputs = strategy
        .make_input_fn_iterator(
            |context| Ok(Dataset::range(4).batch(context.get_per_replica_batch_size(2)?)),
            mode,
        )
        .unwrap();
    assert_eq!(ids(inputs.get_next()), [[0], [1]]);

    let calls = Arc::new(AtomicI64::new(0));
    let counted = calls.clone();
    let callable = move |_| {
        let calls = counted.clone();
        Ok(InputSource::callable(move || {
            let call = calls.fetch_add(1, Ordering::Relaxed);
            Ok((call < 4).then(|| HostTensor::vector(vec![call])))
        }))
    };
    let mut inputs = strategy.make_input_fn_iterator(callable, mode).unwrap();
    assert_eq!(ids(inputs.get_next()), [[0], [1]]);
    assert_eq!(calls.load(Ordering::Relaxed), 2, "calls ahead of time");
    assert_eq!(ids(inputs.get_next()), [[2], [3]]);
    assert!(inputs.get_next_as_optional().unwrap().is_none());

    let per_replica = InputReplicationMode::PerReplica;
    let refused = strategy.make_input_fn_iterator(|_| Ok(Dataset::range(4).batch(1)), per_replica);
    assert!(matches!(refused.err(), Some(Error::InvalidArgument { .. })));
}

#[test]
fn leg_5_arrays_are_datasets_of_their_rows_and_are_not_copied() {
    let strategy = mirrored(2);
    let x = HostTensor::new(vec![1f32; 12], [6, 2]).unwrap();
    let rows = strategy.make_numpy_dataset(x.clone()).unwrap();
    let all = rows.batch(6).iter().next().unwrap().unwrap();
    assert!(std::ptr::eq(all.as_slice::<f32>().unwrap(), x.as_slice::<f32>().unwrap()), "copied");
    // A list is a structure: its arrays are not stacked.
    let ones = || HostTensor::vector(vec![1f32; 3]);
    let pairs = strategy.make_numpy_dataset(vec![ones(), ones()]).unwrap();
    let elements: Vec<_> = pairs.iter().map(Result::unwrap).collect();
    assert_eq!((elements.len(), elements[0].len(), elements[0][0].dims()), (3, 2, &[][..]));

    let scalar = strategy.make_numpy_dataset(HostTensor::scalar(1f32));
    assert!(matches!(scalar, Err(Error::Data(distribute::data::Error::Scalar { .. }))));
    let unequal = strategy.make_numpy_dataset((ones(), HostTensor::vector(vec![1f32; 2])));
    assert!(matches!(unequal, Err(Error::Data(distribute::data::Error::UnequalRows { .. }))));
}

#[test]
fn leg_5_arrays_are_read_from_files() {
    let strategy = mirrored(2);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npy");
    write_npy(&path, &HostTensor::vector(vec![3i64, 4, 5])).unwrap();
    let data = strategy.make_numpy_dataset_from_file::<HostTensor>(&path).unwrap();
    assert_eq!(data.load().unwrap().to_vec::<i64>().unwrap(), [3, 4, 5]);

    let npz = concat!(env!("CARGO_MANIFEST_DIR"), "/../data/tests/numpy/plain.npz");
    let data = strategy.make_numpy_dataset_from_file::<BTreeMap<String, HostTensor>>(npz).unwrap();
    assert!(data.iter().next().unwrap().unwrap().len() > 1);
    let missing = strategy.make_numpy_dataset_from_file::<HostTensor>("/nonexistent/x.npy").unwrap_err();
    assert!(missing.to_string().contains("/nonexistent/x.npy"), "{missing}");
}

#[test]
fn leg_6_datasets_of_arrays_are_created_outside_run() {
    let strategy = mirrored(2);
    let inside = strategy.run((), |_, ()| {
        let refused = strategy.make_numpy_dataset(HostTensor::vector(vec![1f32]));
        Ok(matches!(refused, Err(Error::WrongContext { .. })))
    });
    assert_eq!(inside.unwrap().values(), [true, true]);
}
