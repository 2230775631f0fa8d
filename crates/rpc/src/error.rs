//! Errors of servers and of calls.

use crate::fault::Fault;
use distribute_cluster::{ClusterError, Job, Task};
use distribute_net::{AccessError, ConnectError, ListenError};
use std::io;
use std::time::Duration;

/// An error that prevents a server from running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The cluster is malformed or has no such task.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The cluster does not have exactly one job, and none was selected.
    #[error("the cluster has {}: say by job_name which of its jobs this server is part of", jobs(all))]
    WhichJob {
        /// The jobs.
        all: Vec<Job>,
    },
    /// The job does not have exactly one task, and none was selected.
    #[error("the job {:?} has {tasks} tasks: say by task_index which of them this server is", job.as_str())]
    WhichTask {
        /// The job.
        job: Job,
        /// The number of its tasks.
        tasks: usize,
    },
    /// The resolver identifies this process as a task that does not serve others.
    #[error("this process is {}, and servers are started by workers and parameter servers alone", who(task))]
    NotServing {
        /// The task of this process, if known.
        task: Option<Task>,
    },
    /// Connections would be unprotected, or the secret or certificates cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The server cannot listen at its address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The name of a service is taken, empty or too long.
    #[error("{task} cannot have a service {name:?}: {why}")]
    Service {
        /// The server's task.
        task: Task,
        /// The name.
        name: String,
        /// The problem with the name.
        why: &'static str,
    },
    /// The server failed.
    #[error("the server of {task} at {address} has ended: {reason}; start it again")]
    Broken {
        /// The server's task.
        task: Task,
        /// The address that it listened at.
        address: String,
        /// The reason.
        reason: String,
    },
    /// The system cannot start a thread.
    #[error("the server of {task} cannot start a thread: {source}")]
    Thread {
        /// The server's task.
        task: Task,
        /// The cause.
        source: io::Error,
    },
}

/// An error that prevents an answer to a call. The variants from [`TooLong`](Self::TooLong) on name the
/// service, the task and its address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The cluster has no such task.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Connections would be unprotected, or the secret or certificates cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// No connection to the task could be made.
    #[error(transparent)]
    Connect(#[from] Box<ConnectError>),
    /// The call is longer than can be sent.
    #[error(
        "{service} of {task} at {address} cannot be called with {what} of {length} bytes, {limit} are the most: data goes into \
         the body"
    )]
    TooLong {
        /// The service.
        service: String,
        /// The task.
        task: Task,
        /// Its address.
        address: String,
        /// The part that is too long.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
        /// The maximum length in bytes.
        limit: usize,
    },
    /// There was no room for the call, because other calls wait for answers. It was not sent.
    #[error(
        "{service} of {task} at {address} was not called: {window} calls of this connection wait for answers, and none came in \
         {:.1} s; see what that task is doing",
        waited.as_secs_f64()
    )]
    Room {
        /// The service.
        service: String,
        /// The task.
        task: Task,
        /// Its address.
        address: String,
        /// The maximum number of calls without an answer.
        window: usize,
        /// The time that this call has waited.
        waited: Duration,
    },
    /// There was no answer in time. The call may still be executed.
    #[error(
        "{service} of {task} at {address} has not answered in {:.1} s, and may still carry out the call; see what that task is \
         doing, or wait longer",
        waited.as_secs_f64()
    )]
    Late {
        /// The service.
        service: String,
        /// The task.
        task: Task,
        /// Its address.
        address: String,
        /// The time that this call has waited.
        waited: Duration,
    },
    /// The connection failed. The call may or may not have been executed.
    #[error(
        "the connection to {task} at {address} was lost while {service} was called: {reason}; see that task's log. Whether the \
         call was carried out is not known"
    )]
    Lost {
        /// The service.
        service: String,
        /// The task.
        task: Task,
        /// Its address.
        address: String,
        /// The reason.
        reason: String,
    },
    /// The service has answered with an error.
    #[error("{service} of {task} at {address} failed: {fault}")]
    Failed {
        /// The service.
        service: String,
        /// The task.
        task: Task,
        /// Its address.
        address: String,
        /// The error.
        fault: Fault,
    },
}

impl From<ConnectError> for CallError {
    fn from(error: ConnectError) -> Self {
        CallError::Connect(Box::new(error))
    }
}

fn jobs(all: &[Job]) -> String {
    let names: Vec<_> = all.iter().map(Job::as_str).collect();
    if names.is_empty() { "no job".to_owned() } else { format!("the jobs {}", names.join(", ")) }
}

fn who(task: &Option<Task>) -> String {
    task.as_ref().map_or("no task of a cluster".to_owned(), Task::to_string)
}
