//! The files that `fixtures/make.py` has written with TensorFlow, and the values that it has saved.

use distribute_tensor::{DType, HostTensor, codec};
use distribute_tf_checkpoint::TfCheckpoint;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Each fixture, with the path by which it is opened.
pub const ALL: [(&str, &str); 6] = [
    ("dtypes", "dtypes/all"),
    ("sharded", "sharded/merged.index"),
    ("tf1", "tf1"),
    ("keras", "keras"),
    ("saved_model", "saved_model"),
    ("ps", "ps/state"),
];

pub fn path(of: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(of)
}

pub fn open(fixture: &str) -> TfCheckpoint {
    let (_, of) = ALL.into_iter().find(|(name, _)| *name == fixture).unwrap();
    TfCheckpoint::open(path(of)).unwrap()
}

/// Returns the values of a fixture by name.
pub fn expected(fixture: &str) -> BTreeMap<String, HostTensor> {
    let text = std::fs::read_to_string(path("expected.json")).unwrap();
    let all: BTreeMap<String, BTreeMap<String, Value>> = serde_json::from_str(&text).unwrap();
    all[fixture].iter().map(|(name, value)| (name.clone(), tensor(value))).collect()
}

fn tensor(value: &Value) -> HostTensor {
    let shape: Vec<usize> = serde_json::from_value(value["shape"].clone()).unwrap();
    let dtype: DType = value["dtype"].as_str().unwrap().parse().unwrap();
    if dtype == DType::String {
        let strings = value["strings"].as_array().unwrap().iter().map(bytes).collect::<Vec<_>>();
        return HostTensor::new(strings, shape).unwrap();
    }
    HostTensor::from_buffer(codec::read(dtype, &bytes(&value["bytes"])).unwrap(), shape).unwrap()
}

fn bytes(hex: &Value) -> Vec<u8> {
    let pairs = hex.as_str().unwrap().as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}
