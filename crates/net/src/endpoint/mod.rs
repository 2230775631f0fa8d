//! Connections for calls between tasks that are not workers of one world. For example, the chief calls a
//! parameter server, and `distribute doctor` calls any task.
//!
//! | module | contents |
//! |---|---|
//! | `end` | [`Endpoint`]: one end of such a connection |
//! | `acceptor` | [`Acceptor`]: accepts callers |
//! | `connector` | [`Connector`]: connects to other tasks |
//! | `error` | [`ListenError`], [`ConnectError`] |
//!
//! These connections use the same handshake, protection, frames and heartbeats as the links between workers. The called
//! task must be the one that the caller intends to reach.
//!
//! ```
//! use distribute_cluster::{Deadline, Job};
//! use distribute_net::{Access, Acceptor, Connector, Identity, Message, Receiver};
//! use std::sync::{Arc, mpsc};
//! use std::time::Duration;
//!
//! struct Inbox(mpsc::Sender<Message>);
//!
//! impl Receiver for Inbox {
//!     fn deliver(&self, _from: usize, message: Message) {
//!         let _ = self.0.send(message);
//!     }
//!     fn mark_lost(&self, _from: usize, _reason: String) {}
//! }
//!
//! let patience = Duration::from_secs(20);
//! let access = Access::new(&Identity::None, &["127.0.0.1:0".parse()?], false)?;
//! let ps = Job::Ps.task(0);
//! let mut acceptor = Acceptor::bind(ps.clone(), &"127.0.0.1:0".parse()?, access.clone(), patience)?;
//! let address = acceptor.address().to_string().parse()?;
//! let caller = std::thread::spawn(move || {
//!     let (inbox, _) = mpsc::channel();
//!     let connector = Connector::new(Job::Chief.task(0), access);
//!     let connection = connector.connect(&ps, &address, Arc::new(Inbox(inbox)), Deadline::after(patience))?;
//!     connection.send(Message::new("greeting", "hello"));
//!     Ok::<(), distribute_net::ConnectError>(()) // Its end waits until the message has arrived.
//! });
//! let arrival = loop {
//!     if let Some(arrival) = acceptor.accept(patience, 1)?.pop() {
//!         break arrival;
//!     }
//! };
//! assert_eq!(arrival.caller(), &Job::Chief.task(0));
//! let (inbox, come) = mpsc::channel();
//! let _connection = arrival.open(Arc::new(Inbox(inbox)))?;
//! assert_eq!(come.recv_timeout(patience)?.body, "hello");
//! caller.join().unwrap()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod acceptor;
mod connector;
mod end;
mod error;

pub use acceptor::{Acceptor, AcceptorWaker, IncomingConnection};
pub use connector::Connector;
pub use end::Endpoint;
pub use error::{ConnectError, ListenError};

use crate::handshake::{Hello, Purpose, words};
use distribute_cluster::Task;

/// The default name of a job.
pub(crate) const JOB: &str = "job";

/// Returns the [`Hello`] with which task `from` identifies itself when it calls task `to`.
fn hello(job: &str, from: Task, to: Task) -> Hello {
    let purpose = Purpose::Call { from, to };
    let (generation, table, rank, workers, replicas) = Default::default();
    Hello { job: job.to_owned(), generation, table, rank, workers, replicas, digest: [0; 32], purpose }
}

/// Returns the first name that is too long to be sent, if there is one.
fn too_long(job: &str, tasks: &[&Task]) -> Option<String> {
    let names = tasks.iter().map(|task| task.job.as_str()).chain([job]);
    names.into_iter().find(|name| name.len() > words::MAX_TEXT).map(str::to_owned)
}
