//! TensorFlow's `tf.distribute` for Rust, on [candle](https://docs.rs/candle-core).
//!
//! A training step is written once. A [`Strategy`] runs it on one core, on all cores or GPUs of a machine, on several
//! machines in lock step, or against parameter servers. With the same number of replicas, the results are bit-identical
//! whether the replicas are threads, processes or several machines. If a worker is killed, the others wait for its
//! replacement and continue.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! use candle_nn::{Module, linear};
//! use distribute::{nn::loss, prelude::*};
//!
//! #[distribute::main] // one thread of candle's for each replica
//! fn main() -> distribute::Result<()> {
//!     let strategy = MirroredStrategy::cpus(2)?; // the line that changes
//!     let model = strategy.replicate(|vb| linear(2, 2, vb.pp("fc")))?;
//!     let optimizer = Adam::new(&model.variables, 0.1)?;
//!
//!     let points = Tensor::arange(0f32, 200., &Device::Cpu)?.sin()?.reshape((100, 2))?;
//!     let labels = points.argmax(1)?; // which of the two is larger?
//!     let data = Dataset::from_slices((points, labels))?.shuffle(100, 42).repeat(10).batch(16);
//!     let mut last = f32::NAN;
//!     for batch in &strategy.distribute_dataset(data)? {
//!         // On each replica, concurrently, with its part of the batch.
//!         let loss = strategy.run((&model, batch?), |ctx, (model, (points, labels))| {
//!             let loss = loss::cross_entropy(&model.forward(&points)?, &labels)?;
//!             optimizer.minimize(ctx, loss, labels.dim(0)?) // backward, reduce, update
//!         })?;
//!         last = loss.to_scalar()?;
//!     }
//!     assert!(last < 0.2, "the loss of the last batch is {last}");
//!     Ok(())
//! }
//! ```
//!
//! # Where to start
//!
//! | you want to | see |
//! |---|---|
//! | choose where a program runs | [`OneDeviceStrategy`], [`MirroredStrategy`], [`MultiWorkerMirroredStrategy`], [`CentralStorageStrategy`], [`ParameterServerStrategy`] |
//! | train a candle model | [`Strategy::replicate`], [`Strategy::run`], [`Optimizer::minimize`] |
//! | replace operations of candle that have no gradient | [`nn`] |
//! | port Keras' `Model.fit` | [`runner::run`]: epochs, validation, early stopping and backups in one call |
//! | read data | [`Dataset`], [`data`] for files, [`Strategy::distribute_dataset`], [`InputOptions`] |
//! | resume after a kill | [`Training`] for a worker of several, [`Checkpoint`] for all of them, [`Preemption`](training::Preemption) for SIGTERM |
//! | start on Slurm, Kubernetes or by MPI | [`MultiWorkerMirroredStrategy::new`], which finds the cluster in the environment; [`SlurmClusterResolver`](cluster::resolver::SlurmClusterResolver) has the commands, and [`cluster::resolver`] the other systems |
//! | write an update rule | [`optimizer::rules`]: a `Formula` is the update of one element, and `Optimizer::with_rule` takes it |
//! | write a strategy | [`StrategyExtended`](strategy::StrategyExtended) |
//! | shard a table over servers | [`ParameterServerStrategy`], a [partitioner](parameter_server::MinSizePartitioner), [`nn::embedding`]; [`mod@lookup`] for rows by their ids |
//! | schedule functions on workers | [`ClusterCoordinator`], [`macro@remote`] |
//! | find the slow replica | [`trace`]: a timeline of each; [`monitor`]: a page of the running job |
//! | reduce or gather values in a step | [`ReplicaContext`] |
//! | count an accuracy | [`metrics`] |
//! | handle an error | [`Error`], by its [`ErrorKind`] |
//! | find an item by TensorFlow's name | the search above: `tf.distribute.MirroredStrategy`; older names are in [`legacy`] and [`between_graph`] |
//!
//! The guides are in the folder `docs` of the repository, sorted by reader: training, coming from TensorFlow, running
//! clusters, extending. Some examples on these pages name the crate in which an item is defined. Its path in this crate
//! is at the top of the page: `distribute::Dataset` for `distribute_data::Dataset`.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `cuda`, `metal` | candle's GPUs, as devices `gpu:0`, … The code has not run on a GPU yet |
//! | `parquet`, `webdataset` | formats of files |
//! | `lz4`, `zstd`, `brotli` | compressions of files; `brotli` is for pages of Parquet |
//! | `object-store` | files at `s3://`, `gs://`, `az://` and `https://` |
//! | `gce`, `kubernetes` | clusters that the API of Compute Engine or Kubernetes describes |
//! | `hub` | the module `hub`: pretrained models from the Hugging Face hub |
//!
//! The features of the following table are enabled by default. With `default-features = false`, a program that trains
//! in one process builds fewer crates.
//!
//! | feature | adds | without it |
//! |---|---|---|
//! | `tls` | the encryption of links between machines | such links are an error that names the feature, unless plain text is allowed; within a machine, secrets work |
//! | `monitor` | the module `monitor`, probes | `DISTRIBUTE_HEALTH` has no effect |
//! | `trace` | the module `trace`, and `DISTRIBUTE_LOG` | a warning if `DISTRIBUTE_LOG` is set |
//! | `tensorflow-checkpoints` | `checkpoint::tensorflow` | |
//! | `tensorflow-1` | the modules `between_graph` and `legacy` | |
//!
//! # Failures
//!
//! If a replica's closure fails or panics, if a replica makes a different call than the others, or if it times out,
//! [`run`](Strategy::run) returns a single [`Error`]. The error names the step, the replica, the call and its source
//! line. The strategy can be used again. No call waits without a deadline. If a replica hangs in its closure, its last
//! call is logged, and `run` returns when the closure returns.

#[cfg(doctest)]
mod guides;

pub mod checkpoint;
pub mod cluster;
pub mod context;
pub mod coordinator;
pub mod data;
pub mod error;
pub mod input;
pub mod net;
pub mod parameter_server;
pub mod prelude;
pub mod strategy;
pub mod tensor;
pub mod training;
pub mod values;
pub mod variables;

#[doc(inline)]
pub use distribute_core::{lookup, summary};
#[cfg(feature = "hub")]
#[doc(inline)]
pub use distribute_hub as hub;
#[doc(inline)]
pub use distribute_nn as nn;
#[doc(inline)]
pub use distribute_optimizer as optimizer;
#[doc(inline)]
pub use distribute_parameter_server::remote;
#[cfg(feature = "tensorflow-1")]
#[doc(inline)]
pub use distribute_tf1::{between_graph, legacy};
#[cfg(feature = "trace")]
#[doc(inline)]
pub use distribute_trace as trace;
#[cfg(all(unix, feature = "monitor"))]
#[doc(inline)]
pub use distribute_train::monitor;
#[doc(inline)]
pub use distribute_train::{metrics, runner};

// Names that a first program needs. Each is also in its module, which has all other names.
#[doc(alias = "resume")]
#[doc(alias = "restart")]
#[doc(inline)]
pub use checkpoint::Checkpoint;
#[doc(inline)]
pub use context::ReplicaContext;
#[doc(inline)]
pub use coordinator::ClusterCoordinator;
#[doc(inline)]
pub use data::Dataset;
#[doc(hidden)]
pub use distribute_core::end_main;
pub use distribute_core::init;
pub use distribute_macros::{Nest, main, remote};
#[doc(inline)]
pub use error::{Error, ErrorKind, Ok, Result};
#[doc(inline)]
pub use input::InputOptions;
#[doc(inline)]
pub use optimizer::{Adam, AdamW, Optimizer, Sgd};
#[doc(inline)]
pub use parameter_server::{LocalCluster, ParameterServerStrategy, serve};
#[doc(inline)]
pub use strategy::{
    CentralStorageStrategy, MirroredStrategy, MultiWorkerMirroredStrategy, OneDeviceStrategy, Strategy,
};
#[doc(inline)]
pub use tensor::{HostTensor, Nest, ReduceOp};
#[doc(alias = "resume")]
#[doc(alias = "restart")]
#[doc(inline)]
pub use training::Training;
#[doc(inline)]
pub use values::{PerReplica, Replicated};
#[doc(inline)]
pub use variables::{Variable, Variables};
