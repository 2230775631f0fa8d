//! Checks that torn, altered, lost or forged files give a typed error that names the location, and never a panic.

use crate::index::{index, set_index};
use crate::tensors::of;
use distribute_checkpoint::{Error, Reader, Writer};
use distribute_tensor::{DType, HostTensor};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

const SHARD: &str = "shard-00001-of-00002.safetensors";

fn saved_in(shards: usize) -> (tempfile::TempDir, PathBuf) {
    type Files = Vec<(OsString, Vec<u8>)>;
    static FILES: LazyLock<[Files; 2]> = LazyLock::new(|| {
        [1, 2].map(|shards| {
            let mut writer = Writer::new();
            writer.insert("w", of(DType::F32, &[6, 2])).unwrap();
            writer.insert("s", of(DType::String, &[5])).unwrap();
            writer.insert("b", of(DType::Bool, &[3])).unwrap();
            writer.insert("c", of(DType::C128, &[])).unwrap();
            writer.metadata("step", 3);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("saved");
            writer.save(&path, shards).unwrap();
            let files = fs::read_dir(&path).unwrap().map(|file| file.unwrap());
            files.map(|file| (file.file_name(), fs::read(file.path()).unwrap())).collect()
        })
    });
    let folder = tempfile::tempdir().unwrap();
    FILES[shards - 1].iter().for_each(|(name, bytes)| fs::write(folder.path().join(name), bytes).unwrap());
    let path = folder.path().to_path_buf();
    (folder, path)
}

fn saved() -> (tempfile::TempDir, PathBuf) {
    saved_in(2)
}

/// Reads everything in a checkpoint.
fn read(path: &Path) -> Result<(), Error> {
    let checkpoint = Reader::open(path)?;
    checkpoint.names().try_for_each(|name| checkpoint.tensor(name).map(drop))?;
    checkpoint.verify()
}

#[test]
fn a_file_cut_short_at_any_byte_is_damaged_there() {
    let (_folder, path) = saved();
    for name in [SHARD, "index.json"] {
        let file = path.join(name);
        let whole = fs::read(&file).unwrap();
        for len in 0..whole.len() {
            fs::write(&file, &whole[..len]).unwrap();
            match read(&path).unwrap_err() {
                Error::Damaged { path, offset, .. } => {
                    assert!(path == file && offset <= len as u64, "{path:?} {offset} of {len}");
                }
                other => panic!("{name} cut to {len} bytes: {other}"),
            }
        }
        fs::write(&file, &whole).unwrap();
    }
    read(&path).unwrap();
}

// INV-22
#[test]
fn any_altered_byte_is_found() {
    let (_folder, path) = saved();
    for name in [SHARD, "index.json"] {
        let file = path.join(name);
        let whole = fs::read(&file).unwrap();
        for at in 0..whole.len() {
            let mut altered = whole.clone();
            altered[at] ^= 1 << (at % 8);
            fs::write(&file, &altered).unwrap();
            let error = read(&path).expect_err(&format!("byte {at} of {name}"));
            assert!(
                matches!(&error, Error::Damaged { path, .. } if *path == file),
                "byte {at} of {name}: {error}"
            );
        }
        fs::write(&file, &whole).unwrap();
    }
}

#[test]
fn reading_rows_reads_their_blocks_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let table = HostTensor::new((0..1_000_000u32).collect::<Vec<_>>(), [1000, 1000]).unwrap();
    let mut writer = Writer::new();
    writer.insert("t", table.clone()).unwrap();
    writer.save(&path, 1).unwrap();
    let file = path.join("shard-00001-of-00001.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    // In the third block of 1 MiB, that is in row 524 or a little later.
    bytes[2 << 20] ^= 1;
    fs::write(&file, bytes).unwrap();
    let checkpoint = Reader::open(&path).unwrap();
    for rows in [0..500, 800..1000] {
        assert_eq!(
            checkpoint.rows("t", rows.clone()).unwrap(),
            table.narrow(0, rows.start, rows.len()).unwrap()
        );
    }
    for rows in [0..600, 524..526, 0..1000] {
        let error = checkpoint.rows("t", rows).unwrap_err();
        assert!(matches!(error, Error::Damaged { offset, .. } if offset == 2 << 20), "{error}");
    }
    assert!(checkpoint.verify().is_err());
}

#[test]
fn missing_files_are_named() {
    let (_folder, path) = saved();
    fs::remove_file(path.join(SHARD)).unwrap();
    assert!(matches!(read(&path), Err(Error::Io { path: at, .. }) if at.ends_with(SHARD)));
    fs::create_dir(path.join(SHARD)).unwrap();
    assert!(matches!(read(&path), Err(Error::Damaged { path: at, .. }) if at.ends_with(SHARD)));
    fs::remove_file(path.join("index.json")).unwrap();
    assert!(
        matches!(read(&path), Err(Error::NoCheckpoint { path: at, reason }) if at == path && reason == "it has no index.json")
    );
    let says = |path: &Path| read(path).err().unwrap().to_string();
    assert_eq!(says(Path::new("/nowhere/saved")), "/nowhere/saved is not a checkpoint: nothing is there");
    let (_kept, whole) = saved();
    let file = says(&whole.join(SHARD));
    assert!(file.contains("it is a file, and a checkpoint is a folder; the weights"), "{file}");
}

#[test]
fn an_impossible_index_is_refused_with_its_position() {
    let (_folder, path) = saved();
    let good = index(&path);
    let file_of = |name: &str| good["entries"][name]["slices"][0]["file"].as_u64().unwrap();
    let slice = good["entries"]["b"]["slices"][0].clone();
    let other = (0..2).find(|file| *file != file_of("b")).unwrap();
    let cases: Vec<(&str, Value, &str)> = vec![
        ("/version", json!(3), "format \"distribute.checkpoint\" version 3; this version reads"),
        ("/version", json!(0), "version 0; this version reads \"distribute.checkpoint\" version 1 or 2"),
        ("/format", json!("other"), "format \"other\" version 1"),
        ("/files/0/name", json!("../up"), "file 0: \"../up\" is not the name of a file in this folder"),
        ("/files/0/name", json!("/etc/passwd"), "is not the name of a file"),
        ("/files/0/name", json!(""), "is not the name of a file"),
        ("/files/0/name", json!("."), "is not the name of a file"),
        ("/files/0/bytes", json!(1u64 << 60), "but 1152921504606846976 were written"),
        ("/files/0/crc32", json!([]), "0 checksums"),
        ("/files/0/crc32", json!([-1]), "line"),
        ("/entries/b/dtype", json!("float33"), "'float33' is not a dtype"),
        ("/entries/b/dtype", json!("int8"), "entry \"b\": slice 0: the tensor \"b\""),
        ("/entries/b/dtype", json!("string"), "strings without ends"),
        ("/entries/b/shape", json!([4]), "rows 3..4 of bool[4] are missing"),
        ("/entries/b/shape", json!([2]), "are not rows of bool[2]"),
        ("/entries/b/shape", json!([3, 1]), "are not rows of bool[3, 1]"),
        ("/entries/b/shape", json!([usize::MAX, usize::MAX]), "are not rows"),
        ("/entries/b/shape", json!([-1]), "line"),
        ("/entries/b/slices", json!([]), "rows 0..3 of bool[3] are missing"),
        ("/entries/b/slices", json!([slice, slice]), "\"b\" of "),
        ("/entries/b/slices/0/offset", json!([1]), "are not rows of bool[3]"),
        ("/entries/b/slices/0/offset", json!([usize::MAX]), "are not rows of bool[3]"),
        ("/entries/b/slices/0/file", json!(7), "there is no file 7, of 2"),
        ("/entries/b/slices/0/file", json!(other), "has no tensor \"b\""),
        ("/entries/b/slices/0/key", json!("w"), "\"w\""),
        ("/entries/s/slices/0/ends", json!(null), "strings without ends"),
        ("/entries/w", json!({"dtype": "float32", "shape": [0], "slices": [], "more": 1}), ""),
    ];
    for (pointer, value, text) in cases {
        let mut changed = good.clone();
        *changed.pointer_mut(pointer).unwrap() = value;
        set_index(&path, &changed.to_string());
        match read(&path) {
            Ok(()) => assert_eq!(text, "", "{pointer}"),
            Err(error) => {
                assert!(!text.is_empty() && error.to_string().contains(text), "{pointer}: {error} | {text}")
            }
        }
    }
    set_index(&path, "{\"format\": 1");
    assert!(matches!(read(&path), Err(Error::Index { at, .. }) if at.starts_with("line ")));
    set_index(&path, &good.to_string());
    read(&path).unwrap();
}

#[test]
fn impossible_steps_are_refused() {
    let (_folder, path) = saved_in(1);
    let good = index(&path);
    let cases: Vec<(&str, usize, Value, &str)> = vec![
        ("w", 6, json!(0), "are not rows of float32[6, 2]"),
        ("w", 6, json!(2), "are not rows of float32[6, 2]"),
        ("w", 6, json!(usize::MAX), "are not rows of float32[6, 2]"),
        ("w", 6, json!(-1), "line"),
        ("b", 1, json!(2), "only rows of numbers"),
        ("s", 1, json!(2), "only rows of numbers"),
    ];
    for (name, rows, step, text) in cases {
        let mut changed = good.clone();
        let slice = &mut changed["entries"][name]["slices"][0];
        slice["shape"][0] = json!(rows);
        slice["step"] = step;
        set_index(&path, &changed.to_string());
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains(text), "{name} {rows}: {error} | {text}");
    }
}

#[test]
fn overlapping_slices_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let mut writer = Writer::new();
    for row in 0..3 {
        writer.insert_slice("t", [3], row, of(DType::U8, &[1])).unwrap();
    }
    writer.save(&path, 1).unwrap();
    let mut changed = index(&path);
    changed["entries"]["t"]["slices"][1]["offset"] = json!([0]);
    set_index(&path, &changed.to_string());
    let error = read(&path).unwrap_err().to_string();
    assert!(error.contains("entry \"t\": rows 0..1 of uint8[3] are there twice"), "{error}");
}

/// Makes a file with these bytes the only one of a checkpoint, and writes the matching checksums.
fn set_shard(path: &Path, bytes: &[u8]) {
    fs::write(path.join("one"), bytes).unwrap();
    let crc32: Vec<_> = bytes.chunks(1 << 20).map(crc32fast::hash).collect();
    let mut index = index(path);
    index["files"] = json!([{"name": "one", "bytes": bytes.len(), "crc32": crc32}]);
    set_index(path, &index.to_string());
}

#[test]
fn elements_that_are_none_are_named_with_their_offset() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    let mut writer = Writer::new();
    writer.insert("b", of(DType::Bool, &[3])).unwrap();
    writer.insert("s", of(DType::String, &[2])).unwrap();
    writer.save(&path, 1).unwrap();
    let good = fs::read(path.join("shard-00001-of-00001.safetensors")).unwrap();
    // In the order of the file: ends (8 bytes each), the one byte of strings, bools.
    let last = good.len() - 1;
    for (at, byte, name, text) in [
        (last, 2, "b", "these bytes are not valid bool"),
        (last - 4 - 7, 9, "s", "a string ends at 9"),
        (last - 4 - 15, 7, "s", "a string ends at 7"),
    ] {
        let mut bytes = good.clone();
        bytes[at] = byte;
        set_shard(&path, &bytes);
        let error = Reader::open(&path).unwrap().tensor(name).unwrap_err();
        let text = format!("at byte {at}: {text}");
        assert!(error.to_string().contains(&text), "{error} | {text}");
    }
}

#[test]
fn a_header_that_promises_more_than_the_file_holds_is_refused() {
    let (_folder, path) = saved();
    for len in [1u64, 100, 1 << 40, u64::MAX] {
        set_shard(&path, &len.to_le_bytes());
        assert!(matches!(read(&path), Err(Error::Damaged { offset: 0, .. })), "{len}");
    }
    let header =
        format!(r#"{{"w":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{}]}}}}"#, 1u64 << 40, 4u64 << 40);
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    set_shard(&path, &bytes);
    let error = read(&path).unwrap_err();
    assert!(
        matches!(&error, Error::Damaged { .. }) && error.to_string().contains("tensors should end"),
        "{error}"
    );
}

/// Any JSON value that could be in an index.
fn any_value() -> impl proptest::strategy::Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0u64..20).prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z./\\[\\]:_0-9]{0,6}".prop_map(Value::from),
        prop_oneof![Just("w"), Just("s"), Just("s.ends"), Just("float32"), Just("string")]
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec(("[a-z]{1,5}", inner), 0..3)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

/// Collects the JSON pointers to all values within a value.
fn pointers(value: &Value, at: String, all: &mut Vec<String>) {
    match value {
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, v)| pointers(v, format!("{at}/{i}"), all))
        }
        Value::Object(items) => items.iter().for_each(|(key, v)| pointers(v, format!("{at}/{key}"), all)),
        _ => (),
    }
    all.push(at);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_index_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), sealed: bool) {
        let folder = tempfile::tempdir().unwrap();
        match (sealed, std::str::from_utf8(&bytes)) {
            (true, Ok(text)) => set_index(folder.path(), text),
            _ => fs::write(folder.path().join("index.json"), &bytes).unwrap(),
        }
        prop_assert!(read(folder.path()).is_err());
    }

    #[test]
    fn no_changed_index_panics(changes in proptest::collection::vec((any::<prop::sample::Index>(), any_value()), 1..4)) {
        let (_folder, path) = saved();
        let mut changed = index(&path);
        for (place, value) in changes {
            let mut all = Vec::new();
            pointers(&changed, String::new(), &mut all);
            if let Some(at) = changed.pointer_mut(&all[place.index(all.len())]) {
                *at = value;
            }
        }
        set_index(&path, &changed.to_string());
        let _ = read(&path);
    }

    #[test]
    fn no_shard_panics(
        header in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..100),
            any_value().prop_map(|value| value.to_string().into_bytes()),
            any_value().prop_map(|value| json!({"w": value, "b": {"dtype": "BOOL", "shape": [3], "data_offsets": [0, 3]}}).to_string().into_bytes()),
        ],
        len in proptest::option::of(any::<u64>()),
        data in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let (_folder, path) = saved_in(1);
        let len = len.unwrap_or(header.len() as u64).to_le_bytes();
        set_shard(&path, &[&len[..], &header, &data].concat());
        let _ = read(&path);
    }

    #[test]
    fn no_changed_shard_panics(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let (_folder, path) = saved_in(1);
        let mut bytes = fs::read(path.join("shard-00001-of-00001.safetensors")).unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        set_shard(&path, &bytes);
        let _ = read(&path);
    }
}
