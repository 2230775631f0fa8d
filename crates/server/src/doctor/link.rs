//! What is known of the link between two tasks.

use distribute_cluster::Task;
use serde::{Deserialize, Serialize};

/// The link from one task to another, as far as it could be measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// The task that has called.
    pub from: Task,
    /// The task that was called.
    pub to: Task,
    /// Its address.
    pub address: String,
    /// How the link is.
    pub state: State,
}

/// How a link is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum State {
    /// It works.
    Open {
        /// Seconds for a small message there and back: the median.
        round_trip: f64,
        /// Bytes in a second, one way: the best of a few.
        bandwidth: f64,
    },
    /// Nobody answers.
    Closed {
        /// What came of the last attempt.
        why: String,
    },
    /// The other side does not let this one in, or this one does not trust it.
    Refused {
        /// What is wrong, in a word: `secret`, `version`, `address`, …
        what: String,
        /// The same in full, and what to do.
        why: String,
    },
    /// The other side is a worker of a world that trains: it is there, but answers no calls.
    Training,
    /// It broke while it was measured, or the task that was to measure it could not.
    Broken {
        /// How.
        why: String,
    },
}

impl State {
    /// The state in a word.
    pub fn word(&self) -> &str {
        match self {
            State::Open { .. } => "open",
            State::Closed { .. } => "closed",
            State::Refused { .. } => "refused",
            State::Training => "training",
            State::Broken { .. } => "broken",
        }
    }
}
