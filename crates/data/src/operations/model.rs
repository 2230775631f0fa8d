//! Tests that pipelines behave like the same operations on a `Vec`.

use crate::testing::{ids, in_turn, values};
use crate::{AtDatasetEnd, Buckets, Dataset, Interleave, Packing, Padding};
use distribute_tensor::HostTensor;
use distribute_testing::watched;
use proptest::prelude::*;
use std::path::Path;

/// A transformation to test.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Take(usize),
    Skip(usize),
    TakeWhile(i64),
    Repeat(usize),
    Filter(i64),
    Map(i64),
    MapParallel(usize, i64),
    FlatMap(i64),
    Interleave(Interleave),
    Zip(i64),
    Enumerate,
    Concatenate(i64),
    Unbatch(usize),
    PaddedBatch(usize),
    AssertCardinality,
    Shard(usize, usize),
    Shuffle(usize),
    Cache,
    CacheTo,
    Prefetch(usize),
    Choose(i64),
    Window(usize, usize),
    Scan,
    GroupByWindow(i64, usize),
    Bucket(usize),
    Pack(usize),
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let turns = (1usize..4, 1usize..4, 0usize..2)
        .prop_map(|(cycle_length, block_length, ahead)| Interleave { cycle_length, block_length, ahead });
    prop_oneof![
        (0usize..30).prop_map(Step::Take),
        (0usize..10).prop_map(Step::Skip),
        (2i64..9).prop_map(Step::TakeWhile),
        (0usize..4).prop_map(Step::Repeat),
        (1i64..4).prop_map(Step::Filter),
        (0i64..5).prop_map(Step::Map),
        (1usize..4, 0i64..5).prop_map(|(threads, k)| Step::MapParallel(threads, k)),
        (0i64..4).prop_map(Step::FlatMap),
        turns.prop_map(Step::Interleave),
        (0i64..30).prop_map(Step::Zip),
        Just(Step::Enumerate),
        (0i64..6).prop_map(Step::Concatenate),
        (1usize..5).prop_map(Step::Unbatch),
        (1usize..5).prop_map(Step::PaddedBatch),
        Just(Step::AssertCardinality),
        (1usize..4, 0usize..3).prop_map(|(workers, index)| Step::Shard(workers, index % workers)),
        // A shuffle with a buffer of 1 keeps the order, so the model stays simple.
        Just(Step::Shuffle(1)),
        Just(Step::Cache),
        Just(Step::CacheTo),
        (0usize..3).prop_map(Step::Prefetch),
        (0i64..9).prop_map(Step::Choose),
        (1usize..4, 1usize..4).prop_map(|(size, shift)| Step::Window(size, shift)),
        Just(Step::Scan),
        (1i64..4, 1usize..4).prop_map(|(keys, size)| Step::GroupByWindow(keys, size)),
        (1usize..4).prop_map(Step::Bucket),
        (2usize..5).prop_map(Step::Pack),
    ]
}

/// Returns the numbers in the dataset to which `FlatMap` and `Interleave` map element `x`.
fn inner(x: i64, k: i64) -> std::ops::Range<i64> {
    10 * x..10 * x + (x + k) % 4
}

/// Applies a step to a dataset of `len` elements. `file` is the path of a cache.
pub(super) fn on_dataset(data: Dataset<i64>, step: &Step, len: usize, file: &Path) -> Dataset<i64> {
    match *step {
        Step::Take(n) => data.take(n),
        Step::Skip(n) => data.skip(n),
        Step::TakeWhile(k) => data.take_while(move |x| x % 10 != k),
        Step::Repeat(n) => data.repeat(n),
        Step::Filter(k) => data.filter(move |x| x % k == 0),
        Step::Map(k) => data.map(move |x| x + k),
        Step::MapParallel(threads, k) => data.map_parallel(threads, move |x| x + k),
        Step::FlatMap(k) => data.flat_map(move |x| Dataset::range(inner(x, k))),
        Step::Interleave(turns) => data.interleave(|x| Dataset::range(inner(x, 1)), turns),
        Step::Zip(n) => data.zip(&Dataset::range(n)).map(|(x, y)| 2 * x + y),
        Step::Enumerate => data.enumerate().map(|(i, x)| 2 * i + x),
        Step::Concatenate(n) => data.concatenate(&Dataset::range(n)),
        Step::Unbatch(size) => data.batch(size).unbatch(),
        Step::PaddedBatch(size) => data.padded_batch(size, Padding::new()).unbatch(),
        Step::AssertCardinality => data.assert_cardinality(len),
        Step::Shard(workers, index) => data.shard(workers, index),
        Step::Shuffle(buffer) => data.shuffle(buffer, 7),
        Step::Cache => data.cache(),
        Step::CacheTo => data.cache_to(file),
        Step::Prefetch(n) => data.prefetch(n),
        Step::Choose(n) => {
            let choices = Dataset::range(2).repeat_forever();
            Dataset::choose_from_datasets(&[data, Dataset::range(n)], &choices, AtDatasetEnd::Skip)
        }
        Step::Window(size, shift) => data.window(size).shift(shift).flat_map(|window| window),
        Step::Scan => data.scan(0, |state, x| ((state + x) % 10, state + x)),
        Step::GroupByWindow(keys, size) => {
            data.group_by_window(move |x| x % keys, move |_| size, |_, group| group)
        }
        Step::Bucket(size) => {
            let buckets = Buckets::new([1, 2], [size, size, size]);
            data.bucket_by_sequence_length(|x| (x % 3) as usize, buckets).unbatch()
        }
        Step::Pack(length) => {
            let sequences = data.map(|x| HostTensor::vector(vec![x; (x % 3) as usize]));
            sequences.pack_sequences(Packing::new(length).values(-1i64)).flat_map(|row| {
                Dataset::from_slices(row.values).unwrap().typed().take_while(|x: &i64| *x >= 0)
            })
        }
    }
}

/// Collects elements with the same key: full groups when they are full, the others at the end in the order of keys.
fn grouped(data: &[i64], keys: i64, size: usize) -> Vec<i64> {
    let (mut open, mut all) = (std::collections::BTreeMap::<i64, Vec<i64>>::new(), Vec::new());
    for x in data {
        let group = open.entry(x % keys).or_default();
        group.push(*x);
        if group.len() == size {
            all.append(group);
        }
    }
    all.extend(open.into_values().flatten());
    all
}

fn on_vec(data: Vec<i64>, step: &Step) -> Vec<i64> {
    let values = data.iter().copied();
    match *step {
        Step::Take(n) => values.take(n).collect(),
        Step::Skip(n) => values.skip(n).collect(),
        Step::TakeWhile(k) => values.take_while(|x| x % 10 != k).collect(),
        Step::Repeat(n) => data.repeat(n),
        Step::Filter(k) => values.filter(|x| x % k == 0).collect(),
        Step::Map(k) | Step::MapParallel(_, k) => values.map(|x| x + k).collect(),
        Step::FlatMap(k) => values.flat_map(|x| inner(x, k)).collect(),
        Step::Interleave(turns) => {
            let lists: Vec<Vec<i64>> = values.map(|x| inner(x, 1).collect()).collect();
            in_turn(&lists, turns)
        }
        Step::Zip(n) => values.zip(0..n).map(|(x, y)| 2 * x + y).collect(),
        Step::Enumerate => values.zip(0..).map(|(x, i)| 2 * i + x).collect(),
        Step::Concatenate(n) => values.chain(0..n).collect(),
        Step::Shard(workers, index) => values.skip(index).step_by(workers).collect(),
        Step::Choose(n) => {
            in_turn(&[data, (0..n).collect()], Interleave { cycle_length: 2, ..Interleave::default() })
        }
        Step::Window(size, shift) => (0..data.len())
            .step_by(shift)
            .flat_map(|start| data[start..].iter().take(size))
            .copied()
            .collect(),
        Step::Scan => {
            let next = |state: &mut i64, x: i64| {
                let sum = *state + x;
                *state = sum % 10;
                Some(sum)
            };
            values.scan(0, next).collect()
        }
        Step::GroupByWindow(keys, size) => grouped(&data, keys, size),
        Step::Bucket(size) => grouped(&data, 3, size),
        Step::Pack(_) => values.flat_map(|x| vec![x; (x % 3) as usize]).collect(),
        Step::Unbatch(_)
        | Step::PaddedBatch(_)
        | Step::AssertCardinality
        | Step::Shuffle(_)
        | Step::Cache
        | Step::CacheTo
        | Step::Prefetch(_) => data,
    }
}

fn pass(data: &Dataset<i64>, epoch: u64) -> Vec<i64> {
    data.epoch(epoch).map(Result::unwrap).collect()
}

proptest! {
    #[test]
    fn transformations_compose_as_on_a_vec(
        n in 0i64..20,
        steps in proptest::collection::vec(step(), 0..6),
        batch in 1usize..7,
        exact: bool,
        skip in 0usize..30,
    ) {
        let model = steps.iter().fold((0..n).collect(), on_vec);
        prop_assume!(model.len() < 1000);
        let test = move || {
            let folder = tempfile::tempdir().unwrap();
            let mut data = Dataset::range(n);
            let mut elements: Vec<i64> = (0..n).collect();
            for (i, step) in steps.iter().enumerate() {
                data = on_dataset(data, step, elements.len(), &folder.path().join(i.to_string()));
                elements = on_vec(elements, step);
            }
            assert_eq!(values(&data), model);
            if let Some(known) = data.cardinality().finite() {
                assert_eq!(known, model.len());
            }
            assert_eq!(values(&data.skip(skip)), model[skip.min(model.len())..]);
            let batches = if exact { data.batch_exact(batch) } else { data.batch(batch) };
            let keep = if exact { model.len() / batch * batch } else { model.len() };
            assert_eq!(ids(&batches), model[..keep].chunks(batch).map(<[i64]>::to_vec).collect::<Vec<_>>());
            let shuffled = data.shuffle(5, 3);
            assert_eq!(pass(&shuffled, 4), pass(&shuffled, 4));
            let mut unordered = values(&data.map_unordered(2, |x| x));
            let mut sorted = model.clone();
            unordered.sort_unstable();
            sorted.sort_unstable();
            assert_eq!(unordered, sorted);
        };
        watched(test);
    }
}
