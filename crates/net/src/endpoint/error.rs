//! Why there is no connection.

use crate::handshake::Refusal;
use crate::identity::PolicyError;
use distribute_cluster::Task;
use std::io;
use std::time::Duration;

/// Why a task can't take calls.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// It can't listen at its address.
    #[error("{task} cannot listen at {address}: {source}{advice}")]
    Bind {
        /// The task.
        task: Task,
        /// The address.
        address: String,
        /// Why.
        source: io::Error,
        /// What to do.
        advice: &'static str,
    },
    /// Connections would be unprotected.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The name of the job or of the task's job is too long to be sent.
    #[error("{name:?} is a longer name than can be sent: 255 bytes are the most")]
    Name {
        /// The name.
        name: String,
    },
    /// The system refuses a socket.
    #[error("the port for calls cannot be opened: {0}")]
    System(#[from] io::Error),
}

/// Why a task could not be connected to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// It does not let this one in, or this one doesn't trust it.
    #[error("{task} at {address} takes no calls of this task: {refusal}")]
    Refused {
        /// The task that was to be called.
        task: Task,
        /// Its address.
        address: String,
        /// Why.
        refusal: Refusal,
    },
    /// It was not there before the deadline.
    #[error(
        "{task} at {address} could not be reached in {:.1} s ({}); see whether it runs, whether this is its address, and \
         whether a firewall is between",
        waited.as_secs_f64(),
        last.as_deref().unwrap_or("no answer")
    )]
    Unreachable {
        /// The task that was to be called.
        task: Task,
        /// Its address.
        address: String,
        /// How long this one has tried.
        waited: Duration,
        /// What came of the last attempt.
        last: Option<String>,
    },
    /// The connection would be unprotected.
    #[error("{task} cannot be called: {error}")]
    Policy {
        /// The task that was to be called.
        task: Task,
        /// Why.
        error: PolicyError,
    },
    /// The name of the job or of a task's job is too long to be sent.
    #[error("{name:?} is a longer name than can be sent: 255 bytes are the most")]
    Name {
        /// The name.
        name: String,
    },
    /// The system refuses a socket or a thread.
    #[error("{task} at {address} cannot be connected to: {source}")]
    System {
        /// The task that was to be called.
        task: Task,
        /// Its address.
        address: String,
        /// Why.
        source: io::Error,
    },
}
