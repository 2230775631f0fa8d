//! The outcome of a job and its tasks.

use crate::{Signal, Task};
use std::fmt;
use std::time::Duration;

/// The way in which a process has exited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The process has exited with this code.
    Exited(i32),
    /// A signal with this number has terminated the process.
    Signaled(i32),
    /// The process could not be restarted; the text has the cause.
    NotStarted(String),
}

impl End {
    /// Returns whether the process has succeeded.
    pub fn is_success(&self) -> bool {
        *self == End::Exited(0)
    }

    /// Returns the exit code of shells: the code, or 128 plus the number of the signal.
    pub fn exit_code(&self) -> i32 {
        match self {
            End::Exited(code) => *code,
            End::Signaled(number) => 128 + number,
            End::NotStarted(_) => 127,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Exited(code) => write!(f, "exit code {code}"),
            End::NotStarted(why) => write!(f, "not started again: {why}"),
            End::Signaled(number) => {
                write!(f, "signal {number}")?;
                let name = match number {
                    1 => "SIGHUP",
                    2 => "SIGINT",
                    4 => "SIGILL",
                    6 => "SIGABRT",
                    8 => "SIGFPE",
                    9 => "SIGKILL: by hand, or by the system for want of memory",
                    11 => "SIGSEGV",
                    13 => "SIGPIPE",
                    15 => "SIGTERM",
                    _ => return Ok(()),
                };
                write!(f, " ({name})")
            }
        }
    }
}

/// The reason why a job has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// All tasks that train have succeeded.
    Done,
    /// A task has failed; the index of the first one among the tasks.
    Failed(usize),
    /// The launcher received a signal to end the job.
    Interrupted(Signal),
    /// The job exceeded its maximum duration.
    TimedOut(Duration),
}

/// The outcome of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskOutcome {
    /// The task.
    pub task: Task,
    /// The destination of ssh, if the task did not run on this machine.
    pub host: Option<String>,
    /// The way in which its last process has exited; `None` if it did not exit, even after SIGKILL.
    pub end: Option<End>,
    /// The running time of that process.
    pub after: Duration,
    /// The number of restarts of the task.
    pub restarts: u32,
    /// Whether the task was asked to exit before it exited.
    pub stopped: bool,
    /// Whether the task was killed because it did not exit when asked.
    pub killed: bool,
    /// The last line of its standard error that is not empty.
    pub last_error_line: Option<String>,
}

/// The outcome of a job. `Display` formats it as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The reason why the job has ended.
    pub cause: Cause,
    /// The duration of the job.
    pub after: Duration,
    /// The time that tasks had to exit when asked: the grace time, or less if a second signal had them killed
    /// earlier.
    pub grace: Duration,
    /// The tasks.
    pub tasks: Vec<TaskOutcome>,
}

impl Outcome {
    /// Returns whether all tasks that train have succeeded.
    pub fn is_success(&self) -> bool {
        self.cause == Cause::Done
    }

    /// Returns the exit code of the launcher. It is 0 if the job has succeeded, otherwise that of the task that
    /// failed first (128 plus the number for a signal). It is 128 plus the number of the signal that
    /// interrupted the launcher, or 124 after a timeout.
    pub fn exit_code(&self) -> i32 {
        match &self.cause {
            Cause::Done => 0,
            Cause::Failed(task) => {
                let end = self.tasks.get(*task).and_then(|task| task.end.as_ref());
                end.map_or(1, End::exit_code)
            }
            Cause::Interrupted(signal) => signal.exit_code(),
            Cause::TimedOut(_) => 124,
        }
    }

    /// Returns the outcome of a task.
    pub fn task(&self, task: &Task) -> Option<&TaskOutcome> {
        self.tasks.iter().find(|outcome| outcome.task == *task)
    }

    /// Returns the task that failed first.
    pub fn first_failure(&self) -> Option<&TaskOutcome> {
        match self.cause {
            Cause::Failed(task) => self.tasks.get(task),
            _ => None,
        }
    }
}

/// Formats seconds with one decimal; below one second, milliseconds.
pub(crate) fn seconds(duration: Duration) -> String {
    match duration.as_millis() {
        millis @ ..1000 => format!("{millis} ms"),
        _ => format!("{:.1} s", duration.as_secs_f64()),
    }
}

/// Lists the names of tasks; if there are many, returns their number.
fn names<'a>(tasks: impl Iterator<Item = &'a TaskOutcome>) -> String {
    let names: Vec<_> = tasks.map(|task| task.task.to_string()).collect();
    match names.len() {
        0 => "none".into(),
        1..=6 => names.join(", "),
        many => format!("{many} tasks"),
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stopped = |task: &&TaskOutcome| task.stopped;
        match &self.cause {
            Cause::Done => write!(f, "the job succeeded after {}", seconds(self.after))?,
            Cause::Failed(_) => {
                let Some(first) = self.first_failure() else { return f.write_str("a task failed") };
                write!(f, "{}", first.task)?;
                if let Some(host) = &first.host {
                    write!(f, " on {host}")?;
                }
                f.write_str(" failed first")?;
                match &first.end {
                    Some(end) => write!(f, ": {end} after {}", seconds(first.after))?,
                    None => f.write_str(", and does not end")?,
                }
                if first.host.is_some() && first.end == Some(End::Exited(255)) {
                    f.write_str(
                        " (so does ssh when there is no connection, and when a signal ended the task)",
                    )?;
                }
                match first.restarts {
                    0 => (),
                    1 => f.write_str(", having been restarted once")?,
                    times => write!(f, ", having been restarted {times} times")?,
                }
                if let Some(line) = &first.last_error_line {
                    write!(f, "; its last line of errors: {line}")?;
                }
                match self.tasks.iter().filter(stopped).count() {
                    0 => f.write_str("; no other task was running")?,
                    _ => write!(f, "; stopped because of it: {}", names(self.tasks.iter().filter(stopped)))?,
                }
            }
            Cause::Interrupted(signal) => {
                write!(f, "ended by {signal} after {}", seconds(self.after))?;
            }
            Cause::TimedOut(timeout) => write!(
                f,
                "not done after {}, the --timeout; stopped: {}",
                seconds(*timeout),
                names(self.tasks.iter().filter(stopped))
            )?,
        }
        if self.tasks.iter().any(|task| task.killed) {
            let killed = names(self.tasks.iter().filter(|task| task.killed));
            write!(f, "; killed, not having ended within {}: {killed}", seconds(self.grace))?;
        }
        if self.tasks.iter().any(|task| task.end.is_none()) {
            let left = names(self.tasks.iter().filter(|task| task.end.is_none()));
            write!(f, "; not ended, not even by SIGKILL: {left}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Job;

    fn outcome(cause: Cause) -> Outcome {
        let task = |job: Job, end| TaskOutcome {
            task: job.task(0),
            host: None,
            end: Some(end),
            after: Duration::from_millis(12_400),
            restarts: 0,
            stopped: false,
            killed: false,
            last_error_line: None,
        };
        let tasks = vec![task(Job::Worker, End::Exited(0)), task(Job::Ps, End::Exited(0))];
        Outcome { cause, after: Duration::from_secs(60), grace: Duration::from_secs(10), tasks }
    }

    #[test]
    fn the_summary_names_who_failed_first_and_how() {
        let mut failed = outcome(Cause::Failed(0));
        failed.tasks[0].end = Some(End::Exited(3));
        failed.tasks[0].last_error_line = Some("no data".into());
        assert_eq!(failed.exit_code(), 3);
        assert_eq!(
            failed.to_string(),
            "worker 0 failed first: exit code 3 after 12.4 s; its last line of errors: no data; no other task was running"
        );
        failed.tasks[0].end = Some(End::Signaled(9));
        failed.tasks[0].last_error_line = None;
        failed.tasks[0].restarts = 2;
        failed.tasks[1].stopped = true;
        failed.tasks[1].killed = true;
        assert_eq!(failed.exit_code(), 137);
        assert_eq!(
            failed.to_string(),
            "worker 0 failed first: signal 9 (SIGKILL: by hand, or by the system for want of memory) after 12.4 s, \
             having been restarted 2 times; stopped because of it: ps 0; killed, not having ended within 10.0 s: ps 0"
        );
    }

    #[test]
    fn a_host_is_named_and_what_ssh_means() {
        let mut failed = outcome(Cause::Failed(0));
        failed.tasks[0].host = Some("me@a".into());
        failed.tasks[0].end = Some(End::Exited(255));
        failed.tasks[0].restarts = 1;
        assert_eq!(
            failed.to_string(),
            "worker 0 on me@a failed first: exit code 255 after 12.4 s (so does ssh when there is no connection, and when a \
             signal ended the task), having been restarted once; no other task was running"
        );
    }

    #[test]
    fn exit_codes_are_those_of_shells() {
        assert_eq!(outcome(Cause::Done).exit_code(), 0);
        assert_eq!(outcome(Cause::Interrupted(Signal::Interrupt)).exit_code(), 130);
        assert_eq!(outcome(Cause::Interrupted(Signal::Terminate)).exit_code(), 143);
        assert_eq!(outcome(Cause::TimedOut(Duration::from_secs(5))).exit_code(), 124);
        assert_eq!(outcome(Cause::Done).to_string(), "the job succeeded after 60.0 s");
    }
}
