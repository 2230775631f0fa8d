//! Links between the workers of one world: who they are, how they find each other, and what moves messages between them.
//! And connections for calls between any tasks of a job.
//!
//! | module | what it is |
//! |---|---|
//! | [`transport`] | [`Transport`] and [`Receiver`]: what sends messages, and what they come to |
//! | [`memory`] | the transport whose workers are threads of this process |
//! | [`mesh`] | [`Mesh`]: the transport over sockets, in plain text or TLS |
//! | `settings` | [`Settings`]: how connections behave |
//! | [`rendezvous`] | [`Rendezvous`]: how workers find each other and become a mesh |
//! | [`endpoint`] | [`Acceptor`], [`Connector`], [`Endpoint`]: connections for calls between tasks |
//! | [`handshake`] | the first words on a connection: whether both sides belong to the same job |
//! | [`identity`] | [`Credentials`]: a secret or certificates, the name of the job, and which links have to be protected |
//! | [`wire`] | messages as bytes of a stream |
//! | `link`, `stream` | one connection; plain, TLS or through shared memory, never blocking |
//! | `shm` | memory that workers of one machine share |
//! | `ready`, `poll` | waiting for several of them |
//! | [`polling`] | waiting for what has to be asked whether it is done |
//! | `descriptors` | how many sockets this process may have |
//!
//! What a message is about is the business of those who send it: nothing here knows of tensors or calls.
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
//!     fn lose(&self, from: usize, reason: String) {
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
//! # What happens when something breaks
//!
//! - A worker that is killed is lost to the others as soon as the system closes its connections, within milliseconds.
//! - One that is stopped, or whose machine is gone, is lost within 3 s, when it has sent nothing for 2.7 s
//!   ([`Settings::silence`]). Each sends heartbeats, so that one that is only busy is not.
//! - One that closes its transport has ended: what it has sent before still arrives. It stays while bytes move, and at most
//!   for [`Settings::longest_farewell`].
//! - A loss is told once for each worker, after everything received from it. Lost links are not made anew: the world is, with
//!   the next generation.
//! - What strangers send to the port is refused and logged with their address: the first of a kind, then how many there were every
//!   10 s. It costs no more than what they have sent, and they may be 64 at once, for 5 s each. Others always get in: for one that comes
//!   then, the oldest goes of those that have said nothing, from the address with most of them.

// But for one file, `shm/map.rs`.
#![deny(unsafe_code)]

mod descriptors;
pub mod endpoint;
pub mod handshake;
pub mod identity;
mod link;
pub mod memory;
pub mod mesh;
mod message;
mod poll;
pub mod polling;
mod ready;
pub mod rendezvous;
mod settings;
mod shm;
mod stream;
pub mod transport;
pub mod wire;

pub use endpoint::{Acceptor, ConnectError, Connector, Endpoint, ListenError};
pub use identity::{Access, AccessError, Certificates, Credentials, Identity, Secret, job_name};
pub use mesh::Mesh;
pub use message::Message;
pub use rendezvous::{Claim, JoinError, Listener, Progress, Quorum, Rendezvous};
pub use settings::Settings;
pub use shm::{Region, SharedMemory};
pub use transport::{Arriving, Drive, NativeSum, Number, Receiver, Transport};

/// The reason that the others are told of a worker that has closed its transport.
pub const ENDED: &str = "it has ended";

/// The reason that the others are told of a worker that has [left](Mesh::leave) to meet them again.
pub const LEFT: &str = "it has left to meet the others again";
