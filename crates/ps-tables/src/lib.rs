//! Variables on parameter servers: partitioning, placement, and the tables in which rows are read and updated.
//!
//! This crate implements a server's operations on variables, without the server itself, and a client's decisions about
//! the rows that it keeps. It never opens a socket, or depends on strategies or models, and starts threads only
//! to create a large table. Decisions
//! (partitioning, placement, the detection of repeated pushes) are pure functions or plain values. Only [`Tables`] and
//! its tables contain locks, so that several threads can push to a table at the same time.
//!
//! ```
//! use distribute_optim::{Sgd, Step};
//! use distribute_ps_tables::{
//!     Initializer, MinSizePartitioner, Placement, PlacementPolicy, Push, Table, UniqueIds, partition, shard_name,
//! };
//! use distribute_tensor::{DType, HostTensor, random::Distribution};
//! use std::sync::Arc;
//!
//! // The creator of a variable decides its partition and its placement.
//! let (shape, dtype) = ([10, 4], DType::F32);
//! let cut = partition(Some(&MinSizePartitioner::new(64, 3)?), &shape, dtype)?.expect("three shards");
//! let servers = Placement::new(2, PlacementPolicy::RoundRobin)?.place("words", &shape, dtype, Some(cut))?;
//! assert_eq!(servers, [0, 1, 0]);
//!
//! // Each server has a table for each of its shards. Values depend only on (seed, name, position).
//! let uniform = Initializer::new(Distribution::Uniform { lo: -0.1, up: 0.1 }, 42, "words");
//! let shards = (0..3)
//!     .map(|i| Table::initialized(shard_name("words", i), &shape, dtype, &uniform, (cut, i)))
//!     .collect::<Result<Vec<_>, _>>()?;
//!
//! // A worker sorts the distinct ids of its batch by shard, and requests rows from each shard.
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
//! // Gradients are applied on the servers.
//! let gradient = batch.sum(&[1f32; 4 * 4], 4);
//! shards[0].set_rule(Arc::new(Sgd))?;
//! let of_shard = HostTensor::new(ids.take(0, &gradient, 4), [1, 4])?;
//! shards[0].push_rows(Push::at(Step::after(0, 0.5)), ids.of(0), &of_shard)?;
//! assert_eq!(shards[0].read_rows(&[0])?.as_slice::<f32>().expect("float32")[0], rows[4] - 1.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `partitioner` | [`Partitioner`] and its three implementations; [`partition`]: splits a variable into shards |
//! | `partition` | the shard of a row or id; the ids of a batch by shard; moves between partitions |
//! | `placement` | [`Placement`]: the server of each shard, which can be printed as a table |
//! | `initializer` | [`Initializer`]: initial values by (seed, name, position) |
//! | `halves` | [`Halves`]: values that are stored in bf16 |
//! | `table` | [`Table`]: the values and slots of a shard, read, written and updated |
//! | `steps` | [`Push`]: the step of a gradient, and whether it counts; the steps of several workers |
//! | `dynamic` | [`DynamicTable`]: a table of 64-bit ids, whose rows are created and evicted |
//! | `service` | [`Request`], [`Response`]; [`Tables`]: all tables of a server; [`Channel`]: a connection |
//! | `layout` | [`Layout`]: the servers of a training run; [`decide_layout`]: whether it can resume |
//! | `push_window` | [`PushWindows`]: the detection of repeated pushes |
//! | `row_cache` | [`CachedRows`]: the rows that a client caches, and their age |
//! | `prefetch` | [`Prefetch`]: the rows that a client requests before the step that looks them up |
//! | `hot_rows` | [`HotRows`]: the choice of the hottest rows; [`HotCopies`]: the copies that each worker has of them |
//! | `closures` | [`ClosureChanges`]: the changes by closures, which may be retried |
//! | `error` | [`Error`] |

#![forbid(unsafe_code)]

mod closures;
mod dynamic;
mod error;
mod halves;
mod hot_rows;
mod initializer;
mod layout;
mod partition;
mod partitioner;
mod placement;
mod prefetch;
mod push_window;
mod row_cache;
mod service;
mod steps;
mod table;

pub use closures::{ClosureChanges, Origin};
#[doc(alias = "tfra.dynamic_embedding.Variable")]
pub use dynamic::DynamicTable;
pub use dynamic::{DynamicOptions, DynamicState, Eviction, PushResult, StateColumn, WaitingCounts};
pub use error::{Error, Result};
pub use halves::Halves;
pub use hot_rows::{HotCopies, HotLookup, HotReport, HotRowUsage, HotRows, RowLayout};
pub use initializer::Initializer;
pub use layout::{Layout, LayoutDecision, ServerState, decide_layout};
pub use partition::{
    HashPartition, Move, Moves, PartitionStrategy, RowLocation, RowPartition, Split, UniqueIds,
};
#[doc(alias = "tf.distribute.experimental.partitioners.FixedShardsPartitioner")]
pub use partitioner::FixedShardsPartitioner;
#[doc(alias = "tf.distribute.experimental.partitioners.MaxSizePartitioner")]
pub use partitioner::MaxSizePartitioner;
#[doc(alias = "tf.distribute.experimental.partitioners.MinSizePartitioner")]
pub use partitioner::MinSizePartitioner;
#[doc(alias = "tf.distribute.experimental.partitioners.Partitioner")]
pub use partitioner::Partitioner;
pub use partitioner::{PartitionerSpec, partition};
pub use placement::{
    Placed, Placement, PlacementPolicy, PlacementSnapshot, TablePolicy, shard_name, variable_of,
};
pub use prefetch::{Prefetch, PrefetchLookup, PrefetchRequest, PrefetchUsage};
pub use push_window::{Admission, ClientPushes, PushWindows};
pub use row_cache::{CacheLookup, CachedRows, RowCacheOptions, RowCacheUsage, StepClock};
pub use service::{
    ChangedRows, Channel, ChannelError, Contents, Copies, ImageContents, LAYOUT_TABLE, LocalChannel,
    LogPosition, Refusal, RefusalKind, Request, Response, RowReads, Started, State, TableImage, TableInfo,
    TableKind, TableSpec, Tables, Usage, Version, VersionedValue, WaitForResponse,
};
pub use steps::Push;
pub use table::{Table, TableState, Versioned};
