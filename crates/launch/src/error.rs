//! The errors of planning, printing and starting a job.

use distribute_cluster::{ClusterError, Task};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The reason why a job cannot be planned, printed or started. No task is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is neither a worker nor a chief.
    #[error("--workers is 0 and there is no --chief: nobody would train; give at least one worker")]
    NoWorkers,
    /// There are more tasks than a launcher starts.
    #[error("--workers, --ps and the others come to {tasks} tasks; a launcher starts at most {most}")]
    TooManyTasks {
        /// The requested number of tasks.
        tasks: usize,
        /// The maximum number of tasks.
        most: usize,
    },
    /// An option cannot be parsed.
    #[error("{option} is {value:?}, but must be {expected}")]
    Option {
        /// The option, such as `--timeout`.
        option: &'static str,
        /// Its value.
        value: String,
        /// The expected value.
        expected: &'static str,
    },
    /// A host name is invalid.
    #[error("--hosts: {host:?}: {problem}")]
    Host {
        /// The name.
        host: String,
        /// The problem, and the fix.
        problem: &'static str,
    },
    /// A loopback address was given among several hosts, although it is a different machine on each.
    #[error(
        "--hosts: {host} means another machine on each of the hosts; give the name by which the others reach it"
    )]
    Loopback {
        /// The name.
        host: String,
    },
    /// A host has more tasks than there are ports from the first one up.
    #[error("--port-base {base}: {host} needs {ports} ports from there, beyond 65535; start lower")]
    Ports {
        /// The host.
        host: String,
        /// The first port.
        base: u16,
        /// The number of ports that the host needs.
        ports: usize,
    },
    /// The tasks do not form a valid cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// This machine has no free port, or refuses it for another reason.
    #[error("choosing a port for {task} on 127.0.0.1: {source}")]
    NoPort {
        /// The task that needs it.
        task: Task,
        /// The error of the system.
        source: io::Error,
    },
    /// The system provides no random bytes.
    #[cfg(unix)]
    #[error("choosing the secret of the job: {0}")]
    Random(distribute_net::identity::IdentityError),
    /// No command was given.
    #[error("there is no command to launch: give it behind --")]
    NoCommand,
    /// The command does not exist, or cannot be executed.
    #[error("{task}: no command {command:?}: {problem}")]
    CommandNotFound {
        /// The first task that was to run it.
        task: Task,
        /// The command.
        command: String,
        /// The searched locations, or the reason why it cannot be executed.
        problem: String,
    },
    /// The folder in which tasks are to run does not exist.
    #[error("the folder {} in which the tasks are to run is not there", .folder.display())]
    NoFolder {
        /// The folder.
        folder: PathBuf,
    },
    /// The system refused to start a task. Earlier tasks have been killed.
    #[error("starting {task}: {source}")]
    Start {
        /// The task.
        task: Task,
        /// The error of the system.
        source: io::Error,
    },
    /// The system refused a thread or a signal handler.
    #[error("{operation}: {source}")]
    System {
        /// The operation that failed.
        operation: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The job has no such task, or the task is not running.
    #[error("{task} is not running")]
    NotRunning {
        /// The task.
        task: Task,
    },
    /// The job was still running at the deadline. It continues.
    #[error("the job has not ended after {0:?}")]
    StillRunning(Duration),
    /// The job cannot be expressed for the other system.
    #[error("--print {target}: {problem}")]
    Unprintable {
        /// The other system.
        target: &'static str,
        /// The problem, and the fix.
        problem: &'static str,
    },
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
