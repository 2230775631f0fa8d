//! [`Supervisor`]: the decisions about a running job: restarts, stops, kills and the end. It uses neither processes nor
//! clocks.

use crate::layout::trains;
use crate::{Cause, End, Job, Notice, Signal, Task};
use std::time::Duration;

/// The running time below which a task counts as not having started properly.
const MIN_RUN: Duration = Duration::from_secs(2);

/// The maximum delay before a restart.
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);

/// The time after a restart for which a task may still be looking for a chief that has already exited.
const JUST_STARTED: Duration = Duration::from_secs(60);

/// The minimum interval between two checks for tasks that still run after the chief has exited.
const LEFT_OVER: Duration = Duration::from_secs(1);

/// The maximum time to wait for tasks to exit after SIGKILL. Only a task that hangs in the kernel takes this long.
const KILLED: Duration = Duration::from_secs(5);

/// The settings of a supervisor.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    /// The maximum number of restarts of each task.
    pub max_restarts: u32,
    /// The delay before the first restart of a task. It doubles with each restart, and is reset after the task has run
    /// for more than [`MIN_RUN`] and more than twice the last delay.
    pub backoff: Duration,
    /// The minimum number of tasks that train, including the first. The job continues after others have failed
    /// permanently if at least this number of tasks is left or has succeeded. `None` means that all are required.
    pub min_workers: Option<usize>,
    /// The number of spares among the tasks that train.
    ///
    /// If the number of workers is fixed, spares replace any task. With a smaller minimum, they replace any except the
    /// first. The others therefore wait only for that one, which is restarted without a delay if it has run for a
    /// while.
    pub spares: usize,
    /// The time for tasks to exit after they are asked to.
    pub grace: Duration,
    /// The maximum duration of the job; `None` for no limit.
    pub timeout: Option<Duration>,
}

/// An event to which the supervisor reacts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Input {
    /// The process of a task has exited after running for `after`.
    Ended { task: usize, end: End, after: Duration },
    /// A requested restart of a task was not made, because the job is ending.
    NotStarted { task: usize },
    /// The result of a check whether a task is suspended. All tasks are checked before [`Timer::LeftOver`] is reported.
    Checked { task: usize, suspended: bool },
    /// The launcher received a signal to end the job.
    Signal(Signal),
    /// A timer of an [`Action`] has expired.
    Expired(Timer),
}

/// A timer that the supervisor starts with [`Action::Set`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// The delay before the restart of a task.
    Restart(usize),
    /// The running time after which a task counts as having started properly, since its `restart`-th restart.
    HasRun { task: usize, restart: u32 },
    /// The interval after which tasks that still run after the chief may be asked to exit.
    LeftOver,
    /// The time for tasks to exit after they are asked to.
    Grace,
    /// The time within which tasks should exit after SIGKILL.
    Killed,
    /// The maximum duration of the job.
    Timeout,
}

/// An action that the supervisor requests.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Send a signal to a task.
    Send { task: usize, signal: Signal },
    /// Restart a task, for the `restart`-th time.
    Start { task: usize, restart: u32 },
    /// Start a timer that expires after the given time.
    Set(Timer, Duration),
    /// Show a notice to the user.
    Notify(Notice),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Running,
    /// The task has failed, and will be restarted after a delay.
    Waiting,
    Ended,
}

/// The supervisor's record of one task.
#[derive(Clone, Debug)]
pub(crate) struct TaskRecord {
    task: Task,
    status: Status,
    pub restarts: u32,
    /// The number of restarts in a row, each of which followed soon after the previous one.
    soon: u32,
    pub end: Option<End>,
    pub after: Duration,
    pub stopped: bool,
    pub killed: bool,
    /// Whether the task has failed permanently, so that it is not restarted.
    lost: bool,
    /// Whether the task was restarted recently.
    just_started: bool,
    suspended: bool,
}

impl TaskRecord {
    fn has_succeeded(&self) -> bool {
        self.status == Status::Ended && self.end.as_ref().is_some_and(End::is_success)
    }

    /// Cancels a restart of the task that has not been made yet.
    fn stays_ended(&mut self) {
        self.status = Status::Ended;
        self.restarts -= 1;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// All tasks have been asked to exit.
    Ending,
    /// The remaining tasks have received SIGKILL.
    Killing,
    /// The job is over: no task is left to wait for.
    Over,
}

/// A supervisor of one job, which decides when tasks are restarted or stopped, and when the job is over.
pub(crate) struct Supervisor {
    policy: Policy,
    tasks: Vec<TaskRecord>,
    phase: Phase,
    cause: Option<Cause>,
    /// The index of the chief in a job with parameter servers; otherwise `None`. The workers of such a job do nothing
    /// without the chief.
    chief: Option<usize>,
    /// The worker that has failed after another one had succeeded, although it may have been the chief of its group.
    /// Only with elections.
    chief_failed: Option<usize>,
    /// The last task that has failed permanently.
    last_lost: Option<usize>,
}

impl Supervisor {
    /// Creates a supervisor of tasks that are already running. Also returns its first actions.
    pub(crate) fn new(tasks: impl Iterator<Item = Task>, policy: Policy) -> (Self, Vec<Action>) {
        let known = |task| TaskRecord {
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
        (
            Self {
                policy,
                tasks,
                phase: Phase::Running,
                cause: None,
                chief,
                chief_failed: None,
                last_lost: None,
            },
            timeout.into_iter().collect(),
        )
    }

    /// Returns whether all tasks have been asked to exit.
    pub(crate) fn is_ending(&self) -> bool {
        self.phase != Phase::Running
    }

    /// Returns whether the job is over, with no task left to wait for.
    pub(crate) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Returns the reason why the job has ended, and the records of its tasks.
    pub(crate) fn into_parts(self) -> (Cause, Vec<TaskRecord>) {
        (self.cause.unwrap_or(Cause::Done), self.tasks)
    }

    /// Processes an event. Returns the actions to execute, in order.
    pub(crate) fn decide(&mut self, input: Input) -> Vec<Action> {
        let mut actions = Vec::new();
        match input {
            Input::Ended { task, end, after } => self.ended(task, end, after, &mut actions),
            Input::NotStarted { task } => self.tasks[task].stays_ended(),
            Input::Checked { task, suspended } => self.tasks[task].suspended = suspended,
            Input::Signal(_) if self.phase == Phase::Ending => self.kill(&mut actions),
            Input::Signal(signal) if self.phase == Phase::Running => {
                actions.push(Action::Notify(Notice::Interrupted { signal }));
                self.stop(Cause::Interrupted(signal), signal, &mut actions);
            }
            Input::Expired(Timer::Timeout) if self.phase == Phase::Running => {
                let timeout = self.policy.timeout.unwrap_or_default();
                self.stop(Cause::TimedOut(timeout), Signal::Terminate, &mut actions);
            }
            Input::Expired(Timer::Grace) if self.phase == Phase::Ending => self.kill(&mut actions),
            Input::Expired(Timer::Killed) => self.phase = Phase::Over,
            Input::Expired(Timer::LeftOver) if self.phase == Phase::Running => {
                self.end_left_over(&mut actions);
            }
            Input::Expired(Timer::HasRun { task, restart }) => {
                let known = &mut self.tasks[task];
                known.just_started &= known.restarts != restart;
            }
            Input::Expired(Timer::Restart(task)) => {
                let too_late = self.cannot_join(task);
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
            Input::Signal(_) | Input::Expired(_) => (),
        }
        if self.phase != Phase::Running && self.tasks.iter().all(|known| known.status == Status::Ended) {
            self.phase = Phase::Over;
        }
        actions
    }

    fn ended(&mut self, task: usize, end: End, after: Duration, actions: &mut Vec<Action>) {
        let too_late = self.cannot_join(task);
        let (is_first, elects) = (self.first_worker() == Some(task), self.elects());
        let known = &mut self.tasks[task];
        known.status = Status::Ended;
        known.end = Some(end.clone());
        known.after = after;
        if self.phase != Phase::Running {
            return;
        }
        if end.is_success() && self.chief == Some(task) {
            self.cancel_restarts(actions);
        } else if !end.is_success() {
            let has_restarts = known.restarts < self.policy.max_restarts;
            if has_restarts && self.chief_has_succeeded() {
                let task = self.tasks[task].task.clone();
                actions.push(Action::Notify(Notice::NotNeeded { task, end, after }));
                return self.end_if_all_succeeded(actions);
            }
            let known = &mut self.tasks[task];
            if known.restarts == self.policy.max_restarts || too_late {
                return self.give_up(task, actions);
            }
            let wait = |soon: u32| self.policy.backoff.saturating_mul(1 << soon.min(20)).min(LONGEST_BACKOFF);
            // A task that has run well for a while was not the cause of its failure, and others wait for it.
            let a_while = (2 * wait(known.soon.saturating_sub(1))).max(MIN_RUN);
            known.soon = if after > a_while { 0 } else { known.soon };
            // Without spares the others wait for any task, which may have failed because of its machine.
            let is_awaited = self.policy.spares > 0 && known.soon == 0 && is_first && !elects;
            let wait = if is_awaited { Duration::ZERO } else { wait(known.soon) };
            known.soon += 1;
            known.status = Status::Waiting;
            known.restarts += 1;
            let (restart, of, task_name) = (known.restarts, self.policy.max_restarts, known.task.clone());
            actions.push(Action::Notify(Notice::Restart { task: task_name, end, after, restart, of, wait }));
            actions.push(Action::Set(Timer::Restart(task), wait));
        }
        self.end_if_all_succeeded(actions);
    }

    /// Returns whether a restarted worker could not continue the training, because it may be complete. Returns `false`
    /// if all workers are required, and for tasks that do not train.
    ///
    /// If the first worker has succeeded, the training is complete: the first worker never leaves alone after a notice
    /// to exit. While it runs, it admits workers that were restarted, or rejects them because the training has ended.
    ///
    /// If another worker has succeeded, either it left alone after a notice to exit, or the training is complete. In
    /// both cases, the first worker is not restarted, because it would train again from the beginning if it found no
    /// others.
    ///
    /// If workers elect their leader, no worker leaves alone, and the success of any completes the training.
    fn cannot_join(&self, task: usize) -> bool {
        let Some(first) = self.first_worker().filter(|_| self.policy.min_workers.is_some()) else {
            return false;
        };
        if self.elects() {
            let has_succeeded = |known: &TaskRecord| trains(&known.task) && known.has_succeeded();
            return trains(&self.tasks[task].task) && self.tasks.iter().any(has_succeeded);
        }
        if task == first {
            let mut others = self.tasks[first + 1..].iter().filter(|known| trains(&known.task));
            others.any(|known| known.has_succeeded())
        } else {
            trains(&self.tasks[task].task) && self.tasks[first].has_succeeded()
        }
    }

    /// Returns whether the workers elect the leader of their rendezvous, so that they need no certain task: there are
    /// spares, and the number of workers is fixed.
    fn elects(&self) -> bool {
        let trained = self.tasks.iter().filter(|known| trains(&known.task)).count() - self.policy.spares;
        self.policy.spares > 0 && self.policy.min_workers == Some(trained)
    }

    /// Returns the number of tasks that workers need to form another group, which elects its leader: the missing ones
    /// must be too few for a group of their own.
    fn needed(&self) -> usize {
        self.policy.min_workers.unwrap_or_default().max(self.policy.spares + 1)
    }

    /// Returns whether a worker may be the chief of its group, which is the one with the lowest number. A worker that
    /// was restarted has probably become a spare.
    fn may_be_chief(&self, task: usize) -> bool {
        let mut lower = self.tasks[..task].iter().filter(|known| trains(&known.task));
        lower.all(|known| known.lost || known.restarts > 0)
    }

    /// Returns why a job whose workers have all exited is over. With elections, it is only successful if enough workers
    /// for a group have succeeded, and the chief has not failed after another one had succeeded.
    fn cause(&self) -> Cause {
        if !self.elects() {
            return Cause::Done;
        }
        let trained = |known: &&TaskRecord| trains(&known.task) && known.has_succeeded();
        let is_trained =
            self.tasks.iter().filter(trained).count() >= self.policy.min_workers.unwrap_or_default();
        let lost = self.last_lost.filter(|_| !is_trained);
        self.chief_failed.or(lost).map_or(Cause::Done, Cause::Failed)
    }

    /// Returns the first task that trains.
    fn first_worker(&self) -> Option<usize> {
        self.tasks.iter().position(|known| trains(&known.task))
    }

    /// Returns whether the chief, which schedules the work of the other tasks, has succeeded. Returns `false` if there
    /// is no such chief.
    fn chief_has_succeeded(&self) -> bool {
        self.chief.is_some_and(|chief| self.tasks[chief].has_succeeded())
    }

    /// Cancels all restarts, because restarted tasks would find no chief. Starts the timer for tasks that still run
    /// after the chief.
    fn cancel_restarts(&mut self, actions: &mut Vec<Action>) {
        for known in self.tasks.iter_mut().filter(|known| known.status == Status::Waiting) {
            known.stays_ended();
            if let Some(end) = known.end.clone() {
                let (task, after) = (known.task.clone(), known.after);
                actions.push(Action::Notify(Notice::NotNeeded { task, end, after }));
            }
        }
        actions.push(Action::Set(Timer::LeftOver, self.policy.grace));
    }

    /// Ends the job if each remaining task that trains is suspended or was just restarted, and so may not know that the
    /// job is over. Other tasks were notified by the chief and exit on their own: while any of them remain, starts the
    /// timer for the next check.
    fn end_left_over(&mut self, actions: &mut Vec<Action>) {
        let left: Vec<_> =
            self.tasks.iter().filter(|known| trains(&known.task) && known.status != Status::Ended).collect();
        if left.iter().any(|known| !known.suspended && !known.just_started) {
            return actions.push(Action::Set(Timer::LeftOver, self.policy.grace.max(LEFT_OVER)));
        }
        actions.extend(left.into_iter().map(|known| {
            let (task, suspended) = (known.task.clone(), known.suspended);
            Action::Notify(Notice::LeftOver { task, suspended })
        }));
        self.stop(Cause::Done, Signal::Terminate, actions);
    }

    /// Records that a failed task will not be restarted. The job continues without the task if it can, and otherwise
    /// ends.
    fn give_up(&mut self, task: usize, actions: &mut Vec<Action>) {
        if self.elects() && self.cannot_join(task) && self.may_be_chief(task) {
            self.chief_failed.get_or_insert(task);
        }
        self.last_lost = Some(task);
        let known = &mut self.tasks[task];
        known.lost = true;
        let (task_name, after) = (known.task.clone(), known.after);
        let end = known.end.clone();
        match (self.left(), end) {
            (Some(left), Some(end)) => {
                let (is_worker, needed) = (trains(&task_name), self.needed());
                let any_succeeded =
                    self.tasks.iter().any(|known| trains(&known.task) && known.has_succeeded());
                actions.push(Action::Notify(Notice::Lost { task: task_name, end, after, left }));
                if self.elects() && is_worker && !any_succeeded && left < needed {
                    actions.push(Action::Notify(Notice::Few { left, needed }));
                }
                self.end_if_all_succeeded(actions);
            }
            (None, Some(end)) if self.elects() && trains(&task_name) => {
                let left = self.tasks.iter().filter(|known| trains(&known.task) && !known.lost).count();
                let needed = self.policy.min_workers.unwrap_or_default();
                actions.push(Action::Notify(Notice::TooFew { task: task_name, end, after, left, needed }));
                self.stop(Cause::Failed(task), Signal::Terminate, actions);
            }
            _ => self.stop(Cause::Failed(task), Signal::Terminate, actions),
        }
    }

    /// Ends the job successfully if all tasks that train have exited.
    fn end_if_all_succeeded(&mut self, actions: &mut Vec<Action>) {
        let well = |known: &TaskRecord| known.status == Status::Ended;
        if self.tasks.iter().filter(|known| trains(&known.task)).all(well) {
            self.stop(self.cause(), Signal::Terminate, actions);
        }
    }

    /// Returns the number of tasks that train and have not exited, if the job can continue. Returns `None` if all tasks
    /// are required, if the remaining and the successful ones are fewer than the minimum, or if a required task has
    /// failed permanently.
    fn left(&self) -> Option<usize> {
        let least = self.policy.min_workers?;
        let (workers, others): (Vec<_>, Vec<_>) = self.tasks.iter().partition(|known| trains(&known.task));
        // The rendezvous of the workers is at the first one's address, unless they elect its leader.
        let needed = others.into_iter().chain(workers.first().copied().filter(|_| !self.elects()));
        // Workers that have succeeded count: either the training is complete, which does not need the others, or they
        // left after a notice. In the latter case the remaining workers decide themselves whether they are too few.
        let well = workers.iter().filter(|known| !known.lost).count();
        let left = workers.iter().filter(|known| !known.lost && known.status != Status::Ended).count();
        (!needed.into_iter().any(|known| known.lost) && well >= least).then_some(left)
    }

    /// Asks all running tasks to exit by sending `signal`, cancels restarts, and records `cause` as the reason. Starts
    /// the timer after which the remaining tasks are killed.
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
