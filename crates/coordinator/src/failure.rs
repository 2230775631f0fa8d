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
    /// A dataset has no more elements.
    EndOfData,
    /// The function panicked. The worker continues.
    Panicked,
    /// The call was cancelled before it ran, or noticed the cancellation while it ran.
    Cancelled,
    /// A parameter server did not answer in time. The closure is retried a limited number of times.
    Server,
    /// A resource among the arguments could not be created on the worker.
    Resource,
    /// The worker's program has no such function.
    UnknownFunction,
    /// The result has more bytes than can be sent.
    TooLarge,
    /// The call exceeded its time limit.
    Late,
    /// Workers that ran the call disconnected too often, so it is not retried: it may be the cause.
    WorkersLost,
}

/// The failure of a call, as data from the worker that ran it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The kind of the failure.
    pub kind: FailureKind,
    /// The message: the cause, and advice.
    pub text: String,
    /// The location of the failure.
    pub place: Option<Place>,
}

/// The location of a failed call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The function.
    pub function: FunctionId,
    /// The closure; `None` if a resource was being created.
    pub closure: Option<ClosureId>,
    /// The number of the worker.
    pub worker: usize,
}

impl Failure {
    /// Creates a failure.
    pub fn new(kind: FailureKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), place: None }
    }

    /// Adds the location, unless the failure already has one.
    pub fn at(mut self, function: &FunctionId, closure: Option<ClosureId>, worker: usize) -> Self {
        self.place.get_or_insert_with(|| Place { function: function.clone(), closure, worker });
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Place { function, closure, worker }) = &self.place {
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
    fn what_a_terminal_obeys_is_written_out_and_lines_are_kept() {
        let failure =
            Failure { kind: FailureKind::Function, text: "one\ntwo\x1b[2J\u{9b}".to_owned(), place: None };
        assert_eq!(failure.to_string(), "one\ntwo\\u{1b}[2J\\u{9b}");
    }
}
