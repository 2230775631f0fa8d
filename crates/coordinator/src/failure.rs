//! Why a call has no result.

use crate::call::{ClosureId, FunctionId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The kinds of failures: what has failed, not the words in which it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FailureKind {
    /// The function returned an error.
    Function,
    /// The function returned an error about what it was given.
    InvalidArgument,
    /// A dataset has no more elements.
    EndOfData,
    /// The function panicked. The worker goes on.
    Panicked,
    /// It was cancelled: before it ran, or while it ran and looked whether it was.
    Cancelled,
    /// A parameter server did not answer in time. The closure is run again, some times.
    Server,
    /// A resource among its arguments could not be made on the worker.
    Resource,
    /// The program of the worker has no such function.
    UnknownFunction,
    /// Its result has more bytes than can be sent.
    TooLarge,
    /// It ran for longer than it may.
    Late,
    /// Workers that ran it were lost so often that it is not tried again: it may be what ends them.
    WorkersLost,
}

/// Why a call has no result, as data: it comes from the worker that ran it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What has failed.
    pub kind: FailureKind,
    /// What was wrong, and what to do.
    pub text: String,
    /// Where.
    pub place: Option<Place>,
}

/// Where a call ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The function.
    pub function: FunctionId,
    /// The closure; none where a resource was made.
    pub closure: Option<ClosureId>,
    /// The number of the worker.
    pub worker: usize,
}

impl Failure {
    /// A failure.
    pub fn new(kind: FailureKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), place: None }
    }

    /// The same, and where it was, if that has not been said before.
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
        // It is from another process.
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
