use super::*;

fn hello(rank: usize, purpose: Purpose) -> Hello {
    let (job, table, digest) = ("a".into(), 0, [0; 32]);
    Hello { job, generation: 1, table, rank, workers: 3, replicas: 1, digest, purpose }
}

fn join(rank: usize) -> Hello {
    hello(rank, Purpose::Join { address: format!("10.0.0.{rank}:7"), unformed: None })
}

fn spare(rank: usize, generation: u64) -> Hello {
    let purpose = Purpose::Spare { address: format!("10.0.0.{rank}:7"), unformed: None };
    Hello { generation, ..hello(rank, purpose) }
}

fn at(me: usize) -> Membership {
    Membership::new(
        me,
        Names::default(),
        (0..3).map(|worker| format!("10.0.0.{worker}:0").parse().unwrap()).collect(),
    )
}

#[test]
fn the_leader_takes_each_worker_once_and_again_when_it_has_gone() {
    let mut members = at(0);
    assert_eq!(members.missing().len(), 2);
    members.decide(&join(2)).unwrap();
    members.connect(&join(2));
    assert_eq!(
        members.addresses()[1..].iter().map(Address::to_string).collect::<Vec<_>>(),
        ["10.0.0.1:0", "10.0.0.2:7"]
    );
    let taken = members.decide(&join(2)).unwrap_err();
    assert_eq!(taken.reason, Reason::Taken);
    assert!(taken.text.contains("worker 2 has already joined, at 10.0.0.2:7"), "{taken}");
    members.leave(2);
    members.decide(&join(2)).unwrap();
    members.connect(&join(2));
    members.connect(&join(1));
    assert_eq!(members.missing(), []);
}

fn located(me: usize) -> Membership {
    let mut members = at(me);
    locate(&mut members, 1);
    members
}

fn locate(members: &mut Membership, generation: u64) {
    let all = members.addresses().iter().cloned().enumerate().collect();
    assert!(members.locate(generation, 0, all));
}

// INV-34
#[test]
fn the_leader_makes_the_generation_after_all_that_there_were_and_refuses_who_has_missed_one() {
    let of = |rank, generation| Hello { generation, ..join(rank) };
    // This is the generation of a first world.
    assert_eq!(at(0).generation(), 1);
    // A new leader learns the latest generation from the others.
    let mut started = at(0);
    for (rank, last) in [(1, 4), (2, 0)] {
        started.decide(&of(rank, last)).unwrap();
        started.connect(&of(rank, last));
    }
    assert_eq!(started.generation(), 5);
    // An earlier member accepts new processes as well as other earlier members.
    let mut there = at(0).after(4);
    there.decide(&of(1, 0)).unwrap();
    there.decide(&of(2, 4)).unwrap();
    there.connect(&of(2, 4));
    assert_eq!(there.generation(), 5);
    let refusal = there.decide(&of(1, 3)).unwrap_err();
    assert_eq!(refusal.reason, Reason::Generation);
    assert!(
        refusal.text.starts_with("worker 1 is of generation 3, and worker 0 of generation 4"),
        "{refusal}"
    );
    assert_eq!(there.decide(&of(1, 5)).unwrap_err().reason, Reason::Replaced);
}

// INV-34
#[test]
fn links_connect_workers_that_received_the_same_world() {
    let of = |generation| Hello { generation, ..hello(2, Purpose::Link) };
    let mut members = at(1).after(6);
    assert_eq!(members.decide(&of(7)).unwrap_err().reason, Reason::Early);
    locate(&mut members, 7);
    members.decide(&of(7)).unwrap();
    let other = Hello { table: 1, ..of(7) };
    assert_eq!(members.decide(&other).unwrap_err().reason, Reason::Early, "of another leader");
    assert_eq!(members.decide(&of(6)).unwrap_err().reason, Reason::Generation);
    assert_eq!(members.decide(&of(8)).unwrap_err().reason, Reason::Replaced);
}

// INV-43
#[test]
fn a_partial_world_has_the_present_workers_and_waits_for_no_others() {
    let mut leader = at(0);
    leader.connect(&join(2));
    assert_eq!((leader.connected(), leader.missing().len()), ([0, 2].into(), 1));
    leader.close(3);
    assert_eq!((leader.members(), leader.missing()), (vec![0, 2], vec![]));
    let table = |positions: &[usize]| -> Vec<(usize, Address)> {
        positions.iter().map(|place| (*place, format!("10.0.0.{place}:8").parse().unwrap())).collect()
    };
    let mut member = at(1);
    for no_world in [&[][..], &[0, 2], &[1], &[1, 0], &[0, 1, 1], &[0, 1, 3]] {
        assert!(!member.locate(1, 0, table(no_world)), "{no_world:?}");
    }
    assert!(!member.locate(0, 0, table(&[0, 1])), "of a generation that is over");
    assert!(member.locate(1, 0, table(&[0, 1])));
    assert_eq!((member.members(), member.missing()), (vec![0, 1], vec![]));
}

// INV-100
#[test]
fn members_take_precedence_over_spares_and_spares_over_new_processes() {
    let of = |rank, generation| Hello { generation, ..join(rank) };
    let addresses = (0..5).map(|worker| format!("10.0.0.{worker}:0").parse().unwrap()).collect();
    let mut leader = Membership::new(0, Names::default(), addresses);
    leader.connect(&spare(2, 4));
    leader.connect(&of(1, 0));
    assert!(leader.awaits_members());
    assert_eq!((leader.spares(), leader.resuming()), ([2].into(), 1));
    leader.connect(&of(4, 4));
    assert!(!leader.awaits_members());
    assert_eq!(leader.resuming(), 2);
    for (maximum, members) in
        [(1, &[0][..]), (2, &[0, 4]), (3, &[0, 2, 4]), (4, &[0, 1, 2, 4]), (5, &[0, 1, 2, 4])]
    {
        leader.close(maximum);
        assert_eq!((leader.members(), leader.generation()), (members.to_vec(), 5));
    }
    // A leader that was in generation 4 accepts a spare of any earlier one, and of no later one.
    let mut there = at(0).after(4);
    there.connect(&spare(2, 4));
    assert!(!there.awaits_members());
    there.decide(&spare(1, 2)).unwrap();
    there.decide(&spare(1, 4)).unwrap();
    assert_eq!(there.decide(&spare(1, 5)).unwrap_err().reason, Reason::Replaced);
}

// INV-100
#[test]
fn members_of_the_latest_world_take_precedence_and_the_world_of_a_spare_does_not_count() {
    let of = |rank, generation| Hello { generation, ..join(rank) };
    let addresses: Vec<Address> =
        (0..5).map(|worker| format!("10.0.0.{worker}:0").parse().unwrap()).collect();
    let mut leader = Membership::new(0, Names::default(), addresses);
    leader.connect(&spare(4, 5));
    // Members of generation 5 can supplant the new world.
    assert_eq!(leader.generation(), 2);
    // Worker 1 was cut off, and generation 5 was made without it.
    leader.connect(&of(1, 4));
    assert!(leader.awaits_members());
    leader.connect(&of(3, 5));
    assert!(!leader.awaits_members());
    leader.close(2);
    assert_eq!((leader.members(), leader.generation()), (vec![0, 3], 6));
    leader.close(3);
    assert_eq!(leader.members(), [0, 1, 3]);
    // Generation 5 may never have been complete, and a member of an early world may have the latest state.
    leader.leave(1);
    leader.connect(&of(1, 3));
    leader.close(3);
    assert_eq!(leader.members(), [0, 1, 3]);
}

#[test]
fn a_worker_that_contacts_the_wrong_worker_gets_an_error() {
    for (members, caller, text) in [
        (at(0), join(3), "there is no worker 3"),
        (at(0), join(0), "worker 0 is the one that connects to worker 0"),
        (at(0), hello(1, Purpose::Link), "worker 1 has to join worker 0 first"),
        (at(1), join(2), "worker 1 does not lead this world: join worker 0"),
        (located(2), hello(1, Purpose::Link), "worker 2 is the one that connects to worker 1"),
    ] {
        let refusal = members.decide(&caller).unwrap_err();
        assert_eq!(refusal.reason, Reason::Rank);
        assert!(refusal.text.contains(text), "{refusal}");
    }
    let mut members = at(1);
    locate(&mut members, 1);
    members.decide(&hello(2, Purpose::Link)).unwrap();
    members.connect(&hello(2, Purpose::Link));
    assert_eq!(members.missing(), []);
}

// INV-111
#[test]
fn a_link_is_accepted_from_members_only() {
    let mut members = at(0).elected(Some(1));
    let world = members.addresses().iter().cloned().enumerate().filter(|(place, _)| *place != 2);
    assert!(members.locate(1, 0, world.collect()));
    assert_eq!(members.decide(&hello(2, Purpose::Link)).unwrap_err().reason, Reason::Early);
    let mut members = at(0).elected(Some(1));
    locate(&mut members, 1);
    members.decide(&hello(2, Purpose::Link)).unwrap();
}
