//! The conversion of failures of collectives into errors.

use distribute_base::Error;
use distribute_collective::Failure;

/// Returns a function that converts a [`Failure`] of `operation` into this crate's error.
pub fn failure(operation: &'static str) -> impl Fn(Failure) -> Error {
    move |failure| match failure {
        Failure::Blame(blame) => Error::Collective(blame),
        Failure::Tensor(source) => Error::Tensor { operation, source },
        other @ (Failure::Record(_) | Failure::Native { .. }) => Error::invalid(operation, other.to_string()),
        Failure::Shared(shared) => match &*shared {
            Failure::Blame(blame) => Error::Collective(blame.clone()),
            other => Error::invalid(operation, other.to_string()),
        },
    }
}
