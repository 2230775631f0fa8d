//! The cause of an error, under the layers that were added on its way.

use super::Error;
use distribute_cluster::Blame;
use distribute_ps_tables::{ChannelError, RefusalKind};
use std::error::Error as StdError;

impl Error {
    /// The error that the closure itself returned, without the layers that `run` has added.
    pub fn root_cause(&self) -> &Error {
        match self {
            Error::Replica { source, .. }
            | Error::EmptyPiece { source, .. }
            | Error::Worker { source, .. }
            | Error::IncompleteState { source: Some(source), .. } => source.root_cause(),
            Error::Shared(source) => source.root_cause(),
            other => other,
        }
    }

    /// The worker that has failed by itself, if that is the cause; it is also found in the sources of a user error.
    #[doc(hidden)]
    pub fn worker(&self) -> Option<usize> {
        match self {
            Error::Worker { worker, .. } => Some(*worker),
            Error::Replica { source, .. } | Error::EmptyPiece { source, .. } => source.worker(),
            Error::Shared(source) => source.worker(),
            Error::Other(other) => ours(&**other).find_map(Error::worker),
            _ => None,
        }
    }

    /// Whether workers wait to take part, if that is the cause; it is also found in the sources of a user error.
    #[doc(hidden)]
    pub fn is_waiting(&self) -> bool {
        match self.root_cause() {
            Error::WorkersWaiting { .. } => true,
            Error::Other(other) => ours(&**other).any(Error::is_waiting),
            _ => false,
        }
    }

    /// The reason that replicas did not agree on a call, if that is the cause; it is also found in the sources of a
    /// user error.
    pub fn blame(&self) -> Option<&Blame> {
        match self.root_cause() {
            Error::Collective(blame) => Some(blame),
            // The closure may have wrapped it in an error of its own.
            Error::Other(other) => ours(&**other).find_map(Error::blame),
            _ => None,
        }
    }

    /// Whether a parameter server has refused a change because the closure that it comes from has ended, or another job
    /// has begun: this worker was replaced, and what it does counts no more. It is also found in the sources of a user
    /// error.
    pub fn is_stale(&self) -> bool {
        match self.root_cause() {
            Error::Server { source, .. } => {
                matches!(&**source, ChannelError::Refused { refusal, .. } if refusal.kind == RefusalKind::Stale)
            }
            Error::Other(other) => ours(&**other).any(Error::is_stale),
            _ => false,
        }
    }

    /// Whether a server has another rule for a variable than it was told, or none.
    #[doc(hidden)]
    pub fn is_of_a_rule(&self) -> bool {
        let Self::Server { source, .. } = self else { return false };
        matches!(&**source, ChannelError::Refused { refusal, .. } if refusal.kind == RefusalKind::Rule)
    }
}

/// The errors of this type among a user error and its sources.
fn ours<'e>(error: &'e (dyn StdError + 'static)) -> impl Iterator<Item = &'e Error> {
    let chain = std::iter::successors(Some(error), |error: &&'e (dyn StdError + 'static)| (**error).source());
    chain.filter_map(|error| error.downcast_ref())
}
