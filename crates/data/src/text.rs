//! The source that reads lines of text files.

use crate::broken::{Broken, SkippedRecords};
use crate::chunk::Chunk;
use crate::file_source::{Format, Reading};
use crate::stage::Stage;
use crate::{Compression, Dataset, ElementSpec, Error, Files, Location, Result, TensorSpec};
use distribute_tensor::{DType, HostTensor, Leaf, Tree};
use std::io::{BufRead, Read};

/// Creates a dataset of the lines of text files, without their line endings (LF or CR LF). Blank lines are elements as
/// well. The files may be compressed with gzip, or with zstd or lz4 if the feature of that name is enabled.
///
/// Elements are [`String`]s. A line that is not UTF-8 results in [`Error::Type`](crate::Error::Type);
/// [`typed`](Dataset::typed)`::<HostTensor>()` returns it as bytes. A line that is longer than the [limit for one
/// element](Location::element_limit) results in [`Error::Damaged`], because such a file is usually not text.
///
/// ```
/// use distribute_data::{Location, text_lines};
/// let lines = text_lines(Location::bytes("poem.txt", "roses\nviolets\n"));
/// assert_eq!(lines.iter().collect::<Result<Vec<_>, _>>()?, ["roses", "violets"]);
/// # Ok::<(), distribute_data::Error>(())
/// ```
#[doc(alias = "tf.data.TextLineDataset")]
#[doc(alias = "TextLineDataset")]
pub fn text_lines(files: impl Into<Files>) -> Dataset<String> {
    Dataset::of_files(files.into(), TextLines { skipped: None })
}

/// Creates a dataset of the lines of text files like [`text_lines`], but skips lines that are longer than the
/// limit, and counts them in `skipped`.
pub fn text_lines_skipping(files: impl Into<Files>, skipped: &SkippedRecords) -> Dataset<String> {
    Dataset::of_files(files.into(), TextLines { skipped: Some(skipped.clone()) })
}

struct TextLines {
    skipped: Option<SkippedRecords>,
}

impl Format for TextLines {
    fn describe(&self) -> String {
        "lines of text".into()
    }

    fn spec(&self) -> Option<ElementSpec> {
        Some(Tree::Leaf(TensorSpec::scalar(DType::String)))
    }

    fn open(&self, file: &Location, broken: &Broken) -> Result<Reading> {
        let text = Compression::Auto.open(file)?;
        let stage = LinesStage { file: file.clone(), text, offset: 0, failed: None, broken: broken.clone() };
        Ok(Reading::Elements(Box::new(stage)))
    }

    fn skipped(&self) -> Option<&SkippedRecords> {
        self.skipped.as_ref()
    }
}

/// The maximum number of lines that are read at a time. They stay in memory together until the last of them is
/// dropped.
const MAX_LINES: usize = 1024;

/// The maximum number of bytes of lines that are read at a time, not counting the last line.
const MAX_BYTES: usize = 1 << 20;

struct LinesStage {
    file: Location,
    text: Box<dyn BufRead + Send>,
    offset: u64,
    /// The error to return after the lines that were returned last.
    failed: Option<Error>,
    broken: Broken,
}

impl LinesStage {
    fn line(&mut self) -> Result<Option<Vec<u8>>> {
        let limit = self.file.limit();
        let mut line = Vec::new();
        let read = loop {
            let mut limited = self.text.by_ref().take(limit.bytes().saturating_add(1));
            let read = limited.read_until(b'\n', &mut line).map_err(|e| self.file.io_error(e))? as u64;
            let Err(what) = limit.check("a line", read) else { break read };
            self.broken.skip(Error::Damaged { path: self.file.to_string(), offset: self.offset, what })?;
            let rest = if line.ends_with(b"\n") { 0 } else { self.pass_line()? };
            self.offset += read + rest;
            line.clear();
        };
        self.offset += read;
        if line.pop_if(|last| *last == b'\n').is_some() {
            line.pop_if(|last| *last == b'\r');
        }
        Ok((read > 0).then_some(line))
    }

    /// Skips the rest of a line. Returns the number of skipped bytes, including the line break.
    fn pass_line(&mut self) -> Result<u64> {
        self.text.skip_until(b'\n').map(|read| read as u64).map_err(|e| self.file.io_error(e))
    }

    fn read(&mut self, max: usize) -> Result<Option<Chunk>> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let mut lines = Vec::new();
        let mut bytes = 0;
        while lines.len() < max.min(MAX_LINES) && bytes < MAX_BYTES {
            match self.line() {
                Ok(Some(line)) => {
                    bytes += line.len();
                    lines.push(line);
                }
                Ok(None) => break,
                Err(error) if lines.is_empty() => return Err(error),
                // The lines before the error come first.
                Err(error) => {
                    self.failed = Some(error);
                    break;
                }
            }
        }
        let len = lines.len();
        let tree = Tree::Leaf(Leaf::Host(HostTensor::vector(lines)));
        Ok((len > 0).then(|| Chunk::rows(tree, len)))
    }
}

impl Stage for LinesStage {
    fn next(&mut self, max: usize) -> Option<Result<Chunk>> {
        self.read(max).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: impl AsRef<[u8]> + Send + Sync + 'static) -> Vec<String> {
        text_lines(Location::bytes("t", text)).iter().map(Result::unwrap).collect()
    }

    #[test]
    fn lines_come_without_their_ends() {
        assert_eq!(lines("a\nbc\n"), ["a", "bc"]);
        assert_eq!(lines("a\r\n\r\nb"), ["a", "", "b"]);
        assert_eq!(lines("a\rb\n"), ["a\rb"]);
        assert_eq!(lines(""), [""; 0]);
        assert_eq!(lines("\n"), [""]);
        let many: String = (0..3000).map(|i| format!("{i}\n")).collect();
        assert_eq!(lines(many), (0..3000).map(|i| i.to_string()).collect::<Vec<_>>());
    }

    #[test]
    fn bytes_that_are_no_text_can_be_read_as_bytes() {
        let data = text_lines(Location::bytes("t", b"\xff\n"));
        assert!(matches!(data.iter().next(), Some(Err(Error::Type { index: 0, .. }))));
        let bytes = data.typed::<HostTensor>().iter().next().unwrap().unwrap();
        assert_eq!(bytes.as_slice::<Vec<u8>>().unwrap(), [b"\xff".to_vec()]);
    }
}
