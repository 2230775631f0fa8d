//! Errors of planning, printing and starting a job.

use distribute_cluster::{ClusterError, Task};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// An error in planning, printing, starting or controlling a job. If a job cannot be started, no task is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The layout has neither a worker nor a chief.
    #[error("--workers is 0 and there is no --chief, so that no task trains; start at least one worker")]
    NoWorkers,
    /// The layout has more tasks than one launcher can start.
    #[error("--workers, --ps and the others are {tasks} tasks in total; a launcher starts at most {max}")]
    TooManyTasks {
        /// The requested number of tasks.
        tasks: usize,
        /// The maximum number of tasks.
        max: usize,
    },
    /// The value of an option is invalid.
    #[error("{option} is {value:?}, but must be {expected}")]
    Option {
        /// The option, such as `--timeout`.
        option: &'static str,
        /// The value that was given.
        value: String,
        /// A description of the expected value.
        expected: &'static str,
    },
    /// A host name is invalid, or a host is listed twice.
    #[error("--hosts: {host:?}: {problem}")]
    Host {
        /// The host name.
        host: String,
        /// The problem with the host, and a remedy.
        problem: &'static str,
    },
    /// A loopback address was given in a list of several hosts. On each host, it means that host itself.
    #[error(
        "--hosts: {host} means another machine on each of the hosts; give the name by which the others reach it"
    )]
    Loopback {
        /// The loopback address or name.
        host: String,
    },
    /// A host needs more ports than there are from the first port up to 65535.
    #[error("--port-base {base}: {host} needs {ports} ports from there, beyond 65535; start lower")]
    Ports {
        /// The host that needs the ports.
        host: String,
        /// The first port.
        base: u16,
        /// The number of ports that the host needs.
        ports: usize,
    },
    /// The tasks and their addresses do not form a valid cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A port of this machine cannot be reserved, for example because none is free.
    #[error("choosing a port for {task} on 127.0.0.1: {source}")]
    NoPort {
        /// The task that needs the port.
        task: Task,
        /// The error from the operating system.
        source: io::Error,
    },
    /// The secret of the job could not be created: the system provided no random bytes, or the given secret is invalid.
    #[cfg(unix)]
    #[error("choosing the secret of the job: {0}")]
    Random(distribute_net::identity::IdentityError),
    /// No command was given.
    #[error("there is no command to launch: append it after --")]
    NoCommand,
    /// The command does not exist, or cannot be executed.
    #[error("{task}: no command {command:?}: {problem}")]
    CommandNotFound {
        /// The first task of those that run the command.
        task: Task,
        /// The command, as it was given.
        command: String,
        /// The locations that were searched, or the reason why the file cannot be executed.
        problem: String,
    },
    /// The folder for the tasks does not exist.
    #[error("the folder {} in which the tasks are to run does not exist", .folder.display())]
    NoFolder {
        /// The path of the missing folder.
        folder: PathBuf,
    },
    /// A task could not be started. Tasks that were started before it have been killed.
    #[error("starting {task}: {source}")]
    Start {
        /// The task that could not be started.
        task: Task,
        /// The error from the operating system.
        source: io::Error,
    },
    /// Another operation of the launcher has failed, such as starting a thread or handling signals.
    #[error("{operation}: {source}")]
    System {
        /// The operation that failed.
        operation: &'static str,
        /// The error from the operating system.
        source: io::Error,
    },
    /// The job has no such task, or the task is not running.
    #[error("{task} is not running")]
    NotRunning {
        /// The requested task.
        task: Task,
    },
    /// The job was still running when the deadline passed. It continues to run.
    #[error("the job is still running after {0:?}")]
    StillRunning(Duration),
    /// The job cannot be printed for this system, because the system does not support it.
    #[error("--print {target}: {problem}")]
    Unprintable {
        /// The name of the system, as in the option `--print`.
        target: &'static str,
        /// The unsupported setting, and a remedy.
        problem: &'static str,
    },
}

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
