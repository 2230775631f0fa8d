//! Checks that the format does not change: a checkpoint of the first version can be read, and the same bytes are
//! written now.
//!
//! The checkpoint is in `version_1` and has every dtype. Python's `safetensors` 0.8.0 (`pip install safetensors
//! numpy`) reads both files with `safe_open(path, framework="numpy")`, except bfloat16, which numpy lacks.

use distribute_checkpoint::{Reader, Writer};
use distribute_tensor::{DType, HostTensor};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn content() -> BTreeMap<String, HostTensor> {
    let of = |dtype| match dtype {
        DType::String => HostTensor::vector(vec![b"ab".to_vec(), vec![], b"c".to_vec()]),
        dtype => HostTensor::new((0..6u8).collect::<Vec<_>>(), [3, 2]).unwrap().cast(dtype).unwrap(),
    };
    let mut content: BTreeMap<_, _> =
        DType::ALL.into_iter().map(|dtype| (format!("t/{dtype}"), of(dtype))).collect();
    content.insert("empty".into(), HostTensor::zeros(DType::F32, [0, 3]).unwrap());
    content.insert("scalar".into(), HostTensor::scalar(2.5f64));
    content
}

#[test]
fn version_1_is_read_and_written() {
    let first = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/version_1");
    let reader = Reader::open(&first).unwrap();
    assert!(reader.names().eq(content().keys()));
    for (name, tensor) in content() {
        assert_eq!(reader.tensor(&name).unwrap(), tensor, "{name}");
    }

    let mut writer = Writer::new();
    content().into_iter().for_each(|(name, tensor)| writer.insert(name, tensor).unwrap());
    writer.metadata("step", 3);
    let folder = tempfile::tempdir().unwrap();
    let now = folder.path().join("now");
    writer.save(&now, 2).unwrap();
    for name in ["index.json", "shard-00001-of-00002.safetensors", "shard-00002-of-00002.safetensors"] {
        assert!(fs::read(first.join(name)).unwrap() == fs::read(now.join(name)).unwrap(), "{name} differs");
    }
}
