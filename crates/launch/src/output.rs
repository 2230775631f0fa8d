//! The output of a job: the lines of its tasks, and the launcher's notices.

use crate::outcome::seconds;
use crate::{End, Outcome, Signal, Task};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The output stream of a task from which a line comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

impl Stream {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Stream::Out => "standard output",
            Stream::Err => "standard error",
        }
    }
}

/// An item of a job's output.
#[derive(Clone, Copy, Debug)]
pub enum Output<'a> {
    /// A line of a task, without its terminator, and not necessarily UTF-8. Lines of more than 64 KiB are
    /// passed on in pieces.
    Line {
        /// The index of the task among those of the plan.
        index: usize,
        /// The task.
        task: &'a Task,
        /// The stream of the line.
        stream: Stream,
        /// The line.
        text: &'a [u8],
    },
    /// A notice of the launcher.
    Notice(&'a Notice),
}

/// A function that writes the output of a job. It is called on two threads: one for standard output, one for
/// standard error and notices.
pub(crate) type Sink = Arc<dyn Fn(Output<'_>) -> io::Result<()> + Send + Sync>;

/// A notice of the launcher.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Notice {
    /// All tasks are about to be started.
    Starting {
        /// The number of tasks.
        tasks: usize,
        /// The number of hosts; 0 means this machine.
        hosts: usize,
        /// The cores of each task that trains, if each has its own.
        cores: Option<Vec<Vec<usize>>>,
    },
    /// A task has failed and is restarted.
    Restart {
        /// The task.
        task: Task,
        /// The way in which it exited.
        end: End,
        /// Its running time.
        after: Duration,
        /// The number of this restart, from 1.
        restart: u32,
        /// The maximum number of restarts.
        of: u32,
        /// The delay before the restart.
        wait: Duration,
    },
    /// A task has failed permanently, and the job continues without it.
    Lost {
        /// The task.
        task: Task,
        /// The way in which it exited.
        end: End,
        /// Its running time.
        after: Duration,
        /// The number of tasks left that train.
        left: usize,
    },
    /// A task has failed, and is not restarted because its chief has succeeded.
    NotNeeded {
        /// The task.
        task: Task,
        /// The way in which it exited.
        end: End,
        /// Its running time.
        after: Duration,
    },
    /// A task is asked to exit because its chief has succeeded, and no other task is working.
    LeftOver {
        /// The task.
        task: Task,
        /// Whether the task is suspended; otherwise it was restarted recently, and may be waiting for the
        /// chief.
        suspended: bool,
    },
    /// The launcher received a signal to end the job.
    Interrupted {
        /// The signal.
        signal: Signal,
    },
    /// Lines of tasks could not be written, or were dropped at the end because they were not read.
    Dropped {
        /// The stream of the lines.
        stream: Stream,
        /// The number of lines.
        lines: u64,
        /// The number of bytes.
        bytes: u64,
        /// The error of the last write that failed; `None` if the lines were not read.
        why: Option<String>,
    },
    /// The job has ended.
    Ended(Box<Outcome>),
}

/// Formats a number with a noun.
fn plural(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Starting { tasks, hosts, cores } => {
                write!(f, "{} on ", plural(*tasks as u64, "task"))?;
                match hosts {
                    0 => f.write_str("this machine")?,
                    hosts => f.write_str(&plural(*hosts as u64, "host"))?,
                }
                match cores.as_deref() {
                    None => Ok(()),
                    Some(cores) if cores.iter().all(|own| own.len() == 1) => {
                        f.write_str(", each that trains on a core of its own")
                    }
                    Some(_) => f.write_str(", each that trains on cores of its own"),
                }
            }
            Notice::Lost { task, end, after, left } => {
                write!(f, "{task}: {end} after {}; ", seconds(*after))?;
                match left {
                    0 => f.write_str("the others have ended well"),
                    1 => f.write_str("the job goes on with 1 worker"),
                    _ => write!(f, "the job goes on with {left} workers"),
                }
            }
            Notice::Restart { task, end, after, restart, of, wait } => {
                write!(f, "{task}: {}", restart_text(end, *after, *restart, *of, *wait))
            }
            Notice::NotNeeded { task, end, after } => {
                write!(
                    f,
                    "{task}: {end} after {}; not started again: the chief has ended well",
                    seconds(*after)
                )
            }
            Notice::LeftOver { task, suspended } => {
                let why = if *suspended { "is suspended" } else { "was started again just before" };
                write!(f, "{task} is asked to end: the chief has ended well, and it {why}")
            }
            Notice::Dropped { stream, lines, bytes, why } => {
                let (stream, lines) = (stream.name(), plural(*lines, "line"));
                write!(f, "dropped {lines} ({}) of the tasks' {stream}: ", plural(*bytes, "byte"))?;
                f.write_str(why.as_deref().unwrap_or("nobody reads it"))
            }
            Notice::Interrupted { signal } => {
                write!(f, "{signal}: sent on to all tasks; once more to kill them")
            }
            Notice::Ended(outcome) => outcome.fmt(f),
        }
    }
}

/// Describes a restart.
fn restart_text(end: &End, after: Duration, restart: u32, of: u32, wait: Duration) -> String {
    format!("{end} after {}; restart {restart} of {of} in {}", seconds(after), seconds(wait))
}
