use super::*;
use distribute_cluster::{Cause, Corruption, Fault, Operation};
use distribute_net::{ENDED, LEFT};
use std::panic::Location;

fn begin(world: World, own: Vec<ReplicaStatus>, timeout: Duration) -> Round {
    Round::new(world, 1, own, timeout, &mut RepeatedCalls::default())
}

#[test]
fn a_worker_that_comes_after_the_deadline_and_before_the_verdict_is_the_one_that_was_late() {
    let call = Fingerprint::new(Operation::AllReduce, "", Location::caller());
    let statuses = |worker: usize| vec![ReplicaStatus::waiting(worker, call.clone())];
    let timeout = Duration::from_secs(3);
    let mut round = begin(World::new(3, 0, 1).unwrap(), statuses(0), timeout);
    round.receive(1, Content::Call { digest: call.digest(), body: Bytes::new() });
    assert!(matches!(round.next(false), Next::Wait));
    round.expire();
    assert!(matches!(round.next(false), Next::Send(Content::Statuses { expired: Some(_), .. })));
    for worker in [1, 2] {
        let (statuses, expired) = (statuses(worker), Some(timeout));
        round.receive(worker, Content::Statuses { statuses, step: 1, expired, late: vec![], lost: None });
    }
    let Next::Over(blame) = round.next(false) else { panic!("worker 0 judges") };
    assert_eq!((blame.fault, blame.culprits), (Fault::TimedOut, vec![2]));
}

#[test]
fn a_worker_with_a_slow_link_is_named_with_the_received_bytes() {
    let call = Fingerprint::new(Operation::AllReduce, "", Location::caller());
    let statuses = |worker: usize| vec![ReplicaStatus::waiting(worker, call.clone())];
    let (world, timeout) = (World::new(3, 0, 1).unwrap(), Duration::from_secs(3));
    let missing = |round: &mut Round| {
        assert!(matches!(round.next(true), Next::Send(_)));
        let Next::Over(Blame { cause: Cause::TimedOut { missing, .. }, .. }) = round.next(true) else {
            panic!("worker 0 judges")
        };
        missing
    };
    let absent = |part| ReplicaStatus { presence: Presence::Sending { part }, ..ReplicaStatus::running(2) };
    // A part of the message has arrived at this worker.
    let mut round = begin(world, statuses(0), timeout);
    round.receive(1, Content::Call { digest: call.digest(), body: Bytes::new() });
    round.note_partial(2, (3, 10));
    round.expire();
    assert_eq!(missing(&mut round), [absent(Some((3, 10)))]);
    // The complete message has arrived at this worker, but not at another one.
    let late = |late: Vec<usize>| {
        let (statuses, expired) = (statuses(1), Some(timeout));
        Content::Statuses { statuses, step: 1, expired, late, lost: None }
    };
    let mut round = begin(world, statuses(0), timeout);
    round.receive(2, Content::Call { digest: call.digest(), body: Bytes::new() });
    round.receive(1, late(vec![2]));
    assert_eq!(missing(&mut round), [absent(None)]);
    // The message has arrived at no worker in time.
    let mut round = begin(world, statuses(0), timeout);
    round.receive(1, late(vec![2]));
    round.receive(2, Content::Call { digest: call.digest(), body: Bytes::new() });
    assert_eq!(missing(&mut round), [ReplicaStatus::running(2)]);
}

// INV-31
#[test]
fn who_has_aborted_judges_nothing_and_who_waits_does() {
    let call = Fingerprint::new(Operation::AllReduce, "", Location::caller());
    let failed = vec![ReplicaStatus { presence: Presence::Failed, ..ReplicaStatus::running(0) }];
    let timeout = Duration::from_secs(3);
    let aborted = begin(World::new(3, 0, 1).unwrap(), failed.clone(), timeout);
    assert!(!aborted.decides());
    let own = vec![ReplicaStatus::waiting(1, call)];
    let mut round = begin(World::new(3, 1, 1).unwrap(), own, timeout);
    round
        .receive(0, Content::Statuses { statuses: failed, step: 1, expired: None, late: vec![], lost: None });
    assert!(matches!(round.next(false), Next::Send(Content::Statuses { expired: None, .. })));
    assert_eq!(round.next(false), Next::Wait, "worker 2 may still come");
    round.expire();
    assert!(round.decides());
    assert!(matches!(round.next(true), Next::Send(Content::Statuses { expired: Some(_), .. })));
    let Next::Over(blame) = round.next(true) else { panic!("it is over") };
    assert_eq!((blame.fault, blame.culprits), (Fault::Failed, vec![0]));
}

#[test]
fn a_lost_worker_ends_the_round_before_the_deadline() {
    let call = Fingerprint::new(Operation::AllReduce, "", Location::caller());
    let of = |me: usize| {
        let statuses = vec![ReplicaStatus::waiting(me, call.clone())];
        let mut round = begin(World::new(3, me, 1).unwrap(), statuses, Duration::from_secs(60));
        for other in (0..2).filter(|other| *other != me) {
            round.receive(other, Content::Call { digest: call.digest(), body: Bytes::new() });
        }
        round.mark_lost(2, "reset");
        assert!(matches!(round.next(false), Next::Send(Content::Statuses { expired: None, .. })));
        round
    };
    let lost = |next| matches!(next, Next::Over(blame) if blame.fault == Fault::Lost);
    assert!(lost(of(0).next(false)), "worker 0 judges");
    let mut other = of(1);
    assert_eq!(other.next(false), Next::Wait);
    assert!(lost(other.next(true)), "worker 0 may be past the round, and say nothing");
}

#[test]
fn a_worker_that_others_have_lost_is_named_also_by_one_that_it_still_talks_to() {
    let call = Fingerprint::new(Operation::AllReduce, "", Location::caller());
    let statuses = |worker: usize| vec![ReplicaStatus::waiting(worker, call.clone())];
    let timeout = Duration::from_secs(60);
    let mut round = begin(World::new(3, 2, 1).unwrap(), statuses(2), timeout);
    for (worker, other) in [(0, 1), (1, 0)] {
        let lost = Some((other, "reset".into()));
        let (statuses, expired, late) = (statuses(worker), None, vec![]);
        round.receive(worker, Content::Statuses { statuses, step: 1, expired, late, lost });
    }
    assert!(matches!(round.next(false), Next::Send(Content::Statuses { lost: Some((1, _)), .. })));
    assert_eq!(round.next(false), Next::Wait, "worker 0 judges");
    let Next::Over(blame) = round.next(true) else { panic!("it is over") };
    assert_eq!((blame.fault, blame.culprits), (Fault::Lost, vec![1]));
}

#[test]
fn a_worker_that_comes_after_the_deadline_of_the_others_leaves_the_verdict_to_them() {
    let call = Fingerprint::new(Operation::AllReduce, "", Location::caller());
    let statuses = |worker: usize| vec![ReplicaStatus::waiting(worker, call.clone())];
    let timeout = Duration::from_secs(3);
    let mut late = begin(World::new(3, 0, 1).unwrap(), statuses(0), timeout);
    for worker in [1, 2] {
        let (statuses, expired) = (statuses(worker), Some(timeout));
        late.receive(worker, Content::Statuses { statuses, step: 1, expired, late: vec![0, 7], lost: None });
    }
    let content = late.next(false);
    assert!(matches!(&content, Next::Send(Content::Statuses { expired: Some(_), .. })), "{content:?}");
    assert_eq!(late.next(false), Next::Wait, "worker 1 judges");
    // If worker 1 does not, the late worker is named nevertheless.
    let Next::Over(blame) = late.next(true) else { panic!("it is over") };
    assert_eq!((blame.fault, blame.culprits), (Fault::TimedOut, vec![0]));
}

#[test]
fn a_deadline_is_also_reported_to_workers_that_have_the_statuses() {
    let [own, other] =
        ["this", "that"].map(|what| Fingerprint::new(Operation::AllReduce, what, Location::caller()));
    let statuses = vec![ReplicaStatus::waiting(0, own)];
    let mut round = begin(World::new(3, 0, 1).unwrap(), statuses, Duration::from_secs(60));
    round.receive(1, Content::Call { digest: other.digest(), body: Bytes::new() });
    assert!(matches!(round.next(false), Next::Send(Content::Statuses { expired: None, .. })));
    assert_eq!(round.next(false), Next::Wait, "the others may explain themselves");
    round.expire();
    let content = round.next(false);
    assert!(matches!(&content, Next::Send(Content::Statuses { expired: Some(_), .. })), "{content:?}");
    assert_eq!(round.next(false), Next::Wait);
}

#[test]
fn a_worker_that_left_is_named_only_if_no_other_is_lost() {
    for (others, named) in [([LEFT, "reset"], 2), ([ENDED, LEFT], 1), (["reset", LEFT], 1)] {
        let call = Fingerprint::new(Operation::AllReduce, "", Location::caller());
        let own = vec![ReplicaStatus::waiting(0, call)];
        let mut round = begin(World::new(3, 0, 1).unwrap(), own, Duration::from_secs(60));
        (1..).zip(others).for_each(|(worker, reason)| round.mark_lost(worker, reason));
        assert!(
            matches!(round.next(true), Next::Send(Content::Statuses { lost: Some((worker, _)), .. }) if worker == named)
        );
        let Next::Over(blame) = round.next(true) else { panic!("it is over") };
        assert_eq!(blame.culprits, [named], "{blame}");
    }
}

#[test]
fn a_worker_that_is_lost_after_another_call_is_lost_and_not_late() {
    let [own, other] =
        ["this", "that"].map(|what| Fingerprint::new(Operation::AllReduce, what, Location::caller()));
    let statuses = vec![ReplicaStatus::waiting(0, own)];
    let mut round = begin(World::new(2, 0, 1).unwrap(), statuses, Duration::from_secs(60));
    round.receive(1, Content::Call { digest: other.digest(), body: Bytes::new() });
    round.mark_lost(1, "reset");
    assert!(round.has_lost());
    assert!(matches!(round.next(false), Next::Send(_)));
    let Next::Over(blame) = round.next(false) else { panic!("it is over") };
    assert_eq!((blame.fault, blame.culprits), (Fault::Lost, vec![1]));
}

// INV-2, INV-104
#[test]
fn changed_data_is_blamed_alike_by_its_receiver_its_sender_and_a_third() {
    let call = Fingerprint::new(Operation::AllReduce, "", Location::caller());
    let (data, timeout) = ("bucket 1".to_owned(), Duration::from_secs(60));
    let changed = Corruption { sender: 0, receiver: 2, data, bytes: 12, sent: 1, received: 2 };
    let statuses = |worker: usize| vec![ReplicaStatus::waiting(worker, call.clone())];
    let told = |from: usize, round: &mut Round| {
        let lost = Some((0, Loss::Corrupted(changed.clone())));
        let statuses = statuses(from);
        round.receive(from, Content::Statuses { statuses, step: 1, expired: None, late: vec![], lost });
    };
    let blames: Vec<Blame> = (0..3)
        .map(|me| {
            let mut round = begin(World::new(3, me, 1).unwrap(), statuses(me), timeout);
            for other in (0..3).filter(|other| *other != me) {
                match (me, other) {
                    (2, 0) => round.mark_lost(0, changed.clone()),
                    (_, 2) => told(2, &mut round),
                    _ => round.receive(other, Content::Call { digest: call.digest(), body: Bytes::new() }),
                }
            }
            assert!(matches!(round.next(false), Next::Send(Content::Statuses { lost: Some((0, _)), .. })));
            let Next::Over(blame) = round.next(true) else { panic!("it is over") };
            blame
        })
        .collect();
    for blame in &blames {
        assert_eq!((blame.fault, &blame.culprits[..]), (Fault::Corrupted, &[0, 2][..]));
        assert_eq!(blame.to_string(), blames[0].to_string());
    }
}
