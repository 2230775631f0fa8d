//! Checks that saved values are restored, with any partition. A test name such as `ckpt_4_…` contains the name of the
//! rule that it tests.

use crate::tensors::of;
use distribute_checkpoint::{CheckpointManager, Error, Reader, Writer};
use distribute_tensor::{DType, HostTensor};
use num_complex::Complex64;
use proptest::prelude::*;
use std::fs;
use std::path::PathBuf;

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("saved");
    (folder, path)
}

#[test]
fn every_dtype_and_shape_round_trips() {
    let shapes: [&[usize]; 9] = [&[], &[0], &[1], &[7], &[0, 3], &[3, 0], &[4, 3], &[2, 1, 5], &[1, 2, 3, 2]];
    for shards in [1, 3] {
        let (_folder, path) = folder();
        let mut writer = Writer::new();
        for dtype in DType::ALL {
            for shape in shapes {
                writer.insert(format!("{dtype}{shape:?}"), of(dtype, shape)).unwrap();
            }
        }
        writer.save(&path, shards).unwrap();
        let checkpoint = Reader::open(&path).unwrap();
        checkpoint.verify().unwrap();
        assert!(checkpoint.names().eq(writer.names()));
        for dtype in DType::ALL {
            for shape in shapes {
                let name = format!("{dtype}{shape:?}");
                let described = checkpoint.describe(&name).unwrap();
                assert_eq!((described.dtype, &*described.shape), (dtype, shape));
                assert_eq!(checkpoint.tensor(&name).unwrap(), of(dtype, shape), "{name}");
            }
        }
    }
}

#[test]
fn values_round_trip_bit_identically() {
    let (_folder, path) = folder();
    let bits = [0x7fc0_1234u32, 0x8000_0000, 1, 0xff80_0000].map(f32::from_bits).to_vec();
    let complex = vec![Complex64::new(f64::MIN_POSITIVE, -0.), Complex64::new(f64::INFINITY, 1e-310)];
    let strings: Vec<Vec<u8>> = vec![vec![], vec![0, 255, 10], "Grüße".into()];
    let mut writer = Writer::new();
    writer.insert("f", HostTensor::vector(bits.clone())).unwrap();
    writer.insert("c", HostTensor::vector(complex.clone())).unwrap();
    writer.insert("s", HostTensor::vector(strings.clone())).unwrap();
    writer.save(&path, 1).unwrap();
    let checkpoint = Reader::open(&path).unwrap();
    let f: Vec<_> =
        checkpoint.tensor("f").unwrap().to_vec::<f32>().unwrap().iter().map(|x| x.to_bits()).collect();
    assert_eq!(f, bits.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
    let c = checkpoint.tensor("c").unwrap().to_vec::<Complex64>().unwrap();
    assert!(
        c.iter()
            .zip(&complex)
            .all(|(a, b)| (a.re.to_bits(), a.im.to_bits()) == (b.re.to_bits(), b.im.to_bits()))
    );
    assert_eq!(checkpoint.tensor("s").unwrap().to_vec::<Vec<u8>>().unwrap(), strings);
}

/// Returns the first row of part `i` of `parts`.
fn start_of(rows: usize, parts: usize, i: usize) -> usize {
    rows * i / parts
}

// CKPT-4, CKPT-7
#[test]
fn ckpt_4_rows_saved_on_s_shards_load_on_any_other_number() {
    for dtype in [DType::F32, DType::C128, DType::String, DType::Bool] {
        let (rows, table) = (13, of(dtype, &[13, 3]));
        for saved_on in [1, 2, 3, 5, 8] {
            let (_folder, path) = folder();
            let mut writer = Writer::new();
            // Shards arrive in any order.
            for shard in (0..saved_on).rev() {
                let (start, end) = (start_of(rows, saved_on, shard), start_of(rows, saved_on, shard + 1));
                writer
                    .insert_slice("table", [13, 3], start, table.narrow(0, start, end - start).unwrap())
                    .unwrap();
            }
            writer.insert("whole", table.clone()).unwrap();
            writer.save(&path, saved_on).unwrap();
            let checkpoint = Reader::open(&path).unwrap();
            assert_eq!(fs::read_dir(&path).unwrap().count(), saved_on + 1);
            for loaded_on in [1, 2, 3, 5, 8] {
                for shard in 0..loaded_on {
                    let (start, end) =
                        (start_of(rows, loaded_on, shard), start_of(rows, loaded_on, shard + 1));
                    let expected = table.narrow(0, start, end - start).unwrap();
                    for name in ["table", "whole"] {
                        assert_eq!(
                            checkpoint.rows(name, start..end).unwrap(),
                            expected,
                            "{saved_on} {loaded_on}"
                        );
                    }
                }
            }
            assert_eq!(checkpoint.tensor("table").unwrap(), table);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_slices_in_any_files(
        rows in 0usize..20,
        width in 0usize..4,
        cuts in proptest::collection::vec(0usize..20, 0..6),
        files in 1usize..9,
        dtype in 0usize..16,
        (from, to) in (0usize..20, 0usize..20),
    ) {
        let (_folder, path) = folder();
        let table = of(DType::ALL[dtype], &[rows, width]);
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(rows)).chain([0, rows]).collect();
        cuts.sort_unstable();
        let mut writer = Writer::new();
        for pair in cuts.windows(2) {
            writer.insert_slice("t", [rows, width], pair[0], table.narrow(0, pair[0], pair[1] - pair[0]).unwrap()).unwrap();
        }
        writer.save(&path, files).unwrap();
        let checkpoint = Reader::open(&path).unwrap();
        checkpoint.verify().unwrap();
        let (from, to) = (from.min(to).min(rows), from.max(to).min(rows));
        prop_assert_eq!(checkpoint.rows("t", from..to).unwrap(), table.narrow(0, from, to - from).unwrap());
        prop_assert_eq!(checkpoint.tensor("t").unwrap(), table);
    }
}

#[test]
fn names_are_never_paths_nor_keys_in_each_others_way() {
    let (folder, path) = folder();
    let names = [
        "",
        "..",
        "../up",
        "/etc/x",
        "a/b",
        "A",
        "a",
        "a[0:1]",
        "s",
        "s.ends",
        "s.ends_",
        "__metadata__",
        "nul\0",
        "ü",
        "con",
    ];
    let mut writer = Writer::new();
    for (i, name) in names.iter().enumerate() {
        match *name {
            // Saved in slices, its keys are like the names of others.
            "a" => {
                for row in 0..3 {
                    let one = HostTensor::vector(vec![100 * i as i64]);
                    writer.insert_slice("a", [3], row, one).unwrap();
                }
            }
            "s" => writer.insert("s", HostTensor::vector(vec![b"x".to_vec()])).unwrap(),
            name => writer.insert(name, HostTensor::scalar(i as i64)).unwrap(),
        }
    }
    writer.save(&path, 1).unwrap();
    let checkpoint = Reader::open(&path).unwrap();
    for (i, name) in names.iter().enumerate() {
        let tensor = checkpoint.tensor(name).unwrap();
        match *name {
            "a" => assert_eq!(tensor, HostTensor::vector(vec![100 * i as i64; 3])),
            "s" => assert_eq!(tensor, HostTensor::vector(vec![b"x".to_vec()])),
            name => assert_eq!(tensor, HostTensor::scalar(i as i64), "{name:?}"),
        }
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn files_are_safetensors_with_the_names_as_keys() {
    let (_folder, path) = folder();
    let mut writer = Writer::new();
    writer.insert("w", of(DType::F32, &[2, 3])).unwrap();
    writer.insert("z", of(DType::C128, &[2])).unwrap();
    writer.save(&path, 1).unwrap();
    let bytes = fs::read(path.join("shard-00001-of-00001.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let (w, z) = (tensors.tensor("w").unwrap(), tensors.tensor("z").unwrap());
    assert_eq!((w.dtype(), w.shape()), (safetensors::Dtype::F32, &[2, 3][..]));
    assert_eq!(w.data(), [0f32, 1., 2., 3., 4., 5.].map(f32::to_le_bytes).concat());
    assert_eq!((z.dtype(), z.shape()), (safetensors::Dtype::F64, &[2, 2][..]));
}

#[test]
fn the_same_content_gives_the_same_bytes() {
    let content = || {
        let (folder, path) = folder();
        let mut writer = Writer::new();
        (0..20).for_each(|i| writer.insert(format!("t{i}"), of(DType::F32, &[10])).unwrap());
        writer.metadata("seed", u64::MAX);
        writer.metadata("learning_rate", 0.1 + 0.2);
        writer.save(&path, 3).unwrap();
        let mut files: Vec<_> = fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()).collect();
        files.sort();
        let checkpoint = Reader::open(&path).unwrap();
        assert_eq!(checkpoint.metadata("seed").unwrap().as_u64(), Some(u64::MAX));
        assert_eq!(checkpoint.metadata("learning_rate").unwrap().as_f64(), Some(0.1 + 0.2));
        (folder, files.iter().map(|file| fs::read(file).unwrap()).collect::<Vec<_>>())
    };
    assert_eq!(content().1, content().1);
}

#[test]
fn mismatched_values_are_refused_and_named() {
    let vector = |n: usize| of(DType::F32, &[n]);
    let mut writer = Writer::new();
    writer.insert_slice("t", [6], 2, vector(2)).unwrap();
    let cases: Vec<(Error, &str)> = vec![
        (writer.insert("t", vector(6)).unwrap_err(), r#"insert "t": a tensor of this name exists already"#),
        (writer.insert_slice("t", [6], 3, vector(2)).unwrap_err(), "rows 3..5 overlap rows 2..4"),
        (writer.insert_slice("t", [6], 1, vector(5)).unwrap_err(), "rows 1..6 overlap rows 2..4"),
        (writer.insert_slice("t", [6], 5, vector(2)).unwrap_err(), "from row 5 on are not rows of shape [6]"),
        (writer.insert_slice("t", [6], usize::MAX, vector(2)).unwrap_err(), "are not rows of shape [6]"),
        (
            writer.insert_slice("t", [7], 4, vector(2)).unwrap_err(),
            "is float32[7], but the previous ones are float32[6]",
        ),
        (writer.insert_slice("t", [6], 4, of(DType::F64, &[2])).unwrap_err(), "is float64[6]"),
        (writer.insert_slice("t", [6, 2], 4, vector(2)).unwrap_err(), "are not rows of shape [6, 2]"),
        (writer.insert_slice("u", [], 0, vector(2)).unwrap_err(), "a scalar has no rows; use insert"),
        (writer.save("/nowhere/x", 1).unwrap_err(), r#"save "t": rows 0..2 of float32[6] are missing"#),
        (Writer::new().save("/nowhere/x", 0).unwrap_err(), "the number of shards is 0"),
        (Writer::new().save("/nowhere/x", 1).unwrap_err(), "creating /nowhere/x: "),
        (Writer::new().save("..", 1).unwrap_err(), ".. does not end in the name of a folder"),
    ];
    for (error, text) in cases {
        assert!(error.to_string().contains(text), "{error} | {text}");
    }
    writer.insert_slice("t", [6], 0, vector(2)).unwrap();
    let error = writer.save("/nowhere/x", 1).unwrap_err().to_string();
    assert!(error.contains("rows 4..6 of float32[6] are missing"), "{error}");
}

#[test]
fn a_checkpoint_is_never_overwritten() {
    let (_folder, path) = folder();
    fs::create_dir(&path).unwrap();
    assert!(matches!(Writer::new().save(&path, 1), Err(Error::Exists { path: there }) if there == path));
    fs::remove_dir(&path).unwrap();
    Writer::new().save(&path, 1).unwrap();
    assert!(matches!(Writer::new().save(&path, 1), Err(Error::Exists { .. })));
    Reader::open(&path).unwrap().verify().unwrap();
}

#[test]
fn unknown_names_and_rows_are_named() {
    let (_folder, path) = folder();
    let mut writer = Writer::new();
    writer.insert("fc.weight", of(DType::F32, &[4, 2])).unwrap();
    writer.insert("step", HostTensor::scalar(1i64)).unwrap();
    writer.save(&path, 1).unwrap();
    let checkpoint = Reader::open(&path).unwrap();
    let text = checkpoint.tensor("fc.wait").unwrap_err().to_string();
    assert!(text.contains(r#"no "fc.wait"; it has 2 tensors: ["fc.weight", "step"]"#), "{text}");
    for rows in [0..5, 5..5, std::ops::Range { start: 3, end: 2 }, usize::MAX..usize::MAX] {
        assert!(matches!(checkpoint.rows("fc.weight", rows), Err(Error::Rows { rows: 4, .. })));
    }
    assert!(matches!(checkpoint.rows("step", 0..0), Err(Error::Rows { rows: 0, .. })));
}

// CKPT-6
#[test]
fn ckpt_6_a_manager_numbers_and_keeps_the_last_and_one_saves_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let manager = CheckpointManager::new(folder.path().join("a/b")).unwrap().keep(2);
    assert!(manager.latest().unwrap().is_none());
    let save = |step: u64| {
        let mut writer = Writer::new();
        writer.metadata("step", step);
        writer.insert("t", of(DType::F32, &[3000])).unwrap();
        manager.save(&writer, 2)
    };
    save(1).unwrap();
    let first = manager.latest().unwrap().unwrap();
    // A number with more digits comes after all others, and other files are left alone.
    fs::rename(first.path(), folder.path().join("a/b/ckpt-999999")).unwrap();
    fs::create_dir(folder.path().join("a/b/ckpt-mine")).unwrap();
    for step in 2..5 {
        save(step).unwrap();
    }
    let names: Vec<_> = manager
        .paths()
        .unwrap()
        .iter()
        .map(|p| p.file_name().unwrap().to_str().unwrap().to_string())
        .collect();
    assert_eq!(names, ["ckpt-1000001", "ckpt-1000002"]);
    assert!(folder.path().join("a/b/ckpt-mine").exists());
    assert_eq!(manager.latest().unwrap().unwrap().metadata("step").unwrap().as_u64(), Some(4));
    // Removed meanwhile, but open.
    #[cfg(unix)]
    assert_eq!(first.tensor("t").unwrap(), of(DType::F32, &[3000]));

    let lock = fs::File::open(folder.path().join("a/b/.lock")).unwrap();
    lock.lock().unwrap();
    assert!(matches!(save(5), Err(Error::Busy { .. })));
    drop(lock);
    save(5).unwrap();
}
