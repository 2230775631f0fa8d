//! Links.

#![forbid(unsafe_code)]

mod background;
pub mod handshake;
pub mod identity;
mod link;
pub mod memory;
pub mod mesh;
mod message;
mod poll;
pub mod rendezvous;
mod stream;
pub mod transport;
pub mod wire;

pub use identity::{Certificates, Identity, Secret};
pub use mesh::{Mesh, Settings};
pub use message::Message;
pub use rendezvous::{JoinError, Listener, Progress, Rendezvous};
pub use transport::{Drive, Receiver, Transport};

/// The reason that the others are told of a worker that has closed its transport.
pub const ENDED: &str = "it has ended";
