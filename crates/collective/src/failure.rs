//! The error of a collective.

use distribute_cluster::Blame;
use std::sync::Arc;

/// The error of a collective. The collective has failed on every member, and the team or group can be used again.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Members made different calls, or one is gone or late.
    #[error("{0}")]
    Blame(Arc<Blame>),
    /// The members' values cannot be combined.
    #[error(transparent)]
    Tensor(#[from] distribute_tensor::Error),
    /// A message of another process is malformed.
    #[error("a record of another process cannot be read: {0}")]
    Record(String),
    /// The library that reduces by itself has failed here.
    #[error("{library} cannot sum: {reason}")]
    Native {
        /// Its name.
        library: &'static str,
        /// Its message.
        reason: String,
    },
    /// The failure of the member that acted for all members of its process.
    #[error("{0}")]
    Shared(Arc<Failure>),
}

impl From<Arc<Blame>> for Failure {
    fn from(blame: Arc<Blame>) -> Self {
        Failure::Blame(blame)
    }
}
