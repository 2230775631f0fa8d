//! Checkpoints: named tensors and metadata in safetensors files with an index, saved atomically and loaded by
//! any ranges of rows.
//!
//! Names identify *logical* tensors. A tensor can be saved in slices of rows, like the shards of parameter
//! servers, and in any number of files. It can be loaded by any ranges of rows. So a checkpoint saved on S
//! shards can be loaded on S′.
//!
//! ```
//! use distribute_checkpoint::{Reader, Writer};
//! use distribute_tensor::HostTensor;
//!
//! let folder = tempfile::tempdir().unwrap();
//! let path = folder.path().join("before-lunch");
//!
//! let mut writer = Writer::new();
//! writer.insert("bias", HostTensor::vector(vec![1f32, 2.]))?;
//! writer.insert_slice("table", [3, 2], 0, HostTensor::new(vec![1i64, 2, 3, 4], [2, 2])?)?;   // rows 0 and 1
//! writer.insert_slice("table", [3, 2], 2, HostTensor::new(vec![5i64, 6], [1, 2])?)?;         // row 2
//! writer.metadata("step", 7);
//! writer.save(&path, 2)?;                                                                    // two files
//!
//! let checkpoint = Reader::open(&path)?;
//! assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["bias", "table"]);
//! assert_eq!(checkpoint.rows("table", 1..3)?, HostTensor::new(vec![3i64, 4, 5, 6], [2, 2])?);
//! assert_eq!(checkpoint.metadata("step").and_then(|step| step.as_u64()), Some(7));
//! # Ok::<(), distribute_checkpoint::Error>(())
//! ```
//!
//! In reading order:
//!
//! | module | contents |
//! |---|---|
//! | `writer` | [`Writer`]: collects tensors and saves them |
//! | `reader` | [`Reader`]: a saved checkpoint, whose tensors are read on demand |
//! | `manager` | [`CheckpointManager`]: a series of checkpoints, the last k of which are kept |
//! | `plan` | the assignment of rows to files |
//! | `save` | the steps of a save; after each of them there is either no checkpoint or a complete one |
//! | `image` | a checkpoint in memory |
//! | `index` | `index.json` |
//! | `metadata` | [`Metadata`]: values for metadata, including numbers that JSON does not support |
//! | `places` | the location of the rows of each tensor: the index, checked against the files |
//! | `shard` | one safetensors file, written with checksums that are verified on reading |
//! | `encoding` | the 16 dtypes as bytes |
//! | `error` | [`Error`]: the problem, the file and the offset |
//!
//! # The format, version 1
//!
//! A checkpoint is a folder with `index.json` and safetensors files, `shard-00001-of-00003.safetensors` and so
//! on. Each of them is an ordinary safetensors file that Python's `safetensors` can read: a tensor that is
//! completely in one file has its name as key. The index contains:
//!
//! - for each file, its name, length and the CRC-32 of each of its blocks of 1 MiB (the last one may be
//!   shorter): any range is verified when it is read, without reading the rest;
//! - for each tensor, its dtype, its shape and its slices: file (by number), key, and offset and shape on
//!   every axis. Slices consist of complete rows (axis 0), and cover each row exactly once;
//! - metadata: any JSON by name.
//!
//! The first line of `index.json` is `{"crc32":"xxxxxxxx","index":`, with the CRC-32 of all bytes after that line.
//!
//! safetensors has no type for two dtypes. A `complex128` tensor is F64 with a last axis of 2, real and
//! imaginary part. A `string` tensor is two tensors: the concatenated bytes of all strings (U8), and the end
//! of each string (U64, of the slice's shape). The slice's `ends` is the key of the second one.
//!
//! Names are never used in paths: `../a`, `A` and `a` are three ordinary names.

#![forbid(unsafe_code)]

mod encoding;
mod error;
mod image;
mod index;
mod manager;
mod metadata;
mod places;
mod plan;
mod reader;
mod save;
mod shard;
mod writer;

pub use error::{Error, Result};
#[doc(alias = "tf.train.CheckpointManager")]
pub use manager::CheckpointManager;
pub use metadata::Metadata;
pub use reader::Description;
#[doc(alias = "tf.train.CheckpointReader")]
#[doc(alias = "CheckpointReader")]
pub use reader::Reader;
pub use serde_json::Value;
pub use writer::Writer;
