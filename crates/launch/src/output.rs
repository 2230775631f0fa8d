//! What a job says: the lines of its tasks, and the launcher's own.

use crate::outcome::seconds;
use crate::{End, Outcome, Signal, Task};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Which output of a task a line is from.
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

/// Something that a job says.
#[derive(Clone, Copy, Debug)]
pub enum Output<'a> {
    /// A line that a task has written, without its end, and not necessarily UTF-8. Lines of more than 64 KiB come in pieces.
    Line {
        /// The index of the task among those of the plan.
        index: usize,
        /// The task.
        task: &'a Task,
        /// Where it has written it.
        stream: Stream,
        /// The line.
        text: &'a [u8],
    },
    /// The launcher's own words.
    Notice(&'a Notice),
}

/// Writes what a job says. It is called on two threads: one for standard output, one for standard error and notices.
pub(crate) type Sink = Arc<dyn Fn(Output<'_>) -> io::Result<()> + Send + Sync>;

/// What the launcher itself has to say.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Notice {
    /// All tasks are about to be started.
    Starting {
        /// How many.
        tasks: usize,
        /// On how many hosts; 0 means on this machine.
        hosts: usize,
        /// The cores of each task that trains, where each has its own.
        cores: Option<Vec<Vec<usize>>>,
    },
    /// A task has failed and is started again.
    Restart {
        /// Which one.
        task: Task,
        /// How it ended.
        end: End,
        /// How long it ran.
        after: Duration,
        /// The number of this restart, from 1.
        restart: u32,
        /// How many it may have.
        of: u32,
        /// How long the launcher waits before it.
        wait: Duration,
    },
    /// A task has failed for good, and the job goes on without it.
    Lost {
        /// Which one.
        task: Task,
        /// How it ended.
        end: End,
        /// How long it ran.
        after: Duration,
        /// How many that train are left.
        left: usize,
    },
    /// A task has failed, and is not started again because the chief, which drives it, has succeeded.
    NotNeeded {
        /// The task.
        task: Task,
        /// How it ended.
        end: End,
        /// How long it ran.
        after: Duration,
    },
    /// A task is asked to end because the chief, which would drive it, has succeeded, and no other task is at work.
    LeftOver {
        /// The task.
        task: Task,
        /// Whether it is suspended; else it was started again a short time ago, and may wait for the chief.
        suspended: bool,
    },
    /// The launcher was asked to end the job.
    Interrupted {
        /// By which signal.
        signal: Signal,
    },
    /// Lines of tasks could not be written, or were dropped at the end since nobody read them.
    Dropped {
        /// The stream on which they came.
        stream: Stream,
        /// The number of lines.
        lines: u64,
        /// The number of bytes.
        bytes: u64,
        /// The error of the last write that failed; `None` if nobody read them.
        why: Option<String>,
    },
    /// The job has ended.
    Ended(Box<Outcome>),
}

/// A number and what it counts.
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

/// The text of a restart.
fn restart_text(end: &End, after: Duration, restart: u32, of: u32, wait: Duration) -> String {
    format!("{end} after {}; restart {restart} of {of} in {}", seconds(after), seconds(wait))
}
