//! Errors of invalid requests.

use distribute::Error;

/// Creates an error of `distribute-bench` with the given reason.
pub fn invalid(reason: String) -> Error {
    Error::InvalidArgument { operation: "bench", reason }
}
