//! Small files that would fill the memory, in each format. Each is read by its own process with 1 GiB of address
//! space.

use distribute_data::example::{Example, Features, VarLen};
use distribute_data::numpy::{read_npy, read_npz};
use distribute_data::{Compression, Csv, Dataset, Error, Location, TfRecord, TfRecordWriter, text_lines};
use distribute_tensor::Nest;
use distribute_testing::watched;
use flate2::write::GzEncoder;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::io::Write;
use std::process::{Command, Stdio};

/// An environment variable with the name of a case. It makes this test's program the child that reads the file. `LIMIT`
/// is the limit for an element.
const CASE: &str = "DISTRIBUTE_HOSTILE_CASE";
const LIMIT: &str = "DISTRIBUTE_HOSTILE_LIMIT";

/// The limit in the cases that set one. The files would expand to forty times as much.
const SMALL: u64 = 2 << 20;

/// The expanded size of the files for the default limit: just enough to exceed it.
const LARGE: u64 = 300 << 20;

type Case = (&'static str, fn(u64, Option<u64>) -> Error);

/// The cases. Each is called with a number of bytes, creates a file that would expand to that number, and reads it.
const CASES: &[Case] = &[
    ("a line without an end", |size, limit| {
        failure(text_lines(limited(gzip(|out| run(out, b"x", size)), limit)))
    }),
    ("a field without an end", |size, limit| csv(|out| run(out, b"1", size), limit)),
    ("a header without an end", |size, limit| {
        let file = limited(gzip(|out| run(out, b"x", size)), limit);
        Csv::file(file).features().unwrap_err()
    }),
    ("a quote that stays open", |size, limit| {
        let rows = |out: &mut dyn Write| {
            out.write_all(b"\"").unwrap();
            run(out, b"x\n", size);
        };
        csv(rows, limit)
    }),
    ("nothing but commas", |size, limit| csv(|out| run(out, b",", size), limit)),
    ("a header of nothing but commas", |size, limit| {
        let file = limited(gzip(|out| run(out, b",", size)), limit);
        Csv::file(file).features().unwrap_err()
    }),
    ("a record that says its length", |size, limit| {
        let mut record = Vec::new();
        record.extend(size.to_le_bytes());
        record.extend(masked_crc(&size.to_le_bytes()).to_le_bytes());
        let file = gzip(|out| {
            out.write_all(&record).unwrap();
            run(out, &[0], size);
        });
        failure(TfRecord::new(limited(file, limit)).records())
    }),
    ("an array", |size, limit| {
        let file = gzip(|out| {
            out.write_all(&npy_header(size)).unwrap();
            run(out, &[0], size);
        });
        read_npy(limited(file, limit)).unwrap_err()
    }),
    ("a header of an array", |size, limit| {
        let file = gzip(|out| {
            out.write_all(b"\x93NUMPY\x02\x00").unwrap();
            out.write_all(&u32::try_from(size).unwrap().to_le_bytes()).unwrap();
            run(out, b"1,", size);
        });
        read_npy(limited(file, limit)).unwrap_err()
    }),
    ("an archive that names one array a hundred times", |size, limit| {
        read_npz(limited(overlapping(size / 100 * 2, 100), limit)).unwrap_err()
    }),
    ("one list among many", |size, limit| {
        // Varints of one byte, which take 8 bytes in memory, in each of 1000 records.
        let long = Example::from([("x", vec![1i64; (size / 8 / 1000) as usize].into())]).encode();
        let short = Example::from([("x", 1.into())]).encode();
        let features = Features::new().with("x", VarLen::ints()).unwrap();
        let features = limit.map_or(features.clone(), |limit| features.element_limit(limit));
        features.parse(std::iter::once(&long[..]).chain((1..1000).map(|_| &short[..]))).unwrap_err()
    }),
    ("a list of nothing but empty strings", |size, limit| {
        let list = vec![Vec::<u8>::new(); (size / 24) as usize];
        let record = Example::from([("x", list.into())]).encode();
        let features = Features::new().with("x", VarLen::bytes()).unwrap();
        let features = limit.map_or(features.clone(), |limit| features.element_limit(limit));
        features.parse([&record[..]]).unwrap_err()
    }),
    ("a cache of one large structure", |size, limit| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache");
        let empty = || Dataset::from_items(vec![vec![None::<i64>; 3]]);
        assert!(empty().cache_to(&path).iter().all(|element| element.is_ok()));
        let nones = (size / 100) as usize;
        let list = [&[2][..], &(nones as u64).to_le_bytes(), &vec![1; nones]].concat();
        let mut reader = distribute_data::TfRecordReader::open(&path, Compression::None).unwrap();
        let whole = reader.read(3).unwrap();
        let mut writer = TfRecordWriter::create(&path, Compression::None).unwrap();
        writer.write(whole.get(0).unwrap()).unwrap();
        writer.write(&list).unwrap();
        writer.write(&1u64.to_le_bytes()).unwrap();
        writer.finish().unwrap();
        let file = Location::from(&path);
        failure(empty().cache_to(limit.map_or(file.clone(), |limit| file.element_limit(limit))))
    }),
    #[cfg(feature = "webdataset")]
    ("a file of a sample", |size, limit| {
        let file = gzip(|out| {
            out.write_all(&tar_header("a.txt", size)).unwrap();
            run(out, &[0], size);
        });
        failure(distribute_data::webdataset::samples(limited(file, limit)))
    }),
    #[cfg(feature = "webdataset")]
    ("a sample of many files", |size, limit| {
        let files = size / (1 << 20);
        let file = gzip(|out| {
            for i in 0..files {
                out.write_all(&tar_header(&format!("a.{i}"), 1 << 20)).unwrap();
                run(out, &[0], 1 << 20);
            }
        });
        failure(distribute_data::webdataset::samples(limited(file, limit)))
    }),
];

fn failure<T: Nest>(data: Dataset<T>) -> Error {
    data.iter().find_map(Result::err).unwrap()
}

/// Writes rows of one column, the last of which is hostile, and returns the first error of reading them.
fn csv(rows: impl FnOnce(&mut dyn Write), limit: Option<u64>) -> Error {
    let file = gzip(|out| {
        out.write_all(b"x\n1\n").unwrap();
        rows(out);
    });
    let mut seen = Csv::file(limited(file, limit)).features().unwrap().iter();
    let errors: Vec<Error> = seen.by_ref().filter_map(Result::err).collect();
    errors.into_iter().next().unwrap()
}

fn limited(bytes: Vec<u8>, limit: Option<u64>) -> Location {
    let file = Location::bytes("hostile", bytes);
    limit.map_or(file.clone(), |limit| file.element_limit(limit))
}

fn gzip(write: impl FnOnce(&mut dyn Write)) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    write(&mut encoder);
    encoder.finish().unwrap()
}

/// Writes at least `size` bytes, in which a pattern is repeated.
fn run(out: &mut dyn Write, of: &[u8], size: u64) {
    let block = of.repeat((1 << 16) / of.len());
    for _ in 0..size.div_ceil(block.len() as u64) {
        out.write_all(&block).unwrap();
    }
}

/// Returns TFRecord's checksum.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn npy_header(bytes: u64) -> Vec<u8> {
    let text = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({bytes},), }}\n");
    [&b"\x93NUMPY\x01\x00"[..], &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
}

/// Returns a zip file with one array, which its directory lists many times.
fn overlapping(size: u64, times: u16) -> Vec<u8> {
    let mut array = npy_header(size);
    array.resize(array.len() + size as usize, 0);
    let mut packed = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&array).unwrap();
    let packed = packed.finish().unwrap();
    let mut crc = flate2::Crc::new();
    crc.update(&array);
    let name = |i: u16| format!("{i:03}.npy");
    // What local headers and the directory have in common, from the version on.
    let common = |out: &mut Vec<u8>| {
        out.extend([20, 0, 0, 0, 8, 0, 0, 0, 33, 0]);
        out.extend(crc.sum().to_le_bytes());
        out.extend((packed.len() as u32).to_le_bytes());
        out.extend((array.len() as u32).to_le_bytes());
        out.extend(7u16.to_le_bytes());
        out.extend([0, 0]);
    };
    let mut zip = b"PK\x03\x04".to_vec();
    common(&mut zip);
    zip.extend(name(0).bytes());
    zip.extend(&packed);
    let directory = zip.len() as u32;
    for i in 0..times {
        zip.extend(b"PK\x01\x02\x14\x00");
        common(&mut zip);
        zip.extend([0; 14]);
        zip.extend(name(i).bytes());
    }
    let len = zip.len() as u32 - directory;
    zip.extend(b"PK\x05\x06\x00\x00\x00\x00");
    zip.extend([times.to_le_bytes(), times.to_le_bytes()].concat());
    zip.extend([len.to_le_bytes(), directory.to_le_bytes()].concat());
    zip.extend([0, 0]);
    zip
}

#[cfg(feature = "webdataset")]
fn tar_header(name: &str, size: u64) -> Vec<u8> {
    let mut header = tar::Header::new_ustar();
    header.set_path(name).unwrap();
    header.set_size(size);
    header.set_cksum();
    header.as_bytes().to_vec()
}

/// Creates and reads the file of one case with 1 GiB of address space, and prints the error. Does nothing outside the
/// child.
#[test]
fn child() {
    let Ok(case) = std::env::var(CASE) else { return };
    let limit: Option<u64> = std::env::var(LIMIT).ok().map(|limit| limit.parse().unwrap());
    let most = Some(1 << 30);
    setrlimit(Resource::As, Rlimit { current: most, maximum: most }).unwrap();
    let (_, run) = CASES.iter().find(|(name, _)| *name == case).unwrap();
    let size = if limit.is_some() { 40 * SMALL } else { LARGE };
    println!("error: {}", run(size, limit));
}

/// Returns the error that the child prints for a case.
fn read(case: &str, limit: Option<u64>) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", "hostile::child", "--nocapture", "--test-threads=1"])
        .env(CASE, case)
        .stderr(Stdio::piped());
    limit.map(|limit| child.env(LIMIT, limit.to_string()));
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = text.lines().find_map(|line| line.split_once("error: ")).map(|(_, error)| error.to_string());
    match said.filter(|_| output.status.success()) {
        Some(error) => error,
        None => panic!("{case}: {}\n{text}\n{}", output.status, String::from_utf8_lossy(&output.stderr)),
    }
}

#[test]
fn each_is_refused_at_the_limit_that_was_set() {
    for (case, _) in CASES {
        watched(move || {
            let error = read(case, Some(SMALL));
            // The length of an array's header has a limit of its own.
            let said = error.contains(&SMALL.to_string()) && error.contains("element_limit");
            assert!(said || error.contains("a header of"), "{case}: {error}");
        });
    }
}

#[test]
fn one_connection_is_refused_at_the_default_limit() {
    for case in ["a line without an end", "a record that says its length"] {
        watched(move || {
            let error = read(case, None);
            assert!(error.contains("'hostile'") && error.contains("268435456 bytes of memory"), "{error}");
        });
    }
}
