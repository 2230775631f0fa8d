//! What was asked for cannot be measured.

use distribute::Error;

/// An error of `distribute-bench` for this reason.
pub fn invalid(reason: String) -> Error {
    Error::InvalidArgument { operation: "bench", reason }
}
