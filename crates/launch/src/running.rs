//! [`Running`]: a job whose tasks are running.

use crate::event::Event;
use crate::processes::Shared;
use crate::starter::Starter;
use crate::supervisor::{Action, Input, Supervisor, Timer};
use crate::{End, Error, Outcome, Result, Signal, Task, TaskOutcome, final_report};
use distribute_cluster::{Deadline, Stopwatch};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

/// The maximum time for which dropping a [`Running`] waits until its tasks have exited, after killing them.
const DROPPED: Duration = Duration::from_secs(10);

/// A handle to a job whose tasks are running. Dropping it kills the tasks.
pub struct Running {
    shared: Arc<Shared>,
    events: Sender<Event>,
    outcome: Receiver<Outcome>,
    ended: Option<Outcome>,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running")
            .field("tasks", &self.shared.names)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl Running {
    pub(crate) fn new(shared: Arc<Shared>, events: Sender<Event>, outcome: Receiver<Outcome>) -> Self {
        Self { shared, events, outcome, ended: None }
    }

    /// Returns the tasks of the job.
    pub fn tasks(&self) -> &[Task] {
        &self.shared.names
    }

    /// Returns the id of a task's process, which is also the id of its process group. Over ssh, it is the id of the
    /// local ssh process. If the task has exited, it is the id of its last process.
    ///
    /// # Errors
    /// - [`Error::NotRunning`]: the job has no such task.
    pub fn pid(&self, task: &Task) -> Result<u32> {
        Ok(self.shared.find(task)?.0.pid())
    }

    /// Returns the number of restarts of a task so far.
    ///
    /// # Errors
    /// - [`Error::NotRunning`]: the job has no such task.
    pub fn restarts(&self, task: &Task) -> Result<u32> {
        Ok(self.shared.find(task)?.1)
    }

    /// Sends a signal to a task and to all processes that it has started. The launcher reacts as if another process had
    /// sent the signal.
    ///
    /// # Errors
    /// - [`Error::NotRunning`]: the task has exited, or the job has no such task.
    pub fn kill(&self, task: &Task, signal: Signal) -> Result<()> {
        if self.shared.find(task)?.0.send(signal) {
            Ok(())
        } else {
            Err(Error::NotRunning { task: task.clone() })
        }
    }

    /// Asks the job to end, without waiting. All tasks receive SIGTERM. They receive SIGKILL after the time that
    /// [`Launch::grace`](crate::Launch::grace) sets, or at a second call.
    pub fn stop(&self) {
        // The event is not needed if the job has ended.
        let _ = self.events.send(Event::Signal(Signal::Terminate));
    }

    /// Blocks until the job has ended, and returns its outcome. All of its processes have then exited, except any that
    /// survive SIGKILL. Their output was passed on, except what was dropped because the reader made no progress after
    /// the end.
    ///
    /// # Errors
    /// - [`Error::StillRunning`]: the deadline has passed; the job continues.
    /// - [`Error::System`]: the thread that supervises the tasks has panicked.
    pub fn wait(&mut self, mut deadline: Deadline) -> Result<Outcome> {
        loop {
            if let Some(outcome) = &self.ended {
                return Ok(outcome.clone());
            }
            match self.outcome.recv_timeout(deadline.look()) {
                Ok(outcome) => self.ended = Some(outcome),
                Err(RecvTimeoutError::Timeout) if !deadline.has_passed() => (),
                Err(RecvTimeoutError::Timeout) => return Err(Error::StillRunning(deadline.timeout())),
                Err(RecvTimeoutError::Disconnected) => {
                    let source = std::io::Error::other("the thread that supervises the tasks has panicked");
                    return Err(Error::System { operation: "waiting for the job", source });
                }
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended.is_some() {
            return;
        }
        // The first call sends SIGTERM, the second SIGKILL.
        self.stop();
        self.stop();
        if self.wait(Deadline::after(DROPPED)).is_err() {
            self.shared.kill_all();
        }
    }
}

/// Runs a job to its end: passes events to the supervisor, and executes the actions that the supervisor requests.
pub(crate) fn supervise(
    mut supervisor: Supervisor,
    begin: Vec<Action>,
    events: &Receiver<Event>,
    starter: &Starter,
    grace: Duration,
    watch: Stopwatch,
) -> Outcome {
    let mut timers: Vec<(Deadline, Timer)> = Vec::new();
    let mut undrained = vec![1_usize; starter.shared.names.len()];
    let mut last_lines = vec![None; undrained.len()];
    // The tasks that are restarted after the descendants of their last process are gone, which may still hold
    // its ports.
    let mut held: Vec<(usize, u32)> = Vec::new();
    let (mut given_up, mut signals) = (false, 0);
    // The time since tasks were asked to exit, and the time that they had.
    let (mut asked, mut had) = (None, grace);
    let mut actions = begin;
    loop {
        for action in std::mem::take(&mut actions) {
            match action {
                Action::Set(timer, after) => {
                    match timer {
                        Timer::Grace => asked = Some(Stopwatch::start()),
                        Timer::Killed => had = asked.as_ref().map_or(grace, Stopwatch::elapsed).min(grace),
                        _ => (),
                    }
                    timers.push((Deadline::after(after), timer));
                }
                Action::Notify(notice) => starter.printer.notice(notice),
                Action::Send { task, signal } => {
                    if let (Some(process), _) = starter.shared.process(task) {
                        process.send(signal);
                        if signal != Signal::Kill {
                            // A suspended process receives no other signal before this one.
                            process.send(Signal::Continue);
                        }
                    }
                }
                Action::Start { task, .. } if supervisor.is_ending() => {
                    actions.extend(supervisor.decide(Input::NotStarted { task }));
                }
                Action::Start { task, restart } if undrained[task] > 0 => held.push((task, restart)),
                Action::Start { task, restart } => match starter.start(task, restart) {
                    Ok(()) => undrained[task] += 1,
                    Err(error) => {
                        let end = End::NotStarted(error.to_string());
                        let ended = Input::Ended { task, end, after: Duration::ZERO };
                        actions.extend(supervisor.decide(ended));
                    }
                },
            }
        }
        if supervisor.is_ending() {
            starter.printer.ending();
        }
        let (passed, left): (Vec<_>, _) = timers.into_iter().partition(|(at, _)| at.has_passed());
        timers = left;
        for (_, timer) in passed {
            given_up |= timer == Timer::Killed;
            if timer == Timer::LeftOver {
                check_suspended(&mut supervisor, &starter.shared);
            }
            actions.extend(supervisor.decide(Input::Expired(timer)));
        }
        if !actions.is_empty() {
            continue;
        }
        // A process that does not exit even after SIGKILL is left to the system, with its resources.
        if supervisor.is_over() && (given_up || undrained.iter().all(|left| *left == 0)) {
            break;
        }
        // A job may run for any time: this wait ends with an event of one of its processes.
        let wait = timers.iter().map(|(at, _)| at.remaining()).min();
        match events.recv_timeout(wait.unwrap_or(Duration::MAX).min(Duration::from_secs(3600))) {
            Ok(Event::Ended { task, end, after }) => {
                actions = supervisor.decide(Input::Ended { task, end, after });
            }
            Ok(Event::Drained { task, last_error_line }) => {
                undrained[task] -= 1;
                last_lines[task] = last_error_line;
                let again = held.extract_if(.., |(waiting, _)| *waiting == task);
                actions.extend(again.map(|(task, restart)| Action::Start { task, restart }));
            }
            Ok(Event::Signal(signal)) => {
                signals += 1;
                actions = supervisor.decide(Input::Signal(signal));
            }
            // A timer, or no event yet.
            Ok(Event::Written) | Err(_) => (),
        }
    }
    let (cause, known) = supervisor.into_parts();
    let outcome =
        known.into_iter().zip(last_lines).enumerate().map(|(index, (known, last_error_line))| TaskOutcome {
            task: starter.tasks[index].task.clone(),
            host: starter.tasks[index].host.as_ref().map(|host| host.destination().into()),
            end: known.end,
            after: known.after,
            restarts: known.restarts,
            stopped: known.stopped,
            killed: known.killed,
            last_error_line,
        });
    let outcome = Outcome { cause, after: watch.elapsed(), grace: had, tasks: outcome.collect() };
    final_report::write(&starter.printer, events, &outcome, signals > 1);
    outcome
}

/// Checks for each task whether it is suspended, and reports the result to the supervisor.
fn check_suspended(supervisor: &mut Supervisor, shared: &Shared) {
    for task in 0..shared.names.len() {
        let suspended = shared.process(task).0.is_some_and(|process| process.is_suspended());
        supervisor.decide(Input::Checked { task, suspended });
    }
}
