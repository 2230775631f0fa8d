//! A launcher, which starts the tasks of a job on this machine or on others, and ends them together. It implements
//! `distribute launch`, and does not depend on what a task computes.
//!
//! | module | contents |
//! |---|---|
//! | [`layout`] | [`Layout`]: the tasks of a job, and their hosts |
//! | [`plan`] | [`Plan`]: the address and the `TF_CONFIG` of each task, and the secret that all tasks share |
//! | [`launch`] | [`Launch`]: configures and starts a job |
//! | [`running`] | [`Running`]: the job while its tasks run |
//! | [`output`] | [`Output`]: the output of tasks and launcher |
//! | [`outcome`] | [`Outcome`]: why the job has ended, and which task failed first |
//! | [`print`](mod@print) | the job as a script for Slurm, an `mpirun` command or a manifest for Kubernetes |
//! | `supervisor` | the decisions after a task has exited: restarts, stops, kills, the end of the job |
//! | `starter`, `guard`, `command`, `host`, `cores` | the start of a task, by a script that also ends it with the launcher |
//! | `process`, `processes`, `event`, `interrupts` | running tasks, their events, and signals to the launcher |
//! | `printer`, `final_report`, `lines`, `terminal` | the output of tasks, on its way to the reader, and its end |
//! | `duration`, `signal`, `error` | durations in command-line options; signals by name; [`Error`] |
//!
//! A task is a process group. When its first process exits, the rest of the group is killed. When a task fails and the
//! job cannot continue, all others are asked to exit, and are killed if they do not. The tasks are also killed when any
//! signal kills the launcher itself and, over ssh, when the connection ends. A program that moves into a new session (a
//! daemon) leaves its task, and is not killed.
//!
//! Tasks can only be planned and started on Unix. Jobs can be printed on every system.

#![forbid(unsafe_code)]

mod duration;
mod error;
mod host;
pub mod layout;
pub mod print;

#[cfg(unix)]
mod command;
#[cfg(unix)]
mod cores;
#[cfg(unix)]
mod event;
#[cfg(unix)]
mod final_report;
#[cfg(unix)]
mod guard;
#[cfg(unix)]
mod interrupts;
#[cfg(unix)]
pub mod launch;
#[cfg(unix)]
mod lines;
#[cfg(unix)]
pub mod outcome;
#[cfg(unix)]
pub mod output;
#[cfg(unix)]
pub mod plan;
#[cfg(unix)]
mod printer;
#[cfg(unix)]
mod process;
#[cfg(unix)]
mod processes;
#[cfg(unix)]
pub mod running;
#[cfg(unix)]
mod signal;
#[cfg(unix)]
mod starter;
#[cfg(unix)]
mod supervisor;
#[cfg(unix)]
mod terminal;

pub use distribute_cluster::{Deadline, Job, Task};
#[cfg(unix)]
pub use distribute_net::Secret;
pub use duration::parse_duration;
pub use error::{Error, Result};
#[cfg(unix)]
pub use guard::split_words;
pub use host::{RemoteHost, parse_hosts};
#[cfg(unix)]
pub use launch::{Launch, SSH};
pub use layout::Layout;
#[cfg(unix)]
pub use outcome::{Cause, End, Outcome, TaskOutcome};
#[cfg(unix)]
pub use output::{Notice, Output, Stream};
#[cfg(unix)]
pub use plan::{Plan, PlannedTask};
#[cfg(unix)]
pub use running::Running;
#[cfg(unix)]
pub use signal::Signal;
