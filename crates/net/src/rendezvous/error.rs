//! Errors of a rendezvous.

use super::Missing;
use super::election::Electorate;
use crate::handshake::Refusal;
use crate::identity::{AccessError, IdentityError, PolicyError};
use distribute_cluster::{Task, WorldError};
use std::io;
use std::time::Duration;

/// The hint at addresses that are not reachable from other machines.
const LOOPBACK: &str = " (loopback addresses only reach this machine)";

/// The hint at the others for a process that was in a world and does not reach them.
const CONTINUED: &str = ": the others may have continued without it, and it joins as a spare if it is restarted when it \
                         reaches them";

/// An error that prevents a worker from joining its world.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The number or the form of the addresses is wrong. Each worker needs one address, in the form `host:port`.
    #[error("the addresses of the workers are wrong: {0}")]
    Addresses(String),
    /// The numbers of workers and replicas do not describe a valid world.
    #[error(transparent)]
    World(#[from] WorldError),
    /// Links would be unprotected, or some addresses cannot be reached by all workers.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The secret or the certificates cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// This worker cannot listen at its address.
    #[error("{task} cannot listen at {address}: {source}{}", advice(source))]
    Bind {
        /// The rank of this worker.
        worker: usize,
        /// The task of this worker.
        task: Task,
        /// The address at which this worker cannot listen.
        address: String,
        /// The reason why this worker cannot listen.
        source: io::Error,
    },
    /// A worker rejects this one, or this one does not trust it.
    #[error("{task} at {address} cannot be joined: {refusal}")]
    Refused {
        /// The rank of the worker that was connected to.
        worker: usize,
        /// The task of the worker.
        task: Task,
        /// The address of the worker.
        address: String,
        /// The reason for the rejection.
        refusal: Refusal,
    },
    /// Another worker of the job was rejected, because it disagrees on data that must be the same on all workers. A
    /// world cannot be formed without it.
    #[error(
        "the group cannot be formed, because {task} was refused, which connected from {address}: {refusal}"
    )]
    OtherRefused {
        /// The rank of the worker that was rejected.
        worker: usize,
        /// The task of the rejected worker.
        task: Task,
        /// The address from which the worker has connected.
        address: String,
        /// The reason for the rejection.
        refusal: Refusal,
    },
    /// A worker was disconnected before all had connected to each other.
    #[error("{task} at {address} was lost while the workers connected to each other: {reason}")]
    Lost {
        /// The rank of the worker that was disconnected.
        worker: usize,
        /// The task of the disconnected worker.
        task: Task,
        /// The address of the disconnected worker.
        address: String,
        /// The reason for the disconnect.
        reason: String,
    },
    /// The leader belongs to the job, but has sent a message that no leader of this version sends. A retry would fail
    /// in the same way.
    #[error(
        "{task} at {address} leads this world, and has sent {problem}: start all workers with the same program"
    )]
    Leader {
        /// The task of the leader.
        task: Task,
        /// The address of the leader.
        address: String,
        /// A description of the message.
        problem: String,
    },
    /// The deadline passed before all workers had connected.
    #[error(
        "the world is not complete after {} s: {} of {workers} workers are missing: {}; check that they \
         run, that these are their addresses, and that no firewall blocks the connection{}{}",
        waited.as_secs_f32().ceil(),
        missing.len(),
        super::progress::list(missing),
        if *loopback { LOOPBACK } else { "" },
        super::progress::also_refused(refused),
    )]
    Deadline {
        /// The time that this worker has waited.
        waited: Duration,
        /// The number of workers in the world.
        workers: usize,
        /// The workers that have not connected.
        missing: Vec<Missing>,
        /// Whether the addresses of all workers are loopback addresses, which are not reachable from other machines.
        loopback: bool,
        /// The connections that were rejected, each with its address and the reason. A missing worker may be among
        /// them.
        refused: Vec<String>,
    },
    /// Too few tasks have connected before the deadline to be sure that the others have no world of their own.
    #[error(
        "minority: this process sees {seen} of {tasks} tasks after {} s, and needs {needed}{}; missing: {}; check that \
         they run, that these are their addresses, and that no firewall blocks the connection{}{}",
        waited.as_secs_f32().ceil(),
        if *had_world { CONTINUED } else { "" },
        super::progress::list(missing),
        if *loopback { LOOPBACK } else { "" },
        super::progress::also_refused(refused),
    )]
    Minority {
        /// The time that this process has waited.
        waited: Duration,
        /// The number of tasks that have connected to each other, including this one.
        seen: usize,
        /// The number of tasks of the cluster, including spares.
        tasks: usize,
        /// The minimum number of tasks that form a world.
        needed: usize,
        /// Whether this process was a member or a spare of a world, which the others may have continued.
        had_world: bool,
        /// The tasks that have not connected.
        missing: Vec<Missing>,
        /// Whether the addresses of all tasks are loopback addresses, which are not reachable from other machines.
        loopback: bool,
        /// The connections that were rejected, each with its address and the reason.
        refused: Vec<String>,
    },
    /// A world is complete without this process, which is now its spare. Only a rendezvous that [returns
    /// spares](super::Rendezvous::returns_spare) fails with this error.
    #[error("the world of generation {generation} is complete, and this process is its spare")]
    Spare {
        /// The generation of the world.
        generation: u64,
    },
    /// A socket cannot be opened, or a thread cannot be started.
    #[error("failed to connect to the other workers: {0}")]
    System(#[from] io::Error),
}

impl JoinError {
    /// Returns the error at the deadline of a process that takes part in an election. `had_world` is `true` if it was a
    /// member or a spare of a world.
    pub(super) fn of_minority(self, electorate: Electorate, had_world: bool) -> Self {
        match self {
            JoinError::Deadline { waited, workers, missing, loopback, refused }
                if workers - missing.len().min(workers) < electorate.needed() =>
            {
                let (seen, needed) = (workers - missing.len().min(workers), electorate.needed());
                let tasks = workers;
                JoinError::Minority { waited, seen, tasks, needed, had_world, missing, loopback, refused }
            }
            other => other,
        }
    }
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
            " (another program listens there, or an earlier run still does: stop it, or choose another \
             port)"
        }
        io::ErrorKind::AddrNotAvailable => {
            " (it is not an address of this machine: is this the right worker? Otherwise listen at 0.0.0.0)"
        }
        io::ErrorKind::PermissionDenied => " (ports below 1024 are reserved for the system)",
        _ => "",
    }
}
