//! The error of a collective operation.

use distribute_cluster::Blame;
use std::sync::Arc;

/// The error of a collective operation. A [`Failure::Blame`] is returned on every member. After any other error of one
/// member, the other members fail in the same operation or in their next one. The team or group can be used again
/// afterwards.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A call did not complete, for example because members made different calls, or because a member has exited, is
    /// lost or has timed out.
    #[error("{0}")]
    Blame(Arc<Blame>),
    /// The members' values cannot be combined.
    #[error(transparent)]
    Tensor(#[from] distribute_tensor::Error),
    /// A message of another process is malformed.
    #[error("failed to decode a message of another process: {0}")]
    Record(String),
    /// The library that computes sums over workers has failed on this worker.
    #[error("{library} cannot sum: {reason}")]
    Native {
        /// The name of the library.
        library: &'static str,
        /// The error message of the library.
        reason: String,
    },
    /// The failure of the member that made the call on behalf of all members of this process.
    #[error("{0}")]
    Shared(Arc<Failure>),
}

impl From<Arc<Blame>> for Failure {
    fn from(blame: Arc<Blame>) -> Self {
        Failure::Blame(blame)
    }
}
