use super::*;
use crate::Layout;

const SECOND: Duration = Duration::from_secs(1);

/// Returns a policy without restarts, all of whose tasks are required.
fn policy() -> Policy {
    Policy {
        max_restarts: 0,
        backoff: SECOND,
        min_workers: None,
        spares: 0,
        grace: 10 * SECOND,
        timeout: None,
    }
}

/// Creates a supervisor of two workers, a parameter server and an evaluator.
fn supervisor(max_restarts: u32) -> Supervisor {
    let policy = Policy { max_restarts, timeout: Some(100 * SECOND), ..policy() };
    let tasks = Layout::new(2).ps(1).with_evaluator().tasks();
    let (supervisor, actions) = Supervisor::new(tasks.into_iter().map(|(task, _)| task), policy);
    assert_eq!(actions, [Action::Set(Timer::Timeout, 100 * SECOND)]);
    supervisor
}

fn ended(task: usize, end: End) -> Input {
    Input::Ended { task, end, after: SECOND }
}

fn sent(signal: Signal, tasks: &[usize]) -> Vec<Action> {
    tasks.iter().map(|task| Action::Send { task: *task, signal }).collect()
}

/// Returns the actions that send `signal` to `tasks` and start the timer of the grace period.
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
    // The way in which they exit does not matter.
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
        let policy = Policy { min_workers: Some(2), ..policy() };
        let tasks = Layout::new(3).with_evaluator().tasks();
        Supervisor::new(tasks.into_iter().map(|(task, _)| task), policy).0
    };
    let mut supervisor = of_three();
    let said = supervisor.decide(failed(1));
    let [Action::Notify(notice @ Notice::Lost { left: 2, .. })] = &said[..] else { panic!("{said:?}") };
    assert_eq!(
        notice.to_string(),
        "worker 1: signal 9 (SIGKILL: by a user, or by the system because it ran out of memory) after 1.0 \
         s; the job continues with 2 workers"
    );
    // The others succeed, which ends the job.
    assert_eq!(supervisor.decide(ended(0, End::Exited(0))), []);
    assert_eq!(supervisor.decide(ended(2, End::Exited(0))), stopping(Signal::Terminate, &[3]));
    assert_eq!(supervisor.into_parts().0, Cause::Done);

    // A task fails after the others have exited.
    let mut supervisor = of_three();
    supervisor.decide(ended(0, End::Exited(0)));
    supervisor.decide(ended(1, End::Exited(0)));
    let actions = supervisor.decide(failed(2));
    assert!(matches!(actions[0], Action::Notify(Notice::Lost { left: 0, .. })), "{actions:?}");
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
        let policy = Policy { max_restarts: 5, min_workers: Some(1), ..policy() };
        let tasks = Layout::new(3).tasks();
        Supervisor::new(tasks.into_iter().map(|(task, _)| task), policy).0
    };
    // Worker 2 waits for its restart, and the others finish in the meantime; then worker 1 fails at its end.
    let mut supervisor = of_three();
    let waits = supervisor.decide(ended(2, End::Exited(1)));
    assert!(matches!(waits[..], [Action::Notify(Notice::Restart { .. }), Action::Set(Timer::Restart(2), _)]));
    assert_eq!(supervisor.decide(ended(0, End::Exited(0))), []);
    let lost = supervisor.decide(ended(1, End::Exited(1)));
    assert!(matches!(lost[..], [Action::Notify(Notice::Lost { .. })]), "{lost:?}");
    let lost = supervisor.decide(Input::Expired(Timer::Restart(2)));
    assert!(matches!(lost[0], Action::Notify(Notice::Lost { left: 0, .. })), "{lost:?}");
    assert!(supervisor.is_over());
    assert_eq!(supervisor.into_parts().0, Cause::Done);

    // The first worker would train from the beginning: the job has failed.
    let mut supervisor = of_three();
    supervisor.decide(ended(1, End::Exited(0)));
    assert_eq!(supervisor.decide(ended(0, End::Signaled(9))), stopping(Signal::Terminate, &[2]));
    supervisor.decide(ended(2, End::Signaled(15)));
    assert_eq!(supervisor.into_parts().0, Cause::Failed(0));
}

#[test]
fn a_worker_that_leaves_after_a_notice_does_not_prevent_restarts_of_the_others() {
    let policy = Policy { max_restarts: 1, min_workers: Some(2), ..policy() };
    let failed = |task| ended(task, End::Signaled(9));
    // Worker 3 of 4 leaves alone, with 0, and the others continue. After that, workers 1 and 2 fail and are restarted.
    let after_restarts = || {
        let tasks = Layout::new(4).tasks();
        let mut supervisor = Supervisor::new(tasks.into_iter().map(|(task, _)| task), policy.clone()).0;
        assert_eq!(supervisor.decide(ended(3, End::Exited(0))), []);
        for task in [1, 2] {
            let waits = supervisor.decide(failed(task));
            let [Action::Notify(Notice::Restart { .. }), Action::Set(Timer::Restart(of), _)] = waits[..]
            else {
                panic!("{waits:?}")
            };
            assert_eq!(of, task);
            let starts = supervisor.decide(Input::Expired(Timer::Restart(task)));
            assert_eq!(starts[0], Action::Start { task, restart: 1 });
        }
        supervisor
    };
    let loses = |supervisor: &mut Supervisor, task: usize, count: usize| {
        let lost = supervisor.decide(failed(task));
        assert!(matches!(lost[0], Action::Notify(Notice::Lost { left, .. }) if left == count), "{lost:?}");
    };

    // The first worker never leaves alone, so its success ends the training.
    let mut supervisor = after_restarts();
    supervisor.decide(ended(0, End::Exited(0)));
    loses(&mut supervisor, 1, 1);
    loses(&mut supervisor, 2, 0);
    assert!(supervisor.is_over());
    assert_eq!(supervisor.into_parts().0, Cause::Done);

    // Too few are left, unless the training is complete. The first worker reports which of the two is the case.
    for (end, cause) in [(End::Exited(0), Cause::Done), (End::Exited(1), Cause::Failed(0))] {
        let mut supervisor = after_restarts();
        loses(&mut supervisor, 1, 2);
        loses(&mut supervisor, 2, 1);
        supervisor.decide(ended(0, end));
        assert!(supervisor.is_over());
        assert_eq!(supervisor.into_parts().0, cause);
    }
}

#[test]
fn a_worker_is_not_restarted_if_the_first_one_succeeds_in_the_meantime() {
    let policy = Policy { max_restarts: 5, min_workers: Some(1), ..policy() };
    let tasks = Layout::new(2).with_evaluator().tasks();
    let mut supervisor = Supervisor::new(tasks.into_iter().map(|(task, _)| task), policy).0;
    assert_eq!(supervisor.decide(ended(1, End::Exited(1))).len(), 2);
    assert_eq!(supervisor.decide(ended(0, End::Exited(0))), []);
    // The evaluator does not train, so the end of the training does not prevent its restart.
    assert_eq!(supervisor.decide(ended(2, End::Exited(1))).len(), 2);
    let starts = supervisor.decide(Input::Expired(Timer::Restart(2)));
    assert_eq!(starts[0], Action::Start { task: 2, restart: 1 });
    let lost = supervisor.decide(Input::Expired(Timer::Restart(1)));
    assert!(matches!(lost[0], Action::Notify(Notice::Lost { left: 0, .. })), "{lost:?}");
    assert_eq!(lost[1..], stopping(Signal::Terminate, &[2])[..]);
}

#[test]
fn who_does_not_end_when_asked_is_killed() {
    let mut supervisor = supervisor(0);
    supervisor.decide(ended(0, End::Signaled(11)));
    supervisor.decide(ended(2, End::Signaled(15)));
    let mut expected = sent(Signal::Kill, &[1, 3]);
    expected.push(Action::Set(Timer::Killed, KILLED));
    assert_eq!(supervisor.decide(Input::Expired(Timer::Grace)), expected);
    supervisor.decide(ended(1, End::Signaled(9)));
    assert!(!supervisor.is_over());
    // Hung in the kernel.
    assert_eq!(supervisor.decide(Input::Expired(Timer::Killed)), []);
    assert!(supervisor.is_over());
    let (cause, tasks) = supervisor.into_parts();
    assert_eq!((cause, &tasks[3].end, tasks[3].killed), (Cause::Failed(0), &None, true));
}

#[test]
fn a_signal_to_the_launcher_goes_to_all_and_a_second_one_kills() {
    let mut supervisor = supervisor(3);
    let mut expected = vec![Action::Notify(Notice::Interrupted { signal: Signal::Interrupt })];
    expected.extend(stopping(Signal::Interrupt, &[0, 1, 2, 3]));
    assert_eq!(supervisor.decide(Input::Signal(Signal::Interrupt)), expected);
    // There are no restarts now.
    assert_eq!(supervisor.decide(ended(0, End::Signaled(2))), []);
    let actions = supervisor.decide(Input::Signal(Signal::Interrupt));
    assert_eq!(actions[..3], sent(Signal::Kill, &[1, 2, 3]));
    // Late events change nothing.
    assert_eq!(supervisor.decide(Input::Signal(Signal::Interrupt)), []);
    assert_eq!(supervisor.decide(Input::Expired(Timer::Grace)), []);
    assert_eq!(supervisor.decide(Input::Expired(Timer::Timeout)), []);
    for task in 1..4 {
        supervisor.decide(ended(task, End::Signaled(9)));
    }
    assert!(supervisor.is_over());
    assert_eq!(supervisor.into_parts().0, Cause::Interrupted(Signal::Interrupt));
}

#[test]
fn the_time_of_the_job_is_limited() {
    let mut supervisor = supervisor(0);
    let actions = supervisor.decide(Input::Expired(Timer::Timeout));
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
        let [Action::Notify(notice), Action::Set(Timer::Restart(0), wait)] = &actions[..] else {
            panic!("{actions:?}")
        };
        assert!(notice.to_string().contains(&format!("restart {restart} of 8")), "{notice}");
        waits.push(wait.as_secs());
        let again = supervisor.decide(Input::Expired(Timer::Restart(0)));
        let has_run = Action::Set(Timer::HasRun { task: 0, restart }, JUST_STARTED);
        assert_eq!(again, [Action::Start { task: 0, restart }, has_run]);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
    // Other tasks have their own restarts.
    assert_eq!(supervisor.decide(ended(2, End::Exited(1))).len(), 2);
    let actions = supervisor.decide(ended(0, End::Exited(7)));
    assert_eq!(actions, stopping(Signal::Terminate, &[1, 3]));
    // The task that waits for its restart is not restarted any more.
    assert_eq!(supervisor.decide(Input::Expired(Timer::Restart(2))), []);
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
        let end = Input::Ended { task: 1, end: End::Exited(1), after: after * SECOND };
        let actions = supervisor.decide(end);
        waits.extend(actions.iter().filter_map(|action| match action {
            Action::Set(Timer::Restart(1), wait) => Some(wait.as_secs()),
            _ => None,
        }));
        supervisor.decide(Input::Expired(Timer::Restart(1)));
    }
    assert_eq!(waits, [1, 2, 4, 1, 2, 4, 8]);
}

#[test]
fn a_worker_that_waits_for_its_restart_is_not_done() {
    let mut supervisor = supervisor(1);
    supervisor.decide(ended(0, End::Exited(1)));
    assert_eq!(supervisor.decide(ended(1, End::Exited(0))), []);
    supervisor.decide(Input::Expired(Timer::Restart(0)));
    assert_eq!(supervisor.decide(ended(0, End::Exited(0))), stopping(Signal::Terminate, &[2, 3]));
}

#[test]
fn a_restart_that_the_system_refuses_is_a_failure() {
    let mut supervisor = supervisor(1);
    supervisor.decide(ended(1, End::Signaled(9)));
    supervisor.decide(Input::Expired(Timer::Restart(1)));
    let refused = End::NotStarted("no memory".into());
    assert_eq!(supervisor.decide(ended(1, refused)), stopping(Signal::Terminate, &[0, 2, 3]));
}

/// Creates a supervisor of a chief, two workers that it schedules, and a parameter server.
fn driven() -> Supervisor {
    let policy = Policy { max_restarts: 3, ..policy() };
    let tasks = Layout::new(2).with_chief().ps(1).tasks();
    Supervisor::new(tasks.into_iter().map(|(task, _)| task), policy).0
}

fn said(actions: &[Action]) -> Vec<String> {
    let notices = actions.iter().filter_map(|action| match action {
        Action::Notify(notice) => Some(notice.to_string()),
        _ => None,
    });
    notices.collect()
}

#[test]
fn no_task_is_restarted_after_the_chief_has_succeeded() {
    // Worker 0 waits for its restart when the chief exits, and the server is killed after that.
    let mut supervisor = driven();
    supervisor.decide(ended(1, End::Signaled(15)));
    let actions = supervisor.decide(ended(0, End::Exited(0)));
    assert_eq!(
        said(&actions),
        ["worker 0: signal 15 (SIGTERM) after 1.0 s; not restarted: the chief has succeeded"]
    );
    assert_eq!(actions[1..], [Action::Set(Timer::LeftOver, 10 * SECOND)]);
    assert_eq!(supervisor.decide(Input::Expired(Timer::Restart(1))), []);
    let actions = supervisor.decide(ended(3, End::Signaled(11)));
    assert_eq!(said(&actions).len(), 1);
    // The other worker exits on its own, and is waited for.
    assert_eq!(
        supervisor.decide(Input::Expired(Timer::LeftOver)),
        [Action::Set(Timer::LeftOver, 10 * SECOND)]
    );
    supervisor.decide(ended(2, End::Exited(0)));
    assert!(supervisor.is_over());
    let (cause, tasks) = supervisor.into_parts();
    assert_eq!((cause, tasks[1].restarts), (Cause::Done, 0));

    // A task without restarts fails as before, and a chief that fails is restarted.
    let mut supervisor = driven();
    supervisor.policy.max_restarts = 0;
    supervisor.decide(ended(0, End::Exited(0)));
    assert_eq!(supervisor.decide(ended(1, End::Exited(3))), stopping(Signal::Terminate, &[2, 3]));
    let mut supervisor = driven();
    assert!(said(&supervisor.decide(ended(0, End::Exited(1))))[0].contains("restart 1 of 3"));
}

#[test]
fn who_may_wait_for_a_chief_that_has_ended_well_is_asked_to_end() {
    let restarted = |supervisor: &mut Supervisor| {
        supervisor.decide(ended(1, End::Signaled(9)));
        supervisor.decide(Input::Expired(Timer::Restart(1)));
    };
    // Worker 0 was restarted just before, and worker 1 is suspended.
    let mut supervisor = driven();
    restarted(&mut supervisor);
    supervisor.decide(ended(0, End::Exited(0)));
    supervisor.decide(Input::Checked { task: 2, suspended: true });
    let actions = supervisor.decide(Input::Expired(Timer::LeftOver));
    assert_eq!(
        said(&actions),
        [
            "worker 0 is asked to exit: the chief has succeeded, and it was restarted just before",
            "worker 1 is asked to exit: the chief has succeeded, and it is suspended",
        ]
    );
    assert_eq!(actions[2..], stopping(Signal::Terminate, &[1, 2, 3]));
    for task in 1..4 {
        supervisor.decide(ended(task, End::Signaled(15)));
    }
    assert!(supervisor.is_over());
    assert_eq!(supervisor.into_parts().0, Cause::Done);

    // A resumed task is waited for, and so is one that has run for a while.
    let mut supervisor = driven();
    restarted(&mut supervisor);
    supervisor.decide(Input::Expired(Timer::HasRun { task: 1, restart: 1 }));
    supervisor.decide(ended(0, End::Exited(0)));
    supervisor.decide(Input::Checked { task: 2, suspended: true });
    let again = [Action::Set(Timer::LeftOver, 10 * SECOND)];
    assert_eq!(supervisor.decide(Input::Expired(Timer::LeftOver)), again);
    supervisor.decide(ended(1, End::Exited(0)));
    supervisor.decide(Input::Checked { task: 2, suspended: false });
    assert_eq!(supervisor.decide(Input::Expired(Timer::LeftOver)), again);
    supervisor.decide(Input::Checked { task: 2, suspended: true });
    assert!(supervisor.decide(Input::Expired(Timer::LeftOver)).len() > 1);
    assert_eq!(supervisor.into_parts().0, Cause::Done);
}

#[test]
fn a_task_that_is_held_when_the_job_ends_is_not_started() {
    let mut supervisor = supervisor(1);
    supervisor.decide(ended(0, End::Signaled(9)));
    supervisor.decide(Input::Expired(Timer::Restart(0)));
    supervisor.decide(Input::Signal(Signal::Terminate));
    for task in 1..4 {
        supervisor.decide(ended(task, End::Signaled(15)));
    }
    assert!(supervisor.is_ending() && !supervisor.is_over());
    assert_eq!(supervisor.decide(Input::NotStarted { task: 0 }), []);
    assert!(supervisor.is_over());
    let (_, tasks) = supervisor.into_parts();
    assert_eq!((&tasks[0].end, tasks[0].restarts), (&Some(End::Signaled(9)), 0));
}

/// Returns a supervisor of workers and spares.
fn with_spares(workers: usize, spares: usize, max_restarts: u32, min_workers: usize) -> Supervisor {
    let layout = Layout::new(workers).spares(spares);
    let policy = Policy { max_restarts, min_workers: Some(min_workers), spares, ..policy() };
    Supervisor::new(layout.tasks().into_iter().map(|(task, _)| task), policy).0
}

#[test]
fn a_job_with_spares_and_a_minimum_needs_the_first_worker_at_once() {
    let failed = |task| ended(task, End::Signaled(9));
    let mut supervisor = with_spares(3, 1, 1, 2);
    let wait = |actions: &[Action]| match actions {
        [Action::Notify(Notice::Restart { .. }), Action::Set(Timer::Restart(_), wait)] => *wait,
        other => panic!("{other:?}"),
    };
    assert_eq!(wait(&supervisor.decide(failed(1))), SECOND);
    assert_eq!(wait(&supervisor.decide(failed(0))), Duration::ZERO);
    // Without restarts, a spare is used up.
    let mut supervisor = with_spares(3, 1, 0, 2);
    assert!(matches!(supervisor.decide(failed(2))[..], [Action::Notify(Notice::Lost { left: 3, .. })]));
    assert!(!supervisor.is_ending());
    drop(supervisor.decide(failed(0)));
    assert_eq!(supervisor.into_parts().0, Cause::Failed(0));
}

// INV-111
#[test]
fn a_job_with_spares_needs_no_certain_worker_and_ends_if_too_few_are_left() {
    let failed = |task| ended(task, End::Signaled(9));
    // The first one waits for its restart like any other.
    for task in 0..4 {
        let actions = with_spares(3, 1, 1, 3).decide(failed(task));
        assert!(
            matches!(actions[..], [Action::Notify(Notice::Restart { wait: SECOND, .. }), _]),
            "{task}: {actions:?}"
        );
    }
    for (workers, spares, to_re_form) in [(3, 1, 3), (3, 2, 3), (2, 2, 3), (2, 3, 4)] {
        let all = workers + spares;
        for first in [0, 1] {
            let mut supervisor = with_spares(workers, spares, 0, workers);
            for (lost, task) in (first..).take(spares).enumerate() {
                let left = all - lost - 1;
                let actions = supervisor.decide(failed(task));
                assert!(
                    matches!(actions[0], Action::Notify(Notice::Lost { left: other, .. }) if other == left),
                    "{task} of {workers} and {spares}"
                );
                // With as many spares as workers, the missing tasks may be enough for another group.
                let few = Action::Notify(Notice::Few { left, needed: to_re_form });
                assert_eq!(actions[1..], [few][..usize::from(left < to_re_form)]);
            }
            let last = first + spares;
            let actions = supervisor.decide(failed(last));
            let Action::Notify(notice @ Notice::TooFew { .. }) = &actions[0] else { panic!("{actions:?}") };
            let text = format!(
                "worker {last}: signal 9 (SIGKILL: by a user, or by the system because it ran out of memory) after 1.0 s; \
                 the job ends: of its workers and spares {} are left, and {workers} are needed",
                workers - 1
            );
            assert_eq!(notice.to_string(), text);
            assert_eq!(supervisor.into_parts().0, Cause::Failed(last));
        }
    }
}

// INV-111
#[test]
fn a_worker_that_fails_after_another_one_has_succeeded_is_not_restarted_and_a_chief_fails_the_job() {
    let cause = |before: &[usize], failing: usize, succeeding: &[usize]| {
        let mut supervisor = with_spares(3, 1, 1, 3);
        for task in before {
            drop(supervisor.decide(ended(*task, End::Signaled(9))));
            drop(supervisor.decide(Input::Expired(Timer::Restart(*task))));
        }
        drop(supervisor.decide(ended(succeeding[0], End::Exited(0))));
        let lost = supervisor.decide(ended(failing, End::Signaled(9)));
        assert!(matches!(lost[..], [Action::Notify(Notice::Lost { .. })]), "{lost:?}");
        succeeding[1..].iter().for_each(|task| drop(supervisor.decide(ended(*task, End::Exited(0)))));
        assert!(supervisor.is_over());
        supervisor.into_parts().0
    };
    // The first worker is the chief, and may have been lost while it wrote the results.
    assert_eq!(cause(&[], 0, &[2, 1, 3]), Cause::Failed(0));
    assert_eq!(cause(&[], 1, &[2, 0, 3]), Cause::Done);
    // The first worker was restarted, and is a spare: worker 1 is the chief.
    assert_eq!(cause(&[0], 1, &[2, 0, 3]), Cause::Failed(1));
    assert_eq!(cause(&[0], 2, &[1, 0, 3]), Cause::Done);
    // Too few have succeeded.
    let mut supervisor = with_spares(3, 1, 0, 3);
    drop(supervisor.decide(ended(3, End::Signaled(9))));
    drop(supervisor.decide(ended(0, End::Exited(0))));
    drop(supervisor.decide(ended(2, End::Signaled(9))));
    drop(supervisor.decide(ended(1, End::Exited(0))));
    assert_eq!(supervisor.into_parts().0, Cause::Failed(2));
}
