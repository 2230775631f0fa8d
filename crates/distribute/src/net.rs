//! Links between processes: rendezvous, identity and encryption.

#[doc(inline)]
pub use distribute_net::{Certificates, Credentials, Identity, JoinError, Secret, SharedMemory};
