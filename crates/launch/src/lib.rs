//! Starts the tasks of a job on this machine or on others, and ends them together: what `distribute launch` does.
//!
//! | module | what it is |
//! |---|---|
//! | [`layout`] | [`Layout`]: which tasks a job has, and on which hosts |
//! | [`plan`] | [`Plan`]: the address and the `TF_CONFIG` of each, and the secret of all |
//! | [`launch`] | [`Launch`]: starts them |
//! | [`running`] | [`Running`]: the job while its tasks run |
//! | [`output`] | [`Output`]: what tasks and launcher say |
//! | [`outcome`] | [`Outcome`]: how it has ended, who failed first |
//! | [`print`](mod@print) | the same job as a script of Slurm, a call of `mpirun` or a manifest of Kubernetes |
//!
//! A task is a process group. When its first process ends, the rest of it is killed; when one task fails, all others are
//! asked to end, and killed if they don't. The tasks are killed, too, when the launcher itself is, by whatever signal,
//! and over ssh when the connection ends. A program that moves into another session (a daemon) leaves its task, and stays.
//!
//! Tasks are planned and started on Unix alone; jobs are printed everywhere.

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
mod guard;
#[cfg(unix)]
mod interrupts;
#[cfg(unix)]
mod last_words;
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
