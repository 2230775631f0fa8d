//! Sessions of several workers in one process: agreement, data, failures.

use bytes::Bytes;
use distribute_cluster::{Blame, Fault, Fingerprint, Operation, Presence, ReplicaStatus};
use distribute_collective::group::{Group, Links, Session, local};
use distribute_testing::watched;
use proptest::prelude::*;
use std::panic::Location;
use std::sync::{Arc, Barrier};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(100);

/// Runs `body` for each worker of a world in this process, each on its own thread.
fn workers<T: Send + 'static>(
    workers: usize,
    replicas: usize,
    body: impl Fn(Group) -> T + Send + Sync + 'static,
) -> Vec<T> {
    watched(move || workers_of(local::groups(Links::Memory, workers, replicas).unwrap(), body))
}

/// Runs `body` for each of these workers, each on its own thread.
pub fn workers_of<T: Send>(groups: Vec<Group>, body: impl Fn(Group) -> T + Send + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| body(group))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub fn call(detail: &str) -> Fingerprint {
    Fingerprint::new(Operation::AllReduce, detail, Location::caller())
}

/// Returns the statuses of this worker's replicas while all of them wait in a call.
fn wait_in(session: &Session, detail: &str) -> Vec<ReplicaStatus> {
    session.world().local_replicas().map(|replica| ReplicaStatus::waiting(replica, call(detail))).collect()
}

fn are(session: &Session, presence: Presence) -> Vec<ReplicaStatus> {
    let status = |replica| ReplicaStatus { presence: presence.clone(), ..ReplicaStatus::running(replica) };
    session.world().local_replicas().map(status).collect()
}

fn swap(session: &Session, detail: &str, timeout: Duration) -> Result<Vec<Bytes>, Arc<Blame>> {
    let me = session.world().worker();
    session.all_to_all(wait_in(session, detail), |to| format!("{detail} {me} to {to}").into(), timeout)
}

/// Returns the error texts without consecutive duplicates. A success gives an empty text.
fn texts<T>(results: &[Result<T, Arc<Blame>>]) -> Vec<String> {
    let mut texts: Vec<_> =
        results.iter().map(|r| r.as_ref().err().map(ToString::to_string).unwrap_or_default()).collect();
    texts.dedup();
    texts
}

#[test]
fn every_worker_receives_the_data_that_others_send_to_it() {
    for n in 1..=5 {
        workers(n, 2, move |group| {
            for step in 1..=3 {
                let session = group.open("strategy", step);
                let me = group.world().worker();
                for round in 0..4 {
                    let detail = format!("{step}.{round}");
                    let got = swap(&session, &detail, LONG).unwrap();
                    for (from, body) in got.iter().enumerate().filter(|(from, _)| *from != me) {
                        assert_eq!(*body, format!("{detail} {from} to {me}"));
                    }
                    assert!(got[me].is_empty());
                }
                session.leave(are(&session, Presence::Returned));
            }
        });
    }
}

// INV-2, INV-25
#[test]
fn different_calls_have_one_message_on_all_and_the_next_call_works() {
    let results = workers(3, 2, |group| {
        let session = group.open("strategy", 4);
        let detail = if group.world().worker() == 1 { "SUM float32[3]" } else { "SUM float32[2]" };
        let failed = swap(&session, detail, LONG);
        assert!(swap(&session, "next", LONG).is_ok());
        failed
    });
    let [text] = &texts(&results)[..] else { panic!("{:?}", texts(&results)) };
    for part in
        ["step 4, call 1", "replicas 0, 1, 4 and 5 called", "float32[2]", "replicas 2 and 3 called", "[3]"]
    {
        assert!(text.contains(part), "{text}");
    }
    assert!(results.iter().all(|result| result.as_ref().unwrap_err().culprits == [2, 3]));
}

#[test]
fn differing_replicas_of_one_worker_are_an_error_on_all_workers() {
    let results = workers(2, 2, |group| {
        let session = group.open("strategy", 1);
        let mut statuses = wait_in(&session, "a");
        if group.world().worker() == 1 {
            statuses[0].presence = Presence::Failed;
        }
        session.all_to_all(statuses, |_| Bytes::new(), LONG)
    });
    let [text] = &texts(&results)[..] else { panic!("{:?}", texts(&results)) };
    assert!(
        text.contains("replicas 0, 1 and 3 wait in all_reduce (a)") && text.contains("replica 2 failed"),
        "{text}"
    );
}

#[test]
fn other_workers_do_not_wait_for_one_that_left() {
    let results = workers(3, 1, |group| {
        let session = group.open("strategy", 1);
        swap(&session, "a", LONG).unwrap();
        if group.world().worker() == 2 {
            let mut statuses = are(&session, Presence::Returned);
            (statuses[0].completed, statuses[0].last) = (1, Some(call("a")));
            session.leave(statuses);
            return Ok(());
        }
        let first = swap(&session, "b", LONG).map(drop);
        // The worker is gone for the whole session.
        assert_eq!(swap(&session, "c", LONG).unwrap_err().fault, Fault::Returned);
        first
    });
    assert!(results[2].is_ok());
    let [text] = &texts(&results[..2])[..] else { panic!("{:?}", texts(&results)) };
    assert!(text.contains("replica 2 returned without making this call (its last call was"), "{text}");
}

#[test]
fn a_straggler_ends_the_session_for_all_with_one_message_and_the_next_session_works() {
    for late in 0..3 {
        let met = Arc::new(Barrier::new(3));
        let results = workers(3, 2, move |group| {
            let session = group.open("strategy", 1);
            if group.world().worker() == late {
                // The others have given up.
                met.wait();
                let failed = swap(&session, "a", LONG);
                assert!(swap(&group.open("strategy", 2), "b", LONG).is_ok());
                return failed;
            }
            let failed = swap(&session, "a", SHORT);
            let again = swap(&session, "c", LONG);
            assert_eq!(texts(&[failed.clone(), again]).len(), 1);
            met.wait();
            assert!(swap(&group.open("strategy", 2), "b", LONG).is_ok());
            failed
        });
        let [text] = &texts(&results)[..] else { panic!("{:?}", texts(&results)) };
        let culprits = format!("replicas {} and {} did not arrive", 2 * late, 2 * late + 1);
        assert!(text.contains(&culprits), "{text}");
    }
}

#[test]
fn a_replica_that_times_out_within_its_worker_is_named_to_all() {
    let results = workers(2, 2, |group| {
        let session = group.open("strategy", 1);
        let mut statuses = wait_in(&session, "a");
        if group.world().worker() == 1 {
            statuses[1].presence = Presence::Running;
        }
        session.all_to_all(statuses, |_| Bytes::new(), LONG)
    });
    let [text] = &texts(&results)[..] else { panic!("{:?}", texts(&results)) };
    assert!(text.contains("replica 3 did not arrive"), "{text}");
}

#[test]
fn a_worker_that_ends_is_named_to_all_at_once() {
    let results = workers(3, 2, |group| {
        if group.world().worker() == 1 {
            return Ok(());
        }
        let session = group.open("strategy", 1);
        swap(&session, "a", LONG).map(drop)
    });
    let failed = [results[0].clone(), results[2].clone()];
    let [text] = &texts(&failed)[..] else { panic!("{:?}", texts(&failed)) };
    assert!(text.contains("worker 1 (replicas 2 and 3) was lost"), "{text}");
}

// INV-31
#[test]
fn a_failure_between_calls_gives_all_one_message_without_waiting_and_the_next_call_works() {
    let declined = Arc::new(Barrier::new(3));
    let results = workers(3, 2, move |group| {
        let session = group.open("strategy", 4);
        swap(&session, "a", LONG).unwrap();
        if group.world().worker() == 1 {
            session.abort_call(are(&session, Presence::Running), LONG);
            // Only now do the others make their call.
            declined.wait();
            assert_eq!(session.aborted_calls(), 1);
            swap(&session, "c", LONG).unwrap();
            return Ok(());
        }
        declined.wait();
        let failed = swap(&session, "b", LONG).map(drop);
        swap(&session, "c", LONG).unwrap();
        failed
    });
    assert!(results[1].is_ok());
    let failed = [results[0].clone(), results[2].clone()];
    let [text] = &texts(&failed)[..] else { panic!("{:?}", texts(&failed)) };
    for part in ["step 4", "replicas 0, 1, 4 and 5 wait in all_reduce (b)", "replicas 2 and 3 failed"] {
        assert!(text.contains(part), "{text}");
    }
}

// INV-31
#[test]
fn a_repeatedly_failing_worker_stays_in_step_with_the_others() {
    const TIMES: usize = 20;
    for decliners in [vec![0], vec![2], vec![0, 1], vec![0, 1, 2]] {
        workers(3, 1, move |group| {
            let session = group.open("strategy", 1);
            for i in 0..TIMES {
                if decliners.contains(&group.world().worker()) {
                    session.abort_call(are(&session, Presence::Running), LONG);
                } else {
                    let blame = swap(&session, &format!("call {i}"), LONG).unwrap_err();
                    assert_eq!((blame.fault, &blame.culprits), (Fault::Failed, &decliners));
                }
            }
            assert!(swap(&session, "next", LONG).is_ok());
        });
    }
}

#[test]
fn a_worker_that_declined_and_exited_has_failed_and_is_not_lost() {
    let ended = Arc::new(Barrier::new(2));
    let results = workers(2, 1, move |group| {
        let session = group.open("strategy", 1);
        if group.world().worker() == 1 {
            session.abort_call(are(&session, Presence::Running), LONG);
            group.end();
            ended.wait();
            return Ok(());
        }
        ended.wait();
        swap(&session, "a", LONG).map(drop)
    });
    assert_eq!(results[0].as_ref().unwrap_err().fault, Fault::Failed);
}

/// A worker that declines has left the call, and decides nothing.
#[test]
fn one_declines_and_another_times_out() {
    for (declines, late) in [(0, 3), (1, 0), (3, 2)] {
        let met = Arc::new(Barrier::new(3));
        let results = workers(4, 1, move |group| {
            let session = group.open("strategy", 1);
            let me = group.world().worker();
            if me == declines {
                session.abort_call(are(&session, Presence::Running), SHORT);
                return Ok(());
            }
            if me == late {
                met.wait();
            }
            let failed = swap(&session, "a", if me == late { LONG } else { SHORT }).map(drop);
            if me != late {
                met.wait();
            }
            failed
        });
        let failed: Vec<_> = results.into_iter().filter(Result::is_err).collect();
        assert_eq!((failed.len(), texts(&failed).len()), (3, 1), "{:#?}", texts(&failed));
        assert_eq!(failed[0].as_ref().unwrap_err().culprits, [declines]);
    }
}

/// The workers are at different steps, and one of them makes a different call.
#[test]
fn workers_that_count_other_steps_get_one_message() {
    let results = workers(3, 1, |group| {
        let me = group.world().worker();
        let session = group.open("between steps", 4 + me as u64);
        swap(&session, if me == 1 { "save" } else { "run" }, LONG)
    });
    let [text] = &texts(&results)[..] else { panic!("{:?}", texts(&results)) };
    assert!(text.starts_with("step 6, "), "{text}");
}

// INV-26
#[test]
fn sessions_of_other_names_are_independent() {
    workers(2, 1, |group| {
        let (a, b) = (group.open("a", 1), group.open("b", 1));
        // In another order on each worker.
        let both = if group.world().worker() == 0 {
            [(&a, "of a"), (&b, "of b")]
        } else {
            [(&b, "of b"), (&a, "of a")]
        };
        std::thread::scope(|scope| {
            for (session, detail) in both {
                scope.spawn(move || assert!(swap(session, detail, LONG).is_ok()));
            }
        });
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    /// Runs programs of random length, in which one worker deviates at a random position.
    #[test]
    fn a_planted_fault_has_one_message_on_all_workers(
        n in 2usize..5, replicas in 1usize..4, calls in 1usize..6, at in 0usize..6, who in 0usize..4, fault in 0usize..5,
    ) {
        let (at, who) = (at % calls, who % n);
        let all = workers(n, replicas, move |group| {
            let session = group.open("strategy", 1);
            let me = group.world().worker();
            let mut result = Ok(());
            for i in 0..calls {
                let planted = me == who && i == at;
                let mut statuses = wait_in(&session, &format!("call {i}"));
                match fault {
                    0 if planted => statuses = wait_in(&session, "another"),
                    1 if planted => statuses[0].presence = Presence::Failed,
                    2 if planted => break,
                    3 if planted => {
                        session.abort_call(statuses, LONG);
                        continue;
                    }
                    _ if planted => {
                        session.leave(are(&session, Presence::Failed));
                        return Ok(());
                    }
                    _ => {}
                }
                let now = session.all_to_all(statuses, |_| Bytes::new(), LONG).map(drop);
                if i == at {
                    result = now;
                } else {
                    // The planted fault fails only its own call or, if the worker is gone, all later calls as well.
                    assert_eq!(now.is_ok(), i < at || fault < 2 || fault == 3, "call {i}: {now:?}");
                }
            }
            session.leave(are(&session, Presence::Returned));
            result
        });
        let failed: Vec<_> =
            all.iter().enumerate().filter(|(w, _)| fault < 2 || *w != who).map(|(_, r)| r.clone()).collect();
        let texts = texts(&failed);
        prop_assert_eq!(texts.len(), 1, "{:?}", texts);
        prop_assert!(!texts[0].is_empty());
    }
}
