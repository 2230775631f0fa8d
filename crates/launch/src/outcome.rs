//! The outcome of a job and its tasks.

use crate::{Signal, Task};
use std::fmt;
use std::time::Duration;

/// The way in which a process has ended: an exit code, a signal, or a failed restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The process has exited with this exit code.
    Exited(i32),
    /// A signal with this number has terminated the process.
    Signaled(i32),
    /// The process could not be restarted, or its exit status is unknown. The text contains the reason.
    NotStarted(String),
}

impl End {
    /// Returns whether the process has exited with code 0.
    pub fn is_success(&self) -> bool {
        *self == End::Exited(0)
    }

    /// Returns the exit code that a shell would report: the code itself, 128 plus the number of the signal, or
    /// 127 if the process was not started.
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
            End::NotStarted(why) => write!(f, "not restarted: {why}"),
            End::Signaled(number) => {
                write!(f, "signal {number}")?;
                let name = match number {
                    1 => "SIGHUP",
                    2 => "SIGINT",
                    4 => "SIGILL",
                    6 => "SIGABRT",
                    8 => "SIGFPE",
                    9 => "SIGKILL: by a user, or by the system because it ran out of memory",
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

/// The reason for the end of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The job has succeeded: all tasks that train have succeeded, except tasks that the job did not need.
    Done,
    /// A task has failed permanently, and the job cannot continue without it. The number is the index of the task in
    /// [`Outcome::tasks`].
    Failed(usize),
    /// The launcher received a signal to end the job.
    Interrupted(Signal),
    /// The job has exceeded its maximum duration. The field is that duration.
    TimedOut(Duration),
}

/// The outcome of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskOutcome {
    /// The job and the index of the task.
    pub task: Task,
    /// The ssh destination on which the task ran; `None` means this machine.
    pub host: Option<String>,
    /// The way in which the task's last process has ended; `None` if it did not exit, even after SIGKILL.
    pub end: Option<End>,
    /// The running time of the task's last process.
    pub after: Duration,
    /// The number of restarts of the task.
    pub restarts: u32,
    /// Whether the task was asked to exit before it exited.
    pub stopped: bool,
    /// Whether the task was killed because it did not exit when asked.
    pub killed: bool,
    /// The last non-empty line that the task wrote to standard error.
    pub last_error_line: Option<String>,
}

/// The outcome of a job. `Display` formats it as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The reason for the end of the job.
    pub cause: Cause,
    /// The duration of the job.
    pub after: Duration,
    /// The time that tasks had to exit after they were asked to: the configured time, or less if a second signal has
    /// caused an earlier kill.
    pub grace: Duration,
    /// The outcome of each task, in the order of the plan.
    pub tasks: Vec<TaskOutcome>,
}

impl Outcome {
    /// Returns whether the job has succeeded; see [`Cause::Done`].
    pub fn is_success(&self) -> bool {
        self.cause == Cause::Done
    }

    /// Returns the exit code of the launcher: 0 if the job has succeeded, and 124 after a timeout. If the failure of a
    /// task has ended the job, it is [the exit code](End::exit_code) of that task, or 1 if the task did not exit. If a
    /// signal has interrupted the launcher, it is 128 plus the number of the signal.
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

    /// Returns the outcome of the given task; `None` if the job has no such task.
    pub fn task(&self, task: &Task) -> Option<&TaskOutcome> {
        self.tasks.iter().find(|outcome| outcome.task == *task)
    }

    /// Returns the outcome of the task whose failure has ended the job; `None` if the job has ended for another reason.
    pub fn first_failure(&self) -> Option<&TaskOutcome> {
        match self.cause {
            Cause::Failed(task) => self.tasks.get(task),
            _ => None,
        }
    }
}

/// Formats a duration in seconds with one decimal, or in milliseconds if it is less than a second.
pub(crate) fn seconds(duration: Duration) -> String {
    match duration.as_millis() {
        millis @ ..1000 => format!("{millis} ms"),
        _ => format!("{:.1} s", duration.as_secs_f64()),
    }
}

/// Lists the names of the tasks, or returns only their number if there are more than six.
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
                    write!(f, "; its last line on standard error: {line}")?;
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
                "timed out after {}, the --timeout; stopped: {}",
                seconds(*timeout),
                names(self.tasks.iter().filter(stopped))
            )?,
        }
        if self.tasks.iter().any(|task| task.killed) {
            let killed = names(self.tasks.iter().filter(|task| task.killed));
            write!(f, "; killed because they did not exit within {}: {killed}", seconds(self.grace))?;
        }
        if self.tasks.iter().any(|task| task.end.is_none()) {
            let left = names(self.tasks.iter().filter(|task| task.end.is_none()));
            write!(f, "; still running after SIGKILL: {left}")?;
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
            "worker 0 failed first: exit code 3 after 12.4 s; its last line on standard error: no data; no \
             other task was running"
        );
        failed.tasks[0].end = Some(End::Signaled(9));
        failed.tasks[0].last_error_line = None;
        failed.tasks[0].restarts = 2;
        failed.tasks[1].stopped = true;
        failed.tasks[1].killed = true;
        assert_eq!(failed.exit_code(), 137);
        assert_eq!(
            failed.to_string(),
            "worker 0 failed first: signal 9 (SIGKILL: by a user, or by the system because it ran out of \
             memory) after 12.4 s, having been restarted 2 times; stopped because of it: ps 0; killed \
             because they did not exit within 10.0 s: ps 0"
        );
    }

    #[test]
    fn a_host_is_named_with_the_meaning_of_the_exit_code_of_ssh() {
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
