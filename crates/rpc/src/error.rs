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
    /// The cluster is malformed, or does not contain the task.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// No job was selected, and the cluster does not have exactly one.
    #[error("the cluster has {}: set the job of this server by job_name", jobs(all))]
    AmbiguousJob {
        /// The jobs of the cluster.
        all: Vec<Job>,
    },
    /// No task was selected, and the job does not have exactly one.
    #[error("the job {:?} has {tasks} tasks: set the task of this server by task_index", job.as_str())]
    AmbiguousTask {
        /// The job.
        job: Job,
        /// The number of tasks of the job.
        tasks: usize,
    },
    /// The resolver identifies this process neither as a worker nor as a parameter server.
    #[error("this process is {}, but only workers and parameter servers start servers", describe_task(task))]
    NotServing {
        /// The task of this process; `None` if it is not part of a cluster.
        task: Option<Task>,
    },
    /// Connections would be unprotected, or the secret or certificates cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The server cannot accept calls, for example because its address is in use.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The name of a service is already used, empty or too long.
    #[error("{task} cannot have a service {name:?}: {why}")]
    Service {
        /// The server's task.
        task: Task,
        /// The name of the service.
        name: String,
        /// A description of the problem.
        why: &'static str,
    },
    /// The server failed.
    #[error("the server of {task} at {address} has ended: {reason}; start it again")]
    Broken {
        /// The server's task.
        task: Task,
        /// The address at which it listened.
        address: String,
        /// The reason for the failure.
        reason: String,
    },
    /// The system cannot start a thread.
    #[error("the server of {task} cannot start a thread: {source}")]
    Thread {
        /// The server's task.
        task: Task,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// The reason why a call has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The task is not in the cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// Connections would be unprotected, or the secret or certificates cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A connection to the task could not be established.
    #[error(transparent)]
    Connect(#[from] Box<ConnectError>),
    /// The call is too long to be sent.
    #[error(
        "{service} of {task} at {address} cannot be called with {what} of {length} bytes, but the maximum \
         is {limit}: put data into the body"
    )]
    TooLong {
        /// The name of the service.
        service: String,
        /// The task of the server.
        task: Task,
        /// The address of the task.
        address: String,
        /// The name of the part that is too long.
        what: &'static str,
        /// The length of this part in bytes.
        length: usize,
        /// The maximum length of this part in bytes.
        limit: usize,
    },
    /// The call was not sent, because too many other calls wait for answers.
    #[error(
        "{service} of {task} at {address} was not called: {window} calls of this connection wait for \
         answers, and none came in {:.1} s; check what that task is doing",
        waited.as_secs_f64()
    )]
    WindowFull {
        /// The name of the service.
        service: String,
        /// The task of the server.
        task: Task,
        /// The address of the task.
        address: String,
        /// The maximum number of unanswered calls of the connection.
        window: usize,
        /// The time for which this call has waited.
        waited: Duration,
    },
    /// There was no answer in time. The call may still be executed.
    #[error(
        "{service} of {task} at {address} has not answered in {:.1} s, and may still execute the call; \
         check what that task is doing, or wait longer",
        waited.as_secs_f64()
    )]
    TimedOut {
        /// The name of the service.
        service: String,
        /// The task of the server.
        task: Task,
        /// The address of the task.
        address: String,
        /// The time for which this call has waited.
        waited: Duration,
    },
    /// The connection failed. The call may or may not have been executed.
    #[error(
        "the connection to {task} at {address} was lost while {service} was called: {reason}; see that \
         task's log. It is unknown whether the call was executed"
    )]
    Lost {
        /// The name of the service.
        service: String,
        /// The task of the server.
        task: Task,
        /// The address of the task.
        address: String,
        /// The reason why the connection failed.
        reason: String,
    },
    /// The service has answered with an error.
    #[error("{service} of {task} at {address} failed: {fault}")]
    Failed {
        /// The name of the service.
        service: String,
        /// The task of the server.
        task: Task,
        /// The address of the task.
        address: String,
        /// The error of the service.
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

fn describe_task(task: &Option<Task>) -> String {
    task.as_ref().map_or("no task of a cluster".to_owned(), Task::to_string)
}
