//! Errors of listening and connecting.

use crate::handshake::Refusal;
use crate::identity::PolicyError;
use distribute_cluster::Task;
use std::io;
use std::time::Duration;

/// An error that prevents a task from accepting calls.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The task cannot listen at its address.
    #[error("{task} cannot listen at {address}: {source}{advice}")]
    Bind {
        /// The task that cannot listen.
        task: Task,
        /// The address at which the task cannot listen.
        address: String,
        /// The reason why the task cannot listen.
        source: io::Error,
        /// A remedy for the user, as a suffix of the message; empty if none is known.
        advice: &'static str,
    },
    /// Connections would be unprotected.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The name of the job or of the task's job is too long to be sent.
    #[error("{name:?} is too long a name: the maximum is 255 bytes")]
    Name {
        /// The name that is too long.
        name: String,
    },
    /// A socket cannot be opened.
    #[error("the port for calls cannot be opened: {0}")]
    System(#[from] io::Error),
}

/// An error that prevents a connection to a task.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// One side rejects the other.
    #[error("{task} at {address} refuses calls of this task: {refusal}")]
    Refused {
        /// The task to call.
        task: Task,
        /// The address of the task.
        address: String,
        /// The reason for the rejection.
        refusal: Refusal,
    },
    /// The task could not be reached before the deadline.
    #[error(
        "{task} at {address} could not be reached in {:.1} s ({}); check that it runs, that this is its \
         address, and that no firewall blocks the connection",
        waited.as_secs_f64(),
        last.as_deref().unwrap_or("no answer")
    )]
    Unreachable {
        /// The task to call.
        task: Task,
        /// The address of the task.
        address: String,
        /// The time since the first attempt.
        waited: Duration,
        /// The reason for the latest failed attempt, or a note that the host name is still being looked up; `None` if
        /// there is neither.
        last: Option<String>,
    },
    /// The connection would be unprotected.
    #[error("{task} cannot be called: {error}")]
    Policy {
        /// The task to call.
        task: Task,
        /// The reason why the connection would be unprotected.
        error: PolicyError,
    },
    /// The name of the job or of a task's job is too long to be sent.
    #[error("{name:?} is too long a name: the maximum is 255 bytes")]
    Name {
        /// The name that is too long.
        name: String,
    },
    /// A socket cannot be opened, or a thread cannot be started.
    #[error("failed to connect to {task} at {address}: {source}")]
    System {
        /// The task to call.
        task: Task,
        /// The address of the task.
        address: String,
        /// The error of the operating system.
        source: io::Error,
    },
}
