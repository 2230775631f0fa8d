//! [`Output`]: the lines of a job's tasks, and the launcher's notices.

use crate::outcome::seconds;
use crate::{End, Outcome, Signal, Task};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The output stream of a line.
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

/// A line of a task or a notice of the launcher.
#[derive(Clone, Copy, Debug)]
pub enum Output<'a> {
    /// A line that a task has written, without its terminator. It is not necessarily UTF-8. A line of more than 64 KiB
    /// is split into several.
    Line {
        /// The index of the task in the plan.
        index: usize,
        /// The task that has written the line.
        task: &'a Task,
        /// The stream to which the task has written the line.
        stream: Stream,
        /// The bytes of the line.
        text: &'a [u8],
    },
    /// A notice from the launcher.
    Notice(&'a Notice),
}

/// A function that writes the output of a job. Two threads call it: one for standard output, and one for standard error
/// and notices.
pub(crate) type Sink = Arc<dyn Fn(Output<'_>) -> io::Result<()> + Send + Sync>;

/// A notice of the launcher about the job. `Display` formats it as text.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Notice {
    /// All tasks are about to be started.
    Starting {
        /// The number of tasks.
        tasks: usize,
        /// The number of remote hosts; 0 means that all tasks run on this machine.
        hosts: usize,
        /// The cores of each task that trains; `None` if tasks are not pinned to cores.
        cores: Option<Vec<Vec<usize>>>,
    },
    /// A task has failed, and will be restarted after a delay.
    Restart {
        /// The task that has failed.
        task: Task,
        /// The way in which the task's process has ended.
        end: End,
        /// The running time of the process.
        after: Duration,
        /// The number of this restart, counted from 1.
        restart: u32,
        /// The maximum number of restarts of a task.
        of: u32,
        /// The delay before the restart.
        wait: Duration,
    },
    /// A task has failed permanently, and the job continues without it.
    Lost {
        /// The task that has failed permanently.
        task: Task,
        /// The way in which the task's process has ended.
        end: End,
        /// The running time of the process.
        after: Duration,
        /// The number of remaining tasks that train.
        left: usize,
    },
    /// The running tasks are enough for the group that they are in, but too few to form another one if it loses one.
    Few {
        /// The number of tasks that train and still run.
        left: usize,
        /// The number of tasks that workers need to form a group.
        needed: usize,
    },
    /// A task has failed permanently, and too few are left to continue. The job ends.
    TooFew {
        /// The task that has failed permanently.
        task: Task,
        /// The way in which the task's process has ended.
        end: End,
        /// The running time of the process.
        after: Duration,
        /// The number of tasks that train and have not failed permanently.
        left: usize,
        /// The number of tasks that workers need to form a group.
        needed: usize,
    },
    /// A task has failed, and is not restarted because its chief has already succeeded.
    NotNeeded {
        /// The task that has failed.
        task: Task,
        /// The way in which the task's process has ended.
        end: End,
        /// The running time of the process.
        after: Duration,
    },
    /// A task is asked to exit, because its chief has succeeded and no other task is working.
    LeftOver {
        /// The task that is asked to exit.
        task: Task,
        /// Whether the task is suspended. If not, it was restarted recently, and may be waiting for the chief.
        suspended: bool,
    },
    /// The launcher received a signal to end the job.
    Interrupted {
        /// The signal that the launcher received.
        signal: Signal,
    },
    /// Lines of tasks were dropped, because they could not be written or were not read in time.
    Dropped {
        /// The stream of the lines.
        stream: Stream,
        /// The number of lines that were dropped.
        lines: u64,
        /// The number of bytes in these lines.
        bytes: u64,
        /// The reason, such as the error of the last failed write; `None` if the lines were not read.
        why: Option<String>,
    },
    /// The job has ended with this outcome.
    Ended(Box<Outcome>),
}

/// Formats a number with a noun, which gets an `s` unless the number is 1.
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
                        f.write_str(", each task that trains on a separate core")
                    }
                    Some(_) => f.write_str(", each task that trains on separate cores"),
                }
            }
            Notice::Lost { task, end, after, left } => {
                write!(f, "{task}: {end} after {}; ", seconds(*after))?;
                match left {
                    0 => f.write_str("the others have succeeded"),
                    1 => f.write_str("the job continues with 1 worker"),
                    _ => write!(f, "the job continues with {left} workers"),
                }
            }
            Notice::Few { left, needed } => write!(
                f,
                "of the workers and spares {left} are left, and {needed} are needed to form another group: if the lost \
                 one was a worker, the others cannot continue, and give up after their patience"
            ),
            Notice::TooFew { task, end, after, left, needed } => write!(
                f,
                "{task}: {end} after {}; the job ends: of its workers and spares {left} are left, and {needed} are needed",
                seconds(*after)
            ),
            Notice::Restart { task, end, after, restart, of, wait } => {
                write!(f, "{task}: {}", restart_text(end, *after, *restart, *of, *wait))
            }
            Notice::NotNeeded { task, end, after } => {
                write!(f, "{task}: {end} after {}; not restarted: the chief has succeeded", seconds(*after))
            }
            Notice::LeftOver { task, suspended } => {
                let why = if *suspended { "is suspended" } else { "was restarted just before" };
                write!(f, "{task} is asked to exit: the chief has succeeded, and it {why}")
            }
            Notice::Dropped { stream, lines, bytes, why } => {
                let (stream, lines) = (stream.name(), plural(*lines, "line"));
                write!(f, "dropped {lines} ({}) of the tasks' {stream}: ", plural(*bytes, "byte"))?;
                f.write_str(why.as_deref().unwrap_or("no process reads it"))
            }
            Notice::Interrupted { signal } => {
                write!(f, "{signal}: forwarded to all tasks; send it again to kill them")
            }
            Notice::Ended(outcome) => outcome.fmt(f),
        }
    }
}

/// Formats the text of [`Notice::Restart`].
fn restart_text(end: &End, after: Duration, restart: u32, of: u32, wait: Duration) -> String {
    format!("{end} after {}; restart {restart} of {of} in {}", seconds(after), seconds(wait))
}
