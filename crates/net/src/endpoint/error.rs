//! Errors of listening and connecting.

use crate::handshake::Refusal;
use crate::identity::PolicyError;
use distribute_cluster::Task;
use std::io;
use std::time::Duration;

/// An error that prevents a task from taking calls.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The task cannot listen at its address.
    #[error("{task} cannot listen at {address}: {source}{advice}")]
    Bind {
        /// The task.
        task: Task,
        /// The address.
        address: String,
        /// The cause.
        source: io::Error,
        /// Advice for the user.
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

/// An error that prevents a connection to a task.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// One side refuses the other.
    #[error("{task} at {address} takes no calls of this task: {refusal}")]
    Refused {
        /// The task to call.
        task: Task,
        /// Its address.
        address: String,
        /// The reason.
        refusal: Refusal,
    },
    /// The task could not be reached before the deadline.
    #[error(
        "{task} at {address} could not be reached in {:.1} s ({}); see whether it runs, whether this is its address, and \
         whether a firewall is between",
        waited.as_secs_f64(),
        last.as_deref().unwrap_or("no answer")
    )]
    Unreachable {
        /// The task to call.
        task: Task,
        /// Its address.
        address: String,
        /// The time spent on attempts.
        waited: Duration,
        /// The result of the last attempt.
        last: Option<String>,
    },
    /// The connection would be unprotected.
    #[error("{task} cannot be called: {error}")]
    Policy {
        /// The task to call.
        task: Task,
        /// The cause.
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
        /// The task to call.
        task: Task,
        /// Its address.
        address: String,
        /// The cause.
        source: io::Error,
    },
}
