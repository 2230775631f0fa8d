//! [`TfRecordWriter`]: a writer of a TFRecord file, which gets its name only when it is complete.

use super::frame::around;
use crate::{Compression, Error, Result};
use distribute_files::WholeFile;
use flate2::write::{GzEncoder, ZlibEncoder};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A writer of records into a new TFRecord file.
///
/// Until [`finish`](TfRecordWriter::finish) returns, the file has a different name in the same folder. Dropping the
/// writer before that removes the file. An incomplete file is therefore never read, and an existing file with the final
/// name stays unchanged until then. If the process is killed, the next writer of the same file removes the remains. A
/// [growing](Self::growing) file has its name from the beginning, and is not removed.
#[doc(alias = "tf.io.TFRecordWriter")]
#[derive(Debug)]
pub struct TfRecordWriter {
    path: PathBuf,
    /// The output; `None` after a failed write, because the contents of the file are then unknown.
    output: Option<BufWriter<Packed>>,
}

impl TfRecordWriter {
    /// Creates a writer for the file at `path`, whose folder must exist. [`Compression::Auto`] means gzip for
    /// names that end with `.gz`, and no compression for others.
    ///
    /// # Errors
    ///
    /// - [`Error::Write`]: the file cannot be created, or TensorFlow does not support the compression.
    #[doc(alias = "tf.io.TFRecordOptions")]
    #[doc(alias = "TFRecordOptions")]
    pub fn create(path: impl Into<PathBuf>, compression: Compression) -> Result<Self> {
        let path = path.into();
        let file = WholeFile::create(&path).map_err(failed(&path))?;
        let output = Packed::new(file, compression, &path).map_err(failed(&path))?;
        Ok(Self::to(path, output))
    }

    /// Creates a writer for a file that is read while it grows. The file has its name immediately, replaces an
    /// existing file, and is not compressed. [Flushed](Self::flush) records can be read. They may be followed by
    /// an incomplete record.
    ///
    /// # Errors
    ///
    /// - [`Error::Write`]: the file cannot be created.
    pub fn growing(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let file = WholeFile::create(&path).and_then(WholeFile::into_growing).map_err(failed(&path))?;
        Ok(Self::to(path, Packed::Growing(file)))
    }

    fn to(path: PathBuf, output: Packed) -> Self {
        Self { path, output: Some(BufWriter::with_capacity(1 << 18, output)) }
    }

    /// Passes all written records to the operating system, so that the records of a [growing](Self::growing) file
    /// survive this process.
    ///
    /// # Errors
    ///
    /// - [`Error::Write`]: the disk is full or fails, or an earlier write has failed.
    #[doc(alias = "tf.io.TFRecordWriter.flush")]
    pub fn flush(&mut self) -> Result<()> {
        let mut output = self.output.take().ok_or_else(|| failed(&self.path)(after_failure()))?;
        output.flush().map_err(failed(&self.path))?;
        self.output = Some(output);
        Ok(())
    }

    /// Appends a record to the file.
    ///
    /// # Errors
    ///
    /// - [`Error::Write`]: the disk is full or fails, or an earlier write has failed.
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

    /// Writes all records to disk, and gives the file its name if it does not have it yet. Replaces an existing
    /// file with that name.
    ///
    /// # Errors
    ///
    /// - [`Error::Write`]: writing or renaming fails, or a record could not be written before. In that case, there is
    ///   no new file, except one that was [growing](Self::growing).
    pub fn finish(self) -> Result<()> {
        self.output
            .ok_or_else(after_failure)
            .and_then(|output| output.into_inner().map_err(io::IntoInnerError::into_error))
            .and_then(|output| match output {
                Packed::Growing(file) => file.sync_all(),
                Packed::Plain(file) => file.finish(),
                Packed::Gzip(encoder) => encoder.finish()?.finish(),
                Packed::Zlib(encoder) => encoder.finish()?.finish(),
            })
            .map_err(failed(&self.path))
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Write { path: path.display().to_string(), source }
}

fn after_failure() -> io::Error {
    io::Error::other("an earlier record could not be written")
}

/// An output file with its compression.
#[derive(Debug)]
enum Packed {
    Growing(File),
    Plain(WholeFile),
    Gzip(GzEncoder<WholeFile>),
    Zlib(ZlibEncoder<WholeFile>),
}

impl Packed {
    fn new(file: WholeFile, compression: Compression, path: &Path) -> io::Result<Self> {
        let level = flate2::Compression::default();
        Ok(match compression {
            Compression::Gzip => Packed::Gzip(GzEncoder::new(file, level)),
            Compression::Zlib => Packed::Zlib(ZlibEncoder::new(file, level)),
            Compression::Auto if path.extension().is_some_and(|it| it == "gz") => {
                Packed::Gzip(GzEncoder::new(file, level))
            }
            Compression::Auto | Compression::None => Packed::Plain(file),
            Compression::Zstd | Compression::Lz4 => {
                let what = "TFRecord files are written plain, or with gzip or zlib, which TensorFlow reads";
                return Err(io::Error::new(io::ErrorKind::Unsupported, what));
            }
        })
    }
}

impl Write for Packed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Packed::Growing(file) => file.write(bytes),
            Packed::Plain(file) => file.write(bytes),
            Packed::Gzip(encoder) => encoder.write(bytes),
            Packed::Zlib(encoder) => encoder.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Packed::Growing(file) => file.flush(),
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
    use std::fs;

    fn read(path: &Path, compression: Compression) -> Vec<Vec<u8>> {
        let mut reader = TfRecordReader::open(path, compression).unwrap();
        reader.read(usize::MAX).unwrap().iter().map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn records_round_trip_in_each_compression() {
        let folder = tempfile::tempdir().unwrap();
        let packed = [Compression::Auto, Compression::None, Compression::Gzip, Compression::Zlib];
        for (compression, name) in packed.into_iter().flat_map(|it| [(it, "a"), (it, "a.gz")]) {
            let path = folder.path().join(name);
            let mut writer = TfRecordWriter::create(&path, compression).unwrap();
            let records: Vec<Vec<u8>> = (0..2000usize).map(|i| vec![i as u8; i]).collect();
            records.iter().for_each(|record| writer.write(record).unwrap());
            writer.finish().unwrap();
            assert_eq!(read(&path, Compression::Auto), records, "{compression:?} {name}");
            if compression != Compression::Auto {
                assert_eq!(read(&path, compression), records, "{compression:?} {name}");
            }
            let gzip = fs::read(&path).unwrap().starts_with(&[0x1f, 0x8b]);
            let by_name = compression == Compression::Auto && name == "a.gz";
            assert_eq!(gzip, by_name || compression == Compression::Gzip, "{compression:?} {name}");
        }
    }

    #[test]
    fn an_unfinished_file_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tfrecord");
        for compression in [Compression::None, Compression::Gzip, Compression::Zlib] {
            let mut writer = TfRecordWriter::create(&path, compression).unwrap();
            writer.write(&vec![1; 1 << 20]).unwrap();
            drop(writer);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        }
        TfRecordWriter::create(&path, Compression::None).unwrap().finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn a_growing_file_is_read_up_to_the_flushed_part() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tfrecord");
        fs::write(&path, "old").unwrap();
        let mut writer = TfRecordWriter::growing(&path).unwrap();
        assert!(read(&path, Compression::None).is_empty());
        writer.write(b"one").unwrap();
        writer.flush().unwrap();
        assert_eq!(read(&path, Compression::None), [b"one"]);
        writer.write(b"two").unwrap();
        assert_eq!(read(&path, Compression::None), [b"one"]);
        writer.finish().unwrap();
        assert_eq!(read(&path, Compression::None), [b"one", b"two"]);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for place in ["missing/a.tfrecord", "..", ""] {
            let path = folder.path().join(place);
            let error = TfRecordWriter::create(&path, Compression::None).unwrap_err();
            assert!(error.to_string().starts_with(&format!("cannot write '{}'", path.display())), "{error}");
        }
    }

    #[test]
    fn files_of_a_killed_writer_are_removed_by_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tfrecord");
        fs::write(folder.path().join(".a.tfrecord.distribute-1.part"), "left").unwrap();
        TfRecordWriter::create(&path, Compression::None).unwrap().finish().unwrap();
        let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(names, [path]);
    }
}
