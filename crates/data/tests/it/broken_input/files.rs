//! Tests: damaged files of every format.

use super::{broken, file, refused};
use distribute_data::example::{Example, Features, FixedLen};
use distribute_data::numpy::{read_npy, read_npz};
use distribute_data::{
    Compression, Csv, Dataset, Files, TfRecord, TfRecordReader, TfRecordWriter, text_lines,
};
use distribute_tensor::HostTensor;
use distribute_testing::watched;
use flate2::write::{GzEncoder, ZlibEncoder};
use std::io::Write;

/// Returns the bytes of a TFRecord file of 4-byte records, each of which occupies 20 bytes.
fn records(count: u8) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records");
    let mut writer = TfRecordWriter::create(&path, Compression::None).unwrap();
    (0..count).for_each(|n| writer.write(&[n; 4]).unwrap());
    writer.finish().unwrap();
    std::fs::read(path).unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn tfrecord(bytes: Vec<u8>) -> Dataset<HostTensor> {
    TfRecord::new(file("a.tfrecord", bytes)).records()
}

#[test]
fn truncated_tfrecord() {
    watched(|| {
        let cut = |len: usize| tfrecord(records(3)[..len].to_vec());
        broken(
            cut(59),
            2,
            "'a.tfrecord', record 2 at byte 40: the file ends after 7 of the 8 bytes of its data and their checksum",
        );
        broken(
            cut(52),
            2,
            "'a.tfrecord', record 2 at byte 40: the file ends after 0 of the 8 bytes of its data and their checksum",
        );
        broken(
            cut(45),
            2,
            "'a.tfrecord', record 2 at byte 40: the file ends after 5 of the 12 bytes of its header",
        );
        broken(
            cut(3),
            0,
            "'a.tfrecord', record 0 at byte 0: the file ends after 3 of the 12 bytes of its header",
        );
    });
}

#[test]
fn tfrecord_with_a_wrong_crc() {
    watched(|| {
        let flipped = |at: usize, what: &str| {
            let mut bytes = records(3);
            bytes[at] ^= 1;
            let advice = "the file is damaged, or is not a TFRecord file, or has another compression than \
                          the given one";
            broken(
                tfrecord(bytes),
                1,
                &format!("'a.tfrecord', record 1 at byte 20: {what} is stored: {advice}"),
            );
        };
        flipped(20, "the checksum of its length is 3e04b2ea, but 04524542"); // the length
        flipped(28, "the checksum of its length is 04524542, but 04524543"); // its checksum
        flipped(33, "the checksum of its data is 9699d4af, but 736e8e2c"); // the data
        flipped(36, "the checksum of its data is 736e8e2c, but 736e8e2d"); // their checksum
    });
}

#[test]
fn bad_gzip_and_zlib() {
    watched(|| {
        let torn = |bytes: &[u8]| bytes[..bytes.len() - 3].to_vec();
        broken(
            tfrecord(torn(&gzip(&records(3)))),
            3,
            "cannot read 'a.tfrecord': its gzip stream is damaged at byte 60, unpacked: unexpected end of file",
        );
        broken(
            tfrecord(torn(&zlib(&records(3)))),
            3,
            "cannot read 'a.tfrecord': its zlib stream is damaged at byte 60, unpacked: incomplete deflate stream",
        );
        let mut wrong = gzip(&records(3));
        let crc = wrong.len() - 8;
        wrong[crc] ^= 1;
        broken(
            tfrecord(wrong),
            3,
            "cannot read 'a.tfrecord': its gzip stream is damaged at byte 60, unpacked: corrupt gzip stream does not have a matching checksum",
        );
        let plain = TfRecord::new(file("a.tfrecord", records(3))).compression(Compression::Gzip);
        broken(
            plain.records(),
            0,
            "cannot read 'a.tfrecord': its gzip stream is damaged at byte 0, unpacked: invalid gzip header",
        );
        let lines = text_lines(file("a.txt.gz", torn(&gzip(b"one\ntwo\n"))));
        broken(
            lines,
            2,
            "cannot read 'a.txt.gz': its gzip stream is damaged at byte 8, unpacked: unexpected end of file",
        );
        let rows = Csv::bytes("a.csv.gz", torn(&gzip(b"1,2\n3,4\n"))).without_header();
        let error =
            "cannot read 'a.csv.gz': its gzip stream is damaged at byte 8, unpacked: unexpected end of file";
        broken(rows.features().unwrap(), 2, error);
        let followed = text_lines(file("a.txt.gz", [gzip(b"one\n"), b"more".to_vec()].concat()));
        let error = "its gzip stream is damaged at byte 4, unpacked: it ends here, and the bytes that follow are \
             not part of it";
        broken(followed, 1, &format!("cannot read 'a.txt.gz': {error}"));
    });
}

/// Checks that a damaged compressed stream is reported with the reason that its checksum gives, and not as a wrong row,
/// record or header.
#[test]
fn a_damaged_stream_is_an_error_before_its_contents_are_parsed() {
    distribute_testing::watched(|| {
        // Stored as they are, so that a byte changes in place.
        let stored = |bytes: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::none());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        };
        let damaged = |bytes: &[u8], from: &[u8], to: &[u8]| {
            let mut packed = stored(bytes);
            let at = packed.windows(from.len()).position(|bytes| bytes == from).unwrap();
            packed[at..at + to.len()].copy_from_slice(to);
            packed
        };
        let why = |len: usize| {
            format!(
                "its gzip stream is damaged at byte {len}, unpacked: corrupt gzip stream does not have a matching checksum"
            )
        };
        let text: String = (0..200_000).map(|i| format!("{i},1\n")).collect();
        for threads in [1, 3] {
            let rows =
                Csv::bytes("a.csv.gz", damaged(text.as_bytes(), b"\n60000,", b"\n6?")).without_header();
            let error = format!("cannot read 'a.csv.gz': {}", why(text.len()));
            broken(rows.threads(threads).features().unwrap(), 60_000, &error);
        }
        // The second of two files is damaged.
        let whole = distribute_data::Location::bytes("a.csv.gz", stored(b"1,2\n"));
        let second = distribute_data::Location::bytes("b.csv.gz", damaged(b"1,2\n", b"1,", b"x"));
        let rows = Csv::files([whole, second]).without_header().features().unwrap();
        broken(rows, 1, &format!("cannot read 'b.csv.gz': {}", why(4)));
        let data = tfrecord(damaged(&records(3), &[1; 4], &[2]));
        broken(data, 1, &format!("cannot read 'a.tfrecord': {}", why(60)));
        // If the stream is intact, the error is that of the row.
        let rows = Csv::bytes("a.csv.gz", stored(b"1,2\n1,x\n")).without_header().features().unwrap();
        broken(rows, 1, "'a.csv.gz', line 2, column 2: found \"x\", expected a number (float32)");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npy");
        distribute_data::numpy::write_npy(&path, &HostTensor::vector(vec![1i64, 2])).unwrap();
        let npy = std::fs::read(&path).unwrap();
        let error = read_npy(file("a.npy.gz", damaged(&npy, b"descr", b"x"))).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot read 'a.npy.gz': {}", why(npy.len())));
    });
}

#[test]
fn records_that_are_not_the_examples_asked_for() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let data = |name: &str, second: Vec<u8>| {
            let path = folder.path().join(name);
            let mut writer = TfRecordWriter::create(&path, Compression::None).unwrap();
            writer.write(&Example::from([("x", [1., 2.].into())]).encode()).unwrap();
            writer.write(&second).unwrap();
            writer.finish().unwrap();
            let features = Features::new().with("x", FixedLen::floats([2])).unwrap();
            let bytes = file("e.tfrecord", std::fs::read(path).unwrap());
            TfRecord::new(bytes).examples(&features).unwrap()
        };
        broken(
            data("missing", Example::default().encode()),
            1,
            "'e.tfrecord', record 1, feature 'x': missing, expected floats of shape [2]: a default would \
             replace it",
        );
        broken(
            data("kind", Example::from([("x", [1, 2].into())]).encode()),
            1,
            "'e.tfrecord', record 1, feature 'x': found ints, expected floats",
        );
        broken(
            data("number", Example::from([("x", [1.].into())]).encode()),
            1,
            "'e.tfrecord', record 1, feature 'x': found 1 floats, expected 2 for shape [2]",
        );
        broken(
            data("none", b"\xff".to_vec()),
            1,
            "'e.tfrecord', record 1: broken at byte 0 of its 1: the bytes end within a number",
        );
    });
}

#[test]
fn csv_rows_of_another_width_and_fields_that_are_no_numbers() {
    watched(|| {
        let rows = |text: &str| Csv::bytes("a.csv", text.to_string()).features().unwrap();
        broken(rows("x,y\n1,2\n3\n"), 1, "'a.csv', line 3, column 2: found 1 column, expected 2 columns");
        broken(
            rows("x,y\n1,2\n3,4,5\n"),
            1,
            "'a.csv', line 3, column 3: found 3 columns, expected 2 columns",
        );
        broken(
            rows("x,y\n1,2\n3,four\n"),
            1,
            "'a.csv', line 3, column 2: found \"four\", expected a number (float32) for 'y'",
        );
        let files = Csv::files(Files::from([file("a.csv", "x,y\n1,2\n"), file("b.csv", "x,z\n3,4\n")]));
        broken(
            files.features().unwrap(),
            1,
            "'b.csv', line 1, column 2: found \"z\", expected \"y\", as in 'a.csv'",
        );
        refused(Csv::bytes("a.csv", "x,y\n1,2\n").labelled("z"), "'a.csv' has no column 'z'; it has x, y");
    });
}

#[test]
fn missing_files() {
    watched(|| {
        let error = "cannot read '/none/a': No such file or directory (os error 2)";
        broken(TfRecord::new("/none/a").records(), 0, error);
        broken(text_lines("/none/a"), 0, error);
        // The file before it is read.
        broken(text_lines(Files::from([file("a.txt", "one\n"), "/none/a".into()])), 1, error);
        refused(Csv::file("/none/a").features(), error);
        refused(TfRecordReader::open("/none/a", Compression::Auto), error);
        refused(read_npy("/none/a"), error);
        refused(read_npz("/none/a"), error);
        refused(Files::glob("/none/*.csv"), "no file matches '/none/*.csv'");
    });
}

#[cfg(feature = "webdataset")]
#[test]
fn tar_files() {
    use distribute_data::webdataset::samples;
    watched(|| {
        let mut tar = tar::Builder::new(Vec::new());
        for name in ["1.txt", "2.txt"] {
            let mut header = tar::Header::new_ustar();
            header.set_size(3);
            tar.append_data(&mut header, name, &b"abc"[..]).unwrap();
        }
        let whole = tar.into_inner().unwrap();
        let data = |bytes: &[u8]| samples(file("a.tar", bytes));
        // The sample before a damaged file is complete if the header of that file shows that it belongs to another
        // sample.
        broken(data(&whole[..1538]), 1, "'a.tar', byte 1538: the file ends, 1 bytes early or more");
        broken(data(&whole[..2049]), 1, "'a.tar', byte 2049: the file ends, 511 bytes early or more");
        let mut flipped = whole.clone();
        flipped[1024] ^= 1;
        let error = "'a.tar', byte 1024: this is not the header of a tar file: its checksum is wrong";
        broken(data(&flipped), 0, error);
        broken(samples("/none/a"), 0, "cannot read '/none/a': No such file or directory (os error 2)");
    });
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_files() {
    use distribute_data::parquet::rows;
    watched(|| {
        let error = "cannot read 'a.parquet': Parquet error: Invalid Parquet file. Corrupt footer";
        broken(rows(file("a.parquet", "PAR1, it says"), ["x"]), 0, error);
        broken(rows("/none/a", ["x"]), 0, "cannot read '/none/a': No such file or directory (os error 2)");
    });
}

#[test]
fn arrays_of_numpy() {
    let error = "'a.npy', byte 0: this is not a .npy file: it does not begin with \\x93NUMPY";
    refused(read_npy(file("a.npy", "no array")), error);
    let header =
        b"\x93NUMPY\x01\x00\x46\x00{'descr': '<i8', 'fortran_order': False, 'shape': (99999999,), }     \n";
    refused(
        read_npy(file("a.npy", header.to_vec())),
        "'a.npy', byte 80: the file ends, 65536 bytes early or more",
    );
    refused(
        read_npz(file("a.npz", "no archive")),
        "cannot read 'a.npz': invalid Zip archive: Could not find EOCD",
    );
}
