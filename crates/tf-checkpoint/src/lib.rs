//! TensorFlow's checkpoints, read without TensorFlow: those of `tf.train.Checkpoint` and `tf.compat.v1.train.Saver`
//! (format V2), and the variables of a SavedModel.
//!
//! ```
//! use distribute_tf_checkpoint::{Mapping, TfCheckpoint};
//! # let run = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/keras");
//! # let folder = tempfile::tempdir().unwrap();
//! # let here = folder.path().join("here");
//!
//! let checkpoint = TfCheckpoint::open(run)?;
//! assert_eq!(checkpoint.describe("mlp/hidden/kernel")?.shape, [3, 4]);
//! let first = checkpoint.rows("model/_functional/_operations/1/_kernel", 0..1)?;
//! assert_eq!(first.dims(), [1, 4]);
//!
//! let mapping = Mapping::new()
//!     .kernel("mlp/hidden/kernel", "hidden.weight")
//!     .variable("mlp/hidden/bias", "hidden.bias")
//!     .optimizer("adam", "optimizer/_iterations");
//! checkpoint.into_writer(&mapping)?.save(&here, 1)?;
//! # Ok::<(), distribute_checkpoint::Error>(())
//! ```
//!
//! In reading order:
//!
//! | module | contents |
//! |---|---|
//! | `checkpoint` | [`TfCheckpoint`]: an open checkpoint that reads tensors on demand |
//! | `mapping` | [`Mapping`]: the tensors of a checkpoint of this project that are read from one of TensorFlow |
//! | `slots` | the names of the slots of optimizers |
//! | `locate` | the files that a path refers to |
//! | `bundle` | the index: location, dtype and shape of each tensor, checked against the files |
//! | `read` | elements: complete with their checksum, or ranges of rows |
//! | `segments` | the checksum of a tensor that is read in ranges |
//! | `slices` | the slices of a tensor: whether they cover it, and where their elements are |
//! | `slice_key` | the keys of slices in the index |
//! | `table` | the index as a sorted table of keys and values |
//! | `graph` | [`ObjectPath`]: which object has saved which tensor |
//! | `proto` | the protobuf messages |
//! | `damage` | errors that name file and byte, and checksums |
//!
//! # The format
//!
//! A checkpoint is an index `PREFIX.index` and files `PREFIX.data-00000-of-00002` and so on. The index is a sorted
//! table in LevelDB's format. Its first value is a header. Each other value has the dtype, shape, file, offset, size
//! and masked CRC-32C of a tensor. The files contain the elements, little-endian and in row-major order. Strings are
//! stored as their lengths, a checksum of these, and their bytes. A tensor that was saved in slices has an entry that
//! lists them, and an entry for each slice under an encoded key. `tf.train.Checkpoint` also saves its objects as a
//! graph, in the string tensor `_CHECKPOINTABLE_OBJECT_GRAPH`.
//!
//! This crate does not read the format V1 (before TensorFlow 1.0), big-endian files, or files of Keras (`.keras`,
//! `.h5`).

#![forbid(unsafe_code)]

mod bundle;
mod checkpoint;
mod damage;
mod graph;
mod locate;
mod mapping;
mod proto;
mod read;
mod segments;
mod slice_key;
mod slices;
mod slots;
mod table;

#[doc(alias = "tf.train.load_checkpoint")]
#[doc(alias = "tf.train.load_variable")]
#[doc(alias = "tf.train.list_variables")]
pub use checkpoint::TfCheckpoint;
pub use distribute_checkpoint::{Error, Result};
pub use graph::ObjectPath;
pub use mapping::Mapping;
