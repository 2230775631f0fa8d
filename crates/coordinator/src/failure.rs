//! The failures of calls.

use crate::call::{ClosureId, FunctionId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The kinds of failures, independent of their messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FailureKind {
    /// The function returned an error.
    Function,
    /// The function returned an error about its arguments.
    InvalidArgument,
    /// A dataset among the arguments has no more elements.
    EndOfData,
    /// The function panicked. The worker continues.
    Panicked,
    /// The call was cancelled before it ran, or noticed the cancellation while it ran.
    Cancelled,
    /// A parameter server did not answer in time. The closure is retried a limited number of times.
    Server,
    /// A resource among the arguments could not be created on the worker.
    Resource,
    /// The worker's program does not contain this function or has a different version of it, or the function cannot be
    /// used in this way.
    UnknownFunction,
    /// The result is too large to be sent.
    TooLarge,
    /// The call exceeded its time limit.
    TimedOut,
    /// Workers disconnected too often while they ran the call, so it is not retried: it may be the cause.
    WorkersLost,
    /// The worker belongs to a coordinator that was started later, or the number of this coordinator's job is refused.
    Superseded,
}

/// The failure of a call, as data from the worker that ran it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The kind of the failure.
    pub kind: FailureKind,
    /// The message: the cause and a remedy.
    pub text: String,
    /// The location of the failure, if it is known.
    pub location: Option<FailureLocation>,
}

/// The location of a failed call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureLocation {
    /// The function that was called.
    pub function: FunctionId,
    /// The sequence number of the closure; `None` if a resource was being created.
    pub closure: Option<ClosureId>,
    /// The index of the worker.
    pub worker: usize,
}

impl Failure {
    /// Creates a failure.
    pub fn new(kind: FailureKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), location: None }
    }

    /// Adds the location, unless the failure already has one.
    pub fn at(mut self, function: &FunctionId, closure: Option<ClosureId>, worker: usize) -> Self {
        self.location.get_or_insert_with(|| FailureLocation { function: function.clone(), closure, worker });
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(FailureLocation { function, closure, worker }) = &self.location {
            match closure {
                Some(closure) => write!(f, "{function} ({closure}) on worker {worker}: ")?,
                None => write!(f, "{function} on worker {worker}: ")?,
            }
        }
        // The text may come from another process, so control characters are removed.
        f.write_str(&distribute_log::plain_lines(&self.text))
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    // INV-62
    #[test]
    fn control_characters_are_escaped_and_lines_are_kept() {
        let failure =
            Failure { kind: FailureKind::Function, text: "one\ntwo\x1b[2J\u{9b}".to_owned(), location: None };
        assert_eq!(failure.to_string(), "one\ntwo\\u{1b}[2J\\u{9b}");
    }
}
