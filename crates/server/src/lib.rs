//! Tasks that answer calls of others: what parameter servers and the coordinator stand on.
//!
//! | module | what it is |
//! |---|---|
//! | `server`, `builder` | [`Server`]: a task that answers calls; [`ServerBuilder`]: what it is set up by |
//! | `service` | [`Service`]: what answers the calls of one name; [`Call`] and [`Reply`] |
//! | `client` | [`Client`]: a connection by which threads call; [`ClientBuilder`] |
//! | `fault`, `error` | [`Fault`]: why a service did not answer; [`ServerError`], [`CallError`] |
//! | `ending` | [`End`]: who has ended a server |
//! | [`doctor`] | how good the links between tasks are: what `distribute doctor` does |
//! | `frame`, `pending`, `room`, `own_task` | calls as messages, those without an answer yet, the room that they take, which task a server is: pure |
//! | `connection`, `control` | the calls of one connection; the end of a server by its chief |
//!
//! ```
//! use distribute_cluster::{ClusterSpec, Job};
//! use distribute_net::Message;
//! use distribute_server::{Call, Client, Reply, Server};
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
//! # What happens when something breaks
//!
//! - A call has a deadline. One that passes it fails, and keeps its room in the [window](ClientBuilder::window) until the
//!   server has answered after all.
//! - When a server is killed, all calls of it fail at once; when it is stopped or its machine is gone, within 3 s
//!   ([`Settings::silence`](distribute_net::Settings::silence)). Nothing is called again by itself, because a call may have
//!   been carried out.
//! - A service that panics, or lets go of a call, fails this call alone.
//! - When a caller is gone, the answers to it go nowhere ([`Reply::is_wanted`]).
//! - What strangers send to the port is refused and logged, as where workers meet.

#![forbid(unsafe_code)]

mod builder;
mod client;
mod connection;
mod control;
pub mod doctor;
mod ending;
mod error;
mod fault;
mod frame;
mod own_task;
mod pending;
mod room;
mod server;
mod service;

pub use builder::ServerBuilder;
pub use client::{Client, ClientBuilder, Started};
pub use ending::End;
pub use error::{CallError, ServerError};
pub use fault::{Fault, FaultKind};
#[doc(alias = "tf.distribute.Server")]
#[doc(alias = "tf.train.Server")]
pub use server::Server;
pub use server::Stopper;
pub use service::{Call, Reply, Service};
