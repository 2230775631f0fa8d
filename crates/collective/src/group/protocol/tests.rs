use super::*;
use distribute_cluster::{Fault, Fingerprint, Operation};
use std::panic::Location;

const TIMEOUT: Duration = Duration::from_secs(60);

fn call() -> Fingerprint {
    Fingerprint::new(Operation::AllReduce, "", Location::caller())
}

/// Returns the protocol of worker 2 of 3 in its first round.
fn third() -> Protocol {
    let mut protocol = Protocol::new(World::new(3, 2, 1).unwrap(), SessionId { name: 1, number: 1 });
    protocol.begin(1, vec![ReplicaStatus::waiting(2, call())], TIMEOUT);
    protocol
}

fn calls(protocol: &mut Protocol, worker: usize) {
    let content = Content::Call { digest: call().digest(), body: Bytes::from_static(b"data") };
    protocol.receive(worker, protocol.frame(content)).unwrap();
}

/// Delivers a verdict with which worker 0 has ended the session in this round.
fn verdict(protocol: &mut Protocol, round: u64) {
    let content = Content::Verdict(Blame::failed(1, 0, &call()));
    protocol.receive(0, Frame { round, ..protocol.frame(content) }).unwrap();
}

fn failed(action: Action) -> bool {
    matches!(action, Action::End(Err(blame)) if blame.fault == Fault::Failed)
}

// INV-2
#[test]
fn a_verdict_is_forwarded_to_workers_that_may_have_missed_it() {
    let mut protocol = third();
    verdict(&mut protocol, 1);
    let content = protocol.next_action();
    assert!(matches!(&content, Action::Send(Frame { content: Content::Verdict(_), .. })), "{content:?}");
    assert!(failed(protocol.next_action()));
    assert!(protocol.over().is_some());
}

// INV-2
#[test]
fn the_verdict_of_a_later_round_counts_where_this_one_cannot_be_agreed_in_any_more() {
    let mut protocol = third();
    calls(&mut protocol, 0);
    assert_eq!(protocol.next_action(), Action::Wait(None));
    protocol.expire();
    let content = protocol.next_action();
    assert!(matches!(&content, Action::Send(Frame { content: Content::Statuses { .. }, .. })), "{content:?}");
    assert_eq!(protocol.next_action(), Action::Wait(Some(2 * GRACE)), "worker 0 judges");
    verdict(&mut protocol, 2);
    assert!(matches!(protocol.next_action(), Action::Send(_)));
    assert!(failed(protocol.next_action()));
}

#[test]
fn a_round_that_can_be_agreed_in_is_before_the_verdict_of_a_later_one() {
    let mut protocol = third();
    verdict(&mut protocol, 2);
    calls(&mut protocol, 0);
    calls(&mut protocol, 1);
    assert!(matches!(protocol.next_action(), Action::End(Ok(_))));
    protocol.begin(1, vec![ReplicaStatus::waiting(2, call())], TIMEOUT);
    assert!(matches!(protocol.next_action(), Action::Send(_)));
    assert!(failed(protocol.next_action()));
}

/// Returns the protocol of worker 1 of 3, whose replica has returned without a call, and the replica's status.
fn returned() -> (Protocol, Vec<ReplicaStatus>) {
    let mut protocol = Protocol::new(World::new(3, 1, 1).unwrap(), SessionId { name: 1, number: 1 });
    let statuses = vec![ReplicaStatus { presence: Presence::Returned, ..ReplicaStatus::running(1) }];
    protocol.leave(statuses.clone());
    (protocol, statuses)
}

/// Delivers a message that a worker sends in round `round`.
fn says(protocol: &mut Protocol, worker: usize, round: u64, content: Content) {
    protocol.receive(worker, Frame { round, ..protocol.frame(content) }).unwrap();
}

fn left(worker: usize) -> Content {
    Content::Left {
        statuses: vec![ReplicaStatus { presence: Presence::Returned, ..ReplicaStatus::running(worker) }],
    }
}

// INV-25
#[test]
fn a_worker_that_omitted_a_call_gets_the_same_blame_as_the_others() {
    let (mut protocol, mine) = returned();
    assert_eq!(protocol.ending(1, TIMEOUT), Ending::Open);
    says(&mut protocol, 2, 1, left(2));
    assert_eq!(protocol.ending(1, TIMEOUT), Ending::Open);
    let call = call();
    says(&mut protocol, 0, 1, Content::Call { digest: call.digest(), body: Bytes::new() });
    assert_eq!(protocol.ending(1, TIMEOUT), Ending::LeftOut);
    let content = protocol.next_action();
    assert!(
        matches!(&content, Action::Send(Frame { round: 1, content: Content::Statuses { .. }, .. })),
        "{content:?}"
    );
    assert_eq!(protocol.next_action(), Action::Wait(None));
    let statuses = vec![ReplicaStatus::waiting(0, call)];
    let content =
        Content::Statuses { statuses: statuses.clone(), step: 1, expired: None, late: vec![], lost: None };
    says(&mut protocol, 0, 1, content);
    // Two workers have returned, so the waiting one has made an additional call.
    let Content::Left { statuses: second } = left(2) else { panic!("worker 2 has left") };
    let expected = Blame::decide(1, &[statuses, mine, second].concat()).map(Arc::new).unwrap();
    assert_eq!(protocol.next_action(), Action::End(Err(expected)));
}

// INV-25
#[test]
fn a_worker_that_left_waits_for_no_worker_that_left_or_is_lost() {
    let (mut protocol, _) = returned();
    // Worker 2 has failed, and has aborted a call that no other worker made.
    let failed = vec![ReplicaStatus { presence: Presence::Failed, ..ReplicaStatus::running(2) }];
    let content =
        Content::Statuses { statuses: failed.clone(), step: 1, expired: None, late: vec![], lost: None };
    says(&mut protocol, 2, 1, content);
    says(&mut protocol, 2, 2, Content::Left { statuses: failed });
    assert_eq!(protocol.ending(1, TIMEOUT), Ending::Open);
    protocol.mark_lost(0, "reset");
    assert_eq!(protocol.ending(1, TIMEOUT), Ending::Closed);
}

#[test]
fn others_may_be_any_number_of_failed_calls_ahead_of_a_worker_that_has_left() {
    let (mut protocol, _) = returned();
    for round in 1..100 {
        let content = Content::Call { digest: 0, body: Bytes::new() };
        says(&mut protocol, 0, round, content);
    }
    assert_eq!(protocol.ending(1, TIMEOUT), Ending::LeftOut);
    assert_eq!(protocol.rounds(), 1);
}

#[test]
fn a_round_without_possible_members_is_discarded() {
    let mut protocol = third();
    let content = Content::Call { digest: 0, body: Bytes::new() };
    let frame = Frame { round: 1 + MAX_ROUNDS_AHEAD + 1, ..protocol.frame(content) };
    let error = protocol.receive(0, frame).unwrap_err();
    assert_eq!(error.fault, FrameFault::UnreachableRound { round: 6, current: 1 });
    assert!(
        error.to_string().starts_with("worker 0 has sent a frame of round 6, which it cannot"),
        "{error}"
    );
}

// INV-28
#[test]
fn the_frames_of_a_worker_for_later_rounds_are_limited() {
    let mut protocol = third();
    let early = |protocol: &mut Protocol, worker, round| {
        let content = Content::Call { digest: 0, body: Bytes::from_static(b"data") };
        protocol.receive(worker, Frame { round, ..protocol.frame(content) })
    };
    for at in 0..MAX_EARLY as u64 {
        early(&mut protocol, 0, 2 + at % MAX_ROUNDS_AHEAD).unwrap();
    }
    let error = early(&mut protocol, 0, 3).unwrap_err();
    assert_eq!(
        error,
        InvalidFrame { worker: 0, fault: FrameFault::TooManyEarly { round: 3, limit: MAX_EARLY } }
    );
    let content = Content::Verdict(Blame::failed(1, 0, &call()));
    let verdict = Frame { round: 3, ..protocol.frame(content) };
    assert!(protocol.receive(0, verdict).is_err(), "a verdict is counted, because it is kept");
    assert_eq!(protocol.early.len(), MAX_EARLY);
    // Each worker has its own limit, and the frames of the current round have none.
    early(&mut protocol, 1, 3).unwrap();
    calls(&mut protocol, 0);
}

// INV-116
#[test]
fn a_round_that_is_passed_leaves_the_state_of_a_completed_one() {
    let new = || Protocol::new(World::new(3, 2, 1).unwrap(), SessionId { name: 1, number: 1 });
    let statuses = vec![ReplicaStatus::waiting(2, call())];
    let (mut completed, mut passed) = (new(), new());
    for round in 1..=3 {
        let (found, detail, digest) = passed.repeatable_call(&statuses, None).unwrap();
        assert_eq!((found, &**detail, digest), (&call_at(found), "", call().digest()));
        passed.pass_round();
        completed.begin(1, statuses.clone(), TIMEOUT);
        (0..2).for_each(|worker| calls(&mut completed, worker));
        assert!(matches!(completed.next_action(), Action::End(Ok(_))));
        assert_eq!((completed.rounds(), format!("{completed:?}")), (round, format!("{passed:?}")));
    }
    // The same is true after an abort.
    for protocol in [&mut completed, &mut passed] {
        protocol.abort_call(1, statuses.clone(), TIMEOUT).unwrap();
    }
    passed.pass_round();
    completed.begin(1, statuses.clone(), TIMEOUT);
    (0..2).for_each(|worker| calls(&mut completed, worker));
    assert!(matches!(completed.next_action(), Action::End(Ok(_))));
    assert_eq!(format!("{completed:?}"), format!("{passed:?}"));
}

/// Returns the call of these tests at the location of another one.
fn call_at(other: &Fingerprint) -> Fingerprint {
    Fingerprint { at: other.at.clone(), ..call() }
}

// INV-116
#[test]
fn no_round_is_passed_while_anything_but_a_call_is_known() {
    let statuses = vec![ReplicaStatus::waiting(2, call())];
    let new = || Protocol::new(World::new(3, 2, 1).unwrap(), SessionId { name: 1, number: 1 });
    let is_repeatable =
        |protocol: &mut Protocol, statuses: &[_]| protocol.repeatable_call(statuses, Some("part")).is_some();
    assert!(is_repeatable(&mut new(), &statuses));
    assert!(!is_repeatable(&mut new(), &[ReplicaStatus::running(2)]));
    assert!(!is_repeatable(&mut third(), &statuses), "a round has begun");
    let mut protocol = new();
    says(&mut protocol, 0, 1, Content::Call { digest: 5, body: Bytes::new() });
    assert!(!is_repeatable(&mut protocol, &statuses));
    let mut protocol = new();
    says(&mut protocol, 1, 1, left(1));
    assert!(!is_repeatable(&mut protocol, &statuses));
    let mut protocol = new();
    protocol.mark_lost(1, "reset");
    assert!(!is_repeatable(&mut protocol, &statuses));
    let mut protocol = new();
    protocol.abort(Arc::new(Blame::failed(1, 2, &call()))).unwrap();
    assert!(!is_repeatable(&mut protocol, &statuses));
}
