//! TFRecord files: sequences of records of bytes, each with checksums of its length and of its data.
//!
//! A record consists of its length as a `u64`, a checksum of these 8 bytes, the data, and a checksum of the data. All
//! numbers are little-endian. A file is a sequence of records with nothing before or after them. Files are often
//! compressed as a whole.
//!
//! ```
//! use distribute_data::{Compression, TfRecordReader, TfRecordWriter};
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("numbers.tfrecord");
//!
//! let mut writer = TfRecordWriter::create(&path, Compression::None)?;
//! for record in ["one", "two", "three"] {
//!     writer.write(record.as_bytes())?;
//! }
//! writer.finish()?; // here the file gets its name
//!
//! let mut reader = TfRecordReader::open(&path, Compression::Auto)?;
//! let records = reader.read(256)?;
//! assert_eq!(records.iter().collect::<Vec<_>>(), [&b"one"[..], b"two", b"three"]);
//! assert!(reader.read(256)?.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod block;
mod checksum;
mod frame;
mod reader;
mod source;
mod writer;

pub use block::Records;
#[doc(alias = "tf.data.TFRecordDataset")]
#[doc(alias = "TFRecordDataset")]
pub use reader::TfRecordReader;
#[doc(alias = "tf.data.TFRecordDataset")]
#[doc(alias = "TFRecordDataset")]
pub use source::TfRecord;
#[doc(alias = "tf.io.TFRecordWriter")]
pub use writer::TfRecordWriter;
