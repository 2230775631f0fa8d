//! A server's refusals of requests, as data that can be sent.

use crate::Error;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The reason why a server rejects a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RefusalKind {
    /// There is no table with this name.
    NoSuchTable,
    /// There is a table with this name, but with a different specification.
    Exists,
    /// An argument is invalid or does not match the table: for example a shape, a dtype, a row or id, a slot, or a
    /// learning rate.
    Argument,
    /// A gradient contains a NaN or infinite value.
    NotFinite,
    /// The table has no rule or a different one, or the rule cannot be used with a dynamic table.
    Rule,
    /// There is not enough memory for the request.
    NoMemory,
    /// The server no longer knows whether a repeated change was applied.
    Expired,
    /// The server could not write a change to its disk, so it does not acknowledge the change.
    Storage,
    /// The server is executing the same change, or has too many clients or closures in progress. The client can retry
    /// the request later.
    Busy,
    /// The bytes are not a valid request.
    Malformed,
    /// The responses to earlier requests of a batch are so large that no other response fits. The client can send the
    /// request separately.
    TooLarge,
    /// The change belongs to a closure that has ended, or to an earlier job, because its sender was replaced.
    Stale,
    /// The server has lost tables with acknowledged changes: it and the server that replicates it have exited before
    /// there were two copies of the tables again. Restart the program and restore the tables from a checkpoint.
    Lost,
    /// Only the chief may make this request, but another task has made it.
    NotAllowed,
}

/// A server's refusal of a request. Nothing has changed, unless the text states otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The kind of the refusal.
    pub kind: RefusalKind,
    /// The text: the operation, the table, the expected value, and a remedy.
    pub text: String,
}

impl Refusal {
    /// Creates a refusal.
    pub fn new(kind: RefusalKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text may come from another process, so control characters are removed.
        f.write_str(&distribute_log::plain(&self.text))
    }
}

impl std::error::Error for Refusal {}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::NoSuchTable { .. } => RefusalKind::NoSuchTable,
            Error::Exists { .. } => RefusalKind::Exists,
            Error::NotFinite { .. } => RefusalKind::NotFinite,
            Error::NoRule { .. } | Error::RuleSet { .. } | Error::MovesAbsentRows { .. } => RefusalKind::Rule,
            Error::NoMemory { .. } | Error::Budget { .. } => RefusalKind::NoMemory,
            Error::PushExpired { .. } | Error::ClientForgotten { .. } => RefusalKind::Expired,
            Error::TooManyClients { .. } | Error::TooManyClosures { .. } => RefusalKind::Busy,
            Error::OtherJob { .. } | Error::ClosureEnded { .. } => RefusalKind::Stale,
            _ => RefusalKind::Argument,
        };
        Self::new(kind, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // INV-62
    #[test]
    fn control_characters_are_escaped() {
        let refusal = Refusal::new(RefusalKind::Argument, "no\x1b[2J\u{9b}");
        assert_eq!(refusal.to_string(), r"no\u{1b}[2J\u{9b}");
    }
}
