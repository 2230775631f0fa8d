//! Input files, by the formula of `bench/peers/files.py`, which writes the same bytes.

use super::formula::{noise, unit};
use distribute::data::tfrecord::TfRecordWriter;
use distribute::data::{Compression, Error, Example};
use distribute::{Error as Failed, Result};
use distribute_files::WholeFile;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The number of record files.
pub const PARTS: usize = 8;
/// The number of records in each file.
pub const RECORDS: usize = 8192;
/// The number of numbers in a record.
pub const NUMBERS: usize = 64;
/// The number of lines in the CSV file, without its header.
pub const ROWS: usize = 200_000;
/// The number of columns in the CSV file, without its label.
pub const COLUMNS: usize = 20;

/// Returns the paths of the record files, which are written if they do not exist.
pub fn examples() -> Result<Vec<PathBuf>> {
    let part = |k| {
        let records = k * RECORDS..(k + 1) * RECORDS;
        written(&format!("examples-{k}.tfrecord"), |path| write_examples(path, records))
    };
    (0..PARTS).map(part).collect()
}

/// Returns the path of the CSV file, which is written if it does not exist.
pub fn rows() -> Result<PathBuf> {
    written("rows.csv", |path| {
        WholeFile::write(path, &[header(), csv(0..ROWS)].concat()).map_err(failed(path))
    })
}

/// Returns the path of a file in the folder `DISTRIBUTE_BENCH_FILES`, or in a temporary one. The file is
/// written atomically if it does not exist.
fn written(name: &str, write: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let folder = std::env::var_os("DISTRIBUTE_BENCH_FILES").filter(|folder| !folder.is_empty());
    let folder = folder.map_or_else(|| std::env::temp_dir().join("distribute-bench"), PathBuf::from);
    fs::create_dir_all(&folder).map_err(failed(&folder))?;
    let path = folder.join(name);
    if !path.exists() {
        write(&path)?;
    }
    Ok(path)
}

fn failed(path: &Path) -> impl FnOnce(std::io::Error) -> Failed {
    move |source| Error::Write { path: path.display().to_string(), source }.into()
}

fn write_examples(path: &Path, records: Range<usize>) -> Result<()> {
    let mut writer = TfRecordWriter::create(path, Compression::None)?;
    for record in records {
        writer.write(&example(record).encode())?;
    }
    Ok(writer.finish()?)
}

fn example(record: usize) -> Example {
    let letters = 8 + noise(402, record) as usize % 9;
    let name: Vec<u8> = (0..letters).map(|j| b'a' + (noise(403, 16 * record + j) % 26) as u8).collect();
    let x: Vec<f32> = (0..NUMBERS).map(|j| unit(400, NUMBERS * record + j)).collect();
    Example::from([("name", name.into()), ("x", x.into()), ("y", i64::from(noise(401, record) % 10).into())])
}

fn header() -> Vec<u8> {
    let names: String = (0..COLUMNS).map(|column| format!("x{column},")).collect();
    format!("{names}label\n").into_bytes()
}

/// Returns these lines of the CSV file.
fn csv(rows: Range<usize>) -> Vec<u8> {
    let mut text = Vec::with_capacity(rows.len() * (COLUMNS * 10 + 2));
    for row in rows {
        for column in 0..COLUMNS {
            let millionths = i64::from(noise(410, COLUMNS * row + column) % 2_000_001) - 1_000_000;
            if millionths < 0 {
                text.push(b'-');
            }
            let digit = |ten: u64| b'0' + (millionths.unsigned_abs() / ten % 10) as u8;
            text.extend([digit(1_000_000), b'.']);
            text.extend([100_000, 10_000, 1000, 100, 10, 1].map(digit));
            text.push(b',');
        }
        text.extend([b'0' + (noise(411, row) % 10) as u8, b'\n']);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with the CRC-32 of the files of files.py.
    #[test]
    fn files_are_those_of_the_peers() {
        let folder = tempfile::tempdir().unwrap();
        for (k, crc) in [(0, 0x51cc_03ab), (7, 0xe4c5_2956u32)] {
            let path = folder.path().join("examples");
            write_examples(&path, k * RECORDS..(k + 1) * RECORDS).unwrap();
            assert_eq!(crc32fast::hash(&fs::read(&path).unwrap()), crc, "examples-{k}");
        }
        let mut crc = crc32fast::Hasher::new();
        crc.update(&header());
        crc.update(&csv(0..ROWS));
        assert_eq!(crc.finalize(), 0xe91b_ccfb);
    }
}
