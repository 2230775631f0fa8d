//! Positions and caches of pipelines that differ in a parameter.

use distribute_data::csv::ColumnType;
use distribute_data::example::{Features, FixedLen, SequenceFeatures, Steps, VarLen};
use distribute_data::{
    Buckets, Csv, Dataset, DistributeOptions, Distribution, Error, Files, Interleave, Layout, Location,
    Packing, Padding, Position, SkippedRecords, TfRecord, text_lines, text_lines_skipping,
};
use distribute_tensor::{HostTensor, Nest};
use distribute_testing::watched;

const ALONE: Layout = Layout { workers: 1, replicas: 1 };

fn distribution<T: Nest>(data: &Dataset<T>) -> Distribution<T> {
    Distribution::new(data, ALONE, DistributeOptions::default()).unwrap()
}

fn accepts<T: Nest>(data: &Dataset<T>, position: &Position) -> bool {
    match distribution(data).check_position(position) {
        Ok(()) => true,
        Err(Error::Position { .. }) => false,
        Err(other) => panic!("{other}"),
    }
}

/// Checks that each of the pipelines accepts only its own positions.
fn different<T: Nest>(pipelines: impl IntoIterator<Item = Dataset<T>>) {
    let pipelines: Vec<_> = pipelines.into_iter().map(|data| data.batch(1)).collect();
    for (i, mine) in pipelines.iter().enumerate() {
        for (k, theirs) in pipelines.iter().enumerate() {
            let accepted = accepts(mine, &distribution(theirs).beginning(0));
            assert_eq!(accepted, i == k, "{i} and {k}: {}", mine.explain());
        }
    }
}

/// Checks that the pipelines accept each other's positions.
fn same<T: Nest>(pipelines: impl IntoIterator<Item = Dataset<T>>) {
    let pipelines: Vec<_> = pipelines.into_iter().map(|data| data.batch(1)).collect();
    for mine in &pipelines {
        for theirs in &pipelines {
            assert!(accepts(mine, &distribution(theirs).beginning(0)), "{}", mine.explain());
        }
    }
}

fn csv() -> Csv {
    Csv::bytes("a.csv", "x,y\n1,2\n,4\n")
}

#[test]
fn rows_of_csv_files() {
    different([
        csv().features().unwrap(),
        csv().without_header().features().unwrap(),
        csv().delimiter(b';').features().unwrap(),
        csv().without_quoting().features().unwrap(),
        csv().default("x", 0).features().unwrap(),
        csv().default("x", 1).features().unwrap(),
        csv().default("y", 1).features().unwrap(),
        csv().default("y", 1).missing("NA").features().unwrap(),
        csv().default_of_all(1).features().unwrap(),
    ]);
    different([csv().labelled(0).unwrap(), csv().labelled(1).unwrap()]);
    let columns = |columns: &[(&'static str, ColumnType)]| csv().columns(columns.to_vec()).unwrap();
    use ColumnType::{F32, I64, Text};
    different([
        columns(&[("x", F32)]),
        columns(&[("y", F32)]),
        columns(&[("x", I64)]),
        columns(&[("x", Text)]),
        columns(&[("x", F32), ("y", F32)]),
        csv().columns([(0, F32)]).unwrap(),
    ]);
    // Texts of missing fields matter only with a default, and threads never.
    same([
        csv().features().unwrap(),
        csv().missing("NA").features().unwrap(),
        csv().threads(3).features().unwrap(),
    ]);
}

// The default of a column is changed, and the cache has the old one.
#[test]
fn a_cache_with_another_default_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    let rows = |default| csv().default("x", default).features().unwrap().cache_to(&path);
    let read = |default| rows(default).iter().collect::<Result<Vec<_>, _>>();
    let expected = [HostTensor::vector(vec![1f32, 2.]), HostTensor::vector(vec![0f32, 4.])];
    assert_eq!(read(0).unwrap(), expected);
    assert_eq!(read(0).unwrap(), expected);
    let error = read(1).unwrap_err();
    assert!(matches!(error, Error::Cache { .. }), "{error}");
}

#[test]
fn columns_of_examples() {
    let features = |fixed: FixedLen| Features::new().with("x", fixed).unwrap();
    let variable = |variable: VarLen| Features::new().with("x", variable).unwrap();
    let fixed = || {
        [
            features(FixedLen::floats([2])),
            features(FixedLen::ints([2])),
            features(FixedLen::bytes([2])),
            features(FixedLen::floats([1, 2])),
            features(FixedLen::floats([2]).or(0.0)),
            features(FixedLen::floats([2]).or(-0.0)),
            features(FixedLen::floats([2]).or([0.0, 1.0])),
            Features::new().with("y", FixedLen::floats([2])).unwrap(),
            Features::new(),
        ]
    };
    different(fixed().map(|features| TfRecord::new("a").examples(&features).unwrap()));
    let batches = || TfRecord::new("a").records().batch(2);
    let variables = [
        variable(VarLen::ints()),
        variable(VarLen::floats()),
        variable(VarLen::ints().pad(1)),
        variable(VarLen::ints().rows([2])),
        variable(VarLen::ints().lengths("n")),
    ];
    different(fixed().into_iter().chain(variables).map(|features| batches().parse_examples(&features)));
    let list = |steps| SequenceFeatures::new().list("x", steps).unwrap();
    let sequences = [
        SequenceFeatures::new().context("x", FixedLen::ints([2])).unwrap(),
        SequenceFeatures::new().context("x", FixedLen::ints([2]).or(1)).unwrap(),
        list(Steps::ints([2])),
        list(Steps::floats([2])),
        list(Steps::ints([1, 2])),
        list(Steps::ragged_ints()),
        list(Steps::ints([2]).pad(1)),
        list(Steps::ints([2]).lengths("n")),
        list(Steps::ragged_ints().step_lengths("n")),
        list(Steps::ints([2]).or_empty()),
    ];
    different(sequences.map(|features| batches().parse_sequence_examples(&features)));
}

#[test]
fn padding() {
    let paddings = || {
        [
            Padding::new(),
            Padding::new().values(0i64),
            Padding::new().values(1i64),
            Padding::new().values(1i32),
            Padding::new().sizes([vec![None]]),
            Padding::new().sizes([vec![Some(9)]]),
            Padding::new().sizes([vec![Some(9)]]).values(1i64),
        ]
    };
    let words = Dataset::range(4).map(|n| HostTensor::vector(vec![n; n as usize]));
    different(paddings().map(|padding| words.padded_batch(2, padding)));
    different(paddings().map(|padding| {
        words.bucket_by_sequence_length(|word| word.dims()[0], Buckets::new([3], [2, 2]).padding(padding))
    }));
    let values = [Packing::new(5), Packing::new(5).values(1i64), Packing::new(5).values(2i64)];
    different(values.map(|packing| words.pack_sequences(packing)));
}

#[test]
fn values_in_memory_by_their_number() {
    different([1, 2].map(|n| Dataset::from_items(vec![7i64; n])));
    different([1, 2].map(|n| Dataset::from_slices(HostTensor::vector(vec![7i64; n])).unwrap()));
    same([1i64, 2].map(|value| Dataset::from_items([value])));
}

#[cfg(feature = "parquet")]
#[test]
fn rows_of_parquet_files() {
    use distribute_data::parquet::{Column, Parquet};
    let parquet = || Parquet::file("a.parquet");
    different([
        parquet().dataset(),
        parquet().columns(["3"]).dataset(),
        parquet().columns([Column::At(3)]).dataset(),
        parquet().columns(["a", "b"]).dataset(),
        parquet().columns(["a, b"]).dataset(),
        parquet().default("a", 0).dataset(),
        parquet().default("a", 1).dataset(),
        parquet().default("a", 1.0).dataset(),
        parquet().default("a", "1").dataset(),
        parquet().default("b", 1).dataset(),
        parquet().mask("a", "has_a").dataset(),
        parquet().mask("a", "a_there").dataset(),
    ]);
    same([parquet().dataset(), parquet().rows(3).dataset(), parquet().skip_checksums().dataset()]);
}

#[test]
fn elements_that_are_prepared_early_are_the_same() {
    let turns = |ahead| {
        let turns = Interleave { ahead, ..Interleave::default() };
        Dataset::range(3).interleave(|n: i64| Dataset::range(n), turns)
    };
    same([turns(0), turns(1), turns(2)]);
}

// A pass without skipping met no broken record, so it resumes with skipping. The other way around, broken records would
// be counted as elements, and elements would be read twice.
#[test]
fn broken_records_that_are_skipped() {
    watched(|| {
        let skipped = SkippedRecords::new();
        let text = format!("0\n1\n{}\n3\n", "2".repeat(1500));
        let file = |limit| Files::from(Location::bytes("a.txt", text.clone()).element_limit(limit));
        let strict = || text_lines(file(1000)).batch(1);
        let skips = |limit| text_lines_skipping(file(limit), &skipped).batch(1);
        let after_one_step = |data: &Dataset<HostTensor>| {
            let mut pass = distribution(data).worker(0, 0).unwrap();
            pass.step().unwrap();
            pass.position()
        };
        let position = after_one_step(&strict());
        assert!(accepts(&strict(), &position) && accepts(&skips(1000), &position));
        let mut resumed = distribution(&skips(1000)).resume(0, &position).unwrap();
        let mut seen = Vec::new();
        while let Some(pieces) = resumed.step().unwrap() {
            seen.extend(pieces.iter().flat_map(|piece| piece.to_vec::<Vec<u8>>().unwrap()));
        }
        assert_eq!(seen, [b"1", b"3"]);
        for position in [after_one_step(&skips(1000)), resumed.position()] {
            assert!(accepts(&skips(1000), &position));
            assert!(!accepts(&strict(), &position) && !accepts(&skips(2000), &position));
        }

        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str, data: &Dataset<String>| {
            data.cache_to(folder.path().join(name)).iter().try_for_each(|line| line.map(drop))
        };
        let good = || Location::bytes("b.txt", "0\n1\n");
        for _ in 0..2 {
            read("strict", &text_lines(good())).unwrap();
            read("skips", &text_lines_skipping(good(), &skipped)).unwrap();
        }
        read("strict", &text_lines_skipping(good(), &skipped)).unwrap();
        let error = read("skips", &text_lines(good())).unwrap_err();
        assert!(matches!(error, Error::Cache { .. }), "{error}");
    });
}
