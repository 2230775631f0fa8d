//! The failures of calls.

use crate::call::{ClosureId, FunctionId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The kind of a failure, which does not depend on its text.
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
    /// The call was cancelled before it began, or noticed the cancellation while it ran.
    Cancelled,
    /// A parameter server did not answer in time. The closure is retried a limited number of times.
    Server,
    /// A resource among the arguments could not be created on the worker.
    Resource,
    /// The worker's program does not contain this function, contains a different version of it, or cannot use it in
    /// this way.
    UnknownFunction,
    /// The result is too large to be sent.
    TooLarge,
    /// The call exceeded its time limit.
    TimedOut,
    /// Workers disconnected too often during the call, which is not retried because it may be the cause.
    WorkersLost,
    /// The worker belongs to a coordinator that was started later, or rejects the number of this coordinator's job.
    Superseded,
}

/// The failure of a call, as data that a worker sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The kind of the failure.
    pub kind: FailureKind,
    /// The cause and a remedy, as text.
    pub text: String,
    /// The location of the failure, if it is known.
    pub location: Option<FailureLocation>,
}

/// The call that has failed, and the worker that ran it.
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
    /// Creates a failure without a location.
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
