//! Files that numpy has created (`numpy/make.py`), intact and damaged.

use distribute_data::numpy::{read_npy, read_npz, read_npz_arrays, write_npy};
use distribute_data::{Error, Location};
use distribute_tensor::{DType, HostTensor};
use num_complex::Complex64;
use std::path::PathBuf;

fn file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/numpy")).join(name)
}

/// Returns the values that `make.py` has written into the arrays of a dtype.
fn expected(dtype: DType) -> HostTensor {
    let element = |x: i32| match dtype {
        DType::Bool => f64::from(x % 2),
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => f64::from(x - 2),
        DType::F16 | DType::F32 | DType::F64 => f64::from(x) / 2.0 - 1.0,
        _ => f64::from(x),
    };
    let tensor = match dtype {
        DType::C64 | DType::C128 => {
            let elements = (0..6).map(f64::from).map(|x| Complex64::new(x, 0.0 - x));
            HostTensor::new(elements.collect::<Vec<_>>(), [2, 3])
        }
        _ => HostTensor::new((0..6).map(element).collect::<Vec<_>>(), [2, 3]),
    };
    tensor.unwrap().cast(dtype).unwrap()
}

const CODES: [(&str, DType); 14] = [
    ("b1", DType::Bool),
    ("i1", DType::I8),
    ("i2", DType::I16),
    ("i4", DType::I32),
    ("i8", DType::I64),
    ("u1", DType::U8),
    ("u2", DType::U16),
    ("u4", DType::U32),
    ("u8", DType::U64),
    ("f2", DType::F16),
    ("f4", DType::F32),
    ("f8", DType::F64),
    ("c8", DType::C64),
    ("c16", DType::C128),
];

#[test]
fn every_dtype_in_both_byte_orders_by_row_and_by_column() {
    for (code, dtype) in CODES {
        assert_eq!(read_npy(file(&format!("{code}-little.npy"))).unwrap(), expected(dtype), "{code}");
        assert_eq!(read_npy(file(&format!("{code}-big.npy"))).unwrap(), expected(dtype), "{code}");
    }
}

#[test]
fn every_version_scalars_and_arrays_without_elements() {
    assert_eq!(read_npy(file("version-2.npy")).unwrap(), expected(DType::F32));
    assert_eq!(read_npy(file("version-3.npy")).unwrap(), expected(DType::F32));
    assert_eq!(read_npy(file("scalar.npy")).unwrap(), HostTensor::scalar(2.5f64));
    assert_eq!(read_npy(file("empty.npy")).unwrap(), HostTensor::zeros(DType::F32, [3, 0]).unwrap());
}

#[test]
fn written_files_equal_those_of_numpy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.npy");
    for (code, dtype) in CODES {
        write_npy(&path, &expected(dtype)).unwrap();
        let theirs = std::fs::read(file(&format!("{code}-little.npy"))).unwrap();
        assert!(std::fs::read(&path).unwrap() == theirs, "{code}");
    }
    let strings = HostTensor::vector(vec![b"a".to_vec()]);
    let error = write_npy(&path, &strings).unwrap_err();
    assert_eq!(error.to_string(), "write_npy is not defined for string");
}

#[test]
fn archives_plain_and_compressed_from_paths_and_from_memory() {
    for name in ["plain.npz", "compressed.npz"] {
        let memory = Location::bytes(name, std::fs::read(file(name)).unwrap());
        for location in [Location::from(file(name)), memory] {
            let arrays = read_npz(location).unwrap();
            assert_eq!(arrays.keys().collect::<Vec<_>>(), ["x", "y"]);
            assert_eq!((&arrays["x"], &arrays["y"]), (&expected(DType::F32), &expected(DType::I64)));
        }
    }
}

#[test]
fn a_dtype_that_tensors_do_not_have_is_named_with_its_path() {
    let text = std::fs::read(file("text.npy")).unwrap();
    let mut dates = text.clone();
    let at = dates.windows(2).position(|two| two == b"<U").unwrap();
    dates[at + 1] = b'M';
    let error = read_npy(Location::bytes("dates.npy", dates)).unwrap_err();
    assert!(
        matches!(&error, Error::Damaged { offset: 20, what, .. } if what.contains("the code of")),
        "{error}"
    );
}

#[test]
fn text_is_read_and_arrays_by_name_next_to_unsupported_ones() {
    let texts = |array: &HostTensor| array.to_vec::<Vec<u8>>().unwrap();
    assert_eq!(texts(&read_npy(file("text.npy")).unwrap()), [b"a".to_vec()]);
    let arrays = read_npz(file("names.npz")).unwrap();
    assert_eq!((arrays["x"].dims(), arrays["names"].dims()), (&[3][..], &[2][..]));
    // Formats that numpy writes: texts of 4 bytes for each character, padded with zeros; bytes; column-major order.
    let npy = |descr: &str, fortran: &str, shape: &str, elements: &[u8]| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n");
        let len = (header.len() as u16).to_le_bytes();
        Location::bytes("t.npy", [b"\x93NUMPY\x01\x00", &len[..], header.as_bytes(), elements].concat())
    };
    let wide: Vec<u8> = "ä€\0x\0\0".chars().flat_map(|c| u32::from(c).to_le_bytes()).collect();
    let read = |location| read_npy(location).map(|array| texts(&array));
    assert_eq!(read(npy("<U3", "False", "(2,)", &wide)).unwrap(), ["ä€".as_bytes(), b"x"]);
    let big: Vec<u8> = wide.chunks(4).flat_map(|four| four.iter().rev().copied()).collect();
    assert_eq!(read(npy(">U3", "False", "(2,)", &big)).unwrap(), ["ä€".as_bytes(), b"x"]);
    assert_eq!(read(npy("|S2", "True", "(2, 2)", b"a\0bbc\0\0\0")).unwrap(), [&b"a"[..], b"c", b"bb", b""]);
    let error = read(npy("<U1", "False", "(1,)", &[0, 0, 0xff, 0xff])).unwrap_err().to_string();
    assert!(error.contains("is no character"), "{error}");
    assert!(read(npy("<U3", "False", "(9999999999,)", &wide)).is_err());
    // INV-28: short texts take many times their bytes.
    let short = npy("|S1", "False", "(1000,)", &[b'x'; 1000]);
    assert_eq!(read(short.clone()).unwrap().len(), 1000);
    let error = read(short.element_limit(24_999)).unwrap_err().to_string();
    assert!(error.contains("its array of texts takes more than 24999 bytes"), "{error}");
    // In memory, texts take less than in the file, which has characters of 4 bytes and padding.
    let letters: Vec<u8> =
        (0..100).flat_map(|_| "x\0\0\0".chars().flat_map(|c| u32::from(c).to_le_bytes())).collect();
    let padded = npy("<U4", "False", "(100,)", &letters);
    assert_eq!(read(padded.clone().element_limit(2_500)).unwrap(), vec![b"x"; 100]);
    let error = read(padded.element_limit(2_499)).unwrap_err().to_string();
    assert!(error.contains("its array of texts takes more than 2499 bytes"), "{error}");
    // The file is in memory already.
    let long = npy("|S1000", "False", "(1,)", &[b'x'; 1000]);
    assert_eq!(read(long.element_limit(10)).unwrap()[0].len(), 1000);
    // The number of bytes in the file fits, but not that in memory.
    let error = read(npy("<U1", "False", "(1152921504606846976,)", &wide)).unwrap_err().to_string();
    assert!(error.contains("is too large"), "{error}");

    // An array of Python objects does not prevent reading the others.
    let mut objects = std::fs::read(file("names.npz")).unwrap();
    let at = objects.windows(4).position(|four| four == b"'<U1").unwrap();
    objects[at + 1..at + 4].copy_from_slice(b"|O8");
    let objects = || Location::bytes("o.npz", objects.clone());
    let error = read_npz(objects()).unwrap_err().to_string();
    assert!(error.contains("o.npz/names.npy"), "{error}");
    assert_eq!(read_npz_arrays(objects(), ["x"]).unwrap()["x"], arrays["x"]);
    let error = read_npz_arrays(objects(), ["x", "z"]).unwrap_err().to_string();
    assert!(error.contains("'z'") && error.contains("x, names"), "{error}");
}

#[test]
fn a_file_truncated_or_extended_anywhere_is_an_error_that_names_it() {
    for name in ["f4-little.npy", "c16-big.npy", "b1-little.npy"] {
        let bytes = std::fs::read(file(name)).unwrap();
        for cut in 0..bytes.len() {
            match read_npy(Location::bytes("cut.npy", bytes[..cut].to_vec())).unwrap_err() {
                Error::Damaged { path, offset, .. } => {
                    assert_eq!((path, offset), ("cut.npy".into(), cut as u64))
                }
                other => panic!("{other}"),
            }
        }
        let error = read_npy(Location::bytes("long.npy", [&bytes[..], &[0]].concat())).unwrap_err();
        assert!(error.to_string().ends_with("nothing more was expected, but bytes follow"), "{error}");
    }
    let bytes = std::fs::read(file("compressed.npz")).unwrap();
    for cut in 0..bytes.len() {
        read_npz(Location::bytes("cut.npz", bytes[..cut].to_vec())).unwrap_err();
    }
}

#[test]
fn a_changed_byte_never_panics_and_an_archive_notices_it_in_its_arrays() {
    let bytes = std::fs::read(file("f4-little.npy")).unwrap();
    for at in 0..bytes.len() {
        for flip in [1, 2, 4, 8, 16, 32, 64, 128, 255] {
            let mut changed = bytes.clone();
            changed[at] ^= flip;
            if let Ok(tensor) = read_npy(Location::bytes("x.npy", changed)) {
                assert!(tensor.len() <= bytes.len(), "no more elements than bytes");
            }
        }
    }
    for name in ["plain.npz", "compressed.npz"] {
        let bytes = std::fs::read(file(name)).unwrap();
        let arrays = read_npz(Location::bytes(name, bytes.clone())).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x55;
            if let Ok(read) = read_npz(Location::bytes(name, changed)) {
                assert!(read.values().all(|x| arrays.values().any(|a| a == x)), "byte {at} of {name}");
            }
        }
    }
}

#[test]
fn no_memory_is_reserved_for_the_claims_of_a_header() {
    for shape in ["(1099511627776,)", "(4294967296, 4294967296)", "(18446744073709551615,)"] {
        let text = format!("{{'descr': '<f8', 'fortran_order': True, 'shape': {shape}}}");
        let bytes =
            [b"\x93NUMPY\x01\0", &(text.len() as u16).to_le_bytes()[..], text.as_bytes(), &[0; 80]].concat();
        let error = read_npy(Location::bytes("x.npy", bytes)).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
    }
    let error = read_npy(Location::bytes("x.npy", b"\x93NUMPY\x02\0\xff\xff\xff\xff{}")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "'x.npy', byte 12: a header of 4294967295 bytes; no shape needs more than 1048576"
    );
}

#[test]
fn gzip_is_decompressed() {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(&std::fs::read(file("f4-big.npy")).unwrap()).unwrap();
    let packed = Location::bytes("x.npy.gz", encoder.finish().unwrap());
    assert_eq!(read_npy(packed).unwrap(), expected(DType::F32));
}
