//! Tests: broken records of every format that are skipped and counted.

use super::file;
use distribute_data::example::{Example, Features, FixedLen};
use distribute_data::{
    Compression, Csv, Dataset, Files, Location, Result, SkippedRecords, TfRecord, TfRecordWriter,
    text_lines_skipping,
};
use distribute_tensor::{HostTensor, Nest};
use distribute_testing::watched;

/// Returns the elements of a pass over a dataset that skips `records` records in each pass, and checks that `skip`
/// counts only elements. The error of the first skipped record contains `first`.
fn kept<T: Nest>(data: &Dataset<T>, skipped: &SkippedRecords, records: u64, first: &str) -> Vec<T> {
    let before = skipped.count();
    let elements: Vec<T> = data.iter().map(Result::unwrap).collect();
    assert_eq!(skipped.count() - before, records);
    assert!(skipped.first().unwrap().contains(first), "{:?}", skipped.first());
    // `skip` counts only elements that are kept.
    assert_eq!(data.skip(1).iter().map(Result::unwrap).count() + 1, elements.len());
    elements
}

fn numbers(rows: &[HostTensor]) -> Vec<f32> {
    rows.iter().map(|row| row.to_vec::<f32>().unwrap()[0]).collect()
}

#[test]
fn rows_of_csv() {
    watched(|| {
        for threads in [1, 3] {
            let skipped = SkippedRecords::new();
            let csv = |text: String| Csv::bytes("a.csv", text).threads(threads).skip_broken(&skipped);
            let few = csv("x,y\n1,2\n3\n4,x\n5,6,7\n8,9\n".into()).features().unwrap();
            let rows =
                kept(&few, &skipped, 3, "'a.csv', line 3, column 2: found 1 column, expected 2 columns");
            assert_eq!(numbers(&rows), [1., 8.]);
            // Broken rows in several sections, without and with quotes.
            for quote in ["", "\""] {
                let row = |i: usize| {
                    if i % 1000 == 7 { "?,1\n".into() } else { format!("{i},{quote}{i}{quote}\n") }
                };
                let skipped = SkippedRecords::new();
                let text: String = (0..90_000).map(row).collect();
                let many = Csv::bytes("a.csv", text).without_header().threads(threads).skip_broken(&skipped);
                let many = many.labelled(1).unwrap();
                let labels: Vec<i64> = kept(&many, &skipped, 90, "line 8, column 1: found \"?\"")
                    .into_iter()
                    .map(|(_, label)| label)
                    .collect();
                assert_eq!(labels, (0..90_000).filter(|i| i % 1000 != 7).collect::<Vec<_>>());
            }
            let skipped = SkippedRecords::new();
            let columns =
                [("t", distribute_data::csv::ColumnType::Text), ("x", distribute_data::csv::ColumnType::F32)];
            let text = "t,x\na,1\nb,?\nc,3\n";
            let named = Csv::bytes("a.csv", text).skip_broken(&skipped).columns(columns).unwrap();
            let rows = kept(&named, &skipped, 1, "line 3");
            assert_eq!(rows[1]["t"].to_vec::<Vec<u8>>().unwrap(), [b"c".to_vec()]);
        }
        // Everything after a quote that is never closed is one record.
        let skipped = SkippedRecords::new();
        let files = Files::from([file("a.csv", "x\n1\n\"2\n3\n"), file("b.csv", "x\n4\n")]);
        let rows = Csv::files(files).skip_broken(&skipped).features().unwrap();
        assert_eq!(numbers(&kept(&rows, &skipped, 1, "a quote that is never closed")), [1., 4.]);
        let at_most =
            Csv::bytes("a.csv", "x\n?\n1\n?\n").skip_broken(&skipped.at_most(1)).features().unwrap();
        let seen: Vec<_> = at_most.iter().collect();
        assert!(seen.len() == 2 && seen[0].is_ok());
        assert!(seen[1].as_ref().unwrap_err().to_string().starts_with("'a.csv', line 4"));
        // A missing file is not a broken record.
        let missing = Files::from([file("a.csv", "x\n1\n"), "/none/a".into()]);
        let missing = Csv::files(missing).skip_broken(&skipped).features().unwrap();
        assert!(missing.iter().nth(1).unwrap().is_err());
    });
}

/// Returns a file of the examples 0 to 9, some without `x`.
fn examples(without: &[i64]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records");
    let mut writer = TfRecordWriter::create(&path, Compression::None).unwrap();
    for id in 0..10i64 {
        let name = if without.contains(&id) { "y" } else { "x" };
        writer.write(&Example::from([(name, id.into())]).encode()).unwrap();
    }
    writer.finish().unwrap();
    std::fs::read(path).unwrap()
}

#[test]
fn records_of_tfrecord() {
    watched(|| {
        let features = Features::new().with("x", FixedLen::ints([])).unwrap();
        let ids = |bytes: Vec<u8>, records, first: &str| {
            let skipped = SkippedRecords::new();
            let files = Files::from([file("a", bytes), file("b", examples(&[]))]);
            let data = TfRecord::new(files).skip_broken(&skipped).examples(&features).unwrap();
            let ids = kept(&data, &skipped, records, first);
            ids.iter().map(|row| row["x"].item::<i64>().unwrap()).collect::<Vec<_>>()
        };
        let len = examples(&[]).len() / 10;
        let expected =
            |without: &[i64]| (0..10).filter(|id| !without.contains(id)).chain(0..10).collect::<Vec<_>>();
        assert_eq!(ids(examples(&[2, 3, 9]), 3, "'a', record 2, feature 'x': missing"), expected(&[2, 3, 9]));
        // Damaged data of two records, one of which is the first, and an example without the feature after them.
        let mut damaged = examples(&[8]);
        damaged[14] ^= 1;
        damaged[len * 5 + 14] ^= 1;
        assert_eq!(
            ids(damaged, 3, "'a', record 0 at byte 0: the checksum of its data"),
            expected(&[0, 5, 8])
        );
        // After a damaged length, no record is found.
        let mut lost = examples(&[]);
        lost[len * 4] ^= 1;
        assert_eq!(
            ids(lost, 1, &format!("'a', record 4 at byte {}: ", len * 4)),
            expected(&[4, 5, 6, 7, 8, 9])
        );
        assert_eq!(ids(examples(&[])[..len * 9 + 5].to_vec(), 1, "the file ends after 5"), expected(&[9]));
        let skipped = SkippedRecords::new();
        let mut damaged = examples(&[]);
        damaged[len * 3 + 14] ^= 1;
        let records = TfRecord::new(file("a", damaged)).skip_broken(&skipped).records();
        assert_eq!(kept(&records, &skipped, 1, "record 3 at byte").len(), 9);
    });
}

#[test]
fn lines_of_text() {
    watched(|| {
        let skipped = SkippedRecords::new();
        let text =
            Location::bytes("a.txt", "one\na line of more than ten bytes\ntwo\nanother that is too long")
                .element_limit(10);
        let lines = text_lines_skipping(text, &skipped);
        assert_eq!(
            kept(&lines, &skipped, 2, "'a.txt', byte 4: a line takes more than 10 bytes"),
            ["one", "two"]
        );
    });
}

#[cfg(feature = "webdataset")]
#[test]
fn samples_of_tar_files() {
    use distribute_data::webdataset::samples_skipping;
    watched(|| {
        let tar = |names: &[&str]| {
            let mut tar = tar::Builder::new(Vec::new());
            for name in names {
                let mut header = tar::Header::new_ustar();
                header.set_size(3);
                tar.append_data(&mut header, name, &b"abc"[..]).unwrap();
            }
            tar.into_inner().unwrap()
        };
        let keys = |bytes: Vec<u8>, records, first: &str| {
            let skipped = SkippedRecords::new();
            let data = samples_skipping(
                Files::from([file("a.tar", bytes), file("b.tar", tar(&["z.txt"]))]),
                &skipped,
            );
            let rows = kept(&data, &skipped, records, first);
            let key = |row: &std::collections::BTreeMap<String, HostTensor>| {
                row["__key__"].to_vec::<Vec<u8>>().unwrap().concat()
            };
            String::from_utf8(rows.iter().flat_map(key).collect()).unwrap()
        };
        let twice = tar(&["a.txt", "b.txt", "b.txt", "b.cls", "c.txt"]);
        assert_eq!(keys(twice, 1, "sample 'b' has two files 'txt'"), "acz");
        let mut header = tar(&["a.txt", "b.txt", "c.txt", "d.txt"]);
        header[2048] ^= 1;
        // The damaged header may belong to another file of `b`.
        let error = "'a.tar', byte 2560: sample 'b' may lack files, because the tar file is damaged after it";
        assert_eq!(keys(header, 2, error), "az");
        let mut cut = tar(&["a.txt", "b.txt", "c.txt"]);
        cut.truncate(2561);
        assert_eq!(keys(cut, 1, "'a.tar', byte 2561: the file ends"), "abz");
    });
}

#[test]
fn a_stream_that_is_damaged_ends_its_file() {
    watched(|| {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        std::io::Write::write_all(&mut packed, b"1\n2\n").unwrap();
        let mut packed = packed.finish().unwrap();
        packed.truncate(packed.len() - 3);
        let skipped = SkippedRecords::new();
        let lines = text_lines_skipping(Files::from([file("a.gz", packed), file("b", "3\n")]), &skipped);
        assert_eq!(kept(&lines, &skipped, 1, "its gzip stream is damaged at byte 4"), ["1", "2", "3"]);
    });
}
