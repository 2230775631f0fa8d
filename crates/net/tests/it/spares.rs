//! Spares, which wait at the leader of a complete world and take the positions of lost workers.

use crate::support::{Kept, PATIENCE, addresses, patient};
use distribute_cluster::{Deadline, World};
use distribute_net::handshake::Reason;
use distribute_net::{JoinError, Mesh, Message, Quorum, Rendezvous, SharedMemory, Transport};
use distribute_testing::{Port, watched};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

/// Three workers and two spares.
const PLACES: usize = 5;
const WORKERS: usize = 3;

struct Cluster {
    port: u16,
    shared_memory: SharedMemory,
}

type Joined = Result<(Mesh, Arc<Kept>), JoinError>;

impl Cluster {
    /// Returns the rendezvous of a process that was in a world of this generation. The leader waits for `expected`.
    fn at(&self, place: usize, generation: u64, expected: &[usize]) -> Rendezvous {
        let quorum = Quorum {
            minimum: WORKERS,
            maximum: WORKERS,
            expected: expected.iter().copied().collect(),
            present: BTreeSet::new(),
            grace: PATIENCE,
        };
        Rendezvous::new(World::new(PLACES, place, 1).unwrap(), addresses(PLACES, "127.0.0.1", self.port))
            .settings(patient())
            .timeout(PATIENCE)
            .shared_memory(self.shared_memory)
            .generation(generation)
            .quorum(quorum)
    }

    fn spawn<'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        rendezvous: Rendezvous,
    ) -> ScopedJoinHandle<'scope, Joined> {
        scope.spawn(move || {
            let kept = Kept::new();
            Ok((rendezvous.join(kept.clone())?, kept))
        })
    }

    /// Returns the generation of the world of which a process finds itself a spare.
    fn spare(&self, place: usize) -> u64 {
        match self.at(place, 0, &[]).returns_spare(true).join(Kept::new()) {
            Err(JoinError::Spare { generation }) => generation,
            other => panic!("it is no spare: {other:?}"),
        }
    }
}

fn waits(leader: &Mesh, places: &[usize]) {
    let until = Deadline::after(PATIENCE);
    let places: BTreeSet<_> = places.iter().copied().collect();
    while leader.waiting_positions() != places {
        assert!(!until.has_passed(), "{:?} wait, and not {places:?}", leader.waiting_positions());
        std::thread::yield_now();
    }
    assert_eq!(leader.waiting(), 0, "the group does not re-form for a spare");
}

/// Waits until a spare has learned of the end of the training.
fn ended(spare: ScopedJoinHandle<'_, Joined>) {
    match spare.join().unwrap() {
        Err(JoinError::Refused { refusal, .. }) if refusal.reason == Reason::Ended => {}
        other => panic!("it has not learned of the end: {:?}", other.map(|(mesh, _)| mesh.world())),
    }
}

/// Joins the workers at these positions, which were in a world of this generation.
fn world(cluster: &Cluster, places: &[usize], generation: u64) -> Vec<(Mesh, Arc<Kept>)> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = places
            .iter()
            .map(|place| cluster.spawn(scope, cluster.at(*place, generation, &[0, 1, 2])))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
    })
}

fn a_spare_takes_a_place(shared_memory: SharedMemory) {
    let reserved = Port::reserve();
    let cluster = Cluster { port: reserved.number(), shared_memory };
    let mut joined = world(&cluster, &[0, 1, 2], 0).into_iter();
    let (leader, lost, other) = (joined.next().unwrap(), joined.next().unwrap(), joined.next().unwrap());
    assert_eq!((cluster.spare(3), cluster.spare(4)), (1, 1));
    waits(&leader.0, &[]);
    std::thread::scope(|scope| {
        let spare = cluster.spawn(scope, cluster.at(3, 0, &[]).spare_of(1));
        let unused = cluster.spawn(scope, cluster.at(4, 0, &[]).spare_of(1));
        waits(&leader.0, &[3, 4]);
        // Worker 1 is lost. The others leave, and re-form the group.
        drop(lost);
        other.1.loss(Some(&other.0), 1);
        leader.1.loss(Some(&leader.0), 1);
        for (mesh, _) in [&leader, &other] {
            mesh.leave();
        }
        drop((leader, other));
        let leader = cluster.spawn(scope, cluster.at(0, 1, &[0, 2, 3]));
        let other = cluster.spawn(scope, cluster.at(2, 1, &[]));
        let (leader, _) = leader.join().unwrap().unwrap();
        let (other, _) = other.join().unwrap().unwrap();
        let (spare, kept) = spare.join().unwrap().unwrap();
        assert_eq!(
            [&leader, &other, &spare].map(Mesh::world),
            [0, 1, 2].map(|worker| { World::new(WORKERS, worker, 1).unwrap() })
        );
        assert_eq!((leader.positions(), spare.generation()), (&[0, 2, 3][..], 2));
        other.send(2, Message::new("a", vec![]));
        kept.count(Some(&spare), 1);
        // The worker that was lost is the next spare, next to the one that was not needed.
        waits(&leader, &[4]);
        let again = cluster.spare(1);
        assert_eq!(again, 2);
        // Its first connection is gone.
        waits(&leader, &[4]);
        let again = cluster.spawn(scope, cluster.at(1, 0, &[]).spare_of(again));
        waits(&leader, &[1, 4]);
        // The training ends.
        [&leader, &other, &spare].into_iter().for_each(|mesh| mesh.set_finished(true));
        drop((leader, other, spare));
        for unused in [unused, again] {
            ended(unused);
        }
    });
}

// INV-100
#[test]
fn a_spare_takes_the_place_of_a_lost_worker_and_an_unused_one_learns_of_the_end() {
    watched(|| a_spare_takes_a_place(SharedMemory::Never));
}

// INV-100
#[test]
#[cfg(target_os = "linux")]
fn a_spare_that_shares_memory_takes_the_place_of_a_lost_worker() {
    watched(|| a_spare_takes_a_place(SharedMemory::Auto));
}

// INV-100
#[test]
fn a_spare_that_comes_before_the_world_is_complete_is_no_member() {
    watched(|| {
        let reserved = Port::reserve();
        let cluster = Cluster { port: reserved.number(), shared_memory: SharedMemory::Never };
        std::thread::scope(|scope| {
            let spares = [3, 4].map(|place| cluster.spawn(scope, cluster.at(place, 0, &[])));
            let joined = world(&cluster, &[0, 1, 2], 0);
            assert_eq!(joined[0].0.positions(), [0, 1, 2]);
            waits(&joined[0].0, &[3, 4]);
            joined[0].0.set_finished(true);
            drop(joined);
            spares.into_iter().for_each(ended);
        });
    });
}

// INV-100
#[test]
fn a_spare_is_used_if_a_worker_does_not_come() {
    watched(|| {
        let reserved = Port::reserve();
        let cluster = Cluster { port: reserved.number(), shared_memory: SharedMemory::Never };
        let joined = world(&cluster, &[0, 2, 4], 0);
        assert_eq!(joined[0].0.positions(), [0, 2, 4]);
        // Of a later generation.
        drop(joined);
        let joined = world(&cluster, &[0, 1, 4], 1);
        assert_eq!((joined[0].0.positions(), joined[0].0.generation()), (&[0, 1, 4][..], 2));
    });
}

// INV-100
#[test]
fn a_leader_that_was_started_again_waits_for_members_longer_than_the_grace() {
    watched(|| {
        let reserved = Port::reserve();
        let cluster = Cluster { port: reserved.number(), shared_memory: SharedMemory::Never };
        std::thread::scope(|scope| {
            let (progress, reports) = channel();
            let expected = [0, 1, 2];
            let grace = Duration::from_millis(1);
            let quorum = Quorum { minimum: WORKERS, grace, maximum: WORKERS, ..Quorum::all(WORKERS) };
            let leader = cluster.at(0, 0, &expected).quorum(quorum).on_progress(move |so_far| {
                let missing: Vec<_> = so_far.missing.iter().map(|missing| missing.worker).collect();
                // The test may not listen any more.
                let _ = progress.send(missing);
            });
            let leader = cluster.spawn(scope, leader);
            let spare = cluster.spawn(scope, cluster.at(3, 0, &[]).spare_of(1));
            let started = cluster.spawn(scope, cluster.at(4, 0, &[]));
            // Both have connected, which would be enough for a world.
            while reports.recv_timeout(PATIENCE).unwrap() != [1, 2] {}
            let members = [1, 2].map(|place| cluster.spawn(scope, cluster.at(place, 1, &[])));
            let (leader, _) = leader.join().unwrap().unwrap();
            let members = members.map(|member| member.join().unwrap().unwrap());
            assert_eq!((leader.positions(), leader.generation()), (&expected[..], 2));
            waits(&leader, &[3, 4]);
            leader.set_finished(true);
            drop((leader, members));
            [spare, started].into_iter().for_each(ended);
        });
    });
}

// INV-100
#[test]
fn a_lost_spare_harms_nobody() {
    watched(|| {
        let reserved = Port::reserve();
        let cluster = Cluster { port: reserved.number(), shared_memory: SharedMemory::Never };
        let joined = world(&cluster, &[0, 1, 2], 0);
        std::thread::scope(|scope| {
            // The process leaves as soon as it is told that it is a spare.
            let spare = scope.spawn(|| cluster.spare(3));
            assert_eq!(spare.join().unwrap(), 1);
        });
        waits(&joined[0].0, &[]);
        joined[0].0.send(1, Message::new("a", vec![]));
        joined[1].1.count(Some(&joined[1].0), 1);
        assert!(joined.iter().all(|(_, kept)| kept.take().lost.is_empty()));
    });
}
