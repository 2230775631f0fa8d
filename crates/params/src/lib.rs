//! Variables on parameter servers: how they are cut, where they go, and the tables in which they are read and updated by rows.
//!
//! This crate is what a server does with variables, without the server: it opens no socket, starts no thread, and knows nothing
//! of strategies or models. What is decided (how a variable is cut, where it goes, whether a push was applied before) is a
//! pure function or a plain value; tables alone have locks, so that many threads can push to one at once.
//!
//! ```
//! use distribute_optim::{Sgd, Step};
//! use distribute_params::{
//!     Initializer, MinSizePartitioner, Placement, PlacementPolicy, Push, Table, UniqueIds, partition, shard_name,
//! };
//! use distribute_tensor::{DType, HostTensor, random::Distribution};
//! use std::sync::Arc;
//!
//! // Whoever makes the variables decides how they are cut, and where they go.
//! let (shape, dtype) = ([10, 4], DType::F32);
//! let cut = partition(Some(&MinSizePartitioner::new(64, 3)?), &shape, dtype)?.expect("three shards");
//! let servers = Placement::new(2, PlacementPolicy::RoundRobin)?.place("words", &shape, dtype, Some(cut))?;
//! assert_eq!(servers, [0, 1, 0]);
//!
//! // Each server has a table for each of its shards. Values depend on (seed, name, position) alone.
//! let uniform = Initializer::new(Distribution::Uniform { lo: -0.1, up: 0.1 }, 42, "words");
//! let shards = (0..3)
//!     .map(|i| Table::drawn(shard_name("words", i), &shape, dtype, &uniform, (cut, i)))
//!     .collect::<Result<Vec<_>, _>>()?;
//!
//! // A worker sorts the ids of its batch by shard, each once, and asks each shard for its rows.
//! let batch = UniqueIds::new(&[9, 0, 5, 0]);
//! let ids = cut.split("embedding_lookup", batch.ids())?;
//! let mut rows = vec![0f32; 3 * 4];
//! for (i, shard) in shards.iter().enumerate() {
//!     let answer = shard.read_rows(ids.of(i))?;
//!     ids.put(i, answer.as_slice::<f32>().expect("float32"), 4, &mut rows);
//! }
//! let rows = batch.spread(&rows, 4);
//! assert_eq!(rows[4..8], rows[12..16]);
//!
//! // Gradients are applied where the rows are.
//! let gradient = batch.sum(&[1f32; 4 * 4], 4);
//! shards[0].set_rule(Arc::new(Sgd))?;
//! let of_shard = HostTensor::new(ids.take(0, &gradient, 4), [1, 4])?;
//! shards[0].push_rows(Push::at(Step::after(0, 0.5)), ids.of(0), &of_shard)?;
//! assert_eq!(shards[0].read_rows(&[0])?.as_slice::<f32>().expect("float32")[0], rows[4] - 1.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The way through
//!
//! | module | what it holds |
//! |---|---|
//! | `partitioner` | [`Partitioner`] and the three that there are; [`partition`]: into how many shards a variable is cut |
//! | `partition` | [`RowPartition`], [`HashPartition`]: which shard has which row or id; [`UniqueIds`], [`Split`]: the ids of a batch each once, and by shard; [`Moves`]: from S shards to S′ |
//! | `placement` | [`Placement`]: which server has which shard, and a table of it to print |
//! | `initializer` | [`Initializer`]: first values by (seed, name, position) |
//! | `table` | [`Table`]: the values of a shard and the slots beside them, read, written and updated |
//! | `steps` | [`Push`]: the step in which a gradient is applied, and how the steps of several workers are counted |
//! | `dynamic` | [`DynamicTable`]: the same for ids of 64 bits, whose rows come and go |
//! | `service` | [`Request`], [`Response`]: what is asked of a server, as data; [`Tables`]: all tables of one, which answer; [`Channel`]: the way to it |
//! | `layout` | [`Layout`]: which servers a training is on, as each keeps it; [`decide_layout`]: whether it can be resumed |
//! | `push_window` | [`PushWindows`]: which pushes were applied |
//! | `closures` | [`ClosureChanges`]: which changes were made for closures, which may be run again |
//! | `error` | [`Error`] |

#![forbid(unsafe_code)]

mod closures;
mod dynamic;
mod error;
mod initializer;
mod layout;
mod partition;
mod partitioner;
mod placement;
mod push_window;
mod service;
mod steps;
mod table;

pub use closures::{ClosureChanges, Origin};
#[doc(alias = "tfra.dynamic_embedding.Variable")]
pub use dynamic::DynamicTable;
pub use dynamic::{DynamicOptions, DynamicState, Pushed, WaitingCounts};
pub use error::{Error, Result};
pub use initializer::Initializer;
pub use layout::{Layout, LayoutDecision, ServerState, decide_layout};
pub use partition::{HashPartition, Move, Moves, PartitionStrategy, Place, RowPartition, Split, UniqueIds};
#[doc(alias = "tf.distribute.experimental.partitioners.FixedShardsPartitioner")]
pub use partitioner::FixedShardsPartitioner;
#[doc(alias = "tf.distribute.experimental.partitioners.MaxSizePartitioner")]
pub use partitioner::MaxSizePartitioner;
#[doc(alias = "tf.distribute.experimental.partitioners.MinSizePartitioner")]
pub use partitioner::MinSizePartitioner;
#[doc(alias = "tf.distribute.experimental.partitioners.Partitioner")]
pub use partitioner::Partitioner;
pub use partitioner::{PartitionerSpec, partition};
pub use placement::{Mark, Placed, Placement, PlacementPolicy, shard_name};
pub use push_window::{Admission, ClientPushes, PushWindows};
pub use service::{
    Channel, ChannelError, Contents, Copies, ImageContents, LAYOUT_TABLE, LocalChannel, Refusal, RefusalKind,
    Request, Response, Started, State, TableImage, TableInfo, TableKind, TableSpec, Tables, Usage, Version,
    VersionedValue, Waiting,
};
pub use steps::Push;
pub use table::{Table, TableState, Versioned};
