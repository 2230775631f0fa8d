//! Parameter servers: tables of variables as a service, its client, and its persistence.
//!
//! The operations on tables are in [`distribute_ps_tables::Tables`]. This crate adds a network service and storage on
//! disk. It does not depend on strategies or models.
//!
//! A change passes through [`Connection`], its flow control, the codec, the service, the codec, the ledger, the log and
//! the tables. Then the response returns to the client. Other threads save the tables, and remove the parts of the log
//! that are no longer needed.
//!
//! | module | contents |
//! |---|---|
//! | `server` | [`ParameterServer`]: the service |
//! | `connection` | [`Connection`]: a [`Channel`](distribute_ps_tables::Channel) that retries requests |
//! | `options`, `error` | [`ServerOptions`]: the folder and the intervals of writes; [`OpenError`] |
//! | `store` | the tables, the ledger and the log of one server, and the order of changes |
//! | `export` | [`TableExport`]: the rows of a table that have changed, as files |
//! | `outgoing` | a limit on responses that clients have not received yet |
//! | `ledger` | the changes that were applied for each client |
//! | `log` | changes on disk, written before they are acknowledged |
//! | `format` | the version of a folder |
//! | `inspect` | [`inspect`](fn@inspect): finds and repairs damage in a folder |
//! | `snapshot` | all tables on disk, so that the log can begin again |
//! | `replica` | [`Replicas`]: copies of servers on other servers |
//! | `codec` | requests and responses as messages |
//!
//! ```
//! use distribute_cluster::{ClusterSpec, Job};
//! use distribute_ps_tables::{Channel, Request, TableSpec};
//! use distribute_ps_server::{Connection, ParameterServer, SERVICE, ServerOptions};
//! use distribute_rpc::{ClientBuilder, Server};
//! use distribute_tensor::{HostTensor, Write};
//! use std::time::Duration;
//!
//! let (folder, minute) = (tempfile::tempdir()?, Duration::from_secs(60));
//! let mut cluster = ClusterSpec::from_lists([("chief", ["127.0.0.1:0"]), ("ps", ["127.0.0.1:0"])])?;
//! for life in 0..2 {
//!     let tables = ParameterServer::open(ServerOptions::new(folder.path().join("ps-0")))?;
//!     let server = Server::builder(cluster.clone()).job_name("ps").service(SERVICE, tables).start()?;
//!     cluster = server.cluster().clone();
//!
//!     let ps = Connection::new(ClientBuilder::new(cluster.clone(), Job::Chief.task(0)), Job::Ps.task(0));
//!     // In its second life the server has the table.
//!     ps.call(Request::Create(TableSpec::values("steps", HostTensor::scalar(0i64))), minute)?;
//!     let one = HostTensor::scalar(1i64);
//!     ps.call(Request::Write { table: "steps".into(), how: Write::Add, value: one }, minute)?;
//! }
//! let tables = ParameterServer::open(ServerOptions::new(folder.path().join("ps-0")))?;
//! let steps = tables.tables().handle(&Request::ReadRows { table: "steps".into(), rows: vec![0] })?;
//! assert_eq!(steps, distribute_ps_tables::Response::Rows(HostTensor::vector(vec![2i64])));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Failures
//!
//! - A request has a deadline. Until then, it is sent again whenever the connection is lost. Changes are numbered, so
//!   that the server applies each at most once. An acknowledged change was applied. Requests of one thread arrive in
//!   the order in which they were started, even if connections are lost.
//! - A server with a folder appends each change to a log before it applies it. It acknowledges the change when the
//!   change is as safe as [`Durability`] requires. After a restart it has the same state, including the numbers of
//!   changes.
//! - If a server was killed while it wrote a record, the change was not acknowledged. The incomplete record is set
//!   aside with a warning. Any other difference from the written bytes is an error with the file and the offset;
//!   [`inspect`](fn@inspect) lists the lost changes.
//! - If the disk is full or fails, changes are rejected. They have no effect, unless the disk fails while it syncs a
//!   change that was applied. Reads continue.
//! - Received bytes are checked before they are used. Invalid requests are rejected, and the server continues.

#![forbid(unsafe_code)]

mod codec;
mod connection;
mod error;
mod export;
mod format;
mod inspect;
mod ledger;
mod log;
mod options;
mod outgoing;
mod replica;
mod server;
mod snapshot;
mod store;

pub use connection::{Connection, ConnectionBuilder};
pub use error::{OpenError, SnapshotError};
pub use export::{ExportError, ExportedFile, TableExport};
pub use inspect::{Damage, Inspection, inspect};
pub use options::{Durability, ServerOptions};
pub use replica::Replicas;
pub use server::ParameterServer;

/// The name of the service of [`ParameterServer`].
pub const SERVICE: &str = "parameters";

/// The name of the service of [`Replicas`].
pub const REPLICAS: &str = "replicas";

/// The guide to parameter servers, whose code blocks run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/clusters/parameter-servers.md")]
struct Guide;
