//! What to do when a task ends: pure decisions, without processes and clocks.

use crate::layout::trains;
use crate::outcome::seconds;
use crate::{Cause, End, Notice, Signal, Task};
use std::time::Duration;

/// A task that ends sooner has not begun well.
const A_WHILE: Duration = Duration::from_secs(2);

/// The longest wait before a task is started again.
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);

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
        };
        let timeout = policy.timeout.map(|timeout| Action::Set(Timer::Timeout, timeout));
        let tasks = tasks.map(known).collect();
        (Self { policy, tasks, phase: Phase::Running, cause: None }, timeout.into_iter().collect())
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
            Happened::Passed(Timer::Restart(task)) => {
                let too_late = self.is_too_late_for(task);
                let known = &mut self.tasks[task];
                if known.status == Status::Waiting && too_late {
                    known.status = Status::Ended;
                    self.give_up(task, &mut actions);
                } else if known.status == Status::Waiting {
                    known.status = Status::Running;
                    actions.push(Action::Start { task, restart: known.restarts });
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
        if !end.is_success() {
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
                Status::Waiting => known.status = Status::Ended,
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

/// The text of a restart.
pub(crate) fn restart_text(end: &End, after: Duration, restart: u32, of: u32, wait: Duration) -> String {
    format!("{end} after {}; restart {restart} of {of} in {}", seconds(after), seconds(wait))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;

    const SECOND: Duration = Duration::from_secs(1);

    /// Of two workers, a parameter server and an evaluator.
    fn supervisor(max_restarts: u32) -> Supervisor {
        let policy = Policy {
            max_restarts,
            backoff: SECOND,
            min_workers: None,
            grace: 10 * SECOND,
            timeout: Some(100 * SECOND),
        };
        let tasks = Layout::new(2).ps(1).evaluator(true).tasks();
        let (supervisor, actions) = Supervisor::new(tasks.into_iter().map(|(task, _)| task), policy);
        assert_eq!(actions, [Action::Set(Timer::Timeout, 100 * SECOND)]);
        supervisor
    }

    fn ended(task: usize, end: End) -> Happened {
        Happened::Ended { task, end, after: SECOND }
    }

    fn sent(signal: Signal, tasks: &[usize]) -> Vec<Action> {
        tasks.iter().map(|task| Action::Send { task: *task, signal }).collect()
    }

    /// Signals to all that are left, and the timer.
    fn stopping(signal: Signal, tasks: &[usize]) -> Vec<Action> {
        let mut actions = sent(signal, tasks);
        actions.push(Action::Set(Timer::Grace, 10 * SECOND));
        actions
    }

    #[test]
    fn when_the_workers_are_done_the_others_are_asked_to_end() {
        let mut supervisor = supervisor(0);
        assert_eq!(supervisor.decide(ended(0, End::Exited(0))), []);
        assert_eq!(supervisor.decide(ended(1, End::Exited(0))), stopping(Signal::Terminate, &[2, 3]));
        // However they end now.
        assert_eq!(supervisor.decide(ended(2, End::Signaled(15))), []);
        assert!(!supervisor.is_over());
        assert_eq!(supervisor.decide(ended(3, End::Exited(1))), []);
        assert!(supervisor.is_over());
        assert_eq!(supervisor.into_parts().0, Cause::Done);
    }

    #[test]
    fn who_fails_first_is_the_cause_and_stops_the_others() {
        for (task, others) in [(1, [0, 2, 3]), (2, [0, 1, 3]), (3, [0, 1, 2])] {
            let mut supervisor = supervisor(0);
            assert_eq!(supervisor.decide(ended(task, End::Exited(3))), stopping(Signal::Terminate, &others));
            for other in others {
                assert_eq!(supervisor.decide(ended(other, End::Exited(1))), []);
            }
            assert!(supervisor.is_over());
            let (cause, tasks) = supervisor.into_parts();
            assert_eq!(cause, Cause::Failed(task));
            assert!(others.iter().all(|other| tasks[*other].stopped) && !tasks[task].stopped);
        }
    }

    #[test]
    fn a_job_that_needs_not_all_workers_goes_on_without_some_and_never_without_the_first() {
        let failed = |task| ended(task, End::Signaled(9));
        let of_three = || {
            let policy = Policy {
                max_restarts: 0,
                backoff: SECOND,
                min_workers: Some(2),
                grace: 10 * SECOND,
                timeout: None,
            };
            let tasks = Layout::new(3).evaluator(true).tasks();
            Supervisor::new(tasks.into_iter().map(|(task, _)| task), policy).0
        };
        let mut supervisor = of_three();
        let said = supervisor.decide(failed(1));
        let [Action::Say(notice @ Notice::Lost { left: 2, .. })] = &said[..] else { panic!("{said:?}") };
        assert_eq!(
            notice.to_string(),
            "worker 1: signal 9 (SIGKILL: by hand, or by the system for want of memory) after 1.0 s; the job goes on with 2 workers"
        );
        // The others end well, and that is the end of the job.
        assert_eq!(supervisor.decide(ended(0, End::Exited(0))), []);
        assert_eq!(supervisor.decide(ended(2, End::Exited(0))), stopping(Signal::Terminate, &[3]));
        assert_eq!(supervisor.into_parts().0, Cause::Done);

        // One is lost when the others have ended.
        let mut supervisor = of_three();
        supervisor.decide(ended(0, End::Exited(0)));
        supervisor.decide(ended(1, End::Exited(0)));
        let actions = supervisor.decide(failed(2));
        assert!(matches!(actions[0], Action::Say(Notice::Lost { left: 0, .. })), "{actions:?}");
        assert_eq!(actions[1..], stopping(Signal::Terminate, &[3])[..]);
        assert_eq!(supervisor.into_parts().0, Cause::Done);

        for (lost, cause) in [(&[0][..], 0), (&[1, 2], 2), (&[3], 3)] {
            let mut supervisor = of_three();
            lost.iter().for_each(|task| drop(supervisor.decide(failed(*task))));
            assert_eq!(supervisor.into_parts().0, Cause::Failed(cause), "{lost:?}");
        }
    }

    #[test]
    fn where_workers_come_and_go_none_is_started_again_when_others_have_ended_well() {
        let of_three = || {
            let policy = Policy {
                max_restarts: 5,
                backoff: SECOND,
                min_workers: Some(1),
                grace: 10 * SECOND,
                timeout: None,
            };
            let tasks = Layout::new(3).tasks();
            Supervisor::new(tasks.into_iter().map(|(task, _)| task), policy).0
        };
        // Worker 2 waits for its restart, and the others are through meanwhile; then worker 1 fails in its last lines.
        let mut supervisor = of_three();
        let waits = supervisor.decide(ended(2, End::Exited(1)));
        assert!(matches!(
            waits[..],
            [Action::Say(Notice::Restart { .. }), Action::Set(Timer::Restart(2), _)]
        ));
        assert_eq!(supervisor.decide(ended(0, End::Exited(0))), []);
        let lost = supervisor.decide(ended(1, End::Exited(1)));
        assert!(matches!(lost[..], [Action::Say(Notice::Lost { .. })]), "{lost:?}");
        let lost = supervisor.decide(Happened::Passed(Timer::Restart(2)));
        assert!(matches!(lost[0], Action::Say(Notice::Lost { left: 0, .. })), "{lost:?}");
        assert!(supervisor.is_over());
        assert_eq!(supervisor.into_parts().0, Cause::Done);

        // The first of them would train anew: it has failed.
        let mut supervisor = of_three();
        supervisor.decide(ended(1, End::Exited(0)));
        assert_eq!(supervisor.decide(ended(0, End::Signaled(9))), stopping(Signal::Terminate, &[2]));
        supervisor.decide(ended(2, End::Signaled(15)));
        assert_eq!(supervisor.into_parts().0, Cause::Failed(0));
    }

    #[test]
    fn who_does_not_end_when_asked_is_killed() {
        let mut supervisor = supervisor(0);
        supervisor.decide(ended(0, End::Signaled(11)));
        supervisor.decide(ended(2, End::Signaled(15)));
        let mut expected = sent(Signal::Kill, &[1, 3]);
        expected.push(Action::Set(Timer::Killed, KILLED));
        assert_eq!(supervisor.decide(Happened::Passed(Timer::Grace)), expected);
        supervisor.decide(ended(1, End::Signaled(9)));
        assert!(!supervisor.is_over());
        // Stuck in the system.
        assert_eq!(supervisor.decide(Happened::Passed(Timer::Killed)), []);
        assert!(supervisor.is_over());
        let (cause, tasks) = supervisor.into_parts();
        assert_eq!((cause, &tasks[3].end, tasks[3].killed), (Cause::Failed(0), &None, true));
    }

    #[test]
    fn a_signal_to_the_launcher_goes_to_all_and_a_second_one_kills() {
        let mut supervisor = supervisor(3);
        let mut expected = vec![Action::Say(Notice::Interrupted { signal: Signal::Interrupt })];
        expected.extend(stopping(Signal::Interrupt, &[0, 1, 2, 3]));
        assert_eq!(supervisor.decide(Happened::Asked(Signal::Interrupt)), expected);
        // No restarts now.
        assert_eq!(supervisor.decide(ended(0, End::Signaled(2))), []);
        let actions = supervisor.decide(Happened::Asked(Signal::Interrupt));
        assert_eq!(actions[..3], sent(Signal::Kill, &[1, 2, 3]));
        // What comes late changes nothing.
        assert_eq!(supervisor.decide(Happened::Asked(Signal::Interrupt)), []);
        assert_eq!(supervisor.decide(Happened::Passed(Timer::Grace)), []);
        assert_eq!(supervisor.decide(Happened::Passed(Timer::Timeout)), []);
        for task in 1..4 {
            supervisor.decide(ended(task, End::Signaled(9)));
        }
        assert!(supervisor.is_over());
        assert_eq!(supervisor.into_parts().0, Cause::Interrupted(Signal::Interrupt));
    }

    #[test]
    fn the_time_of_the_job_is_limited() {
        let mut supervisor = supervisor(0);
        let actions = supervisor.decide(Happened::Passed(Timer::Timeout));
        assert_eq!(actions, stopping(Signal::Terminate, &[0, 1, 2, 3]));
        (0..4).for_each(|task| drop(supervisor.decide(ended(task, End::Signaled(15)))));
        assert_eq!(supervisor.into_parts().0, Cause::TimedOut(100 * SECOND));
    }

    #[test]
    fn a_failed_task_is_started_again_each_time_later() {
        let mut supervisor = supervisor(8);
        let mut waits = Vec::new();
        for restart in 1..=8 {
            let actions = supervisor.decide(ended(0, End::Exited(1)));
            let [Action::Say(notice), Action::Set(Timer::Restart(0), wait)] = &actions[..] else {
                panic!("{actions:?}")
            };
            assert!(notice.to_string().contains(&format!("restart {restart} of 8")), "{notice}");
            waits.push(wait.as_secs());
            let again = supervisor.decide(Happened::Passed(Timer::Restart(0)));
            assert_eq!(again, [Action::Start { task: 0, restart }]);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        // Others have restarts of their own.
        assert_eq!(supervisor.decide(ended(2, End::Exited(1))).len(), 2);
        let actions = supervisor.decide(ended(0, End::Exited(7)));
        assert_eq!(actions, stopping(Signal::Terminate, &[1, 3]));
        // The one that waits for its restart has none any more.
        assert_eq!(supervisor.decide(Happened::Passed(Timer::Restart(2))), []);
        supervisor.decide(ended(1, End::Signaled(15)));
        supervisor.decide(ended(3, End::Signaled(15)));
        assert!(supervisor.is_over());
        assert_eq!(supervisor.into_parts().0, Cause::Failed(0));
    }

    #[test]
    fn who_fails_soon_waits_longer_each_time_and_who_has_run_for_a_while_does_not() {
        let mut supervisor = supervisor(9);
        let mut waits = Vec::new();
        for after in [1, 1, 1, 30, 1, 4, 5] {
            let end = Happened::Ended { task: 1, end: End::Exited(1), after: after * SECOND };
            let actions = supervisor.decide(end);
            waits.extend(actions.iter().filter_map(|action| match action {
                Action::Set(Timer::Restart(1), wait) => Some(wait.as_secs()),
                _ => None,
            }));
            supervisor.decide(Happened::Passed(Timer::Restart(1)));
        }
        assert_eq!(waits, [1, 2, 4, 1, 2, 4, 8]);
    }

    #[test]
    fn a_worker_that_waits_for_its_restart_is_not_done() {
        let mut supervisor = supervisor(1);
        supervisor.decide(ended(0, End::Exited(1)));
        assert_eq!(supervisor.decide(ended(1, End::Exited(0))), []);
        supervisor.decide(Happened::Passed(Timer::Restart(0)));
        assert_eq!(supervisor.decide(ended(0, End::Exited(0))), stopping(Signal::Terminate, &[2, 3]));
    }

    #[test]
    fn a_restart_that_the_system_refuses_is_a_failure() {
        let mut supervisor = supervisor(1);
        supervisor.decide(ended(1, End::Signaled(9)));
        supervisor.decide(Happened::Passed(Timer::Restart(1)));
        let refused = End::NotStarted("no memory".into());
        assert_eq!(supervisor.decide(ended(1, refused)), stopping(Signal::Terminate, &[0, 2, 3]));
    }
}
