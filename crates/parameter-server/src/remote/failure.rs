//! Conversion of errors to failures, which can be sent to the coordinator.

use super::worker::WorkerContext;
use distribute_base::{Error, ErrorKind};
use distribute_coordinator::{Failure, FailureKind};
use distribute_ps_tables::ChannelError;

/// Converts the error of a function to a failure. If the call was cancelled, or servers have rejected its changes
/// because its closure is over, the kind is [`FailureKind::Cancelled`].
pub(super) fn from_error(error: &Error, worker: &WorkerContext) -> Failure {
    // After a call was cancelled, its error may only mean that the function gave up, or that servers refuse its
    // changes.
    let is_over = worker.is_cancelled() || error.kind() == ErrorKind::Stale;
    let kind = if is_over { FailureKind::Cancelled } else { kind(error) };
    Failure::new(kind, error.to_string())
}

/// Returns the kind of failure for an error. If the program's own error wraps an error of this crate, the wrapped error
/// determines the kind.
fn kind(error: &Error) -> FailureKind {
    match error.root_cause() {
        Error::OutOfRange { .. } => FailureKind::EndOfData,
        Error::Panicked { .. } => FailureKind::Panicked,
        Error::Server { source, .. } => match &**source {
            ChannelError::TimedOut { .. } | ChannelError::Unreachable { .. } => FailureKind::Server,
            _ => FailureKind::Function,
        },
        Error::InvalidArgument { .. }
        | Error::Tensor { .. }
        | Error::Parts { .. }
        | Error::Params(_)
        | Error::Device { .. }
        | Error::Hyperparameter(_) => FailureKind::InvalidArgument,
        Error::Other(other) => {
            let other: &(dyn std::error::Error + 'static) = &**other;
            let mut chain = std::iter::successors(Some(other), |error| error.source());
            chain.find_map(|error| error.downcast_ref::<Error>()).map_or(FailureKind::Function, kind)
        }
        _ => FailureKind::Function,
    }
}
