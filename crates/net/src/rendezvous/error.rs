//! Errors of a rendezvous.

use super::Missing;
use crate::handshake::Refusal;
use crate::identity::{AccessError, IdentityError, PolicyError};
use distribute_cluster::{Task, WorldError};
use std::io;
use std::time::Duration;

/// An error that prevents a worker from joining its world.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The number or the form of the addresses is wrong: each worker needs one, `host:port`.
    #[error("the addresses of the workers are wrong: {0}")]
    Addresses(String),
    /// The numbers do not make a valid world.
    #[error(transparent)]
    World(#[from] WorldError),
    /// Links would be unprotected, or unreachable.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The secret or the certificates cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// This worker cannot listen at its address.
    #[error("{task} cannot listen at {address}: {source}{}", advice(source))]
    Bind {
        /// This worker.
        worker: usize,
        /// Its task.
        task: Task,
        /// The address.
        address: String,
        /// The reason.
        source: io::Error,
    },
    /// A worker refuses this one, or this one does not trust it.
    #[error("{task} at {address} cannot be joined: {refusal}")]
    Refused {
        /// The worker that was connected to.
        worker: usize,
        /// Its task.
        task: Task,
        /// Its address.
        address: String,
        /// The reason.
        refusal: Refusal,
    },
    /// Another worker of the job was refused, because it disagrees on what all must have in common. The world
    /// cannot be made without it.
    #[error(
        "the world cannot be made, because {task} was refused, which connected from {address}: {refusal}"
    )]
    OtherRefused {
        /// The worker that was refused.
        worker: usize,
        /// Its task.
        task: Task,
        /// The address that it connected from.
        address: String,
        /// The reason.
        refusal: Refusal,
    },
    /// A worker was disconnected before all had connected to each other.
    #[error("{task} at {address} was lost while the workers connected to each other: {reason}")]
    Lost {
        /// The worker.
        worker: usize,
        /// Its task.
        task: Task,
        /// Its address.
        address: String,
        /// The reason.
        reason: String,
    },
    /// The deadline passed before all workers had connected.
    #[error(
        "the world is not complete after {} s: {} of {workers} workers are missing: {}; see whether they run, whether \
         these are their addresses, and whether a firewall is between{}{}",
        waited.as_secs_f32().ceil(),
        missing.len(),
        super::progress::list(missing),
        if *loopback { " (loopback addresses reach this machine alone)" } else { "" },
        super::progress::also_refused(refused),
    )]
    Deadline {
        /// The time that this worker has waited.
        waited: Duration,
        /// The number of workers.
        workers: usize,
        /// The missing workers.
        missing: Vec<Missing>,
        /// Whether all addresses are loopback.
        loopback: bool,
        /// The connections that were refused, each with its address and the reason. One may be that of a
        /// missing worker.
        refused: Vec<String>,
    },
    /// The system refuses a socket or a thread.
    #[error("the links to the other workers cannot be made: {0}")]
    System(#[from] io::Error),
}

impl From<AccessError> for JoinError {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::Policy(error) => error.into(),
            AccessError::Identity(error) => error.into(),
        }
    }
}

pub(crate) fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            " (another program listens there, or an earlier run still does: end it, or take another port)"
        }
        io::ErrorKind::AddrNotAvailable => {
            " (it is no address of this machine: is this the right worker? Else listen at 0.0.0.0)"
        }
        io::ErrorKind::PermissionDenied => " (ports below 1024 are the system's)",
        _ => "",
    }
}
