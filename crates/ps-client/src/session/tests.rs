//! Steps without servers.

use super::*;
use distribute_testing::watched;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a session without servers.
fn session(staleness: usize, timeout: Duration) -> Session {
    Session::new(Channels::new(Vec::new(), timeout), staleness)
}

/// Returns an update that increments `there` when it is finished.
fn update(there: &Arc<AtomicUsize>) -> Finish {
    let there = there.clone();
    Box::new(move || {
        there.fetch_add(1, Ordering::Relaxed);
        Ok(Ok(()))
    })
}

// INV-55
#[test]
fn values_are_fetched_before_a_step_and_not_inside_of_one() {
    let (steps, pulls) = (session(0, PATIENCE), AtomicUsize::new(0));
    let pull = || {
        pulls.fetch_add(1, Ordering::Relaxed);
        Ok(())
    };
    let outer = steps.begin(false, pull).unwrap();
    let inner = steps.begin(true, || panic!("under a running graph")).unwrap();
    drop(inner);
    assert!(steps.begin(false, || Ok(())).is_err());
    drop(outer);
    assert!(steps.begin(false, || Err(Error::invalid("pull", "no"))).is_err());
    drop(steps.begin(true, pull).unwrap());
    assert_eq!(pulls.load(Ordering::Relaxed), 2);
}

#[test]
fn no_more_updates_are_under_way_than_values_may_lack() {
    for staleness in 0..3 {
        let (steps, there) = (session(staleness, PATIENCE), Arc::new(AtomicUsize::new(0)));
        for sent in 1..6 {
            steps.add(update(&there)).unwrap();
            assert_eq!(there.load(Ordering::Relaxed), sent - staleness.min(sent));
        }
        let step = steps.begin(false, || {
            assert_eq!(staleness, 0, "the values of an update are on their way");
            Ok(())
        });
        // The graph of the step computes with the current values.
        steps.flush().unwrap();
        assert_eq!(there.load(Ordering::Relaxed), 5 - staleness);
        drop(step.unwrap());
        steps.flush().unwrap();
        assert_eq!(there.load(Ordering::Relaxed), 5);
    }
}

#[test]
fn a_failed_update_is_reported_once_and_later_ones_are_applied() {
    let (steps, there) = (session(1, PATIENCE), Arc::new(AtomicUsize::new(0)));
    steps.add(Box::new(|| Err(Error::invalid("push", "lost")))).unwrap();
    assert!(steps.add(update(&there)).is_err());
    steps.flush().unwrap();
    assert_eq!(there.load(Ordering::Relaxed), 1);
}

// INV-55
#[test]
fn no_thread_computes_or_reads_while_values_are_written() {
    watched(|| {
        let (steps, there) = (session(1, PATIENCE), Arc::new(AtomicUsize::new(0)));
        let (entered, is_in) = mpsc::channel();
        let (go, gone) = mpsc::channel::<()>();
        let counted = there.clone();
        let slow = move || {
            entered.send(()).unwrap();
            let _ = gone.recv_timeout(PATIENCE);
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(Ok(()))
        };
        steps.add(Box::new(slow)).unwrap();
        std::thread::scope(|scope| {
            let flushes = scope.spawn(|| steps.flush());
            is_in.recv_timeout(PATIENCE).unwrap();
            // The update is no longer in flight, and has not arrived yet.
            let begins = scope.spawn(|| {
                let step = steps.begin(false, || Ok(()));
                (step.map(drop), there.load(Ordering::Relaxed))
            });
            while lock(&steps.state).running == 0 {
                std::thread::yield_now();
            }
            // A step that begins in the meantime is refused at once.
            assert!(steps.begin(false, || Ok(())).is_err());
            let waits = scope.spawn(|| (steps.flush(), there.load(Ordering::Relaxed)));
            let fetches = scope.spawn(|| steps.between("as_tensor", || Ok(there.load(Ordering::Relaxed))));
            go.send(()).unwrap();
            flushes.join().unwrap().unwrap();
            let (begun, found) = begins.join().unwrap();
            assert!(begun.is_ok() && found == 1, "{begun:?}, {found}");
            let (settled, found) = waits.join().unwrap();
            assert!(settled.is_ok() && found == 1, "{settled:?}, {found}");
            // `Some` if the step was already over.
            assert!(matches!(fetches.join().unwrap(), Ok(None | Some(1))));
        });
    });
}

#[test]
fn who_waits_for_a_thread_that_writes_gives_up_in_time() {
    // A session without a time limit has no deadline that is past.
    let patient = session(usize::MAX, Duration::MAX);
    drop(patient.begin(false, || Ok(())).unwrap());
    patient.flush().unwrap();
    let steps = session(0, Duration::ZERO);
    let between = steps.between("as_tensor", || steps.begin(false, || Ok(())).map(drop));
    let error = between.unwrap_err().to_string();
    assert!(error.contains("another thread") && error.contains("run"), "{error}");
    steps.flush().unwrap();
    drop(steps.begin(false, || Ok(())).unwrap());
}

#[test]
fn a_step_fetches_where_something_was_written_or_nothing_was_sent_since_the_last_began() {
    let (steps, there) = (session(2, PATIENCE), Arc::new(AtomicUsize::new(0)));
    let pulls = |steps: &Session| {
        let mut pulled = false;
        let pull = || {
            pulled = true;
            Ok(())
        };
        drop(steps.begin(false, pull).unwrap());
        pulled
    };
    steps.add(update(&there)).unwrap();
    assert!(!pulls(&steps), "its own values are on their way");
    assert!(pulls(&steps), "those of others are not");
    assert_eq!(there.load(Ordering::Relaxed), 1);
    steps.add(update(&there)).unwrap();
    steps.mark_dirty();
    assert!(pulls(&steps), "it was written behind the update");
    assert_eq!(there.load(Ordering::Relaxed), 2);
}

#[test]
fn a_fetch_that_fails_after_an_update_is_left_to_the_next_step() {
    for staleness in 0..2 {
        let steps = session(staleness, PATIENCE);
        let step = steps.begin(false, || Ok(())).unwrap();
        steps.add(Box::new(|| Ok(Err(Error::invalid("pull", "lost"))))).unwrap();
        steps.add(Box::new(|| Ok(Ok(())))).unwrap();
        assert!(steps.require_fetched().is_err(), "a gradient of old values");
        drop(step);
        let mut pulled = false;
        let step = steps.begin(false, || {
            pulled = true;
            Ok(())
        });
        steps.require_fetched().unwrap();
        drop(step);
        assert!(pulled);
    }
}

#[test]
fn a_step_fails_whose_values_were_not_there() {
    let steps = session(0, PATIENCE);
    let lost = || Error::invalid("embeddings", "lost");
    assert!(steps.fail_step(lost()).is_some());
    let step = steps.begin(false, || Ok(())).unwrap();
    step.require_values().unwrap();
    assert!(steps.fail_step(lost()).is_none() && step.require_values().is_err());
    assert!(steps.fail_step(lost()).is_none());
    drop(step);
    steps.begin(false, || Ok(())).unwrap().require_values().unwrap();
}
