//! Truncated, altered or forged files give a typed error that names file and byte, and never a panic.

use crate::bundle::{self, entry, header, message, number, table};
use crate::fixtures::{ALL, path};
use distribute_tensor::HostTensor;
use distribute_tf_checkpoint::{Error, Mapping, TfCheckpoint};
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};

/// Copies a fixture, and returns its prefix and the paths of its files.
fn copied(fixture: &str) -> (tempfile::TempDir, PathBuf, Vec<PathBuf>) {
    let (_, of) = ALL.into_iter().find(|(name, _)| *name == fixture).unwrap();
    let index = TfCheckpoint::open(path(of)).unwrap().path().to_path_buf();
    let folder = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for file in fs::read_dir(index.parent().unwrap()).unwrap().map(|file| file.unwrap().path()) {
        if file.file_name().unwrap() != "checkpoint" {
            let to = folder.path().join(file.file_name().unwrap());
            fs::write(&to, fs::read(&file).unwrap()).unwrap();
            files.push(to);
        }
    }
    let prefix = folder.path().join(index.with_extension("").file_name().unwrap());
    (folder, prefix, files)
}

/// Reads everything that can be read. An unsupported dtype is no error.
fn read(prefix: &Path) -> Result<(), Error> {
    let checkpoint = TfCheckpoint::open(prefix)?;
    for name in checkpoint.names() {
        match checkpoint.tensor(name) {
            Err(Error::Entry { .. }) => continue,
            found => drop(found?),
        }
        if checkpoint.describe(name)?.shape.first().is_some_and(|rows| *rows > 1) {
            checkpoint.rows(name, 1..2)?;
        }
        let _ = checkpoint.into_writer(&Mapping::new().variable(name, "w").optimizer("adam", name));
    }
    checkpoint.verify()
}

#[test]
fn any_altered_byte_is_found_in_its_file() {
    for fixture in ["sharded", "ps", "saved_model"] {
        let (_folder, prefix, files) = copied(fixture);
        read(&prefix).unwrap();
        for file in files {
            let whole = fs::read(&file).unwrap();
            for at in 0..whole.len() {
                let mut altered = whole.clone();
                altered[at] ^= 1 << (at % 8);
                fs::write(&file, &altered).unwrap();
                let error = read(&prefix).expect_err(&format!("byte {at} of {file:?}"));
                let is_named = matches!(&error, Error::Damaged { path, offset, .. } if *path == file && *offset <= at as u64 + 64);
                let is_near = matches!(&error, Error::Damaged { .. })
                    && file.extension().is_some_and(|end| end == "index");
                assert!(is_named || is_near, "byte {at} of {file:?}: {error}");
            }
            fs::write(&file, &whole).unwrap();
        }
    }
}

#[test]
fn a_file_cut_short_is_damaged() {
    for fixture in ["sharded", "keras"] {
        let (_folder, prefix, files) = copied(fixture);
        for file in files {
            let whole = fs::read(&file).unwrap();
            for len in (0..whole.len()).step_by(3) {
                fs::write(&file, &whole[..len]).unwrap();
                let error = read(&prefix).unwrap_err();
                let is_index = file.extension().is_some_and(|end| end == "index");
                assert!(
                    matches!(&error, Error::Damaged { path, offset, .. } if *path == file && (is_index || *offset == len as u64)),
                    "{file:?} cut to {len}: {error}"
                );
            }
            fs::write(&file, &whole).unwrap();
        }
    }
}

#[test]
fn a_missing_file_is_named() {
    let (_folder, prefix, files) = copied("sharded");
    for file in files.iter().filter(|file| file.extension().is_some_and(|end| end != "index")) {
        let bytes = fs::read(file).unwrap();
        fs::remove_file(file).unwrap();
        let error = TfCheckpoint::open(&prefix).unwrap_err();
        assert!(matches!(&error, Error::Io { path, .. } if path == file), "{error}");
        fs::write(file, bytes).unwrap();
    }
}

/// Opens a bundle with these entries after the header, and 8 bytes of data.
fn forged(entries: Vec<(&[u8], Vec<u8>)>) -> Result<TfCheckpoint, Error> {
    let entries = entries.into_iter().map(|(key, value)| (key.to_vec(), value));
    let entries = [(Vec::new(), header(1, 0, 1))].into_iter().chain(entries).collect();
    opened(&table(&[entries], false), &[0; 8])
}

fn opened(index: &[u8], data: &[u8]) -> Result<TfCheckpoint, Error> {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("state");
    bundle::write_files(&prefix, index, &[data]);
    TfCheckpoint::open(prefix)
}

#[test]
fn a_compressed_index_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("state");
    let value = HostTensor::vector(vec![1f32, 2.]);
    let (data, crc) = bundle::elements(&value);
    let names: Vec<String> = (0..100).map(|at| format!("variable/with/a/long/name/{at:03}")).collect();
    let entries =
        names.iter().map(|name| (name.clone().into_bytes(), entry(1, &[2], 0, 8, bundle::masked(crc))));
    let entries: Vec<_> = entries.collect();
    let blocks = [vec![(Vec::new(), header(1, 0, 0))], entries[..50].to_vec(), entries[50..].to_vec()];
    let index = table(&blocks, true);
    assert!(index.len() < table(&blocks, false).len() / 2);
    bundle::write_files(&prefix, &index, &[&data]);
    let checkpoint = TfCheckpoint::open(&prefix).unwrap();
    assert!(checkpoint.names().eq(names.iter().map(String::as_str)));
    assert_eq!(checkpoint.tensor(&names[73]).unwrap(), value);
}

#[test]
fn forged_entries_are_refused_before_anything_is_allocated() {
    let one = |value: Vec<u8>| forged(vec![(b"w", value)]);
    assert!(one(entry(1, &[2], 0, 8, 0)).is_ok());
    let slice = |start: u64, len: u64| message(1, &[number(1, start), number(2, len)].concat());
    let sliced = |slices: &[Vec<u8>]| {
        let slices: Vec<u8> = slices.iter().flat_map(|slice| message(7, slice)).collect();
        [number(1, 1), message(2, &bundle::shape(&[2])), slices].concat()
    };
    for (value, text) in [
        (entry(1, &[1 << 40], 0, 8, 0), "8 bytes are not float32[1099511627776]"),
        (entry(1, &[1 << 40, 1 << 40], 0, 8, 0), "the slices have too many elements"),
        (entry(1, &[2], 4, 8, 0), "at byte 8: the file ends here, and elements that end at 12"),
        (entry(1, &[2], usize::MAX, 8, 0), "are no range"),
        (entry(1, &[2], 0, 1 << 50, 0), "the file ends here"),
        (entry(7, &[1 << 30], 0, 8, 0), "8 bytes are not string[1073741824]"),
        (entry(1, &[usize::MAX], 0, 8, 0), "an axis has size -1"),
        (entry(1, &[1; 300], 0, 4, 0), "a shape of 300 axes"),
        ([entry(1, &[2], 0, 8, 0), number(3, 7)].concat(), "there is no file 7 of 1"),
        ([number(1, 1), message(2, &number(3, 1))].concat(), "a shape of 0 axes"),
        (vec![0xff; 3], "invalid varint"),
        (sliced(&[slice(0, 2)]), "its slice Region { start: [0], shape: [2] } is missing"),
        (sliced(&[slice(u64::MAX, 2)]), "are no ranges of [2]"),
        (sliced(&[[slice(0, 2), slice(0, 2)].concat()]), "a slice has 2 axes"),
    ] {
        let error = one(value).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{error:?}");
        assert!(error.to_string().contains(text), "{error} | {text}");
    }
    // The key of slice 0..1, and that of 1..2, of which both are the first element.
    let key = |start: u8| [0, b'w', 0, 1, 1, 1, 0x80 | start, 0x81];
    let slices = |second: u64| {
        let value = entry(1, &[1], 0, 4, 0);
        forged(vec![
            (&key(0), value.clone()),
            (&key(1), value),
            (b"w", sliced(&[slice(0, 1), slice(second, 1)])),
        ])
    };
    slices(1).unwrap();
    assert!(slices(0).unwrap_err().to_string().contains("overlap"));
}

#[test]
fn forged_tables_are_refused() {
    let entries = |names: Vec<Vec<u8>>| {
        let entries = names.into_iter().map(|name| (name, entry(1, &[2], 0, 8, 0)));
        [(Vec::new(), header(1, 0, 0))].into_iter().chain(entries).collect::<Vec<_>>()
    };
    let says = |index: &[u8]| opened(index, &[0; 8]).unwrap_err().to_string();
    // 300 keys that share 10 kB: 3 MB in a file of 20 kB.
    let long = |at: u32| [vec![b'a'; 10_000], format!("{at:04}").into_bytes()].concat();
    let found = says(&table(&[entries((0..300).map(long).collect())], false));
    assert!(found.contains("the keys have over 64 times the size of the file"), "{found}");
    let found = says(&table(&[entries(vec![b"b".to_vec(), b"a".to_vec()])], false));
    assert!(found.contains("the keys are not in order"), "{found}");
    let twice = entries(vec![b"a".to_vec()]);
    assert!(says(&table(&[twice.clone(), twice], true)).contains("the keys are not in order"));
    assert!(says(&table(&[], false)).contains("the index is empty"));
    let only = |value: Vec<u8>| table(&[vec![(Vec::new(), value)]], false);
    assert!(says(&only(header(0, 0, 0))).contains("the number of files is 0"));
    assert!(says(&only(header(1, 1, 0))).contains("a big-endian bundle for readers of version 0"));
    assert!(says(&only(header(1, 0, 2))).contains("a little-endian bundle for readers of version 2"));
    assert!(says(&only(header(1 << 30, 0, 0))).contains("data-00000-of-1073741824"));
    assert!(
        says(&table(&[vec![(b"a".to_vec(), Vec::new())]], false)).contains("doesn't begin with a header")
    );
    assert!(says(&table(&[entries(vec![vec![0xff]])], false)).contains("utf-8"));
    // A block of 4 GB in some bytes.
    let mut bomb = Vec::new();
    bundle::varint(u64::from(u32::MAX), &mut bomb);
    let mut index = bomb.clone();
    index.push(1);
    let crc = bundle::masked(crc32c::crc32c(&index));
    index.extend_from_slice(&crc.to_le_bytes());
    let mut footer = [0, bomb.len() as u8, 0, bomb.len() as u8].to_vec();
    footer.resize(40, 0);
    index.extend_from_slice(&footer);
    index.extend_from_slice(&0xdb47_7524_8b80_fb57u64.to_le_bytes());
    assert!(says(&index).contains("5 compressed bytes cannot be 4294967295 bytes"), "{}", says(&index));
}

/// Writes a bundle with these bytes as its object graph, and a scalar `k`.
fn graph(bytes: Vec<u8>) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("state");
    let value = HostTensor::scalar(1f32);
    bundle::write(&prefix, &[("_CHECKPOINTABLE_OBJECT_GRAPH", &HostTensor::scalar(bytes)), ("k", &value)]);
    (folder, prefix)
}

#[test]
fn forged_graphs_are_refused() {
    let node = |children: &[(u64, &str)]| {
        let children =
            children.iter().map(|(to, name)| [number(1, *to), message(2, name.as_bytes())].concat());
        children.flat_map(|child| message(1, &child)).collect::<Vec<u8>>()
    };
    // A circle is allowed.
    let (_folder, prefix) = graph(message(1, &node(&[(0, "self")])));
    let checkpoint = TfCheckpoint::open(&prefix).unwrap();
    assert!(checkpoint.tensor(&"self/".repeat(1000)).is_err());
    let (_folder, prefix) = graph(message(1, &node(&[(1, "none")])));
    let error = TfCheckpoint::open(&prefix).unwrap_err().to_string();
    assert!(error.contains("_CHECKPOINTABLE_OBJECT_GRAPH: there is no object 1 of 1"), "{error}");
    // A chain of objects, whose paths have 4.5 MB.
    let chain = (1..3000u64).flat_map(|at| message(1, &node(&[(at, "a")])));
    let chain: Vec<u8> = chain.chain(message(1, &[])).collect();
    let (_folder, prefix) = graph(chain);
    let error = TfCheckpoint::open(&prefix).unwrap_err().to_string();
    assert!(error.contains("the paths of its objects are too long"), "{error}");
}

/// Checks that a graph or an index larger than its limit is refused without being read. The files are sparse, so they
/// occupy no space on the disk.
#[test]
fn a_graph_and_an_index_beyond_their_limits_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("state");
    let entries = |size| {
        vec![
            (Vec::new(), header(1, 0, 0)),
            (b"_CHECKPOINTABLE_OBJECT_GRAPH".to_vec(), entry(7, &[], 0, size, 0)),
        ]
    };
    let grow = |suffix: &str, size: usize| {
        let file = fs::OpenOptions::new().write(true).open(folder.path().join(format!("state.{suffix}")));
        file.unwrap().set_len(size as u64).unwrap();
    };
    for (size, text) in [(257 << 20, "bytes, more than the limit of 268435456"), (1 << 20, "checksum")] {
        bundle::write_files(&prefix, &table(&[entries(size)], false), &[&[]]);
        grow("data-00000-of-00001", size);
        let error = TfCheckpoint::open(&prefix).unwrap_err();
        assert!(matches!(&error, Error::Damaged { offset: 0, .. }) || size < 257 << 20, "{error:?}");
        assert!(error.to_string().contains(text), "{error}");
    }
    grow("index", (1 << 30) + 1);
    let error = TfCheckpoint::open(&prefix).unwrap_err().to_string();
    assert!(error.contains("state.index, at byte 0: 1073741825 bytes, more than the limit"), "{error}");
}

#[test]
fn two_variables_of_one_name_are_ambiguous() {
    let object = |key: &str| {
        let attribute =
            [message(1, b"VARIABLE_VALUE"), message(2, b"twin"), message(3, key.as_bytes())].concat();
        message(1, &message(2, &attribute))
    };
    let child = |to: u64, name: &str| message(1, &[number(1, to), message(2, name.as_bytes())].concat());
    let root = message(1, &[child(1, "a"), child(2, "b")].concat());
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("state");
    let bytes = HostTensor::scalar([root, object("k"), object("l")].concat());
    let (k, l) = (HostTensor::scalar(1f32), HostTensor::scalar(2f32));
    bundle::write(&prefix, &[("_CHECKPOINTABLE_OBJECT_GRAPH", &bytes), ("k", &k), ("l", &l)]);
    let checkpoint = TfCheckpoint::open(&prefix).unwrap();
    assert_eq!(checkpoint.tensor("b").unwrap(), l);
    let error = checkpoint.tensor("twin").unwrap_err().to_string();
    assert!(error.contains(r#"several variables have this name; use one of the keys ["k", "l"]"#), "{error}");
}

/// Returns the ranges of the blocks of an index, without their checksums.
fn blocks(index: &[u8]) -> Vec<std::ops::Range<usize>> {
    let varint = |rest: &mut &[u8]| {
        let (mut number, mut shift) = (0usize, 0);
        loop {
            let (byte, after) = rest.split_first().unwrap();
            *rest = after;
            number |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if *byte < 0x80 {
                return number;
            }
        }
    };
    let mut footer = &index[index.len() - 48..];
    let [meta, meta_len, at, len] = [(); 4].map(|()| varint(&mut footer));
    let mut rest = &index[at..at + len - 8];
    let mut found = vec![meta..meta + meta_len + 1, at..at + len + 1];
    while !rest.is_empty() {
        let [_, key, _] = [(); 3].map(|()| varint(&mut rest));
        rest = &rest[key..];
        let [start, len] = [(); 2].map(|()| varint(&mut rest));
        found.push(start..start + len + 1);
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_index_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(opened(&bytes, &[0; 8]).is_err());
    }

    /// Alters bytes of blocks and repairs the checksums of the blocks.
    #[test]
    fn no_altered_index_panics(
        fixture in prop_oneof![Just("dtypes"), Just("sharded"), Just("ps"), Just("saved_model")],
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..5),
    ) {
        let (_folder, prefix, files) = copied(fixture);
        let file = files.iter().find(|file| file.extension().is_some_and(|end| end == "index")).unwrap();
        let mut bytes = fs::read(file).unwrap();
        let blocks = blocks(&bytes);
        let end = bytes.len() - 48;
        for (at, byte, is_bit) in changes {
            let at = at.index(end);
            bytes[at] = if is_bit { bytes[at] ^ 1 << (byte % 8) } else { byte };
        }
        for block in blocks {
            let crc = bundle::masked(crc32c::crc32c(&bytes[block.clone()]));
            bytes[block.end..block.end + 4].copy_from_slice(&crc.to_le_bytes());
        }
        fs::write(file, &bytes).unwrap();
        let _ = read(&prefix);
    }

    #[test]
    fn no_altered_graph_panics(
        fixture in prop_oneof![Just("keras"), Just("ps")],
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let (_, of) = ALL.into_iter().find(|(name, _)| *name == fixture).unwrap();
        let bytes = TfCheckpoint::open(path(of)).unwrap().tensor("_CHECKPOINTABLE_OBJECT_GRAPH").unwrap();
        let mut bytes: Vec<u8> = bytes.item().unwrap();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let len = cut.map_or(bytes.len(), |cut| cut.index(bytes.len()));
        let (_folder, prefix) = graph(bytes[..len].to_vec());
        let _ = read(&prefix);
    }

    /// Checks that string tensors of arbitrary bytes give no panic.
    #[test]
    fn no_strings_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40), count in 0usize..6) {
        let entries = vec![(Vec::new(), header(1, 0, 0)), (b"s".to_vec(), entry(7, &[count], 0, bytes.len(), bundle::masked(0)))];
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("state");
        bundle::write_files(&prefix, &table(&[entries], false), &[&bytes]);
        let _ = read(&prefix);
    }
}
