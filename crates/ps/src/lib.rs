//! Parameter servers: tables of variables as a service, its client, and what lets a server lose nothing.
//!
//! What a server does with its tables is [`distribute_params::Tables`]; this crate puts it behind a port, and on a disk.
//!
//! | module | what it is |
//! |---|---|
//! | `server` | [`ParameterServer`]: the service |
//! | `connection` | [`Connection`]: the [`Channel`](distribute_params::Channel) to it, which repeats what was not answered |
//! | `options`, `error` | [`ServerOptions`]: where and how often a server writes; [`OpenError`]: why it cannot go on where it was |
//! | `store` | the tables, the ledger and the log of one server, and the order in which changes are made |
//! | `outgoing` | answers that have not left yet: so many bytes, and no more |
//! | `ledger` | which changes were made, of all clients |
//! | `log` | changes on the disk, before they are acknowledged |
//! | `format` | of which version a folder is |
//! | `inspect` | [`inspect`](fn@inspect): what is damaged in a folder, and how to go on without it |
//! | `snapshot` | all tables on the disk, so that the log can begin anew |
//! | `replica` | [`Replicas`]: a second server that has what a server has |
//! | `codec` | requests and answers as messages: pure |
//!
//! ```
//! use distribute_cluster::{ClusterSpec, Job};
//! use distribute_params::{Channel, Request, TableSpec};
//! use distribute_ps::{Connection, ParameterServer, SERVICE, ServerOptions};
//! use distribute_server::{ClientBuilder, Server};
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
//! assert_eq!(steps, distribute_params::Response::Rows(HostTensor::vector(vec![2i64])));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What happens when something breaks
//!
//! - A request has a deadline, and until then is sent again whenever the connection is lost. A change has a number, by which the
//!   server makes it once at most; what is acknowledged has been made. What one thread has started comes in that order, whatever
//!   becomes of connections.
//! - A server with a folder appends each change to a log before it makes it, and acknowledges it when it is there, as safe as
//!   [`Durability`] says. When it comes back, it is what it was, numbers of changes included; a record that was being written when the
//!   process was killed was not acknowledged, and is set aside with a warning. Anything else that is not as it was written is an error
//!   that names file and byte, and [`inspect`](fn@inspect) says what is lost.
//! - Where the disk is full or fails, changes are refused, and nothing has changed; reading goes on.
//! - What comes from a connection is checked before it is used; what is no request is refused, and the server goes on.

#![forbid(unsafe_code)]

mod codec;
mod connection;
mod error;
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
pub use inspect::{Damage, Inspection, inspect};
pub use options::{Durability, ServerOptions};
pub use replica::Replicas;
pub use server::ParameterServer;

/// The name of the service.
pub const SERVICE: &str = "parameters";

/// The name of the service of [`Replicas`].
pub const REPLICAS: &str = "replicas";

/// The blocks of the guide are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/parameter-servers.md")]
struct Guide;
