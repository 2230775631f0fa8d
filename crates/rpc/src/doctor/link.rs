//! [`Link`]: the result of measuring the link between two tasks.

use distribute_cluster::Task;
use serde::{Deserialize, Serialize};

/// The measured link from one task to another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// The task that has called.
    pub from: Task,
    /// The task that was called.
    pub to: Task,
    /// The address of the called task.
    pub address: String,
    /// The state of the link.
    pub state: State,
}

/// The state of a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum State {
    /// The link works.
    Open {
        /// The median round trip of a small message, in seconds.
        round_trip: f64,
        /// The highest bandwidth of a few attempts in bytes per second, averaged over both directions.
        bandwidth: f64,
    },
    /// No process answers at the address.
    Closed {
        /// The reason for the latest failed attempt to connect.
        why: String,
    },
    /// One side has rejected the other.
    Refused {
        /// The cause, in one word: `secret`, `version`, `address`, …
        what: String,
        /// A description of the cause, and a remedy.
        why: String,
    },
    /// The other side is a worker that is currently training, so it does not answer calls.
    Training,
    /// The link failed during the measurement, or the task that should measure it failed.
    Broken {
        /// A description of the failure.
        why: String,
    },
}

impl State {
    /// Returns the state as one word.
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
