//! Clusters with a fixed number of workers and spares, whose leader is elected: no process is indispensable.

use crate::support::{Kept, PATIENCE, patient};
use distribute_cluster::{Deadline, World};
use distribute_net::{JoinError, Memory, Mesh, Quorum, Rendezvous, SharedMemory};
use distribute_testing::{Port, watched};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

/// Three workers and a spare.
const TASKS: usize = 4;
const WORKERS: usize = 3;

/// The processes of a cluster, which know the ports of the first `known` tasks.
struct Cluster {
    ports: Vec<Port>,
    known: usize,
}

type Joined = Result<(Mesh, Arc<Kept>), JoinError>;

impl Cluster {
    fn new(known: usize) -> Self {
        Self { ports: (0..TASKS).map(|_| Port::reserve()).collect(), known }
    }

    /// Returns the rendezvous of a process that was in a world of this generation with the processes `present`.
    fn at(&self, place: usize, generation: u64, present: &[usize], memory: &Memory) -> Rendezvous {
        let address = |task: usize| {
            let port = if task < self.known { self.ports[task].number() } else { 0 };
            format!("127.0.0.1:{port}")
        };
        let present: BTreeSet<_> = present.iter().copied().collect();
        let expected = if present.is_empty() { (0..WORKERS).collect() } else { present.clone() };
        let minimum = WORKERS;
        let quorum = Quorum { minimum, maximum: WORKERS, expected, present, grace: PATIENCE };
        Rendezvous::new(World::new(TASKS, place, 1).unwrap(), (0..TASKS).map(address).collect())
            .settings(patient())
            .timeout(PATIENCE)
            .shared_memory(SharedMemory::Never)
            .generation(generation)
            .quorum(quorum)
            .elect(memory.clone())
    }

    fn new_process(&self, place: usize) -> Rendezvous {
        self.at(place, 0, &[], &Memory::default())
    }
}

fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    rendezvous: Rendezvous,
) -> ScopedJoinHandle<'scope, Joined> {
    scope.spawn(move || {
        let kept = Kept::new();
        Ok((rendezvous.join(kept.clone())?, kept))
    })
}

fn joined(process: ScopedJoinHandle<'_, Joined>) -> (Mesh, Arc<Kept>) {
    process.join().unwrap().unwrap()
}

fn waits(leader: &Mesh, places: &[usize]) {
    let until = Deadline::after(PATIENCE);
    let places: BTreeSet<_> = places.iter().copied().collect();
    while leader.waiting_positions() != places {
        assert!(!until.has_passed(), "{:?} wait, and not {places:?}", leader.waiting_positions());
        std::thread::yield_now();
    }
}

/// Checks that a process that has just started finds the world of a generation, and is its spare.
fn finds(rendezvous: Rendezvous, generation: u64) {
    match rendezvous.returns_spare(true).join(Kept::new()) {
        Err(JoinError::Spare { generation: of }) => assert_eq!(of, generation),
        other => panic!("it is no spare: {other:?}"),
    }
}

/// The leader is lost, and its heir as well: processes that know the ports of the first `known` tasks form the next
/// worlds.
fn leaders_are_lost(known: usize) {
    let cluster = Cluster::new(known);
    let memories: Vec<_> = (0..TASKS).map(|_| Memory::default()).collect();
    let first = |place: usize| cluster.at(place, 0, &[], &memories[place]);
    std::thread::scope(|scope| {
        let workers = [0, 1, 2].map(|place| spawn(scope, first(place)));
        let [leader, one, two] = workers.map(joined);
        finds(first(3), 1);
        let spare = spawn(scope, first(3).spare_of(1));
        waits(&leader.0, &[3]);
        // The first leader is lost.
        drop(leader);
        [&one, &two].into_iter().for_each(|(mesh, kept)| drop(kept.loss(Some(mesh), 0)));
        [&one.0, &two.0].into_iter().for_each(Mesh::leave);
        drop((one, two));
        let again = |place: usize, present: &[usize]| cluster.at(place, 1, present, &memories[place]);
        let [one, two] = [1, 2].map(|place| spawn(scope, again(place, &[1, 2])));
        let [one, two, spare] = [one, two, spare].map(joined);
        for (rank, (mesh, _)) in [&one, &two, &spare].into_iter().enumerate() {
            assert_eq!((mesh.positions(), mesh.generation()), (&[1, 2, 3][..], 2));
            assert_eq!(mesh.world(), World::new(WORKERS, rank, 1).unwrap());
        }
        if known < TASKS {
            // The others have ports that a new process of the first task does not know.
            return;
        }
        // Its process is started again, asks the others, and is sent to the leader.
        finds(cluster.new_process(0), 2);
        let again = spawn(scope, cluster.at(0, 0, &[], &memories[0]).spare_of(1));
        waits(&one.0, &[0]);
        // The second leader is lost.
        drop(one);
        [&two, &spare].into_iter().for_each(|(mesh, kept)| drop(kept.loss(Some(mesh), 0)));
        [&two.0, &spare.0].into_iter().for_each(Mesh::leave);
        drop((two, spare));
        let [two, spare] = [2, 3].map(|place| spawn(scope, cluster.at(place, 2, &[2, 3], &memories[place])));
        let [again, two, spare] = [again, two, spare].map(joined);
        for (mesh, _) in [&again, &two, &spare] {
            assert_eq!((mesh.positions(), mesh.generation()), (&[0, 2, 3][..], 3));
        }
        finds(cluster.new_process(1), 3);
    });
}

// INV-111
#[test]
fn the_others_form_the_next_world_without_the_first_leader_and_without_its_heir() {
    watched(|| leaders_are_lost(TASKS));
}

// INV-111
#[test]
fn ports_that_only_processes_know_are_learned() {
    watched(|| leaders_are_lost(1));
}

// INV-111
#[test]
fn a_first_worker_that_does_not_come_is_a_spare() {
    watched(|| {
        let cluster = Cluster::new(TASKS);
        std::thread::scope(|scope| {
            let others = [1, 2, 3].map(|place| spawn(scope, cluster.new_process(place)));
            let others = others.map(joined);
            assert_eq!((others[0].0.positions(), others[0].0.generation()), (&[1, 2, 3][..], 1));
            finds(cluster.new_process(0), 1);
        });
    });
}

// INV-111
#[test]
fn another_job_at_one_address_ends_nothing_and_is_named_if_the_others_are_missing() {
    watched(|| {
        let cluster = Cluster::new(TASKS);
        let foreign = || cluster.new_process(0).job("another").timeout(Duration::from_secs(20));
        std::thread::scope(|scope| {
            let other = spawn(scope, foreign());
            let alone = cluster.new_process(1).timeout(Duration::from_millis(1500)).join(Kept::new());
            let error = alone.unwrap_err();
            let JoinError::Minority { seen: 1, tasks: TASKS, needed: WORKERS, .. } = &error else {
                panic!("{error}")
            };
            let text = error.to_string();
            for says in [
                "minority: this process sees 1 of 4 tasks after 2 s, and needs 3; missing: worker 0 at 127.0.0.1:",
                "no firewall blocks the connection (loopback addresses only reach this machine)",
                "another job than \"job\" is at this address",
            ] {
                assert!(text.contains(says), "{text}");
            }
            let others = [1, 2, 3].map(|place| spawn(scope, cluster.new_process(place)));
            let others = others.map(joined);
            assert_eq!(others[0].0.positions(), [1, 2, 3]);
            drop(others);
            other.join().unwrap().unwrap_err();
        });
    });
}

// INV-85, INV-111
#[test]
fn a_process_that_all_others_refuse_ends_at_once() {
    watched(|| {
        let cluster = Cluster::new(TASKS);
        std::thread::scope(|scope| {
            let others = [0, 1, 3].map(|place| spawn(scope, cluster.new_process(place)));
            let others = others.map(joined);
            let error = cluster.new_process(2).agree_on(b"another program").join(Kept::new()).unwrap_err();
            assert!(matches!(error, JoinError::Refused { .. }), "{error}");
            assert!(error.to_string().contains("are not of the same cluster or program"), "{error}");
            drop(others);
        });
    });
}

// INV-111
#[test]
fn a_minority_of_members_ends_with_an_error_that_says_so() {
    watched(|| {
        let cluster = Cluster::new(TASKS);
        let memory = Memory::default();
        std::thread::scope(|scope| {
            // A follower knows from the leader's reports, one a second, who is missing.
            let member = |place| cluster.at(place, 4, &[1, 2], &memory).timeout(Duration::from_secs(4));
            let both = [1, 2].map(|place| spawn(scope, member(place)));
            for one in both {
                let error = one.join().unwrap().unwrap_err();
                assert!(
                    matches!(error, JoinError::Minority { needed: WORKERS, had_world: true, .. }),
                    "{error}"
                );
                let says =
                    "and needs 3: the others may have continued without it, and it joins as a spare if";
                assert!(error.to_string().contains(says), "{error}");
            }
        });
    });
}
