//! Files that TensorFlow has written (`tfrecord/make.py`), and files that TensorFlow reads.

use distribute_data::example::{Example, Feature, Features, FixedLen, VarLen};
use distribute_data::{Compression, Location, TfRecordReader, TfRecordWriter};
use distribute_tensor::HostTensor;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tfrecord").join(name)
}

fn records(name: &str) -> Vec<Vec<u8>> {
    let mut reader = TfRecordReader::open(path(name), Compression::Auto).unwrap();
    let records = reader.read(usize::MAX).unwrap();
    records.iter().map(<[u8]>::to_vec).collect()
}

fn examples(name: &str) -> Vec<Example> {
    records(name).iter().map(|record| Example::decode(record).unwrap()).collect()
}

#[test]
fn files_are_read_however_they_are_packed() {
    let expected: Vec<Vec<u8>> = (0..40).map(|n| vec![n as u8; n]).collect();
    for name in ["plain.tfrecord", "gzip.tfrecord.gz", "zlib.tfrecord.z"] {
        assert_eq!(records(name), expected, "{name}");
    }
    assert_eq!(records("none.tfrecord").len(), 0);
    assert_eq!(records("empty_records.tfrecord"), [b"", b"", b""]);
}

#[test]
fn a_broken_compressed_file_is_named() {
    let bytes = std::fs::read(path("gzip.tfrecord.gz")).unwrap();
    for len in 1..bytes.len() {
        let torn = Location::bytes("torn.gz", bytes[..len].to_vec());
        let mut reader = TfRecordReader::open(torn, Compression::Gzip).unwrap();
        let error = loop {
            match reader.read(7) {
                Ok(records) => assert!(!records.is_empty(), "{len} bytes pass for a whole file"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.starts_with("cannot read 'torn.gz': "), "{len}: {error}");
    }
}

#[test]
fn examples_contain_the_written_values() {
    let [first, second, third, fourth, fifth] = examples("examples.tfrecord").try_into().unwrap();
    let ints = [0, -1, 1 << 40, i64::MIN, i64::MAX];
    let words = [b"one".to_vec(), vec![], vec![0, 255]];
    assert_eq!(
        first,
        Example::from([
            ("scalar", 7.into()),
            ("ints", ints.into()),
            ("floats", [0.5, -1.5, 3.0e38].into()),
            ("words", words.into()),
        ])
    );
    assert_eq!(second, Example::from([("scalar", (-8).into())]));
    assert_eq!(third, Example::default());
    let (ints, floats, words) = (Feature::Ints(vec![]), Feature::Floats(vec![]), Feature::Bytes(vec![]));
    assert_eq!(fourth, Example::from([("ints", ints), ("floats", floats), ("words", words)]));
    let ints: Vec<i64> = (0..300).collect();
    assert_eq!(
        fifth,
        Example::from([("scalar", 9.into()), ("ints", ints.into()), ("words", vec![b'w'; 1000].into())])
    );
}

#[test]
fn examples_become_columns() {
    let features = Features::new()
        .with("scalar", FixedLen::ints([]).or(100))
        .and_then(|f| f.with("ints", VarLen::ints().pad(-3).lengths("ints_len")))
        .and_then(|f| f.with("floats", VarLen::floats()))
        .and_then(|f| f.with("words", VarLen::bytes().lengths("words_len")))
        .unwrap();
    let mut reader = TfRecordReader::open(path("examples.tfrecord"), Compression::Auto).unwrap();
    let records = reader.read(256).unwrap();
    let columns = features.parse_records(&records).unwrap();
    assert_eq!(columns["scalar"], HostTensor::vector(vec![7i64, -8, 100, 100, 9]));
    assert_eq!(columns["ints_len"], HostTensor::vector(vec![5i64, 0, 0, 0, 300]));
    assert_eq!(columns["ints"].dims(), [5, 300]);
    let ints = columns["ints"].to_vec::<i64>().unwrap();
    assert_eq!(ints[..6], [0, -1, 1 << 40, i64::MIN, i64::MAX, -3]);
    assert!(ints[5..1200].iter().all(|value| *value == -3));
    assert_eq!(ints[1200..], (0..300).collect::<Vec<i64>>());
    let floats = [&[0.5f32, -1.5, 3.0e38][..], &[0.0; 12]].concat();
    assert_eq!(columns["floats"], HostTensor::new(floats, [5, 3]).unwrap());
    assert_eq!(columns["words_len"], HostTensor::vector(vec![3i64, 0, 0, 0, 1]));
    assert_eq!(columns["words"].dims(), [5, 3]);
    assert_eq!(columns["words"].as_slice::<Vec<u8>>().unwrap()[2], [0, 255]);
}

#[test]
fn records_of_other_libraries_mean_the_same_as_in_tensorflow() {
    let expected: [Feature; 6] =
        [[5, 6].into(), [5, 6, 7].into(), [1.0, 1.0].into(), [5, 6].into(), [6].into(), [5].into()];
    let records = records("unusual.tfrecord");
    assert_eq!(records.len(), expected.len());
    for (record, expected) in records.iter().zip(expected) {
        assert_eq!(Example::decode(record).unwrap(), Example::from([("a", expected.clone())]));
        let (wanted, tensor) = match expected {
            Feature::Floats(values) => (VarLen::floats(), HostTensor::vector(values)),
            Feature::Ints(values) => (VarLen::ints(), HostTensor::vector(values)),
            Feature::Bytes(values) => (VarLen::bytes(), HostTensor::vector(values)),
        };
        let columns = Features::new().with("a", wanted).unwrap().parse_one(record).unwrap();
        assert_eq!(columns["a"], tensor);
    }
}

/// A program that prints the contents of our files as TensorFlow reads them: the records, then their features by name.
const READ: &str = r#"
import sys
import tensorflow as tf
for path, compression in zip(sys.argv[1:], ["", "GZIP", "ZLIB"]):
    for record in tf.data.TFRecordDataset(path, compression):
        features = tf.train.Example.FromString(record.numpy()).features.feature
        for name in sorted(features):
            it = features[name]
            print(name, list(it.bytes_list.value), list(it.float_list.value), list(it.int64_list.value))
        print("-")
"#;

const FOUND: &str = r"a [] [] [0, -1, -9223372036854775808]
b [] [0.5, -1.5] []
c [b'x\xc3\xa9'] [] []
-
-
d [] [] []
é [b'\x00\xff', b''] [] []
-
";

/// Checks that TensorFlow reads the written records. Requires a Python with TensorFlow:
/// `DISTRIBUTE_PEER_PYTHON=/path/to/python cargo test -p distribute-data`.
#[test]
fn tensorflow_reads_the_written_records() {
    let Some(python) = std::env::var_os("DISTRIBUTE_PEER_PYTHON") else {
        println!("skipped: DISTRIBUTE_PEER_PYTHON names no Python with TensorFlow");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut paths = Vec::new();
    for compression in [Compression::None, Compression::Gzip, Compression::Zlib] {
        let path = folder.path().join(format!("{compression:?}"));
        let mut writer = TfRecordWriter::create(&path, compression).unwrap();
        let empty = ("d", Feature::Floats(vec![]));
        for example in [
            Example::from([
                ("a", [0, -1, i64::MIN].into()),
                ("b", [0.5, -1.5].into()),
                ("c", "x\u{e9}".into()),
            ]),
            Example::default(),
            Example::from([empty, ("\u{e9}", vec![vec![0, 255], vec![]].into())]),
        ] {
            writer.write(&example.encode()).unwrap();
        }
        writer.finish().unwrap();
        paths.push(path);
    }
    let mut child =
        Command::new(python).args(["-c", READ]).args(&paths).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    let (send, receive) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut text = String::new();
        let _ = send.send(output.read_to_string(&mut text).map(|_| text));
    });
    let found = receive.recv_timeout(Duration::from_secs(120));
    // The process has written everything, or is stuck.
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap();
    let found = found.expect("TensorFlow has not ended after 120 s").unwrap();
    assert_eq!(found, FOUND.repeat(3));
}
