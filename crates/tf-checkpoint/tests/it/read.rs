//! Values, names and paths of real checkpoints.

use crate::fixtures::{ALL, expected, open, path};
use distribute_tensor::{DType, HostTensor};
use distribute_tf_checkpoint::{Error, TfCheckpoint};
use std::fs;

#[test]
fn every_value_is_bit_identical_to_the_one_that_was_saved() {
    let mut dtypes = Vec::new();
    for (fixture, _) in ALL {
        let checkpoint = open(fixture);
        let values = expected(fixture);
        assert!(!values.is_empty());
        for (name, value) in values {
            let found = checkpoint.tensor(&name).unwrap();
            assert!(found.same_bits(&value), "{fixture} {name}: {found:?}, not {value:?}");
            let described = checkpoint.describe(&name).unwrap();
            assert_eq!(
                (described.dtype, described.shape.as_slice()),
                (value.dtype(), value.dims()),
                "{name}"
            );
            dtypes.push(value.dtype());
        }
        checkpoint.verify().unwrap();
    }
    assert!(DType::ALL.iter().all(|dtype| dtypes.contains(dtype)), "{dtypes:?}");
}

#[test]
fn any_rows_are_those_of_the_tensor() {
    for (fixture, _) in ALL {
        let checkpoint = open(fixture);
        for (name, value) in expected(fixture) {
            let Some(rows) = value.dims().first().copied() else {
                let error = checkpoint.rows(&name, 0..1).unwrap_err();
                assert!(matches!(error, Error::Rows { rows: 0, .. }), "{error}");
                continue;
            };
            for (start, end) in (0..=rows).flat_map(|start| (start..=rows).map(move |end| (start, end))) {
                let found = checkpoint.rows(&name, start..end).unwrap();
                assert!(
                    found.same_bits(&value.narrow(0, start, end - start).unwrap()),
                    "{name} {start}..{end}"
                );
            }
            for wrong in [0..rows + 1, rows + 1..rows + 1, std::ops::Range { start: 1, end: 0 }] {
                assert!(matches!(checkpoint.rows(&name, wrong), Err(Error::Rows { .. })));
            }
        }
    }
}

#[test]
fn slices_are_described_by_their_rows() {
    assert_eq!(open("sharded").describe("table").unwrap().slices, [0..4, 4..7, 7..10]);
    assert_eq!(open("tf1").describe("embedding").unwrap().slices, [0..3, 3..5, 5..7]);
    assert_eq!(open("ps").describe("table").unwrap().slices, [0..3, 3..5, 5..7]);
    assert!(open("dtypes").describe("empty").unwrap().slices.into_iter().eq([std::ops::Range::default()]));
    assert!(open("dtypes").describe("scalar").unwrap().slices.is_empty());
}

#[test]
fn names_are_those_in_the_file_without_slices_and_the_graph() {
    let tf1 = open("tf1");
    assert_eq!(tf1.names().count(), 155);
    assert!(tf1.names().take(4).eq([
        "dense/kernel",
        "dense/kernel/Adagrad",
        "embedding",
        "embedding/Adagrad"
    ]));
    assert!(tf1.object_paths().is_empty());
    assert!(open("saved_model").names().eq([
        "layers/0/.ATTRIBUTES/VARIABLE_VALUE",
        "vocabulary/.ATTRIBUTES/VARIABLE_VALUE",
        "w/.ATTRIBUTES/VARIABLE_VALUE",
    ]));
    let error = tf1.tensor("dense").unwrap_err();
    assert!(matches!(&error, Error::UnknownName { names, .. } if names.len() == 155), "{error}");
}

#[test]
fn a_variable_is_found_by_each_path_and_by_its_full_name() {
    let keras = open("keras");
    let kernel = keras.tensor("mlp/head/kernel").unwrap();
    for name in [
        "model/_functional/_operations/2/_kernel",
        "optimizer/_trainable_variables/2",
        "optimizer/_trainable_variables/2/.ATTRIBUTES/VARIABLE_VALUE",
    ] {
        assert!(keras.tensor(name).unwrap().same_bits(&kernel), "{name}");
    }
    for name in ["", "model", "model/_functional/_operations/3/_kernel", "optimizer/_trainable_variables"] {
        assert!(matches!(keras.tensor(name), Err(Error::UnknownName { .. })), "{name}");
    }
    let found = keras.object_paths().iter().find(|found| found.full_name == "mlp/head/kernel").unwrap();
    assert_eq!(found.path, "optimizer/_trainable_variables/2");
    assert_eq!(found.key, "optimizer/_trainable_variables/2/.ATTRIBUTES/VARIABLE_VALUE");
    assert!(keras.object_paths().iter().all(|found| keras.tensor(&found.path).is_ok()));
    // Names with dots and slashes.
    assert_eq!(open("ps").tensor("dense").unwrap(), open("ps").tensor("a..b.Sc").unwrap());
}

#[test]
fn a_dtype_that_is_not_supported_is_named() {
    let dtypes = open("dtypes");
    assert!(dtypes.names().any(|name| name == "quantized"));
    let error = dtypes.tensor("quantized").unwrap_err();
    assert!(matches!(&error, Error::Entry { operation: "tensor", .. }), "{error:?}");
    assert!(error.to_string().contains("its dtype qint8 is not supported; supported are float16"), "{error}");
}

#[test]
fn each_path_to_a_checkpoint_opens_it() {
    for of in ["tf1", "tf1/model.ckpt-1", "tf1/model.ckpt-1.index"] {
        assert_eq!(TfCheckpoint::open(path(of)).unwrap().path(), path("tf1/model.ckpt-1.index"));
    }
    for of in ["saved_model", "saved_model/variables", "saved_model/variables/variables"] {
        let found = TfCheckpoint::open(path(of)).unwrap();
        assert_eq!(found.path(), path("saved_model/variables/variables.index"));
    }
    // A folder that was moved still has the absolute path of the checkpoint.
    let folder = tempfile::tempdir().unwrap();
    for file in ["state.index", "state.data-00000-of-00001"] {
        fs::copy(path("ps").join(file), folder.path().join(file)).unwrap();
    }
    fs::write(folder.path().join("checkpoint"), "model_checkpoint_path: \"/elsewhere/state\"\n").unwrap();
    TfCheckpoint::open(folder.path()).unwrap();
    fs::write(folder.path().join("checkpoint"), "model_checkpoint_path: \"later\"\n").unwrap();
    fs::write(folder.path().join("weights.h5"), "").unwrap();
    for (of, text) in [
        ("", "it names later, and there is no later.index"),
        ("weights.h5", "it is a file of Keras; load it there"),
        ("none", "there is no file of this name with .index"),
    ] {
        let error = TfCheckpoint::open(folder.path().join(of)).unwrap_err();
        assert!(matches!(&error, Error::NoCheckpoint { .. }), "{error:?}");
        assert!(error.to_string().contains(text), "{error}");
    }
    fs::remove_file(folder.path().join("checkpoint")).unwrap();
    assert!(matches!(TfCheckpoint::open(folder.path()), Err(Error::NoCheckpoint { .. })));
}

#[test]
fn a_scalar_and_an_empty_tensor_have_their_shape() {
    let dtypes = open("dtypes");
    assert_eq!(dtypes.tensor("scalar").unwrap(), HostTensor::scalar(-0.5f64));
    assert_eq!(dtypes.tensor("empty").unwrap().describe(), "float32[0, 3]");
}
