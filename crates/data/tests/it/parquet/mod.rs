//! Parquet files of arrow's writer, intact and damaged.

mod other_software;

use arrow_array::builder::{
    FixedSizeListBuilder, Float32Builder, Int64Builder, ListBuilder, StringDictionaryBuilder,
};
use arrow_array::types::Int8Type;
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Float64Array, Int8Array, Int64Array, RecordBatch,
    StringArray,
};
use distribute_data::parquet::{Parquet, rows};
use distribute_data::{Error, Files, Location, Result};
use distribute_tensor::{HostTensor, Leaf, Tree};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Returns a file with row groups of 4 rows.
fn file(columns: Vec<(&str, ArrayRef)>, compression: Compression) -> Vec<u8> {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let properties =
        WriterProperties::builder().set_max_row_group_row_count(Some(4)).set_compression(compression).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

fn plain(name: &str, column: impl arrow_array::Array + 'static) -> Parquet {
    let bytes = file(vec![(name, Arc::new(column) as ArrayRef)], Compression::UNCOMPRESSED);
    Parquet::file(Location::bytes("p.parquet", bytes))
}

type Columns = BTreeMap<String, HostTensor>;

fn read(parquet: &Parquet) -> Result<Vec<Columns>> {
    let columns = |tree| match tree {
        Tree::Dict(columns) => columns.into_iter().map(|(name, leaf)| match leaf {
            Tree::Leaf(Leaf::Host(tensor)) => (name, tensor),
            other => panic!("{other:?}"),
        }),
        other => panic!("{other:?}"),
    };
    parquet.open()?.map(|batch| Ok(columns(batch?).collect())).collect()
}

fn numbers() -> Vec<(&'static str, ArrayRef)> {
    vec![
        ("flag", Arc::new(BooleanArray::from((0..10).map(|i| i % 3 == 0).collect::<Vec<_>>()))),
        ("id", Arc::new(Int64Array::from_iter_values(0..10))),
        ("text", Arc::new(StringArray::from_iter_values((0..10).map(|i| format!("t{i}"))))),
        ("x", Arc::new(Float64Array::from_iter_values((0..10).map(f64::from)))),
    ]
}

#[test]
fn rows_of_several_files_are_a_dataset() {
    let part = |name: &str| Location::bytes(name, file(numbers(), Compression::UNCOMPRESSED));
    let data = rows(Files::from([part("a"), part("b")]), ["id", "x"]);
    assert_eq!(data.explain(), "Parquet, columns id, x, from 'a', 'b' (length unknown)\n");
    let batches: Vec<Columns> = data.batch(8).iter().map(Result::unwrap).collect();
    assert_eq!(batches[1]["id"].to_vec::<i64>().unwrap(), [8, 9, 0, 1, 2, 3, 4, 5]);
    assert_eq!((batches.len(), batches[2].len(), batches[2]["x"].dims()), (3, 2, &[4][..]));
    assert_eq!(data.skip(15).iter().next().unwrap().unwrap()["id"].item::<i64>().unwrap(), 5);
    let missing = rows(part("a"), ["z"]).iter().next().unwrap().unwrap_err();
    assert!(matches!(missing, Error::NoColumn { .. }), "{missing}");
    assert_eq!(rows(part("a"), [""; 0]).iter().next().unwrap().unwrap().len(), 4);
}

#[test]
fn batches_span_row_groups_for_each_compression() {
    let zstd = Compression::ZSTD(ZstdLevel::default());
    let gzip = Compression::GZIP(Default::default());
    for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::LZ4_RAW, zstd, gzip] {
        let parquet = Parquet::file(Location::bytes("p", file(numbers(), compression))).rows(3);
        assert_eq!(parquet.open().unwrap().rows(), 10);
        let batches = read(&parquet).unwrap();
        let dims: Vec<_> = batches.iter().map(|batch| batch["id"].dims().to_vec()).collect();
        assert_eq!(dims, [[3], [3], [3], [1]]);
        assert_eq!(batches[1]["id"], HostTensor::vector(vec![3i64, 4, 5]));
        assert_eq!(batches[1]["x"], HostTensor::vector(vec![3f64, 4., 5.]));
        assert_eq!(batches[1]["flag"], HostTensor::vector(vec![true, false, false]));
        assert_eq!(batches[3]["text"], HostTensor::vector(vec![b"t9".to_vec()]));
    }
}

#[test]
fn only_the_columns_asked_for_from_a_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.parquet");
    std::fs::write(&path, file(numbers(), Compression::SNAPPY)).unwrap();
    let batches = read(&Parquet::file(&path).columns(["x", "id"])).unwrap();
    assert_eq!(batches.len(), 1);
    assert_eq!(batches[0].keys().collect::<Vec<_>>(), ["id", "x"]);
    let error = Parquet::file(&path).columns(["y"]).open().unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("'{}' has no column 'y'; it has flag, id, text, x", path.display())
    );
    assert!(matches!(Parquet::file(&path).rows(0).open().unwrap_err(), Error::Parameter { .. }));
    assert!(matches!(Parquet::file(folder.path().join("none")).open().unwrap_err(), Error::Io { .. }));
}

#[test]
fn lists_of_one_length_are_rows_and_others_are_refused_by_row() {
    let mut fixed = FixedSizeListBuilder::new(Float32Builder::new(), 2);
    let mut free = ListBuilder::new(Int64Builder::new());
    for i in 0..5i16 {
        fixed.values().append_slice(&[f32::from(i), 0.5]);
        fixed.append(true);
        free.append_value([Some(i64::from(i)); 3]);
    }
    let batches = read(&plain("v", fixed.finish()).rows(3)).unwrap();
    assert_eq!(batches[1]["v"], HostTensor::new(vec![3f32, 0.5, 4., 0.5], [2, 2]).unwrap());
    let batches = read(&plain("v", free.finish()).rows(3)).unwrap();
    assert_eq!(batches[1]["v"], HostTensor::new(vec![3i64, 3, 3, 4, 4, 4], [2, 3]).unwrap());

    let mut ragged = ListBuilder::new(Int64Builder::new());
    [1, 1, 1, 1, 1, 2].into_iter().for_each(|len| ragged.append_value(vec![Some(7); len]));
    let error = read(&plain("v", ragged.finish()).rows(4)).unwrap_err();
    let expected = "'p.parquet', column 'v': rows have the shapes [1] and [2], and a batch needs one: ";
    assert!(error.to_string().starts_with(expected), "{error}");
    let mut null = ListBuilder::new(Int64Builder::new());
    null.append_value([Some(1), Some(2)]);
    null.append_value([Some(1), None]);
    let error = read(&plain("v", null.finish())).unwrap_err();
    let advice = "`Parquet::default` sets one, `Parquet::mask` marks the rows";
    let expected = format!("'p.parquet', column 'v': row 1 is null, for which int64 has no value; {advice}");
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_null_is_nan_among_floats_and_elsewhere_an_error_with_its_row() {
    let x = &read(&plain("x", Float64Array::from(vec![Some(1.), None]))).unwrap()[0]["x"];
    assert!(matches!(x.as_slice::<f64>().unwrap(), [1., nan] if nan.is_nan()));
    let error =
        read(&plain("n", Int8Array::from(vec![Some(1), Some(2), Some(3), None])).rows(2)).unwrap_err();
    let expected = "'p.parquet', column 'n': row 3 is null, for which int8 has no value; ";
    assert!(error.to_string().starts_with(expected), "{error}");
    let error = read(&plain("s", BinaryArray::from_opt_vec(vec![None, Some(b"a")]))).unwrap_err();
    let expected = "'p.parquet', column 's': row 0 is null, for which string has no value; ";
    assert!(error.to_string().starts_with(expected), "{error}");
}

#[test]
fn categories_are_read_as_values_and_dates_are_refused() {
    let mut builder = StringDictionaryBuilder::<Int8Type>::new();
    ["b", "a", "b"].into_iter().for_each(|text| builder.append_value(text));
    let categories = &read(&plain("c", builder.finish())).unwrap()[0]["c"];
    assert_eq!(*categories, HostTensor::vector(vec![b"b".to_vec(), b"a".to_vec(), b"b".to_vec()]));
    let error = read(&plain("d", Date32Array::from(vec![1]))).unwrap_err();
    let expected = "'p.parquet', column 'd': tensors have no type Date32; omit the column";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_file_truncated_anywhere_is_an_error_and_a_changed_byte_never_panics() {
    let bytes = file(numbers(), Compression::SNAPPY);
    for cut in 0..bytes.len() {
        let error = read(&Parquet::file(Location::bytes("cut", bytes[..cut].to_vec()))).unwrap_err();
        assert!(error.to_string().starts_with("cannot read 'cut': "), "{error}");
    }
    for at in 0..bytes.len() {
        for flip in [1, 0x80] {
            let mut changed = bytes.clone();
            changed[at] ^= flip;
            let parquet = Parquet::file(Location::bytes("p", changed));
            let _ = read(&parquet);
        }
    }
}

fn large_rows(sizes: impl IntoIterator<Item = usize>) -> Vec<u8> {
    let texts = BinaryArray::from_iter_values(sizes.into_iter().map(|size| vec![b'x'; size]));
    let batch = RecordBatch::try_from_iter([("image", Arc::new(texts) as ArrayRef)]).unwrap();
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_data_page_row_count_limit(8)
        .set_write_batch_size(8)
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

/// Checks that fewer rows are read together if they are large. An earlier version read 1024 rows of 1 MB at a
/// time.
#[test]
fn the_size_of_rows_limits_the_number_read_at_a_time() {
    const KB: usize = 1 << 10;
    let bytes = large_rows([vec![10; 2000], vec![200 * KB; 300], vec![10; 2000]].concat());
    let file = Location::bytes("p.parquet", bytes);
    let batches = |parquet: &Parquet| -> Vec<usize> {
        let texts =
            read(parquet).unwrap().into_iter().map(|batch| batch["image"].to_vec::<Vec<u8>>().unwrap());
        texts.map(|texts| texts.iter().map(Vec::len).sum()).collect()
    };
    let most = |parquet: &Parquet| batches(parquet).into_iter().max().unwrap();
    assert!(most(&Parquet::file(&file)) <= (16 << 20) + 200 * KB);
    assert!(most(&Parquet::file(&file).bytes(1 << 20)) <= (1 << 20) + 200 * KB);
    // Requested rows are returned together, and a row that exceeds the limit is returned alone.
    assert!(most(&Parquet::file(&file).rows(300)) > 190 * 200 * KB);
    assert_eq!(most(&Parquet::file(&file).rows(300).bytes(1)), 200 * KB);
    let count = |parquet: Parquet| parquet.dataset().iter().map(Result::unwrap).count();
    assert_eq!(count(Parquet::files([file.clone(), file.clone()]).bytes(1 << 20)), 8600);
    let error = Parquet::files([file.clone(), file.clone()]).open().unwrap_err();
    assert!(error.to_string().contains("the number of files is 2, but must be 1"), "{error}");
    assert!(matches!(Parquet::file(&file).rows(0).dataset().check(), Err(Error::Parameter { .. })));
}

#[test]
fn a_row_that_takes_more_than_an_element_may_is_an_error_that_names_it() {
    let limited = |bytes: Vec<u8>, limit| Location::bytes("p.parquet", bytes).element_limit(limit);
    // Eight rows of a page, of which one is large; and lists of two columns.
    let sizes = (0..16).map(|row| if row == 11 { 60_000 } else { 10 });
    let error = read(&Parquet::file(limited(large_rows(sizes.clone()), 59_000))).unwrap_err().to_string();
    assert!(error.contains("a page takes more than 59000"), "{error}");
    let rows = limited(large_rows((0..16).map(|row| if row == 11 { 60_000 } else { 50_000 })), 450_000);
    assert_eq!(read(&Parquet::file(rows)).unwrap().len(), 1);
    let lists = || {
        let mut lists = ListBuilder::new(Int64Builder::new());
        (0..4).for_each(|_| lists.append_value(vec![Some(7); 25_000]));
        Arc::new(lists.finish()) as ArrayRef
    };
    let batch = RecordBatch::try_from_iter([("ids", lists()), ("more", lists())]).unwrap();
    // A page is as long as a row.
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_data_page_size_limit(1 << 17)
        .set_write_batch_size(1 << 12)
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    let bytes = writer.into_inner().unwrap();
    let error = read(&Parquet::file(limited(bytes.clone(), 390_000))).unwrap_err();
    assert!(matches!(&error, Error::Column { .. }), "{error:?}");
    assert!(error.to_string().contains("a row takes more than 390000 bytes of memory"), "{error}");
    assert_eq!(read(&Parquet::file(limited(bytes, 900_000)).bytes(1)).unwrap().len(), 4);
}

/// Checks a file in which every row repeats a long text: it has few bytes, but its rows would take gigabytes.
#[test]
fn rows_that_repeat_a_long_text_are_read_a_few_at_a_time() {
    const LONG: usize = 1 << 20;
    let long = "x".repeat(LONG);
    let keys = arrow_array::Int32Array::from(vec![0; 4000]);
    let texts = arrow_array::DictionaryArray::new(keys, Arc::new(StringArray::from(vec![long.as_str()])));
    let batch = RecordBatch::try_from_iter([("text", Arc::new(texts) as ArrayRef)]).unwrap();
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_dictionary_page_size_limit(4 * LONG)
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    let bytes = writer.into_inner().unwrap();
    assert!(bytes.len() < LONG / 8, "{} bytes", bytes.len());
    let file = |limit| Location::bytes("p.parquet", bytes.clone()).element_limit(limit);
    let first = |limit| Parquet::file(file(limit)).open().unwrap().next().unwrap().unwrap().rows().unwrap();
    assert!((1..=8).contains(&first(8 * LONG as u64)));
    // A page of one text is more than an element may take.
    let error = Parquet::file(file(LONG as u64 / 2)).open().unwrap_err().to_string();
    assert!(error.contains("a page takes more than") && error.contains("Location::element_limit"), "{error}");
    assert!(rows(file(LONG as u64 / 2), ["text"]).iter().next().unwrap().is_err());
}
