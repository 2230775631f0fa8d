//! Parquet files of pyarrow, polars and duckdb, from `parquet/make.py`.

use super::{Columns, read};
use distribute_data::parquet::Parquet;
use distribute_data::{Error, Location, Padding, Result, SkippedRecords};
use distribute_tensor::HostTensor;
use std::path::Path;

fn file(name: &str) -> Parquet {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/parquet").join(name);
    Parquet::file(Location::bytes(name, std::fs::read(path).unwrap()))
}

/// Returns the only batch of a file.
fn columns(parquet: &Parquet) -> Columns {
    let mut batches = read(parquet).unwrap();
    assert_eq!(batches.len(), 1);
    batches.remove(0)
}

fn rows(parquet: Parquet) -> Vec<Columns> {
    parquet.dataset().iter().map(Result::unwrap).collect()
}

fn texts(column: &HostTensor) -> Vec<String> {
    column.to_vec::<Vec<u8>>().unwrap().into_iter().map(|text| String::from_utf8(text).unwrap()).collect()
}

fn text(parquet: &Parquet) -> String {
    read(parquet).unwrap_err().to_string()
}

#[test]
fn missing_values_are_an_error_a_default_or_a_mask() {
    let error = text(&file("null-int.parquet"));
    let expected = "'null-int.parquet', column 'n': row 1 is null, for which int64 has no value; \
                    `Parquet::default` sets one, `Parquet::mask` marks the rows";
    assert_eq!(error, expected);
    let filled = columns(&file("null-int.parquet").default("n", -1));
    assert_eq!(filled["n"].to_vec::<i64>().unwrap(), [1, -1]);
    let masked = columns(&file("null-int.parquet").mask("n", "n_there"));
    assert_eq!(masked["n"].to_vec::<i64>().unwrap(), [1, 0]);
    assert_eq!(masked["n_there"].to_vec::<bool>().unwrap(), [true, false]);

    let polars = || file("null-polars.parquet").default("age", -1).default("ok", true).mask("x", "x_there");
    let columns = columns(&polars().default("name", "?").default("x", 9));
    assert_eq!(columns["age"].to_vec::<i16>().unwrap(), [31, -1, 4]);
    assert_eq!(columns["ok"].to_vec::<bool>().unwrap(), [true, true, false]);
    assert_eq!(texts(&columns["name"]), ["a", "?", "c"]);
    assert_eq!(columns["x"].to_vec::<f32>().unwrap(), [0.5, 9.0, 2.0]);
    assert_eq!(columns["x_there"].to_vec::<bool>().unwrap(), [true, false, true]);
    assert!(text(&polars()).contains("column 'name': row 1 is null"));
    let wrong = text(&polars().default("name", 7));
    assert_eq!(wrong, "'null-polars.parquet', column 'name': its default, 7, is not a value of string");
    assert!(text(&polars().default("age", 40_000)).contains("its default, 40000, is not a value of int16"));
    let unknown = polars().default("z", 1).open().unwrap_err();
    assert_eq!(unknown.to_string(), "'null-polars.parquet' has no column 'z'; it has age, name, ok, x");
    for mask in [polars().mask("ok", "age"), polars().mask("ok", "x_there")] {
        assert!(matches!(mask.open().unwrap_err(), Error::Parameter { operation: "Parquet::mask", .. }));
    }
}

#[test]
fn lists_of_different_lengths_are_elements_for_padded_batch() {
    let dims =
        |rows: &[Columns], name: &str| rows.iter().map(|row| row[name].dims().to_vec()).collect::<Vec<_>>();
    for at_a_time in [1, 2, 1024] {
        let ragged = rows(file("ragged.parquet").rows(at_a_time));
        assert_eq!(dims(&ragged, "l"), [[2], [1], [3]]);
        assert_eq!(ragged[2]["l"].to_vec::<i64>().unwrap(), [4, 5, 6]);
    }
    let padding: Padding = Default::default();
    let batch = file("ragged.parquet").dataset().padded_batch(3, padding).iter().next().unwrap().unwrap();
    assert_eq!(batch["l"], HostTensor::new(vec![1i64, 2, 0, 3, 0, 0, 4, 5, 6], [3, 3]).unwrap());
    let expected = "'ragged.parquet', column 'l': rows have the shapes [2] and [1], and a batch needs one: \
                    `Parquet::dataset` has each row as an element, for `padded_batch`";
    assert_eq!(text(&file("ragged.parquet")), expected);

    let lists =
        || file("lists-nulls-pyarrow.parquet").columns(["f", "c", "l"]).default("f", 0).default("c", "none");
    let lists = rows(lists());
    assert_eq!(lists[1]["f"].to_vec::<i32>().unwrap(), [0, 0]);
    assert_eq!(lists.iter().map(|row| texts(&row["c"]).concat()).collect::<Vec<_>>(), ["x", "none", "y"]);
    assert_eq!(dims(&lists, "l"), [[1], [0], [2]]);
    assert!(lists[2]["l"].to_vec::<f64>().unwrap()[1].is_nan());
    let nested = file("lists-nulls-pyarrow.parquet").columns(["ll"]);
    let error = nested.dataset().iter().next().unwrap().unwrap_err().to_string();
    assert!(error.contains("column 'll': row 0 has lists of different lengths in it"), "{error}");
    let null = text(&file("lists-nulls-pyarrow.parquet").columns(["f"]));
    assert!(null.contains("row 1 is null, but others are lists; `Parquet::default`"), "{null}");
}

#[test]
fn fields_of_structures_are_columns() {
    let names = |columns: &Columns| columns.keys().cloned().collect::<Vec<_>>();
    let all = columns(&file("hf-image.parquet"));
    assert_eq!(names(&all), ["image.bytes", "image.path", "label"]);
    assert_eq!(all["image.bytes"].to_vec::<Vec<u8>>().unwrap(), [b"\x89PNG".to_vec()]);
    let bytes = columns(&file("hf-image.parquet").columns(["image.bytes", "label"]));
    assert_eq!(names(&bytes), ["image.bytes", "label"]);
    assert_eq!(names(&columns(&file("hf-image.parquet").columns(["image"]))), ["image.bytes", "image.path"]);
    let error = file("hf-image.parquet").columns(["image.x"]).open().unwrap_err().to_string();
    assert_eq!(error, "'hf-image.parquet' has no column 'image.x'; it has image.bytes, image.path, label");

    // A field of a missing structure is missing.
    let polars = || file("struct-polars.parquet");
    let deep = columns(&polars().columns(["image.meta.w", "label"]).default("image.meta.w", -1));
    assert_eq!(deep["image.meta.w"].to_vec::<i32>().unwrap(), [3, -1, -1]);
    assert_eq!(deep["label"].to_vec::<u8>().unwrap(), [1, 2, 3]);
    let masked = columns(&polars().columns(["image.bytes"]).mask("image.bytes", "there"));
    assert_eq!(masked["there"].to_vec::<bool>().unwrap(), [true, false, true]);
    let tags = rows(polars().columns(["image.meta.tags"]).default("image.meta.tags", ""));
    assert_eq!(tags.iter().map(|row| row["image.meta.tags"].len()).collect::<Vec<_>>(), [2, 0, 0]);
}

#[test]
fn two_columns_of_one_name_are_refused_or_read_by_their_places() {
    let refused = |parquet: Parquet| parquet.open().unwrap_err().to_string();
    let expected = "'twice.parquet', column 'a': several columns have this name: select them by position, \
                    0 and 1: `Parquet::columns([0, 1])`";
    assert_eq!(refused(file("twice.parquet")), expected);
    assert_eq!(refused(file("twice.parquet").columns(["a"])), expected);
    let both = columns(&file("twice.parquet").columns([0, 1]));
    assert_eq!((both["0"].to_vec::<i64>().unwrap(), both["1"].to_vec::<i64>().unwrap()), (vec![1], vec![2]));
    let other = columns(&file("twice-pyarrow.parquet").columns(["v"]));
    assert_eq!(other["v"].to_vec::<i64>().unwrap(), [1, 2]);
    let other = columns(&file("twice-pyarrow.parquet").columns([2]));
    assert_eq!(other["2"].to_vec::<f64>().unwrap(), [0.5, 1.5]);
    assert!(refused(file("twice-pyarrow.parquet").columns(["k"])).contains("0 and 2"));
    assert!(matches!(file("twice.parquet").columns([2]).open(), Err(Error::NoColumn { .. })));
}

#[test]
fn two_fields_of_one_name_in_a_structure_are_refused_and_the_others_are_read() {
    let twice = || file("twice-field-pyarrow.parquet");
    let refused = |parquet: Parquet| parquet.open().unwrap_err().to_string();
    let fields = "several fields of its structure have this name, and cannot be distinguished: select \
                  others by `Parquet::columns`, or write the file with a name for each field";
    for (parquet, name) in [
        (twice(), "s.x"),
        (twice().columns(["s"]), "s.x"),
        (twice().columns(["s.x"]), "s.x"),
        (twice().columns([1]), "1.x"),
        (twice().columns(["deep.in.x"]), "deep.in.x"),
        (twice().columns(["deep"]), "deep.in.x"),
    ] {
        assert_eq!(refused(parquet), format!("'twice-field-pyarrow.parquet', column '{name}': {fields}"));
    }
    let others = columns(&twice().columns(["s.y", "n", "deep.in.z"]));
    assert_eq!(others["s.y"].to_vec::<i64>().unwrap(), [5, 6]);
    assert_eq!(others["n"].to_vec::<i64>().unwrap(), [7, 8]);
    assert_eq!(others["deep.in.z"].to_vec::<f64>().unwrap(), [2.5, 3.5]);
}

#[test]
fn a_page_with_another_checksum_is_an_error_is_read_as_it_is_or_left_out() {
    let error = text(&file("crc.parquet"));
    assert!(
        error.starts_with("'crc.parquet', byte ")
            && error
                .contains(": page 0 of column 'x' in row group 0 has another checksum than the stored one"),
        "{error}"
    );
    let as_it_is = columns(&file("crc.parquet").skip_checksums());
    assert_eq!(as_it_is["x"].to_vec::<i64>().unwrap()[3], 3001);
    let skipped = SkippedRecords::new();
    assert_eq!(rows(file("crc.parquet").skip_broken(&skipped)).len(), 0);
    assert_eq!((skipped.count(), skipped.first()), (10, Some(error)));

    // The damaged page is the fourth page of 50 rows in the first of two row groups.
    let pages = || file("crc-v2-pyarrow.parquet");
    let error = text(&pages());
    assert!(error.contains("page 3 of column 'b' in row group 0"), "{error}");
    let skipped = SkippedRecords::new();
    for (read, at_a_time) in (1..).zip([1024, 7]) {
        let rows = rows(pages().rows(at_a_time).skip_broken(&skipped));
        let a: Vec<i64> = rows.iter().map(|row| row["a"].item().unwrap()).collect();
        assert_eq!(a, (0..150).chain(200..600).collect::<Vec<_>>());
        assert!(rows.iter().zip(&a).all(|(row, a)| row["b"].item::<f64>().unwrap() == *a as f64 / 2.));
        assert_eq!(skipped.count(), 50 * read);
    }
    assert!(columns(&pages().columns(["a"]).rows(600)).len() == 1);
    // Without the dictionary, nothing of its row group is known.
    let dictionary = || file("crc-dictionary-pyarrow.parquet");
    assert!(text(&dictionary()).contains("the dictionary of column 's' in row group 0"));
    let skipped = SkippedRecords::new();
    let rows = rows(dictionary().skip_broken(&skipped));
    let n: Vec<i64> = rows.iter().map(|row| row["n"].item().unwrap()).collect();
    assert_eq!((n, skipped.count()), ((100..300).collect(), 100));
    let few = dictionary().skip_broken(&SkippedRecords::new().at_most(99)).dataset();
    assert!(matches!(few.iter().next().unwrap(), Err(Error::Damaged { .. })));
}

#[test]
fn rows_without_a_value_are_skipped_one_by_one() {
    let skipped = SkippedRecords::new();
    let rows = rows(file("null-polars.parquet").skip_broken(&skipped).columns(["age", "name"]));
    assert_eq!(rows.iter().map(|row| row["age"].item::<i16>().unwrap()).collect::<Vec<_>>(), [31, 4]);
    assert_eq!(skipped.count(), 1);
    assert!(skipped.first().unwrap().contains("column 'age': row 1 is null"));
    // An unsupported type is not a broken row.
    let dates = arrow_array::Date32Array::from(vec![1]);
    let dates = super::plain("d", dates).skip_broken(&skipped).dataset();
    assert!(matches!(dates.iter().next().unwrap(), Err(Error::Column { .. })));
}

#[test]
fn pages_of_brotli_are_read_or_name_their_feature() {
    for (name, rows) in [("brotli.parquet", 1), ("brotli-duckdb.parquet", 100)] {
        match read(&file(name)) {
            Ok(batches) if cfg!(feature = "brotli") => {
                assert_eq!(batches[0].values().next().unwrap().dims(), [rows]);
            }
            other => {
                let error = other.unwrap_err();
                assert!(matches!(&error, Error::Feature { feature: "brotli", .. }), "{error}");
                assert!(error.to_string().contains("which is compressed with brotli'"), "{error}");
            }
        }
    }
}

/// Checks that deeply nested columns are rejected. The library builds its tree of columns recursively, which
/// aborted the process in an earlier version.
#[test]
fn columns_nested_20_000_deep_are_refused() {
    let mut description = vec![0x15, 2, 0x19, 0xfc, 0xa1, 0x9c, 1];
    for depth in 0..20_001 {
        // The repetition, the name, and one child for all but the last, which is a number.
        let column: &[u8] = if depth == 20_000 {
            &[0x15, 2, 0x25, 2, 0x18, 1, b'x', 0]
        } else {
            &[0x35, 2, 0x18, 1, b'x', 0x15, 2, 0]
        };
        description.extend(column);
    }
    description.extend([0x16, 0, 0x19, 0x0c, 0]);
    let bytes = [&b"PAR1"[..], &description, &(description.len() as u32).to_le_bytes(), b"PAR1"].concat();
    let error = Parquet::file(Location::bytes("deep", bytes)).open().unwrap_err().to_string();
    assert_eq!(error, "cannot read 'deep': its columns are nested deeper than the 100 levels that are read");
}
