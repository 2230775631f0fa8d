//! Access to the cause of an error, under the layers that were added to the error.

use super::Error;
use distribute_checkpoint::Error as Checkpoint;
use distribute_cluster::Blame;
use distribute_net::JoinError;
use distribute_net::handshake::Reason;
use distribute_ps_tables::{ChannelError, RefusalKind};
use std::error::Error as StdError;

impl Error {
    /// Returns the error without the layers that `run` and other workers added. If a closure failed, this is the error
    /// that the closure returned.
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

    /// Returns the rank of the worker whose failure caused the error; `None` if there is none. The sources of a
    /// program's own error are searched as well.
    #[doc(hidden)]
    pub fn worker(&self) -> Option<usize> {
        match self {
            Error::Worker { worker, .. } => Some(*worker),
            Error::Replica { source, .. } | Error::EmptyPiece { source, .. } => source.worker(),
            Error::Shared(source) => source.worker(),
            Error::Other(other) => own_errors(&**other).find_map(Error::worker),
            _ => None,
        }
    }

    /// Returns `true` if the error was returned because new workers are waiting to join. The sources of a program's own
    /// error are searched as well.
    #[doc(hidden)]
    pub fn is_waiting(&self) -> bool {
        match self.root_cause() {
            Error::WorkersWaiting { .. } => true,
            Error::Other(other) => own_errors(&**other).any(Error::is_waiting),
            _ => false,
        }
    }

    /// Returns the [`Error::Drift`] that is the cause; `None` if there is none. The sources of a program's own error
    /// are searched as well.
    #[doc(hidden)]
    pub fn drift(&self) -> Option<&Error> {
        match self.root_cause() {
            drift @ Error::Drift { .. } => Some(drift),
            Error::Other(other) => own_errors(&**other).find_map(Error::drift),
            _ => None,
        }
    }

    /// Returns `true` if the training has ended on all workers without this process: another worker rejects it for this
    /// reason, or it is an [unused spare](Error::UnusedSpare).
    #[doc(hidden)]
    pub fn has_training_ended(&self) -> bool {
        match self {
            Error::Join(error) => {
                matches!(&**error, JoinError::Refused { refusal, .. } if refusal.reason == Reason::Ended)
            }
            Error::UnusedSpare { .. } => true,
            _ => false,
        }
    }

    /// Returns [`Error::UnusedSpare`] if the training has ended without this process, and the cluster has spares.
    /// Returns other errors unchanged.
    #[doc(hidden)]
    pub fn with_spares(self, spares: usize, operation: &'static str) -> Self {
        if spares > 0 && self.has_training_ended() { Error::UnusedSpare { operation } } else { self }
    }

    /// Returns the [`Error::UnusedSpare`] that a program's error is or has among its sources; `None` if there is none.
    #[doc(hidden)]
    pub fn unused_spare<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e Error> {
        own_errors(error).find_map(|error| match error.root_cause() {
            unused @ Error::UnusedSpare { .. } => Some(unused),
            Error::Other(other) => Error::unused_spare(&**other),
            _ => None,
        })
    }

    /// Returns the disagreement or failure of a collective that is the cause; `None` if there is none. The sources of a
    /// program's own error are searched as well.
    pub fn blame(&self) -> Option<&Blame> {
        match self.root_cause() {
            Error::Collective(blame) => Some(blame),
            // The closure may have wrapped it in another error.
            Error::Other(other) => own_errors(&**other).find_map(Error::blame),
            Error::Checkpoint(Checkpoint::Source { source, .. } | Checkpoint::Interrupted { source }) => {
                own_errors(&**source).find_map(Error::blame)
            }
            _ => None,
        }
    }

    /// Returns `true` if a server rejected the request because it has a different update rule for the variable than
    /// this program, or no rule at all.
    #[doc(hidden)]
    pub fn is_rule_conflict(&self) -> bool {
        let Self::Server { source, .. } = self else { return false };
        matches!(&**source, ChannelError::Refused { refusal, .. } if refusal.kind == RefusalKind::Rule)
    }
}

/// Returns the errors of this crate among the program's own error and its sources.
pub(super) fn own_errors<'e>(error: &'e (dyn StdError + 'static)) -> impl Iterator<Item = &'e Error> {
    chain(error).filter_map(|error| error.downcast_ref())
}

/// Returns an error, followed by its sources.
pub(super) fn chain<'e>(
    error: &'e (dyn StdError + 'static),
) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error: &&'e (dyn StdError + 'static)| (**error).source())
}
