//! Conversion to checkpoints of this project.

use crate::bundle::{message, number};
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

/// Checks that a table of 20 MB is not saved if it is damaged. It is read in ranges of 8 MiB, so the checksum is only
/// compared after the last.
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

/// Checks that two optimizers of a variable `w`, `first` and `second`, are ambiguous until one is chosen. `slots` are
/// the keys of their slots m and v. The bundle has these tensors and `more`.
fn check_two_optimizers(more: &[(&str, HostTensor)], slots: [[&str; 2]; 2], [first, second]: [&str; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("state");
    let mut all = vec![("step", HostTensor::scalar(3i64)), ("w", HostTensor::vector(vec![0f32]))];
    all.extend_from_slice(more);
    let values = (1..).map(|at| HostTensor::vector(vec![at as f32]));
    all.extend(slots.as_flattened().iter().copied().zip(values));
    all.sort_unstable_by_key(|(name, _)| *name);
    crate::bundle::write(&prefix, &all.iter().map(|(name, value)| (*name, value)).collect::<Vec<_>>());
    let checkpoint = TfCheckpoint::open(&prefix).unwrap();

    let one = || Mapping::new().variable("w", "w");
    let error = checkpoint.into_writer(&one().optimizer("adam", "step")).unwrap_err();
    assert!(matches!(&error, Error::Entry { name, .. } if name == "w"), "{error:?}");
    let text = error.to_string();
    let both = format!("{} and {}; choose one with Mapping::optimizer_from", slots[0][0], slots[1][0]);
    assert!(text.contains(&both), "{text} | {both}");

    let mapping =
        one().optimizer_from(first, "a", "adam", "step").optimizer_from(second, "b", "adam", "step");
    let found = read(&checkpoint.into_writer(&mapping).unwrap());
    for (name, value) in [("a/m/w", 1.), ("a/v/w", 2.), ("b/m/w", 3.), ("b/v/w", 4.)] {
        assert_eq!(found.tensor(name).unwrap().to_vec::<f32>().unwrap(), [value], "{name}");
    }
    let none = one().optimizer_from("third", "a", "adam", "step");
    let error = checkpoint.into_writer(&none).unwrap_err().to_string();
    assert!(error.contains(r#"no slot m of rule adam of optimizer "third""#), "{error}");
}

#[test]
fn two_optimizers_of_tensorflow_1_are_ambiguous() {
    check_two_optimizers(&[], [["w/Adam", "w/Adam_1"], ["w/Adam_2", "w/Adam_3"]], ["Adam", "Adam_2"]);
}

fn graph(objects: &[Vec<u8>]) -> [(&'static str, HostTensor); 1] {
    let bytes: Vec<u8> = objects.iter().flat_map(|object| message(1, object)).collect();
    [("_CHECKPOINTABLE_OBJECT_GRAPH", HostTensor::scalar(bytes))]
}

/// Returns the fields of an object that refer to its children.
fn children(children: &[(u64, &str)]) -> Vec<u8> {
    let child = |(to, name): &(u64, &str)| [number(1, *to), message(2, name.as_bytes())].concat();
    children.iter().flat_map(|to| message(1, &child(to))).collect()
}

fn variable(full_name: &str, key: &str) -> Vec<u8> {
    let names = [message(1, b"VARIABLE_VALUE"), message(2, full_name.as_bytes()), message(3, key.as_bytes())];
    message(2, &names.concat())
}

#[test]
fn two_optimizers_that_list_their_slots_are_ambiguous() {
    let slot =
        |name: &str, at| message(3, &[number(1, 1), message(2, name.as_bytes()), number(3, at)].concat());
    let objects = graph(&[
        children(&[(1, "w"), (2, "first"), (3, "second")]),
        variable("w", "w"),
        [slot("m", 4), slot("v", 5)].concat(),
        [slot("m", 6), slot("v", 7)].concat(),
        variable("", "w/a/m"),
        variable("", "w/a/v"),
        variable("", "w/b/m"),
        variable("", "w/b/v"),
    ]);
    check_two_optimizers(&objects, [["w/a/m", "w/a/v"], ["w/b/m", "w/b/v"]], ["first", "second"]);
}

#[test]
fn two_optimizers_of_keras_3_are_ambiguous() {
    let objects = graph(&[
        children(&[(1, "w"), (2, "first"), (3, "second")]),
        variable("w", "w"),
        children(&[(4, "m"), (5, "v")]),
        children(&[(6, "m"), (7, "v")]),
        variable("adam/w_momentum", "a/m"),
        variable("adam/w_velocity", "a/v"),
        variable("adam_1/w_momentum", "b/m"),
        variable("adam_1/w_velocity", "b/v"),
    ]);
    check_two_optimizers(&objects, [["a/m", "a/v"], ["b/m", "b/v"]], ["first", "second"]);
}
