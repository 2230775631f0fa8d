//! What can be wrong with a job, and what the system can refuse.

use distribute_cluster::{ClusterError, Task};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a job cannot be planned, printed or started. Nothing is left running.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is neither a worker nor a chief.
    #[error("--workers is 0 and there is no --chief: nobody would train; give at least one worker")]
    NoWorkers,
    /// More tasks than one launcher starts.
    #[error("--workers, --ps and the others come to {tasks} tasks; a launcher starts at most {most}")]
    TooManyTasks {
        /// How many were asked for.
        tasks: usize,
        /// The most there may be.
        most: usize,
    },
    /// An option cannot be read.
    #[error("{option} is {value:?}, but must be {expected}")]
    Option {
        /// The option, such as `--timeout`.
        option: &'static str,
        /// Its value.
        value: String,
        /// What it has to be.
        expected: &'static str,
    },
    /// A name of a host cannot be one.
    #[error("--hosts: {host:?}: {problem}")]
    Host {
        /// The name.
        host: String,
        /// What is wrong with it, and what to do.
        problem: &'static str,
    },
    /// A loopback address among several hosts, on each of which it would be another machine.
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
        /// How many it needs.
        ports: usize,
    },
    /// The tasks make no cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// This machine has no free port, or another reason to refuse one.
    #[error("choosing a port for {task} on 127.0.0.1: {source}")]
    NoPort {
        /// The task that needs it.
        task: Task,
        /// What the system said.
        source: io::Error,
    },
    /// The system gives no random bytes.
    #[cfg(unix)]
    #[error("choosing the secret of the job: {0}")]
    Random(distribute_net::identity::IdentityError),
    /// No command was given.
    #[error("there is no command to launch: give it behind --")]
    NoCommand,
    /// The command is not there, or cannot be executed.
    #[error("{task}: no command {command:?}: {problem}")]
    CommandNotFound {
        /// The first task that was to run it.
        task: Task,
        /// The command.
        command: String,
        /// Where it was looked for, or why it cannot be executed.
        problem: String,
    },
    /// The folder in which tasks are to run is not there.
    #[error("the folder {} in which the tasks are to run is not there", .folder.display())]
    NoFolder {
        /// The folder.
        folder: PathBuf,
    },
    /// The system refused to start a task. Those before it have been killed.
    #[error("starting {task}: {source}")]
    Start {
        /// The task.
        task: Task,
        /// What the system said.
        source: io::Error,
    },
    /// The system refused a thread or a signal handler.
    #[error("{operation}: {source}")]
    System {
        /// What was being done.
        operation: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The job has no such task, or it is not running.
    #[error("{task} is not running")]
    NotRunning {
        /// The task.
        task: Task,
    },
    /// The job was still running at the deadline. It goes on.
    #[error("the job has not ended after {0:?}")]
    StillRunning(Duration),
    /// What was asked for cannot be said in the other system's words.
    #[error("--print {target}: {problem}")]
    Unprintable {
        /// The other system.
        target: &'static str,
        /// What it has not, and what to do.
        problem: &'static str,
    },
}

/// What the functions of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;
