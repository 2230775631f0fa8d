use super::super::following::tests::{JOIN, SPARE, asks, called, elects, report};
use super::super::*;

const SECOND: Duration = Duration::from_secs(1);

fn call(state: &RendezvousState, worker: usize) -> Call {
    state.asks().unwrap().into_iter().map(|(call, _)| call).find(|call| call.worker == worker).unwrap()
}

// INV-111
#[test]
fn a_leader_that_has_just_started_hears_all_others_before_it_begins() {
    let mut leader = elects(0, 0, 0);
    let wait = |state: &RendezvousState| state.asks().unwrap()[0].1;
    leader.decide(&asks(1, 0, JOIN)).unwrap();
    let others = leader.asks().unwrap();
    assert!(others.iter().all(|(_, wait)| *wait > Duration::ZERO), "too few have come");
    leader.decide(&asks(2, 0, JOIN)).unwrap();
    assert_eq!((called(&leader), wait(&leader)), (vec![3], Duration::ZERO));
    let begins = |state: &RendezvousState, idle| {
        let mut state = state.clone();
        state.close_with_quorum(idle);
        state.members().is_closed()
    };
    assert!(!begins(&leader, Duration::ZERO) && begins(&leader, 5 * SECOND));
    let answered = |refusal: Refusal| {
        let mut leader = leader.clone();
        leader.answered(&call(&leader, 3), &refusal);
        begins(&leader, 4 * SECOND)
    };
    assert!(answered(Refusal::new(Reason::Early, "it precedes")));
    assert!(!answered(Refusal::busy("in a world".to_owned(), 1)), "that one has the state");
    let other = "10.0.0.1:7".parse().unwrap();
    assert!(!answered(Refusal::elsewhere("".to_owned(), 1, other, 0)), "it may have lost that one");
    let mut missed = leader.clone();
    missed.missed(&call(&leader, 3));
    assert!(begins(&missed, Duration::ZERO));
    // All of them are there.
    leader.decide(&asks(3, 0, JOIN)).unwrap();
    assert!(begins(&leader, Duration::ZERO));
    // Two members of a world, or one and its spare, know that there was no later one.
    for other in [asks(2, 5, JOIN), asks(3, 5, SPARE)] {
        let mut member = elects(1, 5, 0);
        member.quorum.expected = [1, 2, 3].into();
        member.decide(&other).unwrap();
        member.decide(&asks(if other.rank == 2 { 3 } else { 2 }, 0, JOIN)).unwrap();
        assert!(begins(&member, Duration::ZERO), "{other:?}");
    }
}

// INV-111
#[test]
fn a_follower_leads_those_that_its_leader_misses_if_they_are_enough() {
    let follow = |missing: &[usize]| {
        let mut state = elects(1, 5, 0);
        state.accepted(&call(&state, 0)).unwrap();
        state.receive(0, &Note::Leads(5).encode()).unwrap();
        for _ in 0..10 {
            state.receive(0, &report(missing)).unwrap();
        }
        state
    };
    let ask = |state: &mut RendezvousState, times: usize| {
        for _ in 0..times {
            assert_eq!(state.decide(&asks(2, 5, JOIN)).unwrap_err().reason, Reason::Elsewhere);
        }
    };
    let mut captured = follow(&[2, 3]);
    ask(&mut captured, 7);
    assert_eq!(captured.look(20 * SECOND), None);
    ask(&mut captured, 1);
    assert_eq!(captured.look(20 * SECOND), Some(0));
    assert!(captured.leads() && !called(&captured).contains(&0));
    // The old leader precedes it, and is neither asked nor accepted for a minute.
    assert_eq!(captured.decide(&asks(0, 5, JOIN)).unwrap_err().reason, Reason::Early);
    captured.decide(&asks(2, 5, JOIN)).unwrap();
    captured.decide(&asks(3, 5, SPARE)).unwrap();
    captured.close_with_quorum(5 * SECOND);
    assert_eq!(captured.members().members(), [1, 2, 3]);
    captured.look(80 * SECOND);
    assert!(called(&captured).contains(&0));
    // With those that the leader misses, it would not have enough.
    let mut few = follow(&[2]);
    few.quorum.minimum = 4;
    ask(&mut few, 100);
    assert_eq!(few.look(20 * SECOND), None);
}

// INV-111
#[test]
fn a_worker_that_cannot_link_to_another_says_so_in_the_next_rendezvous() {
    let table = [0, 1, 2].map(|place| (place, format!("10.0.0.{place}:7").parse().unwrap()));
    let mut worker = elects(2, 5, 0);
    worker.accepted(&call(&worker, 0)).unwrap();
    worker.receive(0, &Note::Leads(5).encode()).unwrap();
    worker.look(SECOND);
    let NextStep::Call(links) = worker.receive(0, &Note::Table(6, 7, table.to_vec()).encode()).unwrap()
    else {
        panic!()
    };
    let mut linked = worker.clone();
    for state in [&mut worker, &mut linked] {
        state.look(2 * SECOND);
        state.look(11 * SECOND);
        assert!(state.ended(11 * SECOND).is_none());
    }
    assert_eq!(linked.accepted(&links[0]), Some(vec![]));
    linked.look(12 * SECOND);
    assert!(linked.ended(12 * SECOND).is_none());
    worker.look(12 * SECOND);
    let error = worker.ended(12 * SECOND).unwrap();
    assert!(matches!(error, JoinError::Lost { worker: 1, .. }), "{error}");
    let unreached = Some(UnformedWorld { generation: 6, table: 7, latest: 5, unreached: Some(1) });
    assert_eq!(worker.unformed(), unreached);
    // A process that is not in the table does not disturb this world.
    assert_eq!(worker.mark_lost(3, "reset".to_owned()).unwrap(), NextStep::Drop(3, None));
    // The leader waits for the spare, and takes it instead of one of the two.
    let mut leader = elects(0, 6, 0);
    leader.quorum.expected = [0, 1, 2].into();
    leader.decide(&asks(1, 5, JOIN)).unwrap();
    let address = "10.0.0.2:7".to_owned();
    let join = Hello { purpose: Purpose::Join { address, unformed: unreached }, ..asks(2, 5, JOIN) };
    leader.decide(&join).unwrap();
    leader.close_with_quorum(4 * SECOND);
    assert!(!leader.members().is_closed());
    let mut without = leader.clone();
    without.close_with_quorum(5 * SECOND);
    assert_eq!(without.members().members(), [0, 1, 2], "the network may work again");
    leader.decide(&asks(3, 5, SPARE)).unwrap();
    leader.close_with_quorum(Duration::ZERO);
    assert_eq!(leader.members().members(), [0, 1, 3]);
    // The leader remembers it in the next rendezvous, in which another pair shows which of them is cut off.
    let mut next = elects(0, 7, 0).after_apart(leader.members().apart().clone());
    let unreached = Some(UnformedWorld { generation: 7, table: 8, latest: 5, unreached: Some(3) });
    let address = "10.0.0.1:7".to_owned();
    next.decide(&Hello { purpose: Purpose::Join { address, unformed: unreached }, ..asks(1, 5, JOIN) })
        .unwrap();
    [asks(2, 7, SPARE), asks(3, 5, JOIN)].iter().for_each(|hello| next.decide(hello).unwrap());
    next.close_with_quorum(Duration::ZERO);
    assert_eq!(next.members().members(), [0, 2, 3]);
}
