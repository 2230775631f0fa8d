//! A coordinator and workers in one process.

use crate::support::{Functions, MINUTE, World, call, fetched, functions, of};
use bytes::Bytes;
use distribute_coordinator::{Coordinator, Error, FailureKind, LocalWorker, Options, Worker, WorkerStatus};
use distribute_testing::watched;
use std::sync::Arc;
use std::time::Duration;

fn local(workers: usize, options: Options) -> (Coordinator, Arc<World>) {
    let world = Arc::<World>::default();
    let connect = |index: usize| {
        let worker = Worker::new(Arc::new(Functions(world.clone())));
        Box::new(LocalWorker::new(format!("worker {index}"), worker)) as _
    };
    let coordinator =
        Coordinator::new((0..workers).map(connect).collect(), functions(), 1, Bytes::new(), options).unwrap();
    (coordinator, world)
}

fn failed(error: Error) -> FailureKind {
    match error {
        Error::Failed(failure) => failure.kind,
        other => panic!("{other}"),
    }
}

#[test]
fn cc_2_and_cc_9_closures_are_scheduled_joined_and_fetched() {
    watched(|| {
        let (coordinator, world) = local(2, Options::default());
        let values: Vec<_> =
            (0..2000).map(|value| coordinator.schedule(call("value", &[value])).unwrap()).collect();
        coordinator.join().unwrap();
        assert!(coordinator.done().unwrap());
        for (expected, value) in values.iter().enumerate() {
            assert!(value.is_ready());
            assert_eq!(fetched(value), Ok(expected as u64));
        }
        // A value can be fetched repeatedly.
        assert_eq!(fetched(&values[7]), Ok(7));
        assert_eq!(world.ran("value"), 2000);
        assert_eq!(coordinator.status().ended, 2000);
    });
}

#[test]
fn cc_6_join_waits_for_running_closures_and_logs_them() {
    watched(|| {
        let (coordinator, world) = local(2, Options::default());
        let gate = coordinator.schedule(call("gate", &[0])).unwrap();
        world.wait_started(0);
        assert!(!coordinator.done().unwrap());
        let text = coordinator.join_timeout(Duration::from_millis(10)).unwrap_err().to_string();
        assert!(text.contains("has run gate (closure 0)") && text.contains("has nothing to do"), "{text}");
        let text = gate.fetch_timeout(Duration::from_millis(10)).unwrap_err().to_string();
        assert!(
            text.contains("fetch_timeout: timed out after 0.0 s: ") && text.contains("has run gate"),
            "{text}"
        );
        // Other closures run in the meantime.
        let value = coordinator.schedule(call("value", &[3])).unwrap();
        assert_eq!(fetched(&value), Ok(3));
        world.open(0);
        coordinator.join().unwrap();
        assert_eq!(fetched(&gate), Ok(0));
    });
}

#[test]
fn cc_7_and_cc_8_a_failure_is_reported_once_and_cancels_all_others() {
    watched(|| {
        let (coordinator, world) = local(2, Options::default());
        let gate = coordinator.schedule(call("gate", &[0])).unwrap();
        world.wait_started(0);
        let is_busy = |worker: &WorkerStatus| worker.running.is_some();
        let other = usize::from(is_busy(&coordinator.status().workers[0]));
        let bad = coordinator.schedule(call("fail", &[])).unwrap();
        assert_eq!(fetched(&bad), Err(FailureKind::InvalidArgument));
        let error = coordinator.schedule(call("value", &[1])).unwrap_err();
        assert_eq!(error.to_string(), format!("fail (closure 1) on worker {other}: this is wrong"));
        assert_eq!(failed(error), FailureKind::InvalidArgument);
        assert_eq!(fetched(&gate), Err(FailureKind::Cancelled));
        assert_eq!(fetched(&bad), Err(FailureKind::InvalidArgument));
        // After it has returned the error, the coordinator can be used again.
        let value = coordinator.schedule(call("value", &[1])).unwrap();
        coordinator.join().unwrap();
        assert_eq!(fetched(&value), Ok(1));
        coordinator.schedule(call("fail", &[])).unwrap();
        assert_eq!(failed(coordinator.join().unwrap_err()), FailureKind::InvalidArgument);
        coordinator.join().unwrap();
        assert!(coordinator.done().unwrap());
    });
}

#[test]
fn bad_closures_fail_alone_and_their_worker_continues() {
    watched(|| {
        let (coordinator, world) = local(1, Options::default());
        for (bad, kind, says) in [
            (
                call("panic", &[]),
                FailureKind::Panicked,
                "panic (closure 0) on worker 0: it panicked: no more",
            ),
            (call("nothing", &[]), FailureKind::UnknownFunction, "nothing (closure 2)"),
            (
                call("large", &[1 << 27]),
                FailureKind::TooLarge,
                "its result has 134217728 bytes, but the maximum is 67108864",
            ),
            (call("server", &[]), FailureKind::Server, "ps 0 does not answer"),
        ] {
            let remote = coordinator.schedule(bad).unwrap();
            assert_eq!(fetched(&remote), Err(kind));
            let error = coordinator.join().unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            let value = coordinator.schedule(call("value", &[5])).unwrap();
            assert_eq!(fetched(&value), Ok(5));
            coordinator.join().unwrap();
        }
        // FT-1
        assert_eq!(world.ran("server"), 3);
    });
}

#[test]
fn a_closure_that_never_returns_fails_and_its_worker_continues() {
    watched(|| {
        let options = Options { closure_timeout: Duration::from_millis(300), ..Options::default() };
        let (coordinator, world) = local(1, options);
        let stream = coordinator.create(call("stream", &[])).unwrap();
        let draw = |at| fetched(&coordinator.schedule(of("draw", stream, &[at])).unwrap());
        assert_eq!([draw(0), draw(0)], [Ok(0), Ok(1)]);
        let gate = coordinator.schedule(call("gate", &[0])).unwrap();
        assert_eq!(fetched(&gate), Err(FailureKind::TimedOut));
        let error = coordinator.join().unwrap_err().to_string();
        assert!(error.starts_with("gate (closure 2) on worker 0: it did not finish within 0."), "{error}");
        // T6: the resource is created again, at its position.
        assert_eq!(draw(0), Ok(2));
        assert_eq!(*world.made.lock().unwrap(), [(0, None, true), (0, Some(2), false)]);
    });
}

// INV-61
#[test]
fn t6_elements_that_a_failed_attempt_took_are_taken_again() {
    watched(|| {
        let (coordinator, _) = local(1, Options::default());
        let stream = coordinator.create(call("stream", &[])).unwrap();
        let draws: Vec<_> = (0..6).map(|_| coordinator.schedule(of("draw", stream, &[4])).unwrap()).collect();
        let drawn: Vec<_> = draws.iter().map(|draw| fetched(draw).unwrap()).collect();
        assert_eq!(drawn, [0, 1, 2, 3, 4, 5]);
        coordinator.join().unwrap();
        let at = coordinator.positions(stream).unwrap();
        assert_eq!(at[0].as_deref(), Some(&6u64.to_le_bytes()[..]));
    });
}

#[test]
fn ft_4_a_resource_that_cannot_be_made_is_named_where_it_is_used() {
    watched(|| {
        let (coordinator, _) = local(2, Options::default());
        let broken = coordinator.create(call("broken", &[])).unwrap();
        let draw = coordinator.schedule(of("draw", broken, &[0])).unwrap();
        assert_eq!(fetched(&draw), Err(FailureKind::Resource));
        let error = coordinator.join().unwrap_err().to_string();
        assert!(error.contains("the argument resource 0 could not be created: broken on worker"), "{error}");
        assert!(error.contains("there is no such file"), "{error}");
        coordinator.forget(broken);
        let error = coordinator.schedule(of("draw", broken, &[0])).unwrap_err();
        assert!(matches!(error, Error::NoResource { .. }), "{error}");
    });
}

#[test]
fn cc_3_a_full_queue_makes_the_scheduler_wait() {
    watched(|| {
        let (coordinator, world) = local(1, Options { queue: 2, ..Options::default() });
        coordinator.schedule(call("gate", &[0])).unwrap();
        world.wait_started(0);
        (0..2).for_each(|value| _ = coordinator.schedule(call("value", &[value])).unwrap());
        std::thread::scope(|scope| {
            let third =
                scope.spawn(|| coordinator.schedule(call("value", &[2])).unwrap().fetch_timeout(MINUTE));
            assert_eq!(coordinator.status().queued, 2);
            assert!(!third.is_finished());
            world.open(0);
            third.join().unwrap().unwrap();
        });
        coordinator.join().unwrap();
    });
}

#[test]
fn cc_15_dropping_the_coordinator_drops_unfinished_closures() {
    watched(|| {
        let (coordinator, world) = local(1, Options::default());
        let gate = coordinator.schedule(call("gate", &[0])).unwrap();
        world.wait_started(0);
        drop(coordinator);
        assert!(matches!(gate.fetch().unwrap_err(), Error::Dropped { operation: "fetch" }));
    });
}
