//! Links between processes: the rendezvous of workers, their identity, and encryption.

#[doc(inline)]
pub use distribute_net::{Certificates, Credentials, Identity, JoinError, Secret, SharedMemory};
