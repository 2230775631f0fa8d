//! Pipelines of nested tensors: sources, transformations, and the splitting of batches over replicas.
//!
//! ```
//! use distribute_data::{Dataset, SplitRule, split};
//! use distribute_tensor::HostTensor;
//!
//! let x = HostTensor::new((0..10).map(|i| i as f32).collect::<Vec<_>>(), [5, 2])?;
//! let y = HostTensor::vector(vec![0i64, 1, 2, 3, 4]);
//! let batches = Dataset::from_slices((x, y))?.shuffle(5, 42).batch(4);
//!
//! for batch in &batches {
//!     let (x, y) = batch?;                                  // [4, 2] and [4], then [1, 2] and [1]
//!     let pieces = split((x, y), 3, SplitRule::Even)?;      // for 3 replicas: 2, 1, 1 rows, then 1, 0, 0
//!     assert_eq!(pieces.len(), 3);
//! }
//! # Ok::<(), distribute_data::Error>(())
//! ```
//!
//! In reading order:
//!
//! | module | contents |
//! |---|---|
//! | [`dataset`] | [`Dataset`]: sources, transformations, iteration |
//! | [`csv`] | [`Csv`]: rows of CSV files as elements |
//! | [`mod@file`] | [`Location`], [`Compression`], [`Files`]: used by all file sources, such as [`text_lines`] |
//! | [`Buckets`], [`Packing`], [`Windows`], [`AtDatasetEnd`] | the parameters and results of operations on sequences and on several datasets |
//! | [`numpy`] | arrays in NumPy's formats |
//! | `parquet` | columns of Parquet files; feature `parquet` |
//! | `webdataset` | samples of tar files; feature `webdataset` |
//! | [`tfrecord`] | [`TfRecord`], [`TfRecordReader`] and [`TfRecordWriter`]: files of records |
//! | [`example`] | [`Example`], [`Features`](example::Features): records and sequences as columns of tensors |
//! | [`SkippedRecords`], [`DefaultValue`] | the handling of broken records, and of missing values |
//! | [`cardinality`] | [`Cardinality`]: the number of elements |
//! | [`FileDeck`] | files that are dealt one by one to workers that are free |
//! | [`plan`] | the assignment of rows, as functions of numbers: [`SplitRule`] and the sizes that TensorFlow uses |
//! | [`distribution`] | [`Distribution`]: the pass of each worker, step by step, and its position |
//! | [`mod@split`] | splits a batch into per-replica batches |
//! | [`error`] | [`Error`] |
//!
//! Internally, a dataset is a `pipeline`: a data structure of `operations` and their parameters. It can be inspected
//! and rewritten (sharded) before anything runs. Iteration starts a chain of `stage`s that pull `chunk`s of elements
//! from each other. In a chunk, `rows` of a source remain indices until the rows of a batch, or of a replica's part of
//! a batch, are copied in one operation.
//!
//! | module | contents |
//! |---|---|
//! | `pipeline`, `stage` | the traits of an operation: its description and parameters, and its execution |
//! | `operations` | one file for each operation: its public method, its data and its stage |
//! | `file_source` | the operation that reads all file formats; each format has a folder with a `Format` |
//! | `chunk`, `rows` | elements on their way through a pipeline; rows that are still in their source |
//! | `spec` | dtypes and shapes of elements that have not been computed |
//! | `worker_pool`, `room` | threads that run jobs; the check that buffers fit into memory |
//! | `hand` | the files that a worker is dealt during a pass |
//! | `guard`, `random` | calls of user functions; random orders as functions of seed and epoch |
//! | `broken`, `missing`, `text` | broken records; missing values; lines of text |
//!
//! A user function that fails or panics results in an error that contains the index of the element. The process
//! continues. This crate knows nothing about what a replica computes.

#![forbid(unsafe_code)]

pub mod cardinality;
pub mod csv;
pub mod dataset;
pub mod distribution;
pub mod error;
pub mod example;
pub mod file;
pub mod numpy;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod plan;
pub mod split;
pub mod tfrecord;
#[cfg(feature = "webdataset")]
pub mod webdataset;

mod broken;
mod chunk;
mod file_source;
mod guard;
mod hand;
mod missing;
mod operations;
mod pipeline;
mod random;
mod room;
mod rows;
mod spec;
mod stage;
#[cfg(test)]
mod testing;
mod text;
mod worker_pool;

#[doc(alias = "tf.data.Dataset.ignore_errors")]
#[doc(alias = "tf.data.experimental.ignore_errors")]
#[doc(alias = "ignore_errors")]
pub use broken::SkippedRecords;
pub use cardinality::Cardinality;
pub use csv::Csv;
pub use dataset::{AtDatasetEnd, Buckets, Dataset, Interleave, Iter, Packed, Packing, Padding};
#[doc(alias = "tf.distribute.InputContext")]
pub use distribution::InputContext;
pub use distribution::{DealtFile, DistributeOptions, Distribution, FileDeck, FileList, Position};
pub use error::{Cause, Error, Result};
#[doc(alias = "tf.train.Example")]
pub use example::Example;
pub use file::{Compression, Files, Location};
#[doc(alias = "record_defaults")]
#[doc(alias = "column_defaults")]
pub use missing::DefaultValue;
pub use operations::window::Windows;
pub use pipeline::Batching;
pub use plan::ends::UnevenEnds;
pub use plan::layout::Layout;
pub use plan::policy::AutoShardPolicy;
pub use plan::split::SplitRule;
#[doc(alias = "tf.data.Dataset.element_spec")]
pub use spec::ElementSpec;
#[doc(alias = "tf.TensorSpec")]
pub use spec::TensorSpec;
pub use split::{split, split_batch};
#[doc(alias = "tf.data.TextLineDataset")]
#[doc(alias = "TextLineDataset")]
pub use text::text_lines;
pub use text::text_lines_skipping;
#[doc(alias = "tf.data.TFRecordDataset")]
#[doc(alias = "TFRecordDataset")]
pub use tfrecord::TfRecord;
#[doc(alias = "tf.data.TFRecordDataset")]
#[doc(alias = "TFRecordDataset")]
pub use tfrecord::TfRecordReader;
#[doc(alias = "tf.io.TFRecordWriter")]
pub use tfrecord::TfRecordWriter;
