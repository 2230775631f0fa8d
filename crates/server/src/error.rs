//! Why there is no server, and why a call has no answer.

use crate::fault::Fault;
use distribute_cluster::{ClusterError, Job, Task};
use distribute_net::{AccessError, ConnectError, ListenError};
use std::io;
use std::time::Duration;

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The cluster is malformed or has no such task.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The cluster has several jobs, or none, and it wasn't said which the server is part of.
    #[error("the cluster has {}: say by job_name which of its jobs this server is part of", jobs(all))]
    WhichJob {
        /// The jobs.
        all: Vec<Job>,
    },
    /// The job has several tasks, or none, and it wasn't said which the server is.
    #[error("the job {:?} has {tasks} tasks: say by task_index which of them this server is", job.as_str())]
    WhichTask {
        /// The job.
        job: Job,
        /// The number of its tasks.
        tasks: usize,
    },
    /// The resolver says that this process is no task that serves others.
    #[error("this process is {}, and servers are started by workers and parameter servers alone", who(task))]
    NotServing {
        /// What it is, if that is known.
        task: Option<Task>,
    },
    /// Connections would be unprotected, or the secret or certificates can't be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// It can't listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The name of a service is taken, empty or too long.
    #[error("{task} cannot have a service {name:?}: {why}")]
    Service {
        /// The server's task.
        task: Task,
        /// The name.
        name: String,
        /// Why not.
        why: &'static str,
    },
    /// The server could not go on.
    #[error("the server of {task} at {address} has ended: {reason}; start it again")]
    Broken {
        /// The server's task.
        task: Task,
        /// Where it listened.
        address: String,
        /// Why.
        reason: String,
    },
    /// The system has no thread to spare.
    #[error("the server of {task} cannot start a thread: {source}")]
    Thread {
        /// The server's task.
        task: Task,
        /// Why.
        source: io::Error,
    },
}

/// Why a call has no answer. The kinds from [`Room`](Self::Room) on name the service, the task and its address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The cluster has no such task.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Connections would be unprotected, or the secret or certificates can't be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The task could not be connected to.
    #[error(transparent)]
    Connect(#[from] Box<ConnectError>),
    /// The call is larger than can be sent.
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
        /// What is too long.
        what: &'static str,
        /// How long it is.
        length: usize,
        /// The most.
        limit: usize,
    },
    /// So many calls wait for answers that there was no room for this one. It was not sent.
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
        /// How many calls may wait at once.
        window: usize,
        /// How long this one has waited.
        waited: Duration,
    },
    /// The answer has not come in time. The call may still be carried out.
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
        /// How long this one has waited.
        waited: Duration,
    },
    /// The connection was lost. The call may have been carried out, or not.
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
        /// How.
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
