//! Links between the workers of one world: their identities, their rendezvous, and the transports of their messages.
//! The crate also contains connections for calls between any tasks of a job.
//!
//! | module | contents |
//! |---|---|
//! | [`transport`] | [`Transport`], which sends messages, and [`Receiver`], to which they are delivered |
//! | `message` | [`Message`]: a head and a body |
//! | [`memory`] | the transport whose workers are threads of this process |
//! | [`mesh`] | [`Mesh`]: the transport over sockets, in plain text or TLS |
//! | `settings` | [`Settings`]: the options of connections |
//! | [`rendezvous`] | [`Rendezvous`]: connects the workers of a world and makes them a mesh |
//! | [`endpoint`] | [`Acceptor`], [`Connector`], [`Endpoint`]: connections for calls between tasks |
//! | [`handshake`] | the first messages on a connection, which show whether both sides belong to the same job |
//! | [`identity`] | [`Credentials`]: a secret or certificates, the name of the job, and the protection of links |
//! | [`wire`] | messages as bytes of a stream |
//! | `link`, `stream` | one connection: plain, TLS or through shared memory, never blocking |
//! | `shm` | memory that workers of one machine share |
//! | `ready`, `poll` | waiting for several connections |
//! | [`polling`] | waiting for operations that can only be polled |
//! | `socket` | sockets that child processes do not inherit |
//! | `descriptors` | the limit on this process's sockets |
//!
//! The content of messages is opaque to this crate: it does not depend on tensors or calls.
//!
//! ```
//! use distribute_cluster::World;
//! use distribute_net::{Listener, Message, Receiver, Rendezvous, Transport};
//! use std::sync::{Arc, mpsc};
//! use std::time::Duration;
//!
//! struct Inbox(mpsc::Sender<Message>);
//!
//! impl Receiver for Inbox {
//!     fn deliver(&self, _from: usize, message: Message) {
//!         let _ = self.0.send(message);
//!     }
//!     fn mark_lost(&self, from: usize, reason: String) {
//!         println!("worker {from} is lost: {reason}");
//!     }
//! }
//!
//! // Two workers, here as threads. Worker 1 has any port, and tells worker 0 which.
//! let listener = Listener::bind("127.0.0.1:0")?;
//! let addresses = vec![listener.address()?.to_string(), "127.0.0.1:0".to_owned()];
//! let second = Rendezvous::new(World::new(2, 1, 1)?, addresses.clone());
//! let second = std::thread::spawn(move || {
//!     let (inbox, _) = mpsc::channel();
//!     let mesh = second.join(Arc::new(Inbox(inbox)))?;
//!     mesh.send(0, Message::new("greeting", "hello"));
//!     Ok::<(), distribute_net::JoinError>(()) // Its end waits until the message has arrived.
//! });
//! let (inbox, come) = mpsc::channel();
//! let first = Rendezvous::new(World::new(2, 0, 1)?, addresses).listener(listener);
//! let _mesh = first.join(Arc::new(Inbox(inbox)))?;
//! assert_eq!(come.recv_timeout(Duration::from_secs(10))?.body, "hello");
//! # second.join().unwrap()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Failures
//!
//! - A worker that is killed is disconnected as soon as the system closes its connections, which takes milliseconds.
//! - A worker that is stopped, or whose machine has failed, is disconnected within 3 s, after 2.7 s without a message
//!   ([`Settings::silence`]). A worker that is only busy stays connected, because each worker sends heartbeats.
//! - A worker that closes its transport exits gracefully: everything that it has sent still arrives. It waits while
//!   bytes are transferred, for at most [`Settings::max_shutdown_wait`].
//! - A disconnect is reported once for each worker, after everything received from it. Failed links are not replaced:
//!   the workers form a new world, of the next generation.
//! - Connections from outside the job are rejected and logged with their address: the first of each kind, and then
//!   their number every 10 s. Their cost is limited by what they have sent. At most 64 are open at once, for 5 s each.
//!   They never block connections of the job: if there are more, a new connection replaces the oldest silent one from
//!   the address with the most of them.

// Except in one file, `shm/map.rs`.
#![deny(unsafe_code)]

mod descriptors;
pub mod endpoint;
pub mod handshake;
pub mod identity;
mod link;
pub mod memory;
pub mod mesh;
mod message;
#[cfg(test)]
mod page;
mod poll;
pub mod polling;
mod ready;
pub mod rendezvous;
mod settings;
mod shm;
#[doc(hidden)]
pub mod socket;
mod stream;
pub mod transport;
pub mod wire;

pub use endpoint::{Acceptor, ConnectError, Connector, Endpoint, ListenError};
pub use identity::{Access, AccessError, Certificates, Credentials, Identity, Secret, job_name};
pub use mesh::Mesh;
pub use message::Message;
pub use rendezvous::{Claim, JoinError, KnownWorkers, Listener, Memory, Progress, Quorum, Rendezvous};
pub use settings::Settings;
pub use shm::{Region, SharedMemory};
pub use transport::{NativeSum, Number, PartialMessage, PollOutcome, Receiver, Transport};

/// The reason that other workers report for the disconnect of a worker that has closed its transport.
pub const ENDED: &str = "it has ended";

/// The reason that other workers report for the disconnect of a worker that has [left](Mesh::leave) for a new
/// rendezvous.
pub const LEFT: &str = "it has left to re-form the group";
