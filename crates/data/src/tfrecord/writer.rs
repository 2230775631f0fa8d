//! Writes a TFRecord file, which has its name only when it is whole.

use super::frame::around;
use crate::{Error, Result};
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// How a file is compressed as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    /// Not at all.
    #[default]
    None,
    /// As `gzip` does.
    Gzip,
    /// As zlib's streams.
    Zlib,
}

/// Writes records to a new file.
///
/// Until [`finish`](TfRecordWriter::finish) has returned, the file has another name in the same folder; dropping the
/// writer before removes it. So nobody reads a file that is not whole, and a file of this name stays as it was until
/// then.
#[doc(alias = "tf.io.TFRecordWriter")]
#[derive(Debug)]
pub struct TfRecordWriter {
    path: PathBuf,
    /// Gone after a failed write: what is in the file is not known then.
    output: Option<BufWriter<Packed>>,
    part: NamedTempFile,
}

impl TfRecordWriter {
    /// A writer of the file that is to be at `path`, in a folder that is there.
    ///
    /// # Errors
    ///
    /// [`Error::Write`] if no file can be created there.
    #[doc(alias = "tf.io.TFRecordOptions")]
    pub fn create(path: impl Into<PathBuf>, packing: Packing) -> Result<Self> {
        let path = path.into();
        let (part, output) = (|| {
            let part = part_of(&path)?;
            let output = Packed::new(part.reopen()?, packing);
            Ok((part, output))
        })()
        .map_err(failed(&path))?;
        Ok(Self { path, output: Some(BufWriter::with_capacity(1 << 18, output)), part })
    }

    /// Appends a record.
    ///
    /// # Errors
    ///
    /// [`Error::Write`] if the disk does not take it, and for every call after such an error.
    pub fn write(&mut self, record: &[u8]) -> Result<()> {
        let (header, footer) = around(record);
        let mut output = self.output.take().ok_or_else(|| failed(&self.path)(after_failure()))?;
        output
            .write_all(&header)
            .and_then(|()| output.write_all(record))
            .and_then(|()| output.write_all(&footer))
            .map_err(failed(&self.path))?;
        self.output = Some(output);
        Ok(())
    }

    /// Brings all records to the disk and gives the file its name. A file that had it is replaced.
    ///
    /// # Errors
    ///
    /// [`Error::Write`] if that fails or a record could not be written; then there is no new file.
    pub fn finish(self) -> Result<()> {
        let Self { path, output, part } = self;
        output
            .ok_or_else(after_failure)
            .and_then(|output| output.into_inner().map_err(io::IntoInnerError::into_error))
            .and_then(|output| output.finish()?.sync_all())
            .and_then(|()| part.persist(&path).map_err(|error| error.error))
            .map(drop)
            .map_err(failed(&path))
    }
}

/// A new file beside the place.
fn part_of(path: &Path) -> io::Result<NamedTempFile> {
    let no_name = || io::Error::new(io::ErrorKind::InvalidInput, "this does not end in the name of a file");
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(path.file_name().ok_or_else(no_name)?);
    prefix.push(".");
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(".part");
    // What the user's mask allows, as for any file; temporary files are their owner's alone.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    builder.tempfile_in(parent.unwrap_or(Path::new(".")))
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Write { path: path.display().to_string(), source }
}

fn after_failure() -> io::Error {
    io::Error::other("an earlier record could not be written")
}

/// A file behind its compression.
#[derive(Debug)]
enum Packed {
    Plain(File),
    Gzip(GzEncoder<File>),
    Zlib(ZlibEncoder<File>),
}

impl Packed {
    fn new(file: File, packing: Packing) -> Self {
        match packing {
            Packing::None => Packed::Plain(file),
            Packing::Gzip => Packed::Gzip(GzEncoder::new(file, Compression::default())),
            Packing::Zlib => Packed::Zlib(ZlibEncoder::new(file, Compression::default())),
        }
    }

    fn finish(self) -> io::Result<File> {
        match self {
            Packed::Plain(file) => Ok(file),
            Packed::Gzip(encoder) => encoder.finish(),
            Packed::Zlib(encoder) => encoder.finish(),
        }
    }
}

impl Write for Packed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Packed::Plain(file) => file.write(bytes),
            Packed::Gzip(encoder) => encoder.write(bytes),
            Packed::Zlib(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Packed::Plain(file) => file.flush(),
            Packed::Gzip(encoder) => encoder.flush(),
            Packed::Zlib(encoder) => encoder.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TfRecordReader;
    use flate2::read::{MultiGzDecoder, ZlibDecoder};
    use std::fs;
    use std::io::Read;

    fn read(path: &Path, packing: Packing) -> Vec<Vec<u8>> {
        let file = File::open(path).unwrap();
        let source: Box<dyn Read> = match packing {
            Packing::None => Box::new(file),
            Packing::Gzip => Box::new(MultiGzDecoder::new(file)),
            Packing::Zlib => Box::new(ZlibDecoder::new(file)),
        };
        TfRecordReader::new("f", source).read(usize::MAX).unwrap().iter().map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn what_is_written_is_read_however_it_is_packed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tfrecord");
        for packing in [Packing::None, Packing::Gzip, Packing::Zlib] {
            let mut writer = TfRecordWriter::create(&path, packing).unwrap();
            let records: Vec<Vec<u8>> = (0..2000usize).map(|i| vec![i as u8; i]).collect();
            records.iter().for_each(|record| writer.write(record).unwrap());
            writer.finish().unwrap();
            assert_eq!(read(&path, packing), records);
        }
    }

    #[test]
    fn a_file_has_its_name_only_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tfrecord");
        fs::write(&path, b"old").unwrap();
        let mut writer = TfRecordWriter::create(&path, Packing::None).unwrap();
        writer.write(&vec![1; 1 << 20]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        drop(writer);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        TfRecordWriter::create(&path, Packing::None).unwrap().finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_may_be_read_by_those_who_may_read_others() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tfrecord");
        TfRecordWriter::create(&path, Packing::None).unwrap().finish().unwrap();
        let other = File::create(folder.path().join("other")).unwrap();
        let mode = |metadata: fs::Metadata| metadata.permissions().mode();
        assert_eq!(mode(fs::metadata(&path).unwrap()), mode(other.metadata().unwrap()));
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for place in ["missing/a.tfrecord", ".."] {
            let path = folder.path().join(place);
            let error = TfRecordWriter::create(&path, Packing::None).unwrap_err();
            assert!(error.to_string().starts_with(&format!("cannot write '{}'", path.display())), "{error}");
        }
    }
}
