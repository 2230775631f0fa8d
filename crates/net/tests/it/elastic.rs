//! Worlds of the workers that are there, in clusters that do not need all of them.

use crate::support::{Kept, addresses, patient};
use distribute_cluster::World;
use distribute_net::{JoinError, Mesh, Message, Quorum, Rendezvous, Transport};
use distribute_testing::{Port, watched};
use std::sync::{Arc, mpsc};
use std::thread::Scope;
use std::time::Duration;

const PLACES: usize = 4;

/// Returns the rendezvous of the worker at a position in a cluster of four, after this generation. The leader waits for
/// `expected`.
fn at(place: usize, generation: u64, expected: &[usize], port: u16) -> Rendezvous {
    let quorum = Quorum { grace: Duration::from_secs(40), ..soon(expected) };
    Rendezvous::new(World::new(PLACES, place, 1).unwrap(), addresses(PLACES, "127.0.0.1", port))
        .settings(patient())
        .timeout(Duration::from_secs(40))
        .generation(generation)
        .quorum(quorum)
}

/// Returns a quorum of one worker, which waits for the others only briefly.
fn soon(expected: &[usize]) -> Quorum {
    let expected = expected.iter().copied().collect();
    Quorum { minimum: 1, maximum: PLACES, expected, present: [].into(), grace: Duration::from_millis(300) }
}

type Joined = (Mesh, Arc<Kept>);

fn join(rendezvous: Rendezvous) -> Joined {
    let kept = Kept::new();
    (rendezvous.join(kept.clone()).unwrap(), kept)
}

/// Joins the workers at these positions. Checks that each reaches every other one by its rank in the world.
fn rendezvous(positions: &'static [usize], generation: u64, port: u16) -> Vec<Joined> {
    let joined: Vec<_> = std::thread::scope(|scope: &Scope<'_, '_>| {
        let threads: Vec<_> = positions
            .iter()
            .map(|place| scope.spawn(move || join(at(*place, generation, positions, port))))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (worker, (mesh, _)) in joined.iter().enumerate() {
        assert_eq!(mesh.world(), World::new(positions.len(), worker, 1).unwrap());
        assert_eq!((mesh.generation(), mesh.waiting()), (generation + 1, 0));
        for to in (0..positions.len()).filter(|to| *to != worker) {
            mesh.send(to, Message::new(vec![worker as u8], vec![]));
        }
    }
    for (mesh, kept) in &joined {
        kept.count(Some(mesh), positions.len() - 1);
        assert!(kept.take().messages.iter().all(|(from, message)| message.head[..] == [*from as u8]));
    }
    joined
}

// INV-43
#[test]
fn worlds_consist_of_the_present_workers_and_have_separate_numbers() {
    watched(|| {
        let reserved = Port::reserve();
        let port = reserved.number();
        for (generation, positions) in [&[0][..], &[0, 2], &[0, 1, 2, 3], &[0, 3]].into_iter().enumerate() {
            drop(rendezvous(positions, generation as u64, port));
        }
    });
}

// INV-43
#[test]
fn a_leader_continues_with_enough_members_and_counts_later_ones() {
    watched(|| {
        let reserved = Port::reserve();
        let port = reserved.number();
        // No other worker joins.
        let (alone, _) = join(at(0, 0, &[], port).quorum(soon(&[0, 1, 2])));
        assert_eq!((alone.world().workers(), alone.waiting()), (1, 0));
        std::thread::scope(|scope| {
            let (told, waits) = mpsc::channel();
            let later = at(2, 0, &[], port).on_progress(move |progress| {
                let last = progress.missing.first().and_then(|missing| missing.last.clone());
                if last.is_some_and(|last| last.contains("the group was formed without worker 2")) {
                    let _ = told.send(());
                }
            });
            let later = scope.spawn(move || join(later));
            waits.recv_timeout(Duration::from_secs(30)).unwrap();
            assert_eq!(
                (alone.waiting(), alone.waiting_positions(), alone.is_supplanted()),
                (1, [2].into(), false)
            );
            drop(alone);
            let (both, kept) = join(at(0, 1, &[0, 2], port));
            assert_eq!((both.world().workers(), both.generation(), both.waiting()), (2, 2, 0));
            let (later, _) = later.join().unwrap();
            assert_eq!((later.world().worker(), later.generation()), (1, 2));
            later.send(0, Message::new("a", vec![]));
            kept.count(Some(&both), 1);
        });
    });
}

#[test]
fn fewer_than_the_least_make_no_world() {
    watched(|| {
        let quorum = Quorum { minimum: 2, grace: Duration::ZERO, ..soon(&[0, 1, 2]) };
        let port = Port::reserve();
        let few = at(0, 0, &[], port.number()).quorum(quorum).timeout(Duration::from_secs(1));
        let error = few.join(Kept::new()).unwrap_err();
        assert!(matches!(&error, JoinError::Deadline { missing, .. } if missing.len() == 3), "{error}");
    });
}

// INV-34, INV-43
#[test]
fn a_restarted_leader_joins_the_existing_world() {
    watched(|| {
        let reserved = Port::reserve();
        let port = reserved.number();
        // The leader has just started, and no other worker has joined in time.
        let (alone, _) = join(at(0, 0, &[], port));
        assert_eq!((alone.generation(), alone.is_supplanted()), (1, false));
        std::thread::scope(|scope| {
            let (told, waits) = mpsc::channel();
            let member = at(2, 4, &[], port).on_progress(move |_| {
                let _ = told.send(());
            });
            let member = scope.spawn(move || join(member));
            waits.recv_timeout(Duration::from_secs(30)).unwrap();
            assert!(alone.is_supplanted());
            drop(alone);
            // Like a leader that knows of no world.
            let (both, _) = join(at(0, 0, &[0, 2], port));
            assert_eq!((both.generation(), member.join().unwrap().0.generation()), (5, 5));
        });
    });
}
