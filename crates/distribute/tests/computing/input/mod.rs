//! Datasets that are distributed over replicas. Test names contain the numbers of the rules.

mod from_function;
mod iteration;
mod legacy;
mod look_ahead;
mod options;
mod resume;

use crate::everywhere::everywhere;
use crate::support::{mirrored, one_device};
use candle_core::{Device, Tensor};
use distribute::data::{Dataset, SplitRule, split};
use distribute::input::DistributedDataset;
use distribute::{CentralStorageStrategy, HostTensor, PerReplica, Result, Strategy};

fn central() -> Strategy {
    CentralStorageStrategy::new(["cpu:0", "cpu:1"], "cpu:0").unwrap()
}

fn ids(step: Result<PerReplica<HostTensor>>) -> Vec<Vec<i64>> {
    step.unwrap().into_iter().map(|piece| piece.to_vec().unwrap()).collect()
}

/// Returns the ids of a pass, by step and replica.
fn steps(data: &DistributedDataset<HostTensor>) -> Vec<Vec<Vec<i64>>> {
    data.iter().map(ids).collect()
}

#[test]
fn candle_tensors_are_sliced_shuffled_batched_and_split() {
    let x = Tensor::arange(0f32, 10., &Device::Cpu).unwrap().reshape((5, 2)).unwrap();
    let y = Tensor::arange(0u32, 5, &Device::Cpu).unwrap();
    let data = Dataset::from_slices((x, y)).unwrap().shuffle(5, 42).batch(3);
    let mut seen = Vec::new();
    for batch in &data {
        for (x, y) in split(batch.unwrap(), 2, SplitRule::Even).unwrap() {
            assert_eq!(x.dim(0).unwrap(), y.dim(0).unwrap());
            let (x, y) = (x.to_vec2::<f32>().unwrap(), y.to_vec1::<u32>().unwrap());
            assert!(x.iter().zip(&y).all(|(x, y)| x[0] == 2. * *y as f32));
            seen.extend(y);
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3, 4]);
}

/// Checks the specs of batches for all properties of a dataset (DIST-1, DIST-11).
#[test]
fn dist_11_the_specs_of_batches_are_available_before_the_first() {
    let spec = |strategy: &Strategy, data: Dataset<HostTensor>| {
        let data = strategy.distribute_dataset(data).unwrap();
        let specs = data.element_spec().unwrap();
        assert_eq!(specs.len(), strategy.num_replicas_in_sync());
        specs.values()[0].describe(&ToString::to_string)
    };
    assert_eq!(spec(&mirrored(2), Dataset::range(9).batch_exact(4)), "int64 [2]");
    assert_eq!(spec(&mirrored(3), Dataset::range(9).batch_exact(4)), "int64 [?]");
    assert_eq!(spec(&mirrored(2), Dataset::range(9).batch(4)), "int64 [?]");
    assert_eq!(spec(&one_device(), Dataset::range(9).batch_exact(4)), "int64 [4]");
    // The results of functions are described by their type or by the first element.
    assert_eq!(spec(&mirrored(2), Dataset::range(9).map(|x| x).batch_exact(4)), "int64 [2]");
    let rows = Dataset::range(9).map(|x| HostTensor::vector(vec![x as f32; 3]));
    assert_eq!(spec(&mirrored(2), rows.batch(4)), "float32 [?, 3]");
    assert_eq!(spec(&mirrored(2), rows.batch_exact(4).map(|x| x)), "float32 [2, 3]");
    let fails = Dataset::range(9).try_map(|_| Err::<HostTensor, _>("no")).batch(4);
    assert!(mirrored(2).distribute_dataset(fails).unwrap().element_spec().is_none());
}

/// Checks that exactly one replica gets each row, and that the last batch is split like the others (DIST-7).
#[test]
fn dist_7_batches_are_split_over_the_replicas() {
    let cut = |replicas, n, batch| {
        steps(&mirrored(replicas).distribute_dataset(Dataset::range(n).batch(batch)).unwrap())
    };
    assert_eq!(cut(2, 4, 2), [[[0], [1]], [[2], [3]]]);
    assert_eq!(cut(2, 9, 4), [[vec![0, 1], vec![2, 3]], [vec![4, 5], vec![6, 7]], [vec![8], vec![]]]);
    assert_eq!(cut(3, 4, 4), [[vec![0, 1], vec![2], vec![3]]]);
}

#[test]
fn explain_lists_the_partition_of_each_replica() {
    let data = mirrored(2).distribute_dataset(Dataset::range(9).batch(4)).unwrap();
    assert!(data.explain().contains("rows of its replicas in a full step: 2 2"), "{}", data.explain());
    assert!(format!("{data:?}").contains("range 0..9"), "{data:?}");
}
