//! Every parameter of every operation at its extremes gives an element or an error, and never aborts the process.

use distribute_data::example::{Features, FixedLen, VarLen};
use distribute_data::{
    AtDatasetEnd, Buckets, Csv, Dataset, DistributeOptions, Distribution, Error, Files, InputContext,
    Interleave, Layout, Location, Packing, Padding, SplitRule, TfRecord, UnevenEnds, split,
};
use distribute_tensor::{HostTensor, Leaf, Tree};
use distribute_testing::watched;

const HALF: usize = usize::MAX / 2 + 1;
const EXTREMES: [usize; 4] = [0, 1, HALF, usize::MAX];

type Any = Dataset<Tree<Leaf>>;
type Operation = (&'static str, fn(&Dataset<i64>, usize) -> Any);

/// All operations with a parameter.
const OPERATIONS: &[Operation] = &[
    ("take", |data, n| data.take(n).typed()),
    ("skip", |data, n| data.skip(n).typed()),
    ("skip twice", |data, n| data.skip(n).enumerate().skip(n).typed()),
    ("repeat", |data, n| data.repeat(n).typed()),
    ("repeat twice", |data, n| data.repeat(n).repeat(n).typed()),
    ("shuffle", |data, n| data.shuffle(n, 1).typed()),
    ("shuffle, repeated", |data, n| data.repeat_forever().shuffle(n, 1).typed()),
    ("batch", |data, n| data.batch(n).typed()),
    ("batch, repeated", |data, n| data.repeat_forever().batch(n).typed()),
    ("batch_exact", |data, n| data.batch_exact(n).typed()),
    ("batch of batches", |data, n| data.batch(2).batch(n).typed()),
    ("padded_batch", |data, n| data.padded_batch(n, Padding::new()).typed()),
    ("padded_batch_exact", |data, n| data.padded_batch_exact(n, Padding::new()).typed()),
    ("padding", |data, n| {
        let rows = data.map(|x| HostTensor::vector(vec![x]));
        rows.padded_batch(2, Padding::new().sizes([vec![Some(n)]])).typed()
    }),
    ("rebatch", |data, n| data.batch(2).rebatch(&[n, 3]).typed()),
    ("rebatch_exact", |data, n| data.batch(2).rebatch_exact(&[n, n]).typed()),
    ("rebatch, repeated", |data, n| data.repeat_forever().batch(2).rebatch(&[n]).typed()),
    ("shard", |data, n| data.shard(n, 0).typed()),
    ("shard, last", |data, n| data.shard(n, n.saturating_sub(1)).typed()),
    ("shard, wrong", |data, n| data.shard(2, n).typed()),
    ("prefetch", |data, n| data.prefetch(n).typed()),
    ("assert_cardinality", |data, n| data.assert_cardinality(n).typed()),
    ("map_parallel", |data, n| data.map_parallel(n, |x| x).typed()),
    ("map_unordered", |data, n| data.map_unordered(n, |x| x).typed()),
    ("cycle", |data, n| interleaved(data, Interleave { cycle_length: n, ..Default::default() })),
    ("block", |data, n| interleaved(data, Interleave { block_length: n, ..Default::default() })),
    ("ahead", |data, n| interleaved(data, Interleave { ahead: n, ..Default::default() })),
    ("cycle, ahead", |data, n| interleaved(data, Interleave { cycle_length: n, block_length: n, ahead: n })),
    ("filter", |data, n| data.filter(|x| x % 2 == 0).take(n).skip(1).typed()),
    ("zip", |data, n| data.zip(&data.skip(n)).typed()),
    ("window", |data, n| data.window(n).batch().typed()),
    ("window, shift", |data, n| data.window(2).shift(n).stride(n).batch().typed()),
    ("window, repeated", |data, n| data.repeat_forever().window(n).shift(3).batch().typed()),
    ("window, flat_map", |data, n| data.window(n).stride(2).flat_map(move |window| window.take(n)).typed()),
    ("group_by_window", |data, n| {
        data.take(9).group_by_window(|x| x % 2, move |_| n, |_, group| group.take(3)).typed()
    }),
    ("boundaries", |data, n| bucketed(data, Buckets::new([n], [2, 2]))),
    ("boundaries, padded", |data, n| {
        bucketed(data, Buckets::new([n, HALF + 1], [2, 2, 2]).pad_to_boundary())
    }),
    ("batches of buckets", |data, n| bucketed(&data.take(9), Buckets::new([2], [n, 2]))),
    ("pack_sequences", |data, n| packed(&data.take(9), Packing::new(n).open_rows(2).split_long())),
    ("open rows", |data, n| packed(data, Packing::new(3).open_rows(n).split_long())),
    ("choices", |data, n| {
        let choices = Dataset::range(2).take(n).repeat(n);
        Dataset::choose_from_datasets(&[data.clone(), data.skip(n)], &choices, AtDatasetEnd::Skip).typed()
    }),
    ("weights", |data, n| {
        Dataset::sample_from_datasets(&[data.clone(), data.skip(n)], &[n as f64, 1.], 1, AtDatasetEnd::Stop)
            .typed()
    }),
    ("cached", |data, n| data.take(9).cache().repeat(n).typed()),
];

fn bucketed(data: &Dataset<i64>, buckets: Buckets) -> Any {
    let rows = data.map(|x| HostTensor::vector(vec![x; (x & 3) as usize]));
    rows.bucket_by_sequence_length(|x| x.dims()[0], buckets).typed()
}

fn packed(data: &Dataset<i64>, packing: Packing) -> Any {
    data.map(|x| HostTensor::vector(vec![x; (x & 3) as usize])).pack_sequences(packing).typed()
}

fn interleaved(data: &Dataset<i64>, turns: Interleave) -> Any {
    data.interleave(|x| Dataset::range(x..x + 2), turns).typed()
}

// Without these checks, an impossible allocation, multiplication or thread would end the process.
#[test]
fn an_operation_at_its_extremes_gives_elements_or_an_error() {
    watched(|| {
        for numbers in [0..0, 0..5, 0..i64::MAX, i64::MIN..i64::MAX] {
            for (name, operation) in OPERATIONS {
                for n in EXTREMES {
                    let data = operation(&Dataset::range(numbers.clone()), n);
                    let _ = (data.explain(), data.cardinality(), data.element_spec(), data.batching());
                    let ended = data.epoch(u64::MAX).take(3).find_map(Result::err);
                    assert!(data.check().is_ok() || ended.is_some(), "{name} {n}");
                    match ended {
                        None => {}
                        Some(
                            Error::Parameter { .. }
                            | Error::Worker { .. }
                            | Error::Cardinality { .. }
                            | Error::Memory { .. }
                            | Error::Pad { .. }
                            | Error::Stack { .. },
                        ) => {}
                        Some(other) => panic!("{name} {n} of {numbers:?}: {other}"),
                    }
                }
            }
        }
    });
}

#[test]
fn a_request_beyond_memory_or_the_machine_is_an_error() {
    watched(|| {
        let range = Dataset::range(i64::MAX);
        let told = |error: Option<Error>| error.unwrap().to_string();
        let first = |data: &Any| told(data.iter().next().unwrap().err());
        for n in [HALF, usize::MAX] {
            let held =
                format!("is {n}, of a dataset of {} elements, but must be what memory can hold", i64::MAX);
            assert_eq!(first(&range.shuffle(n, 1).typed()), format!("shuffle: the buffer {held}"));
            assert_eq!(first(&range.batch(n).typed()), format!("batch: the size {held}"));
            let threads = format!("the number of threads is {n}, but must be at most 1024");
            assert_eq!(first(&range.map_parallel(n, |x| x).typed()), format!("map_parallel: {threads}"));
            let csv = Csv::bytes("a.csv", "x\n1\n").threads(n).features().unwrap();
            assert_eq!(told(csv.check().err()), format!("Csv::threads: {threads}"));
            assert_eq!(
                told(TfRecord::new("a").threads(n).records().check().err()),
                format!("TfRecord::threads: {threads}")
            );
            let turns = Interleave { cycle_length: n, block_length: 1, ahead: 1 };
            assert_eq!(first(&interleaved(&range, turns)), format!("interleave: {threads}"));
            // No memory is reserved for threads that are not started.
            assert!(Dataset::range(5).map_parallel(1024, |x| x).iter().all(|x| x.is_ok()));
        }
        assert!(matches!(range.load(), Err(Error::Parameter { operation: "load", .. })));
        // Where the length is unknown, memory is requested for the elements that have been read.
        let inner = range.clone();
        let unknown = Dataset::range(1).flat_map(move |_| inner.clone());
        assert!(matches!(unknown.shuffle(usize::MAX, 1).iter().next(), Some(Err(Error::Memory { .. }))));
        assert!(matches!(unknown.batch(usize::MAX).iter().next(), Some(Err(Error::Memory { .. }))));
        assert!(matches!(unknown.load(), Err(Error::Memory { .. })));
        let padded = unknown.padded_batch(usize::MAX, Padding::new());
        assert!(matches!(padded.iter().next(), Some(Err(Error::Memory { .. }))));
        // With few elements, any number can be requested.
        assert_eq!(Dataset::range(5).shuffle(usize::MAX, 1).batch(usize::MAX).iter().count(), 1);
    });
}

#[test]
fn layouts_and_batches_at_their_extremes() {
    watched(|| {
        let batches = Dataset::range(8).batch(4);
        for workers in EXTREMES {
            for replicas in EXTREMES {
                let layout = Layout { workers, replicas };
                let options = || DistributeOptions { prefetch: workers, ..Default::default() };
                let plan = Distribution::new(&batches, layout, options());
                assert_eq!(plan.is_err(), workers != 1 || replicas != 1, "{layout}");
                let made = Distribution::from_function(layout, true, options(), |_| Ok(Dataset::range(3)));
                assert_eq!(made.is_err(), workers != 1 || replicas != 1, "{layout}");
                for plan in plan.into_iter() {
                    assert_eq!(plan.lockstep(0).unwrap().count(), 2);
                    let mut end = plan.beginning(0);
                    end.steps = u64::MAX;
                    assert!(plan.resume(0, &end).unwrap().step().unwrap().is_none());
                    end.origin.layout = Layout { workers: usize::MAX, replicas: 2 };
                    assert!(plan.resume(0, &end).is_err());
                }
            }
            for rule in [SplitRule::Even, SplitRule::TensorFlow] {
                let pieces = split(HostTensor::vector(vec![1i64, 2]), workers, rule);
                assert_eq!(pieces.is_err(), workers > 1, "{workers}");
                assert_eq!(rule.piece(usize::MAX, workers, workers / 2).is_empty(), workers == 0);
            }
            let _ = Files::from(["a", "b"]).shard(workers, workers / 2);
            let context = InputContext { num_replicas_in_sync: workers, ..Default::default() };
            let _ = context.get_per_replica_batch_size(usize::MAX);
        }
        // The plan of batches of any size can be explained.
        for rule in [SplitRule::Even, SplitRule::TensorFlow] {
            let options = DistributeOptions { rule, ends: UnevenEnds::Drop, ..Default::default() };
            let huge = Dataset::range(8).batch(usize::MAX);
            let plan = Distribution::new(&huge, Layout { workers: 2, replicas: 2 }, options).unwrap();
            assert!(!plan.explain().is_empty());
            let _ = plan.lockstep(0).unwrap().take(3).count();
        }
    });
}

#[test]
fn features_and_limits_at_their_extremes() {
    for size in EXTREMES {
        for shape in [vec![size], vec![size, 2], vec![2, size, 0], vec![0, size, size]] {
            let fixed = Features::new().with("x", FixedLen::floats(shape.clone()).or(1.));
            let var = Features::new().with("x", VarLen::bytes().rows(shape));
            for features in [fixed, var].into_iter().flatten() {
                let _ = features.parse([&[][..]]);
                assert!(features.parse([]).is_ok());
            }
        }
    }
    // A default stands for as many values as the shape has: no more than a column may take.
    let large = Features::new().with("x", FixedLen::floats([1 << 40]).or(1.)).unwrap();
    let error = large.parse([&[][..]]).unwrap_err().to_string();
    assert!(error.contains("record 0, feature 'x'") && error.contains("Features::element_limit"), "{error}");
    for limit in [0, 1, u64::MAX / 2 + 1, u64::MAX] {
        let file = Location::bytes("a.csv", "x\n1\n2\n").element_limit(limit);
        let rows = Csv::file(file.clone()).features().unwrap().iter().count();
        assert_eq!(rows, 2);
        assert_eq!(
            distribute_data::text_lines(file).iter().filter(Result::is_ok).count(),
            if limit < 2 { 0 } else { 3 }
        );
    }
}
