//! Datasets that a function creates.

use crate::input::{central, everywhere, mirrored, one_device, steps};
use distribute::context::get_strategy;
use distribute::data::{Cardinality, Dataset, InputContext};
use distribute::input::InputReplicationMode;
use distribute::{Error, HostTensor, InputOptions, Strategy};
use distribute_testing::watched;
use std::sync::{Arc, Mutex};

/// Returns the contexts that the function receives when passes begin.
fn contexts(strategy: &Strategy, replication_mode: InputReplicationMode) -> Vec<(usize, usize, usize)> {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let seen = calls.clone();
    let options = InputOptions { replication_mode, ..Default::default() };
    let make = move |context: InputContext| {
        let InputContext { num_input_pipelines, input_pipeline_id, num_replicas_in_sync } = context;
        seen.lock().unwrap().push((num_input_pipelines, input_pipeline_id, num_replicas_in_sync));
        Ok(Dataset::range(4).batch(1))
    };
    let data = strategy.distribute_datasets_from_function_with(options, make).unwrap();
    assert_eq!(steps(&data), steps(&data));
    drop(data);
    Arc::into_inner(calls).unwrap().into_inner().unwrap()
}

#[test]
fn fn_1_and_in_2_the_function_is_called_once_for_each_pipeline() {
    use InputReplicationMode::{PerReplica, PerWorker};
    assert_eq!(contexts(&mirrored(3), PerWorker), [(1, 0, 3)]);
    assert_eq!(contexts(&mirrored(3), PerReplica), [(3, 0, 3), (3, 1, 3), (3, 2, 3)]);
    assert_eq!(contexts(&central(), PerWorker), [(1, 0, 2)]);
    assert_eq!(contexts(&one_device(), PerWorker), [(1, 0, 1)]);
    assert_eq!(contexts(&get_strategy(), PerWorker), [(1, 0, 1)]);
}

#[test]
fn fn_1_each_replica_takes_the_next_element_as_it_is() {
    watched(|| {
        // Three replicas take the remaining elements in a step in which one of them has none.
        everywhere(|strategy| {
            let data =
                strategy.distribute_datasets_from_function(|_| Ok(Dataset::range(12).batch(3))).unwrap();
            let flat: Vec<Vec<i64>> = steps(&data).concat();
            let taken: Vec<_> = flat.iter().filter(|piece| !piece.is_empty()).collect();
            assert_eq!(taken, [&[0, 1, 2], &[3, 4, 5], &[6, 7, 8], &[9, 10, 11]], "{strategy}");
        });
    });
}

#[test]
fn fn_1_in_mode_per_replica_each_iterates_over_its_own() {
    let options = InputOptions { replication_mode: InputReplicationMode::PerReplica, ..Default::default() };
    let make = |context: InputContext| {
        Ok(Dataset::range(6).shard(context.num_input_pipelines, context.input_pipeline_id).batch(2))
    };
    let data = mirrored(2).distribute_datasets_from_function_with(options, make).unwrap();
    assert_eq!(steps(&data), [[vec![0, 2], vec![1, 3]], [vec![4], vec![5]]]);
}

#[test]
fn fn_2_replicas_without_remaining_data_get_empty_batches() {
    let data = mirrored(2).distribute_datasets_from_function(|_| Ok(Dataset::range(5).batch(2))).unwrap();
    assert_eq!(steps(&data), [[vec![0, 1], vec![2, 3]], [vec![4], vec![]]]);
    assert_eq!(data.cardinality(), Cardinality::Finite(2));
    assert_eq!(data.element_spec().unwrap().values()[1].describe(&ToString::to_string), "int64 [?]");
}

/// Checks scalars, of which no empty batch can be made (ITER-2).
#[test]
fn iter_2_scalars_for_fewer_than_all_replicas_are_an_error() {
    let data = mirrored(2).distribute_datasets_from_function(|_| Ok(Dataset::range(3))).unwrap();
    let mut pass = data.iter();
    assert_eq!(pass.next().unwrap().unwrap().values(), [0, 1]);
    let error = pass.next().unwrap().unwrap_err().to_string();
    assert!(error.starts_with("only 1 of 2 replicas have data for step 1"), "{error}");
    assert!(pass.next().is_none());
}

#[test]
fn the_functions_error_comes_before_any_pass_and_names_the_pipeline() {
    let strategy = mirrored(2);
    let failed = strategy.distribute_datasets_from_function(|context| {
        context.get_per_replica_batch_size(3)?;
        Ok(Dataset::range(3).batch(1))
    });
    let error = failed.unwrap_err();
    assert!(matches!(&error, Error::Data(distribute::data::Error::DatasetFunction { .. })), "{error}");
    let expected = "the function that makes datasets failed for input pipeline id 0, total: 1: \
        the global batch size 3 is not divisible by the 2 replicas";
    assert!(error.to_string().starts_with(expected), "{error}");
    let wrong = strategy.distribute_datasets_from_function(|_| Ok(Dataset::range(3).batch(0)));
    assert!(wrong.unwrap_err().to_string().starts_with("batch: the size is 0"));
    let panics = strategy
        .distribute_datasets_from_function(|_| -> distribute::Result<Dataset<HostTensor>> { panic!("no") });
    assert!(panics.unwrap_err().to_string().ends_with("it panicked: no"));
}
