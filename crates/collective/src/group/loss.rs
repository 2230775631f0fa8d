//! [`Loss`]: the reason why a worker is lost to another one.

use distribute_cluster::Corruption;
use distribute_net::{ENDED, LEFT};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The reason why a worker is lost to another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Loss {
    /// The link is broken, or the worker has sent something that no correct worker sends. The text describes the
    /// problem.
    Link(String),
    /// Data of the worker has arrived changed.
    Corrupted(Corruption),
}

impl Loss {
    /// Returns whether the worker has exited or left without a fault of its own, perhaps because another worker was
    /// lost.
    pub fn is_graceful(&self) -> bool {
        matches!(self, Self::Link(reason) if reason == ENDED || reason == LEFT)
    }

    /// Sets the worker that received the data, if the loss is a corruption.
    pub(super) fn received_by(mut self, worker: usize) -> Self {
        if let Self::Corrupted(corruption) = &mut self {
            corruption.receiver = worker;
        }
        self
    }
}

impl From<String> for Loss {
    fn from(reason: String) -> Self {
        Self::Link(reason)
    }
}

impl From<&str> for Loss {
    fn from(reason: &str) -> Self {
        Self::Link(reason.to_owned())
    }
}

impl From<Corruption> for Loss {
    fn from(corruption: Corruption) -> Self {
        Self::Corrupted(corruption)
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link(reason) => f.write_str(reason),
            Self::Corrupted(corruption) => write!(f, "{corruption}"),
        }
    }
}
