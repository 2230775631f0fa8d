use super::*;
use crate::handshake::Names;
use crate::{ENDED, LEFT};
use bytes::Bytes;

const JOIN: fn(String) -> Purpose = |address| Purpose::Join { address, unformed: None };
const SPARE: fn(String) -> Purpose = |address| Purpose::Spare { address, unformed: None };

// INV-85
#[test]
fn a_worker_that_was_refused_is_needed_where_it_has_not_come_and_all_have_to() {
    let addresses: Vec<Address> =
        (0..3).map(|worker| format!("10.0.0.{worker}:7").parse().unwrap()).collect();
    let at = |me: usize| {
        let members = Membership::new(me, Names::default(), addresses.clone());
        RendezvousState::new(World::new(3, me, 1).unwrap(), members)
    };
    let needs = |state: &RendezvousState| [0, 1, 2, 3].map(|worker| state.needs(worker));
    assert_eq!(needs(&at(0)), [false, true, true, false]);
    assert_eq!(needs(&at(1)), [false; 4], "the leader decides");
    let some = Quorum { minimum: 2, ..Quorum::all(3) };
    assert_eq!(needs(&at(0).quorum(some)), [false; 4], "there may be a world without it");
    let purpose = Purpose::Join { address: "10.0.0.1:7".to_owned(), unformed: None };
    let (job, digest) = ("a".to_owned(), [0; 32]);
    let hello = Hello { job, generation: 0, table: 0, rank: 1, workers: 3, replicas: 1, digest, purpose };
    let mut leader = at(0);
    leader.decide(&hello).unwrap();
    assert_eq!(needs(&leader), [false, false, true, false], "another one has its number");
}

// INV-100
#[test]
fn a_spare_is_held_until_a_world_needs_it_or_the_training_has_ended() {
    let addresses: Vec<Address> =
        (0..4).map(|worker| format!("10.0.0.{worker}:7").parse().unwrap()).collect();
    let members = Membership::new(3, Names::default(), addresses.clone());
    let mut spare = RendezvousState::new(World::new(4, 3, 1).unwrap(), members);
    assert!(matches!(spare.begin().unwrap().purpose, Purpose::Join { .. }));
    spare.receive(0, &Note::Spare(2, 0, Vec::new()).encode()).unwrap();
    assert_eq!((spare.held(), spare.is_located()), (Some((2, 0)), false));
    // The leader has left to re-form the group, or is lost.
    let NextStep::Drop(0, Some(call)) = spare.mark_lost(0, LEFT.to_owned()).unwrap() else { panic!() };
    assert!(matches!(call.purpose, Purpose::Spare { .. }) && call.generation == 2);
    assert_eq!(spare.held(), None);
    spare.receive(0, &Note::Spare(3, 0, Vec::new()).encode()).unwrap();
    assert_eq!(spare.held(), Some((3, 0)));
    let ended = Refusal::new(Reason::Ended, "the training has ended");
    let error = spare.clone().receive(0, &Note::Refused(3, String::new(), ended).encode()).unwrap_err();
    assert!(matches!(&error, JoinError::Refused { refusal, .. } if refusal.reason == Reason::Ended));
    let world = [0, 2, 3].map(|place| (place, addresses[place].clone()));
    let then = spare.receive(0, &Note::Table(4, 0, world.to_vec()).encode()).unwrap();
    assert!(matches!(then, NextStep::Call(calls) if calls.len() == 1 && calls[0].worker == 2));
    assert_eq!((spare.is_located(), spare.held()), (true, None));
}

// INV-100
#[test]
fn a_leader_that_has_just_started_waits_for_members_of_which_a_spare_knows() {
    let addresses: Vec<Address> =
        (0..3).map(|worker| format!("10.0.0.{worker}:7").parse().unwrap()).collect();
    let grace = Duration::from_secs(30);
    let (minimum, maximum, expected, present) = (2, 2, [0, 1].into(), BTreeSet::new());
    let quorum = Quorum { minimum, maximum, expected, present, grace };
    let members = Membership::new(0, Names::default(), addresses.clone());
    let leader = RendezvousState::new(World::new(3, 0, 1).unwrap(), members).quorum(quorum);
    let mut leader = leader.patience(2 * grace);
    let hello = |rank: usize, generation, purpose: fn(String) -> Purpose| {
        let (job, purpose) = ("a".to_owned(), purpose(addresses[rank].to_string()));
        Hello { job, generation, table: 0, rank, workers: 3, replicas: 1, digest: [0; 32], purpose }
    };
    leader.decide(&hello(1, 6, SPARE)).unwrap();
    let mut late = leader.clone();
    leader.close_with_quorum(Duration::ZERO);
    assert_eq!(leader.members().members().len(), 3, "it is not closed");
    leader.decide(&hello(2, 6, JOIN)).unwrap();
    leader.close_with_quorum(Duration::ZERO);
    assert_eq!((leader.members().members(), leader.members().generation()), (vec![0, 2], 7));
    // All members are lost, or one is busy for very long: it can supplant the new world, which is of generation 2.
    let mut all = late.clone();
    late.close_with_quorum(2 * grace - Duration::from_millis(1));
    assert!(!late.members().is_closed());
    late.close_with_quorum(2 * grace);
    assert_eq!((late.members().members(), late.members().generation()), (vec![0, 1], 2));
    all.decide(&hello(2, 0, JOIN)).unwrap();
    assert!(!all.is_complete(&[]), "nobody is missing, and the members are not chosen yet");
    all.close_with_quorum(Duration::ZERO);
    assert_eq!((all.members().members(), all.is_complete(&[])), (vec![0, 1], true));
}

// INV-100
#[test]
fn a_leader_that_has_just_started_does_not_take_a_spare_for_a_worker_that_it_expects() {
    let addresses: Vec<Address> =
        (0..5).map(|worker| format!("10.0.0.{worker}:7").parse().unwrap()).collect();
    let (expected, present) = ([0, 1, 2].into(), BTreeSet::new());
    let quorum = Quorum { minimum: 3, maximum: 3, expected, present, grace: Duration::from_secs(30) };
    let members = Membership::new(0, Names::default(), addresses.clone());
    let mut leader = RendezvousState::new(World::new(5, 0, 1).unwrap(), members).quorum(quorum);
    let hello = |rank: usize, purpose: fn(String) -> Purpose| {
        let (job, purpose) = ("a".to_owned(), purpose(addresses[rank].to_string()));
        Hello { job, generation: 6, table: 0, rank, workers: 5, replicas: 1, digest: [0; 32], purpose }
    };
    // Spare 3 has taken the place of worker 1, which is a spare now.
    leader.decide(&hello(1, SPARE)).unwrap();
    leader.decide(&hello(2, JOIN)).unwrap();
    leader.close_with_quorum(Duration::from_secs(1));
    assert!(!leader.members().is_closed(), "worker 3 may connect yet");
    leader.decide(&hello(3, JOIN)).unwrap();
    leader.close_with_quorum(Duration::ZERO);
    assert_eq!(leader.members().members(), [0, 2, 3]);
}

#[test]
fn a_leader_whose_message_makes_no_world_is_an_error_and_is_not_joined_again() {
    let addresses: Vec<Address> =
        (0..3).map(|worker| format!("10.0.0.{worker}:7").parse().unwrap()).collect();
    let table = |generation, places: &[usize]| {
        let at = |place: &usize| (*place, "10.0.0.9:7".parse().unwrap());
        Note::Table(generation, 0, places.iter().map(at).collect()).encode()
    };
    let rubbish = Bytes::from_static(b"rubbish");
    for (body, says) in [
        (rubbish, "has sent 7 bytes that are no message of it"),
        (table(5, &[0, 1]), "workers [0, 1] of 3 as generation 5, which cannot be joined by worker 2"),
        (table(5, &[0, 2, 7]), "workers [0, 2, 7] of 3"),
        (table(4, &[0, 1, 2]), "as generation 4, which cannot be joined by worker 2 after generation 4"),
    ] {
        let members = Membership::new(2, Names::default(), addresses.clone()).after(4);
        let mut state = RendezvousState::new(World::new(3, 2, 1).unwrap(), members);
        let error = state.receive(0, &body).unwrap_err();
        assert!(matches!(error, JoinError::Leader { .. }), "{error}");
        let text = error.to_string();
        assert!(text.starts_with("worker 0 at 10.0.0.0:7 leads this world") && text.contains(says), "{text}");
        assert!(!state.is_located());
    }
}

#[test]
fn a_leader_that_has_ended_is_done_and_one_that_has_left_waits_for_all_to_come_again() {
    let addresses: Vec<Address> =
        (0..3).map(|worker| format!("10.0.0.{worker}:7").parse().unwrap()).collect();
    for (reason, done) in [(ENDED, true), (LEFT, false), ("connection reset", false)] {
        let members = Membership::new(2, Names::default(), addresses.clone());
        let mut state = RendezvousState::new(World::new(3, 2, 1).unwrap(), members);
        let all = addresses.iter().cloned().enumerate().collect();
        let then = state.receive(0, &Note::Table(1, 0, all).encode()).unwrap();
        assert!(matches!(then, NextStep::Call(calls) if calls.len() == 1), "worker 1 is still to be linked");
        match state.mark_lost(0, reason.to_owned()) {
            Ok(then) => assert!(done && then == NextStep::Keep, "{reason}"),
            Err(error) => assert!(!done && matches!(error, JoinError::Lost { worker: 0, .. }), "{error}"),
        }
    }
}
