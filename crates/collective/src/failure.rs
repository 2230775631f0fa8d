//! Why a collective failed.

use distribute_cluster::Blame;
use std::sync::Arc;

/// Why a collective failed. Either way it failed on every member, and the group can be used again.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Members did not make the same call, or one is gone or late.
    #[error("{0}")]
    Blame(Arc<Blame>),
    /// The members' values cannot be combined.
    #[error(transparent)]
    Tensor(#[from] distribute_tensor::Error),
    /// What another process sent is not what it should be.
    #[error("a record of another process cannot be read: {0}")]
    Record(String),
    /// One member found this for all of its process.
    #[error("{0}")]
    Shared(Arc<Failure>),
}

impl From<Arc<Blame>> for Failure {
    fn from(blame: Arc<Blame>) -> Self {
        Failure::Blame(blame)
    }
}
