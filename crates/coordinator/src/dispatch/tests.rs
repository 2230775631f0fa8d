use super::*;
use crate::call::{Argument, FunctionId};

fn call(name: &str, resources: &[ResourceId]) -> Call {
    let function = FunctionId { name: name.to_owned(), source: 0 };
    Call { function, arguments: resources.iter().copied().map(Argument::Resource).collect() }
}

fn dispatch(workers: usize) -> Dispatch {
    let mut dispatch = Dispatch::new(workers, Limits { queue: 1000, ..Limits::default() });
    (0..workers).for_each(|worker| dispatch.worker_joined(worker));
    dispatch
}

fn schedule(dispatch: &mut Dispatch) -> ClosureId {
    dispatch.schedule(call("f", &[])).unwrap()
}

/// Takes a worker's new work, and returns the closures in it.
fn calls(dispatch: &mut Dispatch, worker: usize) -> Vec<u64> {
    let is_call = |work: Work| match work {
        Work::Call { closure, .. } => Some(closure.0),
        _ => None,
    };
    dispatch.take(worker).into_iter().filter_map(is_call).collect()
}

fn called(closure: u64, result: Result<Bytes, Failure>) -> Done {
    Done::Called { closure: ClosureId(closure), result, micros: 10, positions: Vec::new() }
}

fn ok(closure: u64) -> Done {
    called(closure, Ok(Bytes::new()))
}

fn failure(kind: FailureKind) -> Failure {
    Failure::new(kind, "no")
}

/// Returns the outcomes of closures, with the kinds of failures.
fn outcomes(dispatch: &mut Dispatch) -> Vec<(u64, Option<FailureKind>)> {
    dispatch.outcomes().map(|outcome| (outcome.closure.0, outcome.result.err().map(|f| f.kind))).collect()
}

#[test]
fn closures_that_end_while_another_runs_are_counted() {
    let mut dispatch = dispatch(2);
    (0..4).for_each(|_| _ = schedule(&mut dispatch));
    assert_eq!((calls(&mut dispatch, 0), calls(&mut dispatch, 1)), (vec![0], vec![1]));
    dispatch.record_result(1, ok(1));
    assert_eq!(dispatch.overlaps(), (1, 0), "nothing ended while closure 1 ran");
    assert_eq!(calls(&mut dispatch, 1), [2]);
    dispatch.record_result(1, ok(2));
    assert_eq!(dispatch.overlaps(), (2, 0));
    dispatch.record_result(0, ok(0));
    assert_eq!(dispatch.overlaps(), (3, 2), "closures 1 and 2, while closure 0 ran");
    // A closure that was lost with its worker starts again.
    assert_eq!(calls(&mut dispatch, 1), [3]);
    dispatch.worker_lost(1, "gone");
    assert_eq!(calls(&mut dispatch, 0), [3]);
    dispatch.record_result(0, ok(3));
    assert_eq!(dispatch.overlaps(), (4, 2));
}

#[test]
fn cc_4_a_worker_has_one_closure_at_a_time_while_they_are_long_or_few() {
    let mut dispatch = dispatch(2);
    (0..5).for_each(|_| _ = schedule(&mut dispatch));
    assert_eq!(calls(&mut dispatch, 0), [0]);
    assert_eq!(calls(&mut dispatch, 0), [0; 0]);
    assert_eq!(calls(&mut dispatch, 1), [1]);
    dispatch.record_result(1, ok(1));
    assert_eq!(calls(&mut dispatch, 1), [2]);
    assert_eq!(outcomes(&mut dispatch), [(1, None)]);
    assert_eq!(dispatch.floor(), ClosureId(0));
    dispatch.record_result(0, ok(0));
    assert_eq!(dispatch.floor(), ClosureId(2));
}

#[test]
fn short_closures_are_sent_ahead_and_come_back_to_an_idle_worker() {
    let mut dispatch = dispatch(2);
    (0..41).for_each(|_| _ = schedule(&mut dispatch));
    assert_eq!(calls(&mut dispatch, 0), [0]);
    dispatch.record_result(0, ok(0));
    assert_eq!(calls(&mut dispatch, 0), [1, 2, 3, 4, 5, 6]);
    for closure in 7..41 {
        assert_eq!(calls(&mut dispatch, 1)[0], closure);
        dispatch.record_result(1, ok(closure));
        // Here the worker gets one closure at a time, as if each took long.
        dispatch.workers[1].pace = worker::Pace::default();
    }
    assert!(dispatch.has_work(1));
    assert_eq!(dispatch.take(1), []);
    assert!(dispatch.has_work(0));
    let back = [6, 5, 4].map(|closure| Work::Return(ClosureId(closure)));
    assert_eq!(dispatch.take(0), back);
    dispatch.record_result(0, Done::Returned(ClosureId(6)));
    dispatch.record_result(0, Done::Returned(ClosureId(5)));
    assert_eq!(calls(&mut dispatch, 1), [5]);
    // Worker 0 had begun closure 4 before it was asked to return it.
    for closure in [1, 4, 2, 3] {
        dispatch.record_result(0, ok(closure));
    }
    dispatch.record_result(1, ok(5));
    assert_eq!(calls(&mut dispatch, 0), [6]);
    dispatch.record_result(0, ok(6));
    assert!(dispatch.is_idle());
    assert_eq!(outcomes(&mut dispatch).len(), 41);
}

// INV-60
#[test]
fn cc_5_closures_of_a_lost_worker_run_elsewhere_and_end_once() {
    let mut dispatch = dispatch(2);
    (0..2).for_each(|_| _ = schedule(&mut dispatch));
    assert_eq!((calls(&mut dispatch, 0), calls(&mut dispatch, 1)), (vec![0], vec![1]));
    dispatch.worker_lost(0, "it was killed");
    dispatch.record_result(1, ok(1));
    assert_eq!(calls(&mut dispatch, 1), [0]);
    // Late results of the disconnected worker are ignored.
    dispatch.worker_joined(0);
    dispatch.record_result(0, ok(0));
    assert_eq!(outcomes(&mut dispatch), [(1, None)]);
    dispatch.record_result(1, ok(0));
    assert_eq!(outcomes(&mut dispatch), [(0, None)]);
    assert!(dispatch.is_idle() && !dispatch.has_failed());
}

#[test]
fn a_closure_that_ends_its_workers_is_not_run_for_ever() {
    let mut dispatch = dispatch(1);
    schedule(&mut dispatch);
    for _ in 0..dispatch.limits.losses {
        assert_eq!(calls(&mut dispatch, 0), [0]);
        dispatch.worker_lost(0, "it was killed");
        assert_eq!(outcomes(&mut dispatch), []);
        dispatch.worker_joined(0);
    }
    assert_eq!(calls(&mut dispatch, 0), [0]);
    dispatch.worker_lost(0, "it was killed");
    assert_eq!(outcomes(&mut dispatch), [(0, Some(FailureKind::WorkersLost))]);
    assert!(
        dispatch
            .take_failure()
            .unwrap()
            .to_string()
            .contains("6 workers were lost while they ran it, worker 0")
    );
}

// INV-60
#[test]
fn cc_7_a_failure_cancels_all_others_is_reported_once_and_scheduling_continues() {
    let mut dispatch = dispatch(2);
    (0..4).for_each(|_| _ = schedule(&mut dispatch));
    assert_eq!((calls(&mut dispatch, 0), calls(&mut dispatch, 1)), (vec![0], vec![1]));
    dispatch.record_result(0, called(0, Err(failure(FailureKind::InvalidArgument))));
    // Until a thread asks, the other closures continue.
    assert_eq!(calls(&mut dispatch, 0), [2]);
    assert_eq!(dispatch.schedule(call("f", &[])), Err(Refusal::Failing));
    dispatch.cancel();
    assert_eq!(
        outcomes(&mut dispatch),
        [(0, Some(FailureKind::InvalidArgument)), (3, Some(FailureKind::Cancelled))]
    );
    assert_eq!(dispatch.take(0), [Work::Cancel(ClosureId(2))]);
    assert_eq!(dispatch.take(1), [Work::Cancel(ClosureId(1))]);
    assert_eq!(dispatch.take_failure(), None);
    // One closure notices the cancellation; the other has ended before, or its worker disconnects.
    dispatch.record_result(0, called(2, Err(failure(FailureKind::Cancelled))));
    dispatch.worker_lost(1, "it was killed");
    assert_eq!(
        outcomes(&mut dispatch),
        [(2, Some(FailureKind::Cancelled)), (1, Some(FailureKind::Cancelled))]
    );
    assert_eq!(dispatch.take_failure().map(|failure| failure.kind), Some(FailureKind::InvalidArgument));
    assert_eq!(dispatch.take_failure(), None);
    assert!(dispatch.schedule(call("f", &[])).is_ok());
    assert_eq!(calls(&mut dispatch, 0), [4]);
}

#[test]
fn ft_1_and_t5_failures_of_servers_are_tried_again_and_counted_by_closure() {
    let mut dispatch = dispatch(1);
    for closure in 0..10 {
        schedule(&mut dispatch);
        for _ in 0..dispatch.limits.server_failures {
            assert_eq!(calls(&mut dispatch, 0), [closure]);
            dispatch.record_result(0, called(closure, Err(failure(FailureKind::Server))));
        }
        assert_eq!(calls(&mut dispatch, 0), [closure]);
        dispatch.record_result(0, ok(closure));
        assert_eq!(outcomes(&mut dispatch), [(closure, None)]);
    }
    schedule(&mut dispatch);
    for _ in 0..=dispatch.limits.server_failures {
        assert_eq!(calls(&mut dispatch, 0), [10]);
        dispatch.record_result(0, called(10, Err(failure(FailureKind::Server))));
    }
    assert_eq!(outcomes(&mut dispatch), [(10, Some(FailureKind::Server))]);
}

#[test]
fn cc_14_resources_come_first_and_closures_wait_for_theirs() {
    let mut dispatch = dispatch(2);
    let data = dispatch.create(call("data", &[])).unwrap();
    let model = dispatch.create(call("model", &[data])).unwrap();
    dispatch.schedule(call("step", &[model])).unwrap();
    schedule(&mut dispatch);
    let make = |resource, name: &str, of: &[ResourceId], creates_variables| Work::Create {
        resource,
        call: call(name, of),
        creates_variables,
        position: None,
    };
    let run = |closure, name: &str, of: &[ResourceId]| Work::Call {
        closure: ClosureId(closure),
        call: call(name, of),
    };
    assert_eq!(dispatch.take(0), [make(data, "data", &[], true)]);
    // Variables are created once: the second worker waits for the first, and runs closures that need no
    // resource.
    assert_eq!(dispatch.take(1), [run(1, "f", &[])]);
    dispatch.record_result(0, Done::Created { resource: data, result: Ok(()) });
    assert_eq!(dispatch.take(1), [make(data, "data", &[], false)]);
    dispatch.record_result(1, Done::Created { resource: data, result: Ok(()) });
    dispatch.record_result(1, ok(1));
    assert_eq!(dispatch.take(1), [make(model, "model", &[data], true)]);
    dispatch.record_result(1, Done::Created { resource: model, result: Ok(()) });
    assert_eq!(dispatch.take(1), [run(0, "step", &[model])]);
    assert_eq!(dispatch.take(0), [make(model, "model", &[data], false)]);
    assert_eq!(dispatch.missing(0), [model]);
}

// INV-61
#[test]
fn ft_3_and_t6_a_worker_that_is_back_makes_its_resources_again_where_they_were() {
    let mut dispatch = dispatch(1);
    let data = dispatch.create(call("data", &[])).unwrap();
    dispatch.schedule(call("step", &[data])).unwrap();
    dispatch.schedule(call("step", &[data])).unwrap();
    dispatch.take(0);
    dispatch.record_result(0, Done::Created { resource: data, result: Ok(()) });
    assert_eq!(calls(&mut dispatch, 0), [0]);
    let positions = vec![(data, Bytes::from("7"))];
    dispatch.record_result(
        0,
        Done::Called { closure: ClosureId(0), result: Ok(Bytes::new()), micros: 1, positions },
    );
    assert_eq!(calls(&mut dispatch, 0), [1]);
    dispatch.worker_lost(0, "it was killed");
    assert_eq!(dispatch.take(0), []);
    dispatch.worker_joined(0);
    let position = Some(Bytes::from("7"));
    let make = Work::Create { resource: data, call: call("data", &[]), creates_variables: false, position };
    assert_eq!(dispatch.take(0), [make]);
    dispatch.record_result(0, Done::Created { resource: data, result: Ok(()) });
    assert_eq!(calls(&mut dispatch, 0), [1]);
}

#[test]
fn ft_4_and_ft_5_a_resource_that_cannot_be_made_fails_the_closures_that_need_it() {
    let mut dispatch = dispatch(1);
    let data = dispatch.create(call("data", &[])).unwrap();
    let model = dispatch.create(call("model", &[data])).unwrap();
    dispatch.schedule(call("step", &[model])).unwrap();
    dispatch.take(0);
    let broken = failure(FailureKind::Function).at(&call("data", &[]).function, None, 0);
    dispatch.record_result(0, Done::Created { resource: data, result: Err(broken) });
    assert_eq!(dispatch.take(0), []);
    assert_eq!(outcomes(&mut dispatch), [(0, Some(FailureKind::Resource))]);
    let told = dispatch.take_failure().unwrap().to_string();
    assert_eq!(
        told,
        "step (closure 0) on worker 0: the argument resource 0 could not be created: data on worker 0: no"
    );
    // A reconnected worker retries, and so does one whose servers did not answer.
    dispatch.worker_lost(0, "it was killed");
    dispatch.worker_joined(0);
    for _ in 0..2 {
        assert!(
            matches!(dispatch.take(0)[..], [Work::Create { resource, creates_variables: true, .. }] if resource == data)
        );
        dispatch
            .record_result(0, Done::Created { resource: data, result: Err(failure(FailureKind::Server)) });
    }
    assert_eq!(dispatch.take(0).len(), 1);
    dispatch.record_result(0, Done::Created { resource: data, result: Err(failure(FailureKind::Server)) });
    assert_eq!(dispatch.take(0), []);
}

#[test]
fn unused_resources_are_forgotten() {
    let mut dispatch = dispatch(1);
    let data = dispatch.create(call("data", &[])).unwrap();
    let model = dispatch.create(call("model", &[data])).unwrap();
    dispatch.take(0);
    dispatch.record_result(0, Done::Created { resource: data, result: Ok(()) });
    dispatch.take(0);
    dispatch.record_result(0, Done::Created { resource: model, result: Ok(()) });
    dispatch.schedule(call("step", &[model])).unwrap();
    dispatch.forget(data);
    dispatch.forget(model);
    assert_eq!(dispatch.schedule(call("step", &[model])), Err(Refusal::NoResource(model)));
    assert_eq!(calls(&mut dispatch, 0), [0]);
    dispatch.record_result(0, ok(0));
    assert_eq!(dispatch.take(0), [Work::Forget(model), Work::Forget(data)]);
    assert!(!dispatch.has_work(0));
}

#[test]
fn cc_3_the_queue_has_a_bound() {
    let mut dispatch = Dispatch::new(1, Limits { queue: 2, ..Limits::default() });
    schedule(&mut dispatch);
    schedule(&mut dispatch);
    assert_eq!(dispatch.schedule(call("f", &[])), Err(Refusal::Full));
    dispatch.worker_joined(0);
    assert_eq!(calls(&mut dispatch, 0), [0]);
    assert!(dispatch.schedule(call("f", &[])).is_ok());
}

#[test]
fn a_closure_that_does_not_end_in_time_fails_and_those_behind_it_run_elsewhere() {
    let mut dispatch = dispatch(2);
    (0..3).for_each(|_| _ = schedule(&mut dispatch));
    assert_eq!((calls(&mut dispatch, 0), calls(&mut dispatch, 1)), (vec![0], vec![1]));
    dispatch.worker_timed_out(0, failure(FailureKind::TimedOut));
    assert_eq!(outcomes(&mut dispatch), [(0, Some(FailureKind::TimedOut))]);
    assert!(!dispatch.is_connected(0));
    dispatch.record_result(1, ok(1));
    assert_eq!(calls(&mut dispatch, 1), [2]);
}

#[test]
fn a_resource_that_is_not_made_in_time_is_not_tried_for_again() {
    let mut dispatch = dispatch(1);
    let data = dispatch.create(call("data", &[])).unwrap();
    dispatch.schedule(call("step", &[data])).unwrap();
    assert_eq!(dispatch.take(0).len(), 1);
    assert_eq!(dispatch.running(0).map(|(task, _)| task), Some(Task::Resource(data)));
    dispatch.worker_timed_out(0, failure(FailureKind::TimedOut));
    dispatch.worker_joined(0);
    assert_eq!(dispatch.take(0), []);
    assert_eq!(outcomes(&mut dispatch), [(0, Some(FailureKind::Resource))]);
}

// INV-60
#[test]
fn cc_7_a_closure_that_begins_before_it_is_asked_for_is_cancelled() {
    let mut dispatch = dispatch(1);
    (0..16).for_each(|_| _ = schedule(&mut dispatch));
    assert_eq!(calls(&mut dispatch, 0), [0]);
    dispatch.record_result(0, ok(0));
    assert_eq!(calls(&mut dispatch, 0), [1, 2, 3, 4]);
    dispatch.record_result(0, called(1, Err(failure(FailureKind::Function))));
    dispatch.cancel();
    let work = dispatch.take(0);
    let [third, second] =
        [3, 2].map(|closure| work.iter().position(|one| *one == Work::Cancel(ClosureId(closure))));
    assert!(second.is_some() && third.is_some(), "{work:?}");
    // A closure that still waits is returned, and its outcome has the reason.
    let returned = work.iter().position(|one| *one == Work::Return(ClosureId(3)));
    assert!(returned.is_some() && returned < third, "{work:?}");
}

// INV-60
#[test]
fn a_worker_is_busy_with_its_running_closure() {
    let mut dispatch = dispatch(1);
    (0..16).for_each(|_| _ = schedule(&mut dispatch));
    assert_eq!(calls(&mut dispatch, 0), [0]);
    dispatch.record_result(0, ok(0));
    assert_eq!(calls(&mut dispatch, 0).len(), 4);
    let [first, second] = ["first", "second"].map(|name| dispatch.create(call(name, &[])).unwrap());
    let is_make = |work: &Work| matches!(work, Work::Create { .. });
    // The worker would create the resources before the waiting closures, one of which would count as running.
    for closure in 1..4 {
        assert_eq!((dispatch.has_work(0), dispatch.take(0)), (false, Vec::new()));
        dispatch.record_result(0, ok(closure));
    }
    let running = |dispatch: &Dispatch| dispatch.running(0).map(|(task, _)| task);
    assert_eq!(running(&dispatch), Some(Task::Closure(ClosureId(4))));
    // The first worker of all does not create it either while it runs another closure.
    assert_eq!(dispatch.take(0), []);
    dispatch.record_result(0, ok(4));
    assert_eq!(dispatch.take(0).iter().filter(|work| is_make(work)).count(), 2);
    assert_eq!(running(&dispatch), Some(Task::Resource(first)));
    // A resource that is retried comes after the other.
    let result = Err(failure(FailureKind::Server));
    dispatch.record_result(0, Done::Created { resource: first, result });
    assert_eq!(dispatch.take(0).len(), 1);
    assert_eq!(running(&dispatch), Some(Task::Resource(second)));
    // A resource that is no longer used is created all the same.
    dispatch.forget(second);
    assert_eq!(running(&dispatch), Some(Task::Resource(second)));
    assert_eq!(dispatch.take(0), []);
    dispatch.record_result(0, Done::Created { resource: second, result: Ok(()) });
    assert_eq!(dispatch.take(0), [Work::Forget(second)]);
    assert_eq!(running(&dispatch), Some(Task::Resource(first)));
}

#[test]
fn of_two_resources_that_never_end_none_is_tried_again() {
    let mut dispatch = dispatch(1);
    (0..2).for_each(|_| _ = dispatch.create(call("data", &[])).unwrap());
    for left in [2, 1, 0] {
        assert_eq!(dispatch.take(0).len(), left);
        dispatch.worker_timed_out(0, failure(FailureKind::TimedOut));
        dispatch.worker_joined(0);
    }
}

#[test]
fn a_resource_is_made_first_by_a_worker_that_is_idle() {
    let mut dispatch = dispatch(2);
    (0..2).for_each(|_| _ = schedule(&mut dispatch));
    assert_eq!(calls(&mut dispatch, 0), [0]);
    let data = dispatch.create(call("data", &[])).unwrap();
    // The running time of the closure is unknown, and the other one would wait for it.
    assert!(!dispatch.has_work(0));
    assert_eq!(dispatch.take(0), []);
    assert!(
        matches!(dispatch.take(1)[..], [Work::Create { resource, creates_variables: true, .. }] if resource == data)
    );
    dispatch.record_result(1, Done::Created { resource: data, result: Ok(()) });
    assert!(matches!(dispatch.take(0)[..], [Work::Create { creates_variables: false, .. }]));
    assert_eq!(calls(&mut dispatch, 1), [1]);
}
