//! What to do when a task ends: pure decisions, without processes and clocks.

use crate::layout::trains;
use crate::{Cause, End, Job, Notice, Signal, Task};
use std::time::Duration;

/// A task that ends sooner has not begun well.
const A_WHILE: Duration = Duration::from_secs(2);

/// The longest wait before a task is started again.
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);

/// The time for which a task that was started again counts as one that may have found no chief.
const JUST_STARTED: Duration = Duration::from_secs(60);

/// The shortest time between two looks at the tasks that are left once the chief has ended.
const LEFT_OVER: Duration = Duration::from_secs(1);

/// How long tasks may take to end after SIGKILL. Only one that is stuck in the system takes longer than a moment.
const KILLED: Duration = Duration::from_secs(5);

/// What a supervisor goes by.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    /// How often each task may be started again.
    pub max_restarts: u32,
    /// How long to wait before the first restart of a task; twice as long before each further one of a task that has not run
    /// for longer than it was waited for.
    pub backoff: Duration,
    /// With how many tasks that train the job goes on, the first of them included, when others have failed for good; `None` if
    /// all are needed.
    pub min_workers: Option<usize>,
    /// How long tasks have to end when they are asked to.
    pub grace: Duration,
    /// How long the whole job may take.
    pub timeout: Option<Duration>,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Happened {
    /// The process of a task has ended, after so long.
    Ended { task: usize, end: End, after: Duration },
    /// A task was to be started again, and was not, since the job is ending.
    NotStarted { task: usize },
    /// Whether a task is suspended, before [`Timer::LeftOver`].
    Looked { task: usize, suspended: bool },
    /// Somebody wants the job to end.
    Asked(Signal),
    /// A timer that an [`Action`] set.
    Passed(Timer),
}

/// What to be told of later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// A task is to be started again.
    Restart(usize),
    /// A task has run for a while since its `restart`-th start.
    HasRun { task: usize, restart: u32 },
    /// Tasks that the chief has left behind may be asked to end.
    LeftOver,
    /// The time that tasks had to end by themselves is over.
    Grace,
    /// Tasks should have ended after SIGKILL.
    Killed,
    /// The time of the whole job is over.
    Timeout,
}

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Send a signal to a task.
    Send { task: usize, signal: Signal },
    /// Start a task again, for the `restart`-th time.
    Start { task: usize, restart: u32 },
    /// Tell of this timer, so much later.
    Set(Timer, Duration),
    /// Tell the user.
    Say(Notice),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Running,
    /// Failed, and is to be started again.
    Waiting,
    Ended,
}

/// A task, as the supervisor knows it.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    task: Task,
    status: Status,
    pub restarts: u32,
    /// How many of them in a row came soon after the one before.
    soon: u32,
    pub end: Option<End>,
    pub after: Duration,
    pub stopped: bool,
    pub killed: bool,
    /// Whether it has failed and is not started again.
    lost: bool,
    /// Whether it was started again a short time ago.
    just_started: bool,
    suspended: bool,
}

impl Known {
    /// A task that waits for its restart gets none any more.
    fn stays_ended(&mut self) {
        self.status = Status::Ended;
        self.restarts -= 1;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// All have been asked to end.
    Ending,
    /// Those that did not have been killed.
    Killing,
    /// Nothing is waited for any more.
    Over,
}

/// Decides when tasks are started again, when they are stopped, and when the job is over.
pub(crate) struct Supervisor {
    policy: Policy,
    tasks: Vec<Known>,
    phase: Phase,
    cause: Option<Cause>,
    /// The chief of a job with parameter servers, without which its workers have nothing to do.
    chief: Option<usize>,
}

impl Supervisor {
    /// All tasks are running now.
    pub(crate) fn new(tasks: impl Iterator<Item = Task>, policy: Policy) -> (Self, Vec<Action>) {
        let known = |task| Known {
            task,
            status: Status::Running,
            restarts: 0,
            soon: 0,
            end: None,
            after: Duration::ZERO,
            stopped: false,
            killed: false,
            lost: false,
            just_started: false,
            suspended: false,
        };
        let timeout = policy.timeout.map(|timeout| Action::Set(Timer::Timeout, timeout));
        let tasks: Vec<_> = tasks.map(known).collect();
        let has_servers = tasks.iter().any(|known| known.task.job == Job::Ps);
        let chief = tasks.iter().position(|known| known.task.job == Job::Chief).filter(|_| has_servers);
        (Self { policy, tasks, phase: Phase::Running, cause: None, chief }, timeout.into_iter().collect())
    }

    /// Whether all tasks have been asked to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.phase != Phase::Running
    }

    /// Whether nothing is to be waited for any more.
    pub(crate) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Why the job ended, and what is known of its tasks.
    pub(crate) fn into_parts(self) -> (Cause, Vec<Known>) {
        (self.cause.unwrap_or(Cause::Done), self.tasks)
    }

    /// What to do now.
    pub(crate) fn decide(&mut self, happened: Happened) -> Vec<Action> {
        let mut actions = Vec::new();
        match happened {
            Happened::Ended { task, end, after } => self.ended(task, end, after, &mut actions),
            Happened::NotStarted { task } => self.tasks[task].stays_ended(),
            Happened::Looked { task, suspended } => self.tasks[task].suspended = suspended,
            Happened::Asked(_) if self.phase == Phase::Ending => self.kill(&mut actions),
            Happened::Asked(signal) if self.phase == Phase::Running => {
                actions.push(Action::Say(Notice::Interrupted { signal }));
                self.stop(Cause::Interrupted(signal), signal, &mut actions);
            }
            Happened::Passed(Timer::Timeout) if self.phase == Phase::Running => {
                let timeout = self.policy.timeout.unwrap_or_default();
                self.stop(Cause::TimedOut(timeout), Signal::Terminate, &mut actions);
            }
            Happened::Passed(Timer::Grace) if self.phase == Phase::Ending => self.kill(&mut actions),
            Happened::Passed(Timer::Killed) => self.phase = Phase::Over,
            Happened::Passed(Timer::LeftOver) if self.phase == Phase::Running => {
                self.end_left_over(&mut actions);
            }
            Happened::Passed(Timer::HasRun { task, restart }) => {
                let known = &mut self.tasks[task];
                known.just_started &= known.restarts != restart;
            }
            Happened::Passed(Timer::Restart(task)) => {
                let too_late = self.is_too_late_for(task);
                let known = &mut self.tasks[task];
                if known.status == Status::Waiting && too_late {
                    known.stays_ended();
                    self.give_up(task, &mut actions);
                } else if known.status == Status::Waiting {
                    known.status = Status::Running;
                    known.just_started = true;
                    let restart = known.restarts;
                    actions.push(Action::Start { task, restart });
                    actions.push(Action::Set(Timer::HasRun { task, restart }, JUST_STARTED));
                }
            }
            Happened::Asked(_) | Happened::Passed(_) => (),
        }
        if self.phase != Phase::Running && self.tasks.iter().all(|known| known.status == Status::Ended) {
            self.phase = Phase::Over;
        }
        actions
    }

    fn ended(&mut self, task: usize, end: End, after: Duration, actions: &mut Vec<Action>) {
        let too_late = self.is_too_late_for(task);
        let known = &mut self.tasks[task];
        known.status = Status::Ended;
        known.end = Some(end.clone());
        known.after = after;
        if self.phase != Phase::Running {
            return;
        }
        if end.is_success() && self.chief == Some(task) {
            self.chief_has_ended(actions);
        } else if !end.is_success() {
            let has_restarts = known.restarts < self.policy.max_restarts;
            if has_restarts && self.is_left_by_the_chief() {
                let task = self.tasks[task].task.clone();
                actions.push(Action::Say(Notice::NotNeeded { task, end, after }));
                return self.end_if_all_have(actions);
            }
            let known = &mut self.tasks[task];
            if known.restarts == self.policy.max_restarts || too_late {
                return self.give_up(task, actions);
            }
            let wait = |soon: u32| self.policy.backoff.saturating_mul(1 << soon.min(20)).min(LONGEST_BACKOFF);
            // One that has run well for a while was lost to something else than itself: others wait for it.
            let a_while = (2 * wait(known.soon.saturating_sub(1))).max(A_WHILE);
            known.soon = if after > a_while { 0 } else { known.soon };
            let wait = wait(known.soon);
            known.soon += 1;
            known.status = Status::Waiting;
            known.restarts += 1;
            let (restart, of, task_name) = (known.restarts, self.policy.max_restarts, known.task.clone());
            actions.push(Action::Say(Notice::Restart { task: task_name, end, after, restart, of, wait }));
            actions.push(Action::Set(Timer::Restart(task), wait));
        }
        self.end_if_all_have(actions);
    }

    /// Whether a task that trains would find nobody, where workers come and go: others have ended well, so what they trained is
    /// trained. A first worker that is started again would train anew.
    fn is_too_late_for(&self, task: usize) -> bool {
        let has_ended = |known: &Known| {
            trains(&known.task)
                && known.status == Status::Ended
                && known.end.as_ref().is_some_and(End::is_success)
        };
        self.policy.min_workers.is_some()
            && trains(&self.tasks[task].task)
            && self.tasks.iter().any(has_ended)
    }

    /// Whether the chief has ended well, which drives the others.
    fn is_left_by_the_chief(&self) -> bool {
        let chief = self.chief.map(|chief| &self.tasks[chief]);
        chief.is_some_and(|chief| {
            chief.status == Status::Ended && chief.end.as_ref().is_some_and(End::is_success)
        })
    }

    /// Starts no task again: it would find no chief.
    fn chief_has_ended(&mut self, actions: &mut Vec<Action>) {
        for known in self.tasks.iter_mut().filter(|known| known.status == Status::Waiting) {
            known.stays_ended();
            if let Some(end) = known.end.clone() {
                let (task, after) = (known.task.clone(), known.after);
                actions.push(Action::Say(Notice::NotNeeded { task, end, after }));
            }
        }
        actions.push(Action::Set(Timer::LeftOver, self.policy.grace));
    }

    /// Ends the job when no task that trains is left but those that may not know that it is over. The chief has told the others, and
    /// they end by themselves when they are done.
    fn end_left_over(&mut self, actions: &mut Vec<Action>) {
        let left: Vec<_> =
            self.tasks.iter().filter(|known| trains(&known.task) && known.status != Status::Ended).collect();
        if left.iter().any(|known| !known.suspended && !known.just_started) {
            return actions.push(Action::Set(Timer::LeftOver, self.policy.grace.max(LEFT_OVER)));
        }
        actions.extend(left.into_iter().map(|known| {
            let (task, suspended) = (known.task.clone(), known.suspended);
            Action::Say(Notice::LeftOver { task, suspended })
        }));
        self.stop(Cause::Done, Signal::Terminate, actions);
    }

    /// A task that has failed is not started again: the job goes on without it, if it can.
    fn give_up(&mut self, task: usize, actions: &mut Vec<Action>) {
        let known = &mut self.tasks[task];
        known.lost = true;
        let (task_name, after) = (known.task.clone(), known.after);
        let end = known.end.clone();
        match (self.left(), end) {
            (Some(left), Some(end)) => {
                actions.push(Action::Say(Notice::Lost { task: task_name, end, after, left }));
                self.end_if_all_have(actions);
            }
            _ => self.stop(Cause::Failed(task), Signal::Terminate, actions),
        }
    }

    /// Ends the job when all that train have ended.
    fn end_if_all_have(&mut self, actions: &mut Vec<Action>) {
        let well = |known: &Known| known.status == Status::Ended;
        if self.tasks.iter().filter(|known| trains(&known.task)).all(well) {
            self.stop(Cause::Done, Signal::Terminate, actions);
        }
    }

    /// With how many tasks that train the job goes on; `None` if they are too few, or another task is lost that is needed.
    fn left(&self) -> Option<usize> {
        let least = self.policy.min_workers?;
        let (workers, others): (Vec<_>, Vec<_>) = self.tasks.iter().partition(|known| trains(&known.task));
        // The workers meet at the first one's address.
        let needed = others.into_iter().chain(workers.first().copied());
        // Those that have ended well did not need it.
        let well = workers.iter().filter(|known| !known.lost).count();
        let left = workers.iter().filter(|known| !known.lost && known.status != Status::Ended).count();
        (!needed.into_iter().any(|known| known.lost) && well >= least).then_some(left)
    }

    /// Asks all to end.
    fn stop(&mut self, cause: Cause, signal: Signal, actions: &mut Vec<Action>) {
        self.cause = Some(cause);
        self.phase = Phase::Ending;
        for (task, known) in self.tasks.iter_mut().enumerate() {
            match known.status {
                Status::Running => {
                    known.stopped = true;
                    actions.push(Action::Send { task, signal });
                }
                Status::Waiting => known.stays_ended(),
                Status::Ended => (),
            }
        }
        actions.push(Action::Set(Timer::Grace, self.policy.grace));
    }

    fn kill(&mut self, actions: &mut Vec<Action>) {
        self.phase = Phase::Killing;
        for (task, known) in self.tasks.iter_mut().enumerate() {
            if known.status == Status::Running {
                known.killed = true;
                actions.push(Action::Send { task, signal: Signal::Kill });
            }
        }
        actions.push(Action::Set(Timer::Killed, KILLED));
    }
}

#[cfg(test)]
mod tests;
