//! Errors as failures, which travel.

use super::worker::WorkerContext;
use distribute_base::Error;
use distribute_coordinator::{Failure, FailureKind};
use distribute_params::ChannelError;

/// The failure of a function that returned this error.
pub(super) fn of(error: &Error, worker: &WorkerContext) -> Failure {
    // What is wrong in a call that nobody waits for may be that it gave up, or that servers take nothing more of it.
    let is_over = worker.is_cancelled() || error.is_stale();
    let kind = if is_over { FailureKind::Cancelled } else { kind(error) };
    Failure::new(kind, error.to_string())
}

/// What has failed; it is also found in the sources of a user error.
fn kind(error: &Error) -> FailureKind {
    match error.root_cause() {
        Error::OutOfRange { .. } => FailureKind::EndOfData,
        Error::Panicked { .. } => FailureKind::Panicked,
        Error::Server { source, .. } => match &**source {
            ChannelError::Late { .. } | ChannelError::Unreachable { .. } => FailureKind::Server,
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
