use super::super::*;
use crate::handshake::Names;
use bytes::Bytes;

/// Returns the state of a process of four tasks that was in a world of this generation, and elects its leader.
pub(in crate::rendezvous::state) fn elects(me: usize, generation: u64, spare_of: u64) -> RendezvousState {
    let addresses: Vec<Address> = (0..4).map(|task| format!("10.0.0.{task}:7").parse().unwrap()).collect();
    let members = Membership::new(me, Names::default(), addresses.clone()).after(generation);
    let state = RendezvousState::new(World::new(4, me, 1).unwrap(), members).spare_of(spare_of, 0);
    let quorum = Quorum { minimum: 3, maximum: 3, ..Quorum::all(4) };
    let (expected, grace) = ([0, 1, 2].into(), Duration::from_secs(30));
    state.quorum(Quorum { expected, grace, ..quorum }).elect(Election::new(me, addresses, Default::default()))
}

pub(in crate::rendezvous::state) fn asks(
    rank: usize,
    generation: u64,
    purpose: fn(String) -> Purpose,
) -> Hello {
    let (job, purpose) = ("a".to_owned(), purpose(format!("10.0.1.{rank}:9")));
    Hello { job, generation, table: 0, rank, workers: 4, replicas: 1, digest: [0; 32], purpose }
}

pub(in crate::rendezvous::state) const JOIN: fn(String) -> Purpose =
    |address| Purpose::Join { address, unformed: None };
pub(in crate::rendezvous::state) const SPARE: fn(String) -> Purpose =
    |address| Purpose::Spare { address, unformed: None };

pub(in crate::rendezvous::state) fn called(state: &RendezvousState) -> Vec<usize> {
    state.asks().unwrap().into_iter().map(|(call, _)| call.worker).collect()
}

// INV-111
#[test]
fn a_process_leads_those_that_it_precedes_and_refuses_the_others() {
    let refuses = |state: &mut RendezvousState, hello| state.decide(&hello).unwrap_err().reason;
    let mut started = elects(1, 0, 0);
    assert!(started.leads() && called(&started) == [0, 2, 3]);
    assert_eq!(refuses(&mut started, asks(0, 0, JOIN)), Reason::Early);
    assert_eq!(refuses(&mut started, asks(3, 5, JOIN)), Reason::Early);
    // Both have told their addresses, and are asked at once.
    assert_eq!(called(&started), [0, 0, 2, 3, 3]);
    assert_eq!(started.election_mut().unwrap().take_hurried(), [0, 3].into());
    started.decide(&asks(2, 0, JOIN)).unwrap();
    started.decide(&asks(3, 5, SPARE)).unwrap();
    assert_eq!(called(&started), [0, 0]);
    assert_eq!(refuses(&mut started, asks(1, 0, JOIN)), Reason::Rank);
    let mut member = elects(2, 5, 0);
    member.decide(&asks(0, 0, JOIN)).unwrap();
    assert_eq!(refuses(&mut member, asks(1, 5, JOIN)), Reason::Early);
    // It has enough followers then, and leads those that precede it, but not one of a later world.
    member.decide(&asks(3, 5, JOIN)).unwrap();
    assert_eq!(refuses(&mut member.clone(), asks(1, 6, JOIN)), Reason::Early);
    member.decide(&asks(1, 5, JOIN)).unwrap();
    // The last world of that one may have been complete, and that of this one not.
    elects(2, 5, 0).decide(&asks(1, 4, JOIN)).unwrap();
    // It has the table of a world that this one has lost.
    let link = |_| Purpose::Link;
    assert_eq!(refuses(&mut elects(2, 5, 0), asks(3, 6, link)), Reason::Early);
    let mut spare = elects(0, 0, 5);
    assert!(!spare.leads() && !spare.is_located());
    assert_eq!(refuses(&mut spare, asks(2, 0, JOIN)), Reason::Early);
    assert!(matches!(&spare.asks().unwrap()[0].0, call if call.purpose == SPARE("10.0.0.0:7".to_owned())));
}

// INV-111
#[test]
fn a_process_follows_one_leader_at_a_time_and_has_no_followers_then() {
    let mut state = elects(1, 0, 0);
    state.decide(&asks(2, 0, JOIN)).unwrap();
    let calls = state.asks().unwrap();
    assert_eq!(state.accepted(&calls[0].0), Some(vec![2]));
    assert_eq!((state.leads(), state.is_located(), called(&state)), (false, false, vec![]));
    assert_eq!(state.members().connected(), [1].into());
    // Another one has accepted it at the same time.
    assert_eq!(state.accepted(&calls[1].0), None);
    let sent = state.decide(&asks(2, 0, JOIN)).unwrap_err();
    assert_eq!(
        (sent.reason, sent.leader.as_deref().cloned()),
        (Reason::Elsewhere, Some((0, "10.0.0.0:7".parse().unwrap())))
    );
    state.close_with_quorum(Duration::from_secs(60));
    assert!(!state.members().is_closed() && state.table().is_none());
    // The leader is lost. The process leads again, and asks the others.
    assert_eq!(state.mark_lost(0, "reset".to_owned()).unwrap(), NextStep::Drop(0, None));
    assert!(state.leads() && called(&state) == [0, 2, 2, 3]);
    state.decide(&asks(2, 0, JOIN)).unwrap();
    state.decide(&asks(3, 0, JOIN)).unwrap();
    state.close_with_quorum(Duration::from_secs(1));
    assert!(!state.members().is_closed(), "the first task may connect yet");
    state.close_with_quorum(Duration::from_secs(5));
    assert_eq!((state.members().members(), state.members().generation()), (vec![1, 2, 3], 1));
    assert_eq!(state.missing([].into_iter()), []);
    let Some(Note::Table(1, _, table)) = state.table() else { panic!() };
    // The others link to each other, and not to the leader again.
    let mut member = elects(3, 0, 0);
    let call = member.asks().unwrap().remove(1).0;
    assert_eq!(member.accepted(&call), Some(vec![]));
    let NextStep::Call(links) = member.receive(1, &Note::Table(1, 0, table).encode()).unwrap() else {
        panic!()
    };
    assert_eq!(links.iter().map(|call| call.worker).collect::<Vec<_>>(), [2]);
    assert_eq!((member.asks(), member.missing([].into_iter())), (Some(vec![]), vec![]));
    assert!(matches!(member.mark_lost(1, "reset".to_owned()), Err(JoinError::Lost { worker: 1, .. })));
}

// INV-111
#[test]
fn a_spare_knows_the_workers_of_its_world_and_asks_them() {
    let mut spare = elects(3, 0, 4);
    let call = spare.asks().unwrap().remove(0).0;
    assert_eq!(spare.accepted(&call), Some(vec![]));
    let world = [(1, "10.0.1.1:9".parse().unwrap()), (2, "10.0.0.2:7".parse().unwrap())];
    spare.receive(0, &Note::Spare(5, 0, world.to_vec()).encode()).unwrap();
    assert_eq!((spare.held(), called(&spare)), (Some((5, 0)), vec![]));
    spare.mark_lost(0, "reset".to_owned()).unwrap();
    assert_eq!(spare.held(), None);
    let asks = spare.asks().unwrap();
    let at_once: Vec<_> =
        asks.iter().filter(|(_, wait)| wait.is_zero()).map(|(call, _)| call.worker).collect();
    assert_eq!((at_once, called(&spare)), (vec![1, 1, 2], vec![0, 1, 1, 2]));
    assert!(asks.iter().all(|(call, _)| call.generation == 5 && call.before.as_deref() == Some("reset")));
}

/// Returns the call of a process to another one.
fn call(state: &RendezvousState, worker: usize) -> Call {
    state.asks().unwrap().into_iter().map(|(call, _)| call).find(|call| call.worker == worker).unwrap()
}

// INV-100, INV-111
#[test]
fn a_leader_waits_for_members_of_a_later_world_that_a_spare_knows_of() {
    let patience = Duration::from_secs(150);
    let soon = patience - Duration::from_millis(1);
    for (before, generation) in [(0, 2), (4, 5)] {
        let mut leader = elects(1, before, 0).patience(patience);
        leader.decide(&asks(2, 5, SPARE)).unwrap();
        leader.decide(&asks(3, 0, JOIN)).unwrap();
        leader.close_with_quorum(soon);
        assert!(!leader.members().is_closed(), "members of generation 5 may be busy");
        leader.close_with_quorum(patience);
        assert_eq!(leader.members().members(), [1, 2, 3]);
        assert_eq!(leader.members().generation(), generation, "members of generation 5 supplant it");
    }
}

// INV-111
#[test]
fn a_leader_does_not_begin_while_a_member_of_a_later_world_answers() {
    let patience = Duration::from_secs(150);
    for before in [0, 4] {
        let mut leader = elects(1, before, 0).patience(patience);
        leader.decide(&asks(2, 0, JOIN)).unwrap();
        leader.decide(&asks(3, 0, JOIN)).unwrap();
        let busy = |generation| Refusal::busy("it has lost its leader", generation);
        let call = call(&leader, 0);
        // It does not have a later state.
        leader.answered(&call, &busy(before));
        assert_eq!(leader.answers(), 0);
        leader.answered(&call, &busy(5));
        leader.answered(&call, &busy(5));
        assert_eq!(leader.answers(), 2, "after each, the time begins again");
        leader.close_with_quorum(patience - Duration::from_millis(1));
        assert!(!leader.members().is_closed());
        let mut without = leader.clone();
        without.close_with_quorum(patience);
        assert!(without.members().is_closed(), "it does not answer any more");
    }
}

// INV-111
#[test]
fn a_world_whose_table_was_lost_is_waited_for_by_nobody() {
    let patience = Duration::from_secs(150);
    let minute = Duration::from_secs(60);
    for (before, generation) in [(0, 1), (4, 5)] {
        // The leader dies when it has sent the table to the workers, and has told a spare of the world.
        let mut member = elects(2, before, 0);
        let to = call(&member, 1);
        member.accepted(&to).unwrap();
        member.receive(1, &Note::Leads(before).encode()).unwrap();
        let table = [0, 1, 2].map(|place| (place, format!("10.0.0.{place}:7").parse().unwrap()));
        member.receive(1, &Note::Table(generation, 7, table.to_vec()).encode()).unwrap();
        member.mark_lost(1, "reset".to_owned()).unwrap_err();
        let unformed = Some(UnformedWorld { generation, table: 7, latest: before, unreached: None });
        assert_eq!(member.unformed(), unformed);
        let covers = |generation, table| unformed.is_some_and(|world| world.covers(generation, table));
        assert!(covers(generation, 7) && !covers(generation, 8) && !covers(generation + 1, 7));
        let spare = |table| Hello { table, ..asks(3, generation, SPARE) };
        let again = |me, unformed| elects(me, before, 0).patience(patience).after_unformed(unformed);
        let join = |from: &RendezvousState| Hello { purpose: from.purpose().0, ..asks(2, before, JOIN) };
        // The one that leads now has received the table, or knows it from one that has.
        for (own, others, is_over) in [(unformed, None, true), (None, unformed, true), (None, None, false)] {
            let mut leader = again(0, own);
            leader.decide(&join(&again(2, others))).unwrap();
            // The spare may be one of another world of this generation, which is complete.
            let mut other = leader.clone();
            other.decide(&spare(8)).unwrap();
            other.close_with_quorum(minute);
            assert!(!other.members().is_closed(), "{own:?}, {others:?}");
            leader.decide(&spare(7)).unwrap();
            leader.close_with_quorum(minute);
            assert_eq!(leader.members().is_closed(), is_over, "{own:?}, {others:?}");
        }
        // That one is gone again, and what it knew.
        let mut leader = again(0, None);
        leader.decide(&join(&again(2, unformed))).unwrap();
        leader.leave(2);
        leader.decide(&join(&again(2, None))).unwrap();
        leader.decide(&spare(7)).unwrap();
        leader.close_with_quorum(minute);
        assert!(!leader.members().is_closed());
        // There is another world of this generation, which is complete.
        let mut spare = again(2, unformed);
        let to = call(&spare, 1);
        spare.accepted(&to).unwrap();
        spare.receive(1, &Note::Spare(generation, 8, vec![]).encode()).unwrap();
        assert_eq!(spare.unformed(), None);
    }
    // The table of the next world, of generation 2 because it has a spare, was lost as well.
    let mut twice = elects(1, 0, 0).after_unformed(Some(UnformedWorld {
        generation: 2,
        table: 0,
        latest: 0,
        unreached: None,
    }));
    twice = twice.patience(patience);
    twice.decide(&asks(2, 1, SPARE)).unwrap();
    twice.decide(&asks(3, 2, SPARE)).unwrap();
    twice.close_with_quorum(minute);
    assert!(twice.members().is_closed());
    // The members of an earlier world have the state, which the leader of the lost table knew.
    let mut started = elects(1, 0, 0).after_unformed(Some(UnformedWorld {
        generation: 5,
        table: 0,
        latest: 4,
        unreached: None,
    }));
    started.decide(&asks(2, 5, SPARE)).unwrap();
    started.decide(&asks(3, 0, JOIN)).unwrap();
    let mut started = started.patience(patience);
    started.close_with_quorum(minute);
    assert!(!started.members().is_closed());
    started.decide(&asks(0, 4, JOIN)).unwrap_err();
}

// INV-111
#[test]
fn a_spare_leads_if_all_workers_are_lost() {
    let second = Duration::from_secs(1);
    let refused = |state: &mut RendezvousState, hello| state.decide(&hello).unwrap_err().reason;
    let unformed = UnformedWorld { generation: 2, table: 0, latest: 0, unreached: None };
    let mut spare = elects(1, 0, 2).patience(150 * second).after_unformed(Some(unformed));
    spare.look(second);
    spare.look(5 * second);
    assert!(!spare.leads() && refused(&mut spare, asks(2, 2, SPARE)) == Reason::Early);
    assert!(spare.election_mut().unwrap().take_hurried().is_empty(), "that one leads nobody");
    spare.look(6 * second);
    assert!(spare.leads() && called(&spare).contains(&0));
    // Whoever may be no spare precedes, and a spare with a lower number.
    let mut other = spare.clone();
    for hello in [asks(3, 0, JOIN), asks(2, 2, JOIN), asks(0, 2, SPARE)] {
        assert_eq!(refused(&mut other, hello), Reason::Early);
    }
    [2, 3].into_iter().for_each(|place| spare.decide(&asks(place, 2, SPARE)).unwrap());
    spare.close_with_quorum(5 * second);
    assert_eq!((spare.members().members(), spare.members().generation()), (vec![1, 2, 3], 2));
    // A spare that knows of a complete world waits for its members.
    let mut waits = elects(1, 0, 2).patience(150 * second);
    waits.look(second);
    waits.look(6 * second);
    [2, 3].into_iter().for_each(|place| waits.decide(&asks(place, 1, SPARE)).unwrap());
    waits.close_with_quorum(149 * second);
    assert!(!waits.members().is_closed());
    // One that leads enough others follows a worker of that world, but not one that has just started.
    let to = call(&waits, 0);
    assert_eq!(waits.clone().accepted(&to), None);
    assert_eq!(refused(&mut waits, asks(0, 2, JOIN)), Reason::Early);
    assert_eq!(waits.accepted(&to), Some(vec![2, 3]));
    assert!(!waits.leads());
    waits.mark_lost(0, "reset".to_owned()).unwrap();
    waits.look(7 * second);
    waits.look(11 * second);
    assert!(!waits.leads());
    waits.look(12 * second);
    assert!(waits.leads());
}

/// Returns the report of a leader of four tasks to which all but these have connected.
pub(in crate::rendezvous::state) fn report(missing: &[usize]) -> Bytes {
    let missing = missing.iter().map(|worker| Missing {
        worker: *worker,
        task: Names::default().task(*worker),
        address: String::new(),
        last: None,
    });
    let (missing, refused) = (missing.collect(), Vec::new());
    Note::Waiting(Progress { workers: 4, waited: Duration::ZERO, missing, refused }).encode()
}

// INV-111
#[test]
fn a_follower_moves_to_a_leader_that_precedes_its_own_if_too_few_have_joined_that() {
    let follow = || {
        // Tasks 0 and 1 lead, and do not reach each other.
        let mut spare = elects(3, 0, 5);
        let call = call(&spare, 1);
        assert_eq!(spare.accepted(&call), Some(vec![]));
        spare.receive(1, &Note::Leads(5).encode()).unwrap();
        spare
    };
    let refused = |spare: &mut RendezvousState, rank, generation| {
        spare.decide(&asks(rank, generation, JOIN)).unwrap_err().reason
    };
    let mut spare = follow();
    for _ in 0..10 {
        assert_eq!(refused(&mut spare, 0, 5), Reason::Elsewhere);
        assert_eq!(called(&spare), Vec::<usize>::new());
        spare.receive(1, &report(&[0, 2])).unwrap();
    }
    assert_eq!(refused(&mut spare, 2, 5), Reason::Elsewhere, "that one does not precede the leader");
    assert_eq!(refused(&mut spare, 0, 4), Reason::Elsewhere);
    assert_eq!(refused(&mut spare, 0, 5), Reason::Early);
    assert_eq!(called(&spare), [0, 0], "at both addresses");
    assert_eq!(spare.election_mut().unwrap().take_hurried(), [0].into());
    let to = call(&spare, 0);
    assert_eq!(spare.clone().accepted(&to), Some(vec![1]), "the link to the old leader is closed");
    // A leader with enough keeps it, and so does one that holds it or has sent the table.
    spare.receive(1, &report(&[2])).unwrap();
    assert_eq!((called(&spare), spare.accepted(&to)), (vec![], None));
    let mut held = follow();
    (0..70).for_each(|_| drop(held.receive(1, &report(&[0, 2])).unwrap()));
    held.receive(1, &Note::Spare(6, 0, vec![]).encode()).unwrap();
    assert_eq!(refused(&mut held, 0, 6), Reason::Elsewhere);
    // After a minute, any other leader is better.
    let mut stuck = follow();
    (0..59).for_each(|_| drop(stuck.receive(1, &report(&[0, 2])).unwrap()));
    assert_eq!(refused(&mut stuck, 2, 5), Reason::Elsewhere);
    stuck.receive(1, &report(&[0, 2])).unwrap();
    assert_eq!(refused(&mut stuck, 2, 5), Reason::Early);
    // A member does not move to one that it precedes, which would refuse it.
    let mut member = elects(1, 5, 0);
    let to = call(&member, 0);
    member.accepted(&to).unwrap();
    (0..60).for_each(|_| drop(member.receive(0, &report(&[2, 3])).unwrap()));
    assert_eq!(refused(&mut member, 2, 5), Reason::Elsewhere);
}

// INV-111
#[test]
fn a_wrong_answer_of_one_process_is_kept_for_the_error_and_ends_nothing() {
    let (mut state, now) = (elects(1, 4, 0), Duration::ZERO);
    let calls: Vec<_> = state.asks().unwrap().into_iter().map(|(call, _)| call).collect();
    let no = |reason| Refusal::new(reason, "no");
    assert_eq!(calls.iter().map(|call| call.worker).collect::<Vec<_>>(), [0, 2, 3]);
    assert!(state.refused(&calls[0], no(Reason::Job), now).is_none());
    assert!(state.refused(&calls[1], no(Reason::Rank), now).is_none());
    assert_eq!(state.refused_connections(vec![]), ["10.0.0.0:7 (no)", "10.0.0.2:7 (no)"]);
    // That is from the leader of a world.
    assert!(matches!(state.refused(&calls[0], no(Reason::Complete), now), Some(JoinError::Refused { .. })));
    // These are from one that would like to lead one.
    for reason in [Reason::Generation, Reason::Taken] {
        let mut state = state.clone();
        assert!(state.refused(&calls[0], no(reason), now).is_none(), "worker 3 has not answered");
        state.answered(&calls[2], &no(Reason::Early));
        assert!(state.refused(&calls[0], no(reason), now).is_none(), "worker 3 leads others or itself");
        let mut alone = state.clone();
        alone.missed(&calls[2]);
        assert!(alone.refused(&calls[0], no(reason), now).is_some(), "all that answer have refused it");
        state.answered(&calls[2], &Refusal::elsewhere("", 0, calls[0].address.clone(), 0));
        assert!(state.refused(&calls[0], no(reason), now).is_some(), "worker 3 follows that one");
    }
    let all = state.refused(&calls[2], no(Reason::Cluster), now);
    assert!(matches!(all, Some(JoinError::Refused { worker: 3, .. })), "all have refused it");
}

// INV-111
#[test]
fn the_training_has_ended_if_no_other_process_answers_otherwise() {
    let second = Duration::from_secs(1);
    let mut state = elects(1, 0, 0);
    let (from, other) = (call(&state, 0), call(&state, 2));
    let ended = Refusal::new(Reason::Ended, "over");
    assert!(state.refused(&from, ended.clone(), second).is_none());
    assert!(state.refused(&from, ended.clone(), 3 * second).is_none());
    assert!(state.ended(5 * second).is_none());
    let error = state.ended(6 * second);
    assert!(matches!(error, Some(JoinError::Refused { worker: 0, ref refusal, .. }) if *refusal == ended));
    // Another one is in a world.
    let mut goes_on = state.clone();
    goes_on.answered(&other, &Refusal::busy("not yet", 3));
    assert!(goes_on.ended(60 * second).is_none());
    // Another one has just started, or follows one that has, and knows no better.
    let mut started = state.clone();
    started.answered(&other, &Refusal::new(Reason::Early, "it precedes"));
    started.answered(&other, &Refusal::elsewhere("it follows", 3, other.address.clone(), 0));
    assert!(started.accepted(&other).is_some());
    started.receive(2, &Note::Leads(0).encode()).unwrap();
    assert!(started.ended(6 * second).is_some());
    started.receive(2, &Note::Leads(3).encode()).unwrap();
    assert!(started.ended(60 * second).is_none());
    // They begin no training together, unless one of them was in a world.
    for (generation, begins) in [(0, false), (3, true)] {
        let mut leader = elects(1, generation, 0);
        assert!(leader.refused(&from, ended.clone(), second).is_none());
        [2, 3].iter().for_each(|other| leader.decide(&asks(*other, 0, JOIN)).unwrap());
        leader.close_with_quorum(10 * second);
        assert_eq!(leader.members().is_closed(), begins);
    }
    // Others have connected, and wait as well.
    state.decide(&asks(2, 0, JOIN)).unwrap();
    assert!(state.ended(30 * second).is_none() && state.ended(31 * second).is_some());
    // All that are known have answered so.
    let mut all = elects(1, 0, 0);
    assert!(all.refused(&call(&all, 0), ended.clone(), second).is_none());
    assert!(all.refused(&call(&all, 2), ended.clone(), second).is_none());
    assert!(all.refused(&call(&all, 3), ended, second).is_some());
}

// INV-111
#[test]
fn a_leader_that_sends_a_wrong_message_is_left_and_named() {
    let mut state = elects(2, 4, 0);
    let to = call(&state, 0);
    state.accepted(&to).unwrap();
    assert_eq!(state.receive(0, b"what?").unwrap(), NextStep::Drop(0, None));
    assert!(state.leads(), "it follows nobody");
    assert!(state.refused_connections(vec![])[0].contains("5 bytes that are no message of it"));
    let wait = state.asks().unwrap().into_iter().find(|(call, _)| call.worker == 0).unwrap().1;
    assert_eq!(wait, Duration::from_secs(5), "after the others");
    // A world without this process, and the only process that has not refused it.
    let no = Refusal::new(Reason::Job, "no");
    assert!(state.refused(&call(&state, 1), no, Duration::ZERO).is_none());
    let to = call(&state, 3);
    state.accepted(&to).unwrap();
    let table = Note::Table(5, 0, vec![(0, to.address.clone()), (3, to.address)]).encode();
    assert!(matches!(state.receive(3, &table), Err(JoinError::Leader { .. })));
}
