//! A job whose tasks run.

use crate::event::Event;
use crate::processes::Shared;
use crate::starter::Starter;
use crate::supervisor::{Action, Happened, Supervisor, Timer};
use crate::{End, Error, Outcome, Result, Signal, Task, TaskOutcome, last_words};
use distribute_cluster::{Deadline, Stopwatch};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

/// How long to wait for a job that is dropped: its tasks are killed.
const DROPPED: Duration = Duration::from_secs(10);

/// A job whose tasks run. When it is dropped, they are killed.
pub struct Running {
    shared: Arc<Shared>,
    events: Sender<Event>,
    outcome: Receiver<Outcome>,
    ended: Option<Outcome>,
}

impl Running {
    pub(crate) fn new(shared: Arc<Shared>, events: Sender<Event>, outcome: Receiver<Outcome>) -> Self {
        Self { shared, events, outcome, ended: None }
    }

    /// The tasks of the job.
    pub fn tasks(&self) -> &[Task] {
        &self.shared.names
    }

    /// The number of a task's process, which is also that of its process group. Over ssh it is that of ssh.
    ///
    /// # Errors
    /// [`Error::NotRunning`] where the job has no such task. Of one that has ended, it is the last number.
    pub fn pid(&self, task: &Task) -> Result<u32> {
        Ok(self.shared.find(task)?.0.pid())
    }

    /// How often a task has been started again.
    ///
    /// # Errors
    /// [`Error::NotRunning`] where the job has no such task.
    pub fn restarts(&self, task: &Task) -> Result<u32> {
        Ok(self.shared.find(task)?.1)
    }

    /// Sends a signal to a task and all that it has started. The launcher then sees what becomes of it, as if the signal came
    /// from elsewhere.
    ///
    /// # Errors
    /// [`Error::NotRunning`] where the task has ended, or the job has none of that name.
    pub fn kill(&self, task: &Task, signal: Signal) -> Result<()> {
        if self.shared.find(task)?.0.send(signal) {
            Ok(())
        } else {
            Err(Error::NotRunning { task: task.clone() })
        }
    }

    /// Asks the whole job to end: all tasks get SIGTERM, and SIGKILL after the grace time, or at a second call.
    pub fn stop(&self) {
        // A job that has ended needs no more.
        let _ = self.events.send(Event::Asked(Signal::Terminate));
    }

    /// Waits until the job has ended. By then all its processes are gone, and what they wrote has been handed on, or dropped where
    /// nobody took anything for ten seconds after the end.
    ///
    /// # Errors
    /// [`Error::StillRunning`] once the deadline has passed; the job goes on.
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
        // The first asks, the second kills.
        self.stop();
        self.stop();
        if self.wait(Deadline::after(DROPPED)).is_err() {
            self.shared.kill_all();
        }
    }
}

/// Sees a job to its end: carries out what the supervisor decides.
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
    // To be started again once what their last process has left behind is gone, and with it the ports that it had.
    let mut held: Vec<(usize, u32)> = Vec::new();
    let (mut given_up, mut signals) = (false, 0);
    // Since when tasks are asked to end, and how long they had.
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
                Action::Say(notice) => starter.printer.notice(notice),
                Action::Send { task, signal } => {
                    if let (Some(process), _) = starter.shared.process(task) {
                        process.send(signal);
                        if signal != Signal::Kill {
                            // One that is suspended takes no other signal before.
                            process.send(Signal::Continue);
                        }
                    }
                }
                Action::Start { task, .. } if supervisor.is_ending() => {
                    actions.extend(supervisor.decide(Happened::NotStarted { task }));
                }
                Action::Start { task, restart } if undrained[task] > 0 => held.push((task, restart)),
                Action::Start { task, restart } => match starter.start(task, restart) {
                    Ok(()) => undrained[task] += 1,
                    Err(error) => {
                        let end = End::NotStarted(error.to_string());
                        let ended = Happened::Ended { task, end, after: Duration::ZERO };
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
                look_for_suspended(&mut supervisor, &starter.shared);
            }
            actions.extend(supervisor.decide(Happened::Passed(timer)));
        }
        if !actions.is_empty() {
            continue;
        }
        // A process that does not end even after SIGKILL is left to the system, and what it holds with it.
        if supervisor.is_over() && (given_up || undrained.iter().all(|left| *left == 0)) {
            break;
        }
        // A job may run as long as it wants: what ends this wait is an event of one of its processes.
        let wait = timers.iter().map(|(at, _)| at.remaining()).min();
        match events.recv_timeout(wait.unwrap_or(Duration::MAX).min(Duration::from_secs(3600))) {
            Ok(Event::Ended { task, end, after }) => {
                actions = supervisor.decide(Happened::Ended { task, end, after });
            }
            Ok(Event::Drained { task, last_error_line }) => {
                undrained[task] -= 1;
                last_lines[task] = last_error_line;
                let again = held.extract_if(.., |(waiting, _)| *waiting == task);
                actions.extend(again.map(|(task, restart)| Action::Start { task, restart }));
            }
            Ok(Event::Asked(signal)) => {
                signals += 1;
                actions = supervisor.decide(Happened::Asked(signal));
            }
            // A timer, or nothing yet.
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
    last_words::say(&starter.printer, events, &outcome, signals > 1);
    outcome
}

/// Tells the supervisor which tasks are suspended now.
fn look_for_suspended(supervisor: &mut Supervisor, shared: &Shared) {
    for task in 0..shared.names.len() {
        let suspended = shared.process(task).0.is_some_and(|process| process.is_suspended());
        supervisor.decide(Happened::Looked { task, suspended });
    }
}
