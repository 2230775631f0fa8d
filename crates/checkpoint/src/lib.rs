//! Checkpoints: named tensors and metadata, saved atomically in safetensors files with an index. Any range of
//! rows can be loaded.
//!
//! Names identify *logical* tensors. A tensor can be saved in slices of rows, like the shards of parameter servers, and
//! in any number of files. Any range of its rows can be loaded. A checkpoint that was saved on S shards can therefore
//! be loaded on S′ shards. This crate does not depend on the purpose of a tensor.
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
//! | `rows` | rows that are saved: in memory, or read while the files are written |
//! | `live`, `copies` | [`LiveTensors`]: tensors that change, and hold off changes while a save copies them; their copies |
//! | `reader` | [`Reader`]: a saved checkpoint that reads tensors on demand |
//! | `manager` | [`CheckpointManager`]: a series of checkpoints, of which the last `k` are kept |
//! | `background` | [`SaveHandle`]: a save that a thread makes while the program continues |
//! | `saves` | the saves of a manager, of which one at a time is made |
//! | `names` | the names of checkpoints in a manager's folder |
//! | `parts` | rows that several processes write, each into a file of its own: [`PartFolder`], [`Part`] |
//! | `plan` | the assignment of rows to files |
//! | `save` | the steps of a save; after each of them there is either no checkpoint or a complete one |
//! | `image` | a checkpoint in memory |
//! | `index` | the file `index.json` |
//! | `progress` | [`Progress`]: reports during long saves and reads |
//! | `metadata` | [`Metadata`]: metadata values, including numbers that JSON does not support |
//! | `tensors` | the location of the rows of each tensor: the index, checked against the files |
//! | `shard` | one safetensors file, written with checksums that are verified on reading |
//! | `encoding` | the 16 dtypes as bytes |
//! | `error` | [`Error`]: what is wrong, in which file, and at which offset |
//!
//! # The format, versions 1 and 2
//!
//! A checkpoint is a folder with `index.json` and safetensors files, `shard-00001-of-00003.safetensors` and so on. Each
//! of them is an ordinary safetensors file that Python's `safetensors` can read. A tensor that is saved as one slice
//! has its name as its key, unless another key of the file is equal to it. If several processes save together, each
//! writes the rows that it stores into `part-00001-of-00003-….safetensors` and so on, whose names end with a random
//! number of the save. The index contains:
//!
//! - for each file, its name, its length and the CRC-32 of each of its 1 MiB blocks (the last block may be
//!   shorter), so any range can be verified without reading the rest of the file;
//! - for each tensor, its dtype, its shape and its slices. Each slice contains the index of its file, its key, and its
//!   offset and shape on every axis. Slices consist of complete rows (axis 0), and together cover each row exactly
//!   once. In version 2, a slice may have a `step`, and then contains every `step`th row from its offset on; all slices
//!   of the tensor have the same step, which is their number;
//! - metadata: JSON values by key.
//!
//! The first line of `index.json` is `{"crc32":"xxxxxxxx","index":`, with the CRC-32 of all bytes after that line.
//!
//! safetensors has no type for two of the dtypes. A `complex128` tensor is stored as F64 with an additional last
//! axis of size 2: the real and the imaginary part. A `string` tensor is stored as two tensors: the concatenated
//! bytes of all strings (U8), and the end offset of each string (U64, with the slice's shape). The slice's `ends`
//! is the key of the second tensor.
//!
//! Names are never used in paths: `../a`, `A` and `a` are three ordinary names.

#![forbid(unsafe_code)]

mod background;
mod copies;
mod encoding;
mod error;
mod image;
mod index;
mod live;
mod manager;
mod metadata;
mod names;
mod parts;
mod plan;
mod progress;
mod reader;
mod rows;
mod save;
mod saves;
mod shard;
mod tensors;
mod writer;

pub use background::SaveHandle;
#[doc(hidden)]
pub use encoding::file_dtype;
pub use error::{Error, Result};
pub use live::{HeldTensors, LiveTensors, SourceError};
#[doc(alias = "tf.train.CheckpointManager")]
pub use manager::CheckpointManager;
pub use metadata::Metadata;
pub use parts::{Part, PartFile, PartFolder, RowPosition, WriteParts};
pub use progress::{Progress, ProgressError};
#[doc(alias = "tf.train.CheckpointReader")]
#[doc(alias = "CheckpointReader")]
pub use reader::Reader;
pub use reader::{Description, RowScan};
pub use serde_json::Value;
pub use writer::Writer;
