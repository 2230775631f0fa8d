//! Why a server has not done what it was asked for, as data that can be sent.

use crate::Error;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The kinds of refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RefusalKind {
    /// There is no table of this name.
    NoSuchTable,
    /// There is a table of this name that was made in another way.
    Exists,
    /// What was given doesn't fit the table: its shape, its dtype, a row or id, a slot, a learning rate.
    Argument,
    /// A gradient is NaN or infinite.
    NotFinite,
    /// The table has no rule, or another one.
    Rule,
    /// There is no memory for the table.
    NoMemory,
    /// It is not known any more whether a repeated change was applied.
    Expired,
    /// The server could not write to its disk what it would have acknowledged.
    Storage,
    /// The server is busy with the same change, or has too many callers. It may be asked again.
    Busy,
    /// What came is no request.
    Malformed,
    /// The answers to the requests before it are so large that this one is not answered with them. It may be asked by itself.
    TooLarge,
    /// It is a change of a closure that has ended, or of a job before the one that has begun last: whoever asks was replaced.
    Stale,
    /// The server has lost tables that it had acknowledged changes of: it and the server that follows it were ended one after the other,
    /// before there were two copies again. They are restored from a checkpoint, by a program that is started again.
    Lost,
    /// It is for the chief to ask, and another task has.
    NotAllowed,
}

/// Why a server has refused a request. Nothing has changed then, unless the text says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The kind.
    pub kind: RefusalKind,
    /// The operation, the table, what was expected and what to do.
    pub text: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(kind: RefusalKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It may be from another process.
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
    fn what_a_terminal_obeys_is_written_out() {
        let refusal = Refusal::new(RefusalKind::Argument, "no\x1b[2J\u{9b}");
        assert_eq!(refusal.to_string(), r"no\u{1b}[2J\u{9b}");
    }
}
