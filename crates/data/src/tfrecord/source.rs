//! [`TfRecord`]: the source that reads records of TFRecord files.

use super::frame::starts;
use super::{Records, TfRecordReader};
use crate::broken::{Broken, SkippedRecords};
use crate::chunk::Chunk;
use crate::example::Features;
use crate::file_source::{Format, ParsedSection, Reading, Sections, Work, threads};
use crate::worker_pool::check_threads;
use crate::{Compression, Dataset, ElementSpec, Error, Files, Location, Result, TensorSpec};
use distribute_tensor::{DType, HostTensor, Leaf, Nest, Tree};
use std::collections::BTreeMap;
use std::io::BufRead;
use std::sync::Arc;

/// A source that reads TFRecord files: records as bytes, or the features of the examples in them.
///
/// The compression is detected from the first bytes, unless it is specified. A damaged record results in
/// [`Error::Record`] with the file, the offset and the index of the record, after the records before it.
///
/// ```
/// use distribute_data::example::{Example, Features, FixedLen};
/// use distribute_data::{Compression, TfRecord, TfRecordWriter};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let path = folder.path().join("train.tfrecord");
/// let mut writer = TfRecordWriter::create(&path, Compression::None)?;
/// for i in 0..5i64 {
///     writer.write(&Example::from([("x", [i as f32, 0.5].into()), ("y", i.into())]).encode())?;
/// }
/// writer.finish()?;
///
/// let features = Features::new().with("x", FixedLen::floats([2]))?.with("y", FixedLen::ints([]))?;
/// let batches = TfRecord::new(path).examples(&features)?.shuffle(5, 42).batch(3);
/// let first = batches.iter().next().unwrap()?;
/// assert_eq!((first["x"].dims(), first["y"].dims()), (&[3, 2][..], &[3][..]));
/// # Ok::<(), distribute_data::Error>(())
/// ```
#[doc(alias = "tf.data.TFRecordDataset")]
#[doc(alias = "TFRecordDataset")]
#[must_use = "a source reads nothing until a dataset is made of it"]
#[derive(Clone, Debug)]
pub struct TfRecord {
    files: Files,
    compression: Compression,
    threads: usize,
    skipped: Option<SkippedRecords>,
}

impl TfRecord {
    /// Creates a source that reads the given files, one after the other.
    pub fn new(files: impl Into<Files>) -> Self {
        let (files, compression) = (files.into(), Compression::default());
        Self { files, compression, threads: threads(), skipped: None }
    }

    /// Sets the number of threads that parse records. The default is the number of cores, up to 8. With 1, no
    /// thread is started. More than 1024 result in [`Error::Parameter`] in the pass. Elements are always in
    /// the order of the files.
    #[doc(alias = "num_parallel_reads")]
    pub fn threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// Sets the compression of the files. The default is [`Compression::Auto`].
    #[doc(alias = "compression_type")]
    pub fn compression(self, compression: Compression) -> Self {
        Self { compression, ..self }
    }

    /// Skips and counts broken records: records whose data does not match the checksum, and records that cannot be
    /// parsed as the requested examples. After a damaged length, or a record that is larger than the [limit for one
    /// element](Location::element_limit), the rest of the file is skipped, and counted as one record.
    #[doc(alias = "ignore_errors")]
    pub fn skip_broken(self, skipped: &SkippedRecords) -> Self {
        Self { skipped: Some(skipped.clone()), ..self }
    }

    /// Creates a dataset of records, as scalar strings of bytes.
    pub fn records(self) -> Dataset<HostTensor> {
        let Self { files, compression, threads, skipped } = self;
        Dataset::of_files(files, RecordsFormat { compression, features: None, threads, skipped })
    }

    /// Creates a dataset of the features of examples, by name. This is the fastest way to read examples: many are
    /// parsed at once, directly into columns, and batches are created from the columns.
    ///
    /// An example that cannot be parsed results in [`Error::Example`] in the pass, with the file, the record and the
    /// feature.
    ///
    /// # Errors
    /// - [`Error::Parameter`]: a feature has variable length. To parse such features, call
    ///   [`parse_examples`](Dataset::parse_examples) on batches of [`records`](TfRecord::records).
    pub fn examples(self, features: &Features) -> Result<Dataset<BTreeMap<String, HostTensor>>> {
        if let Some(name) = features.first_variable() {
            return Err(Error::Parameter {
                operation: "examples",
                parameter: "the length of a feature",
                found: format!("variable for '{name}'"),
                expected: "fixed; parse batches of records with `parse_examples` instead",
            });
        }
        let Self { files, compression, threads, skipped } = self;
        let features = Some(Arc::new(features.clone()));
        Ok(Dataset::of_files(files, RecordsFormat { compression, features, threads, skipped }))
    }
}

struct RecordsFormat {
    compression: Compression,
    features: Option<Arc<Features>>,
    threads: usize,
    skipped: Option<SkippedRecords>,
}

impl Format for RecordsFormat {
    fn describe(&self) -> String {
        match &self.features {
            None => "TFRecord".into(),
            Some(features) => format!("{} features of TFRecord examples", features.spec(None).leaves().len()),
        }
    }

    fn identity(&self) -> String {
        match &self.features {
            None => "TFRecord".into(),
            Some(features) => format!("TFRecord examples, {}", features.identity()),
        }
    }

    fn strictness(&self) -> String {
        let limit = |features: &Arc<Features>| format!(", columns of at most {} bytes", features.limit());
        self.features.as_ref().map(limit).unwrap_or_default()
    }

    fn spec(&self) -> Option<ElementSpec> {
        Some(match &self.features {
            None => Tree::Leaf(TensorSpec::scalar(DType::String)),
            Some(features) => features.spec(None).map(&mut TensorSpec::row),
        })
    }

    fn open(&self, file: &Location, broken: &Broken) -> Result<Reading> {
        let reader = TfRecordReader::open(file, self.compression)?.skip_broken(broken.clone());
        let (features, broken) = (self.features.clone(), broken.clone());
        Ok(Reading::Sections(Box::new(RecordSections { reader, features, broken })))
    }

    fn blame(&self, file: &Location, error: Error) -> Error {
        self.compression.blame(file, |head| Some(starts(head)), error)
    }

    fn skipped(&self) -> Option<&SkippedRecords> {
        self.skipped.as_ref()
    }

    fn threads(&self) -> usize {
        self.threads
    }

    fn check(&self) -> Result<()> {
        check_threads("TfRecord::threads", self.threads)
    }
}

/// The maximum number of records that are parsed together. They stay in memory until the last of them is dropped.
const MAX_RECORDS: usize = 1024;

struct RecordSections {
    reader: TfRecordReader<Box<dyn BufRead + Send>>,
    features: Option<Arc<Features>>,
    broken: Broken,
}

impl Sections for RecordSections {
    fn next(&mut self) -> Option<Result<Work>> {
        let (features, broken) = (self.features.clone(), self.broken.clone());
        match self.reader.read_at_hand(MAX_RECORDS) {
            Err(error) => Some(Err(error)),
            Ok(records) if records.is_empty() => None,
            Ok(records) => {
                let bytes = records.iter().map(<[u8]>::len).sum();
                Some(Ok(Work { bytes, make: Box::new(move || made(features.as_deref(), records, &broken)) }))
            }
        }
    }

    /// Skips records without parsing them.
    fn skip(&mut self, count: usize) -> Result<Option<usize>> {
        let mut left = count;
        while left > 0 {
            match self.reader.read_at_hand(left.min(MAX_RECORDS))?.len() {
                0 => break,
                read => left -= read,
            }
        }
        Ok(Some(count - left))
    }
}

/// Parses records into elements. At a record that cannot be parsed, skips the record if broken records are skipped;
/// otherwise stops with its error.
fn made(features: Option<&Features>, mut records: Records, broken: &Broken) -> ParsedSection {
    let Some(features) = features else {
        return ParsedSection {
            chunk: Some(Chunk::rows(Tree::Leaf(Leaf::Host(records.to_tensor())), records.len())),
            failed: None,
        };
    };
    match features.parse_records(&records) {
        Ok(columns) => {
            ParsedSection { chunk: Some(Chunk::rows(columns.into_tree(), records.len())), failed: None }
        }
        Err(_) if broken.skips() => {
            let (good, failed) = good(features, &records, broken);
            records.keep(&good);
            match if good.is_empty() { Ok(None) } else { features.parse_records(&records).map(Some) } {
                Ok(columns) => {
                    let chunk = columns.map(|columns| Chunk::rows(columns.into_tree(), records.len()));
                    ParsedSection { chunk, failed }
                }
                Err(error) => ParsedSection { chunk: None, failed: Some(error) },
            }
        }
        Err(error) => {
            let before = match &error {
                Error::Example { record, .. } => record.saturating_sub(records.first()) as usize,
                _ => 0,
            };
            records.truncate(before);
            let parsed = if before > 0 { features.parse_records(&records).ok() } else { None };
            ParsedSection {
                chunk: parsed.map(|columns| Chunk::rows(columns.into_tree(), before)),
                failed: Some(error),
            }
        }
    }
}

/// Returns the indices of the records that can be parsed. Stops at a broken record that may not be skipped, and also
/// returns its error.
fn good(features: &Features, records: &Records, broken: &Broken) -> (Vec<usize>, Option<Error>) {
    let mut good = Vec::new();
    for index in 0..records.len() {
        let mut alone = records.clone();
        alone.keep(&[index]);
        match features.parse_records(&alone).map_err(|error| error.at_record(index as u64)) {
            Ok(_) => good.push(index),
            Err(error) => {
                if let Err(error) = broken.skip(error) {
                    return (good, Some(error));
                }
            }
        }
    }
    (good, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example::{Example, FixedLen};
    use crate::tfrecord::TfRecordWriter;

    fn features() -> Features {
        Features::new().with("x", FixedLen::floats([])).unwrap().with("y", FixedLen::ints([])).unwrap()
    }

    /// Creates two files of the examples with ids 0 to 6 and 7 to 9. The example with the id `broken` lacks `x`.
    fn files(folder: &std::path::Path, broken: Option<i64>) -> Files {
        let write = |name: &str, ids: std::ops::Range<i64>| {
            let path = folder.join(name);
            let mut writer = TfRecordWriter::create(&path, Compression::Gzip).unwrap();
            for id in ids {
                let x = (broken != Some(id)).then(|| ("x", (id as f32 / 2.).into()));
                let example: Example = [Some(("y", id.into())), x].into_iter().flatten().collect();
                writer.write(&example.encode()).unwrap();
            }
            writer.finish().unwrap();
            path
        };
        Files::from([write("a", 0..7), write("b", 7..10)])
    }

    #[test]
    fn examples_are_rows_of_columns() {
        let folder = tempfile::tempdir().unwrap();
        let data = TfRecord::new(files(folder.path(), None)).examples(&features()).unwrap();
        let batches: Vec<_> =
            data.batch(4).iter().map(|b| b.unwrap()["y"].to_vec::<i64>().unwrap()).collect();
        assert_eq!(batches, [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]]);
        let x = data.skip(6).batch(2).iter().next().unwrap().unwrap()["x"].to_vec::<f32>().unwrap();
        assert_eq!(x, [3., 3.5]);
        assert_eq!(data.element_spec().unwrap().leaves()[0].to_string(), "float32 []");
        let records = TfRecord::new(files(folder.path(), None)).records().batch(10);
        let parsed = records.parse_examples(&features()).iter().next().unwrap().unwrap();
        assert_eq!(parsed["y"].to_vec::<i64>().unwrap(), (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn a_broken_example_is_named_after_those_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let data = TfRecord::new(files(folder.path(), Some(5))).examples(&features()).unwrap();
        let mut seen = data.batch(2).iter();
        assert_eq!(seen.by_ref().take(2).filter(Result::is_ok).count(), 2);
        let error = seen.next().unwrap().unwrap_err().to_string();
        assert!(error.contains("a'") && error.contains("record 5") && error.contains("'x'"), "{error}");
        assert!(seen.next().is_none());
    }

    #[test]
    fn features_of_any_length_are_refused_where_there_are_no_batches() {
        let features = Features::new().with("ids", crate::example::VarLen::ints()).unwrap();
        let error = TfRecord::new("a").examples(&features).unwrap_err().to_string();
        assert!(error.contains("variable for 'ids'") && error.contains("parse_examples"), "{error}");
    }
}
