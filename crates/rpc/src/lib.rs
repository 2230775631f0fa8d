//! Tasks that answer calls from other tasks. Parameter servers and the coordinator are based on this crate.
//!
//! All calls between tasks use this crate, so each task has one identity and one port. The crate is used instead of
//! gRPC, so that there is only one way to make calls, and fewer dependencies. It does not depend on the purpose of a
//! service. Services must not block the thread of a connection for long.
//!
//! | module | contents |
//! |---|---|
//! | `server`, `builder` | [`Server`]: a task that answers calls; [`ServerBuilder`]: its settings |
//! | `service` | [`Service`]: the handler of the calls to one name; [`Call`] and [`Reply`] |
//! | `client` | [`Client`]: a connection through which threads call; [`ClientBuilder`] |
//! | `fault`, `error` | [`Fault`]: the error of a service; [`ServerError`], [`CallError`] |
//! | `shutdown` | [`ShutdownReason`]: the cause of a server's end |
//! | [`doctor`] | checks of the links between tasks, for `distribute doctor` |
//! | `frame`, `pending` | calls as messages: pure; the unanswered calls of a client |
//! | `memory_budget`, `own_task` | the memory for unanswered calls, and the choice of a server's task: pure |
//! | `connection`, `control` | the calls of one connection, and the service by which the chief ends a server |
//!
//! ```
//! use distribute_cluster::{ClusterSpec, Job};
//! use distribute_net::Message;
//! use distribute_rpc::{Call, Client, Reply, Server};
//! use std::time::Duration;
//!
//! // A parameter server and, here on another thread of the process, the chief that calls it.
//! let cluster = ClusterSpec::from_lists([("chief", ["127.0.0.1:0"]), ("ps", ["127.0.0.1:0"])])?;
//! let shout = |call: Call, reply: Reply| {
//!     let text = String::from_utf8_lossy(&call.message.body).to_uppercase();
//!     reply.answer(call.caller.to_string(), text);
//! };
//! let server = Server::builder(cluster).job_name("ps").service("shout", shout).start()?;
//!
//! let minute = Duration::from_secs(60);
//! let client = Client::connect(server.cluster(), Job::Chief.task(0), &Job::Ps.task(0), minute)?;
//! let answer = client.call("shout", Message::new("", "hello"), minute)?;
//! assert_eq!((&answer.head[..], &answer.body[..]), (&b"chief 0"[..], &b"HELLO"[..]));
//!
//! client.stop_server(minute)?;
//! server.join()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Failures
//!
//! - Each call has a deadline. A call that has failed because of its deadline occupies space in the
//!   [window](ClientBuilder::window) until the server has answered.
//! - When a server is killed, all calls to it fail immediately. When it is suspended or its machine fails, they fail
//!   within 3 s ([`Settings::silence`](distribute_net::Settings::silence)). No call is retried automatically, because
//!   it may have been executed.
//! - A service that panics, or that drops a reply, fails only the call that it was answering.
//! - When a caller has disconnected, the answers to its calls are discarded ([`Reply::is_connected`]).
//! - Connections from outside the job are rejected and logged, as in a [rendezvous](distribute_net::Rendezvous).

#![forbid(unsafe_code)]

mod builder;
mod client;
mod connection;
mod control;
pub mod doctor;
mod error;
mod fault;
mod frame;
mod memory_budget;
mod own_task;
mod pending;
mod server;
mod service;
mod shutdown;

pub use builder::ServerBuilder;
pub use client::{Client, ClientBuilder, Started};
pub use error::{CallError, ServerError};
pub use fault::{Fault, FaultKind};
#[doc(alias = "tf.distribute.Server")]
#[doc(alias = "tf.train.Server")]
pub use server::Server;
pub use server::Stopper;
pub use service::{Call, Reply, Service};
pub use shutdown::ShutdownReason;
