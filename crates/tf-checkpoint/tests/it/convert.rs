//! Conversion to checkpoints of this project.

use crate::fixtures::{expected, open};
use distribute_checkpoint::{Reader, Writer};
use distribute_tensor::HostTensor;
use distribute_tf_checkpoint::{Error, Mapping, TfCheckpoint};
use serde_json::json;
use std::fs;

fn read(writer: &Writer) -> Reader {
    Reader::from_image(writer.image().unwrap().into(), "memory").unwrap()
}

fn transposed(tensor: &HostTensor) -> HostTensor {
    let columns: Vec<_> = (0..tensor.dims()[1]).map(|at| tensor.narrow(1, at, 1).unwrap()).collect();
    let columns: Vec<_> = columns.iter().map(|column| column.reshape([tensor.dims()[0]]).unwrap()).collect();
    HostTensor::stack(&columns.iter().collect::<Vec<_>>()).unwrap()
}

#[test]
fn tensorflow_1_with_adagrad() {
    let mapping = Mapping::new()
        .variable("embedding", "table")
        .kernel("dense/kernel", "fc.weight")
        .tensor("more/variable_003", "three")
        .optimizer("adagrad", "global_step");
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().join("saved");
    open("tf1").into_writer(&mapping).unwrap().save(&there, 2).unwrap();
    let found = Reader::open(&there).unwrap();
    let values = expected("tf1");
    let is = |name: &str, value: &HostTensor| assert!(found.tensor(name).unwrap().same_bits(value), "{name}");
    is("model/table", &values["embedding"]);
    is("optimizer/accum/table", &values["embedding/Adagrad"]);
    is("model/fc.weight", &transposed(&values["dense/kernel"]));
    is("optimizer/accum/fc.weight", &transposed(&values["dense/kernel/Adagrad"]));
    is("three", &HostTensor::scalar(3f32));
    let state = json!({ "rule": "adagrad", "finished_steps": 1 });
    assert_eq!(found.metadata("optimizer:optimizer"), Some(&state));
}

#[test]
fn keras_with_adam() {
    let mapping = Mapping::new()
        .component("net")
        .kernel("mlp/hidden/kernel", "hidden.weight")
        .variable("mlp/hidden/bias", "hidden.bias")
        .kernel("mlp/head/kernel", "head.weight")
        .variable("model/_functional/_operations/2/bias", "head.bias")
        .optimizer_named("adam", "adam", "optimizer/_iterations");
    let found = read(&open("keras").into_writer(&mapping).unwrap());
    let values = expected("keras");
    for (at, (name, there)) in [
        ("hidden.weight", "hidden/kernel"),
        ("hidden.bias", "hidden/bias"),
        ("head.weight", "head/kernel"),
        ("head.bias", "head/bias"),
    ]
    .into_iter()
    .enumerate()
    {
        let value = |of: &str| {
            let value = &values[of];
            if value.rank() == 2 { transposed(value) } else { value.clone() }
        };
        assert!(found.tensor(&format!("net/{name}")).unwrap().same_bits(&value(&format!("mlp/{there}"))));
        for (slot, of) in [("m", "_momentums"), ("v", "_velocities")] {
            let slot = found.tensor(&format!("adam/{slot}/{name}")).unwrap();
            assert!(slot.same_bits(&value(&format!("optimizer/{of}/{at}"))), "{name} {of}");
        }
    }
    assert_eq!(found.names().count(), 12);
    assert_eq!(found.metadata("adam:optimizer").unwrap()["finished_steps"], 1);
}

#[test]
fn an_optimizer_that_lists_its_slots() {
    let mapping = |steps: &str| Mapping::new().variable("dense", "w").optimizer("adam", steps);
    let error = open("ps").into_writer(&mapping("none")).unwrap_err();
    assert!(matches!(&error, Error::UnknownName { name, .. } if name == "none"), "{error}");
    let found = read(&open("ps").into_writer(&mapping("step")).unwrap());
    let values = expected("ps");
    assert!(found.tensor("model/w").unwrap().same_bits(&values["a..b.Sc"]));
    assert!(found.tensor("optimizer/m/w").unwrap().same_bits(&values["dense/Adam"]));
    assert!(found.tensor("optimizer/v/w").unwrap().same_bits(&values["dense/Adam_1"]));
}

#[test]
fn a_mapping_that_does_not_fit_is_refused_with_a_reason() {
    let refused =
        |fixture: &str, mapping: Mapping| open(fixture).into_writer(&mapping).unwrap_err().to_string();
    let one = |from: &str| Mapping::new().variable(from, "w");
    for (fixture, mapping, text) in [
        ("tf1", one("no"), "has no \"no\""),
        ("tf1", one("embedding").variable("embedding", "w"), "a tensor of this name exists already"),
        ("tf1", Mapping::new().kernel("global_step", "w"), "int64[] is no matrix"),
        ("tf1", one("embedding").optimizer("adam", "global_step"), "there is no slot m of rule adam"),
        (
            "tf1",
            one("embedding").optimizer("lion", "global_step"),
            "the slots of rule \"lion\" are not mapped",
        ),
        (
            "tf1",
            one("embedding").optimizer("adagrad", "embedding"),
            "a number of steps is an integer, not float32",
        ),
        ("tf1", one("embedding").optimizer("momentum", "global_step"), "no slot accum of rule momentum"),
        ("keras", one("mlp/head/bias").optimizer("momentum", "optimizer/_iterations"), "no slot accum"),
        ("dtypes", one("quantized"), "its dtype qint8 is not supported"),
    ] {
        let found = refused(fixture, mapping);
        assert!(found.contains(text), "{found} | {text}");
    }
}

#[test]
fn every_dtype_is_converted() {
    let names: Vec<_> = expected("dtypes").into_keys().collect();
    let mapping = names.iter().fold(Mapping::new(), |mapping, name| mapping.tensor(name, name));
    let found = read(&open("dtypes").into_writer(&mapping).unwrap());
    for (name, value) in expected("dtypes") {
        assert!(found.tensor(&name).unwrap().same_bits(&value), "{name}");
    }
}

/// A table of 20 MB is saved in ranges of 8 MiB, whose checksum is compared after the last.
#[test]
fn a_damaged_table_that_is_read_in_ranges_is_not_saved() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("state");
    let rows = 5_000_000 / 4;
    let table = HostTensor::new((0..rows * 4).map(|i| i as f32).collect::<Vec<_>>(), [rows, 4]).unwrap();
    crate::bundle::write(&prefix, &[("table", &table)]);
    let mapping = Mapping::new().variable("table", "table");
    let writer = TfCheckpoint::open(&prefix).unwrap().into_writer(&mapping).unwrap();
    // The same writer saves twice.
    for _ in 0..2 {
        assert_eq!(read(&writer).tensor("model/table").unwrap(), table);
    }
    writer.save(folder.path().join("whole"), 3).unwrap();
    let data = folder.path().join("state.data-00000-of-00001");
    let mut bytes = fs::read(&data).unwrap();
    bytes[10_000_000] ^= 1;
    fs::write(&data, bytes).unwrap();
    for shards in [1, 3] {
        let error = writer.save(folder.path().join("damaged"), shards).unwrap_err();
        assert!(matches!(&error, Error::Source { name, .. } if name == "model/table"), "{error:?}");
        assert!(error.to_string().contains("state.data-00000-of-00001, at byte 0"), "{error}");
    }
    assert!(!folder.path().join("damaged").exists());
    // Some rows alone have no checksum.
    TfCheckpoint::open(&prefix).unwrap().rows("table", 0..10).unwrap();
}
