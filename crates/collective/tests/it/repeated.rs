//! Calls that are made many times, and then change. Their digests are computed once for each session and group, which
//! must not hide a difference.

use super::group::workers_of;
use bytes::Bytes;
use distribute_cluster::{Blame, Fault, Fingerprint, Operation, ReplicaStatus, World};
use distribute_collective::Failure;
use distribute_collective::group::early::early_range;
use distribute_collective::group::{Group, GroupCall, Links, Session, local};
use distribute_net::{Listener, Rendezvous};
use distribute_testing::watched;
use std::panic::Location;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);

/// The number of equal calls before one differs.
const MANY: usize = 1_000;

/// A call of all replicas of a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Called {
    operation: Operation,
    detail: &'static str,
    part: &'static str,
}

const EQUAL: Called =
    Called { operation: Operation::AllReduce, detail: "SUM float32[2]", part: "its vector" };

/// Makes a call at the location of the caller, and returns the bytes of all workers.
#[track_caller]
fn make(session: &Session, called: Called, mine: u64) -> Result<Vec<u64>, Arc<Blame>> {
    let call = Fingerprint::new(called.operation, called.detail, Location::caller());
    let waiting = |replica| ReplicaStatus::waiting(replica, call.clone());
    let statuses = session.world().local_replicas().map(waiting).collect();
    let mine = Bytes::copy_from_slice(&mine.to_le_bytes());
    match GroupCall::new(session, statuses, LONG).all_gather_sized(called.part, mine, |_| 8) {
        Ok(all) => Ok(all.iter().map(|bytes| u64::from_le_bytes(bytes[..].try_into().unwrap())).collect()),
        Err(Failure::Blame(blame)) => Err(blame),
        Err(other) => panic!("{other}"),
    }
}

/// Makes equal calls, each with other data.
fn make_equal(session: &Session, count: usize) {
    let world = session.world();
    for call in 0..count as u64 {
        let of = |worker| call << 8 | worker as u64;
        let all = make(session, EQUAL, of(world.worker())).unwrap();
        assert!(all.into_iter().eq((0..world.workers()).map(of)), "call {call}");
    }
}

/// Returns the lines of this file that a text names.
fn lines_in(text: &str) -> Vec<u32> {
    let after = text.split("repeated.rs:").skip(1);
    after.map(|rest| rest.split(':').next().unwrap().parse().unwrap()).collect()
}

// INV-1, INV-2, INV-25, INV-116
#[test]
fn a_call_that_one_worker_changes_after_many_equal_ones_has_one_error_on_all() {
    let changes = [
        Called { operation: Operation::AllGather, ..EQUAL },
        Called { detail: "MEAN float32[2]", ..EQUAL },
        Called { detail: "SUM float32[3]", ..EQUAL },
        Called { detail: "SUM float64[2]", ..EQUAL },
        Called { part: "its sums", ..EQUAL },
    ];
    for links in [Links::Memory, Links::Tcp, Links::Shared] {
        watched(move || {
            let failed = workers_of(local::groups(links, 3, 2).unwrap(), |group| {
                let session = group.open("strategy", 7);
                let me = group.world().worker();
                let mut texts = Vec::new();
                // At first right after the first equal call.
                for (number, change) in changes.into_iter().enumerate() {
                    make_equal(&session, if number == 0 { 1 } else { MANY });
                    let blame = if me == 1 {
                        make(&session, change, 0).unwrap_err()
                    } else {
                        make(&session, EQUAL, 0).unwrap_err()
                    };
                    assert_eq!((blame.fault, &blame.culprits[..]), (Fault::Mismatch, &[2, 3][..]), "{blame}");
                    texts.push(blame.to_string());
                }
                make_equal(&session, 10);
                texts
            });
            assert!(failed.iter().all(|texts| *texts == failed[0]), "{failed:#?}");
            for (text, change) in failed[0].iter().zip(changes) {
                for called in [EQUAL, change] {
                    assert!(text.contains(&format!("{} ({}", called.operation, called.detail)), "{text}");
                    assert!(text.contains(called.part), "{text}");
                }
                let [one, other] = lines_in(text)[..] else { panic!("{text}") };
                assert_ne!(one, other, "{text}");
            }
        });
    }
}

// The location is no part of a call, so the one in an error is that of the call that failed, and not of an equal one
// before it.
#[test]
fn an_error_after_many_equal_calls_names_the_line_of_the_last() {
    watched(|| {
        let texts = workers_of(local::groups(Links::Shared, 2, 1).unwrap(), |group| {
            let session = group.open("strategy", 7);
            make_equal(&session, MANY);
            let me = group.world().worker();
            let (line, made) = (line!(), make(&session, if me == 0 { EQUAL } else { changed() }, 0));
            (line, made.unwrap_err().to_string())
        });
        let (line, text) = &texts[0];
        assert_eq!((texts[0].1 == texts[1].1, lines_in(text)), (true, vec![*line; 2]), "{text}");
    });
}

// INV-2, INV-3, INV-116
#[test]
fn a_worker_that_is_lost_or_late_after_many_equal_calls_is_blamed() {
    for (workers, ends) in [2, 3].into_iter().flat_map(|workers| [(workers, true), (workers, false)]) {
        watched(move || {
            let others = Arc::new(Barrier::new(workers));
            let texts = workers_of(local::groups(Links::Shared, workers, 1).unwrap(), move |group| {
                let session = group.open("strategy", 7);
                make_equal(&session, MANY);
                if group.world().worker() == 1 {
                    if ends {
                        group.end();
                    }
                    others.wait();
                    return None;
                }
                let call = Fingerprint::new(EQUAL.operation, EQUAL.detail, Location::caller());
                let statuses = vec![ReplicaStatus::waiting(group.world().worker(), call)];
                let timeout = if ends { LONG } else { Duration::from_millis(300) };
                let mut calling = GroupCall::new(&session, statuses, timeout);
                let mine = Bytes::copy_from_slice(&[0; 8]);
                let made = calling.all_gather_sized(EQUAL.part, mine, |_| 8);
                others.wait();
                let Err(Failure::Blame(blame)) = made else { panic!("{made:?}") };
                let fault = if ends { Fault::Lost } else { Fault::TimedOut };
                assert_eq!((blame.fault, &blame.culprits[..]), (fault, &[1][..]), "{blame}");
                Some(blame.to_string())
            });
            let texts: Vec<_> = texts.into_iter().flatten().collect();
            assert_eq!(texts.len(), workers - 1);
            assert!(texts.iter().all(|text| *text == texts[0]), "{texts:#?}");
        });
    }
}

// INV-116
#[test]
fn vectors_that_were_sent_before_a_repeated_call_have_arrived_with_it() {
    for workers in [2, 3] {
        watched(move || {
            workers_of(local::groups(Links::Shared, workers, 1).unwrap(), |group| {
                let session = group.open("strategy", 7);
                let world = group.world();
                for step in 0..300_usize {
                    let len = [8, 512, 4096, 3 << 20][step % 4];
                    let vector = |worker: usize| Bytes::from(vec![(3 * step + worker) as u8; len]);
                    let early = session.early_send();
                    let mine = [vector(world.worker())];
                    early.send_far(0, &mine[0]);
                    early.send_near(0, &mine[0]);
                    make_equal(&session, 1);
                    let call = Fingerprint::new(Operation::AllReduce, "", Location::caller());
                    let statuses = vec![ReplicaStatus::waiting(world.worker(), call)];
                    let calling = GroupCall::new(&session, statuses, LONG);
                    let all = calling.receive_early_ranges(early.call(), &mine, |_| 1).unwrap();
                    for (worker, ranges) in all.iter().enumerate() {
                        let range = early_range(world, world.worker(), len);
                        assert!(ranges[..] == [vector(worker).slice(range)], "step {step}");
                    }
                }
            });
        });
    }
}

// INV-1, INV-116
#[test]
fn a_session_of_an_earlier_world_does_not_take_a_workers_own_data_for_that_of_another() {
    watched(|| {
        // The workers exchange their ranks.
        let leaders = [0, 1].map(|_| Listener::bind("127.0.0.1:0").unwrap());
        let addresses = [0, 1].map(|of| format!("127.0.0.1:{}", leaders[of].address().unwrap().port()));
        let leaders = leaders.map(|leader| Mutex::new(Some(leader)));
        let join = |worker: usize, leader: usize, generation: u64| {
            let (rank, first) = (usize::from(worker != leader), &addresses[leader]);
            let world = World::new(2, rank, 1).unwrap();
            let rendezvous = Rendezvous::new(world, vec![first.clone(), "127.0.0.1:0".into()]);
            let rendezvous = rendezvous.generation(generation).timeout(LONG);
            match leaders[leader].lock().unwrap().take_if(|_| rank == 0) {
                Some(listener) => (world, rendezvous.listener(listener)),
                None => (world, rendezvous),
            }
        };
        let work = |worker: usize| {
            let (world, rendezvous) = join(worker, 0, 0);
            let group = Group::join(world, rendezvous).unwrap();
            let old = group.open("strategy", 1);
            make_equal(&old, 10);
            group.rejoin(join(worker, 1, group.generation()).1).unwrap();
            assert_eq!(group.world().worker(), 1 - worker);
            let call = Fingerprint::new(EQUAL.operation, EQUAL.detail, Location::caller());
            let statuses = vec![ReplicaStatus::waiting(worker, call)];
            let mut calling = GroupCall::new(&old, statuses, Duration::from_millis(300));
            let mine = Bytes::copy_from_slice(&[worker as u8; 8]);
            let made = calling.all_gather_sized(EQUAL.part, mine, |_| 8);
            assert!(matches!(made, Err(Failure::Blame(_))), "{made:?}");
        };
        std::thread::scope(|scope| {
            let work = &work;
            let threads = [0, 1].map(|worker| scope.spawn(move || work(worker)));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    });
}

fn changed() -> Called {
    Called { detail: "SUM float32[4]", ..EQUAL }
}

/// Returns the world and the rendezvous of a worker of three. The first worker listens at `leader`.
fn rendezvous(worker: usize, leader: &str, generation: u64) -> (World, Rendezvous) {
    let world = World::new(3, worker, 1).unwrap();
    let addresses = vec![leader.to_owned(), "127.0.0.1:0".into(), "127.0.0.1:0".into()];
    (world, Rendezvous::new(world, addresses).generation(generation).timeout(LONG))
}

// INV-1, INV-2
#[test]
fn nothing_of_a_call_that_was_repeated_counts_after_a_recovery() {
    watched(|| {
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        let leader = format!("127.0.0.1:{}", listener.address().unwrap().port());
        let listener = Mutex::new(Some(listener));
        let work = |worker: usize| {
            let (world, first) = rendezvous(worker, &leader, 0);
            let first = match listener.lock().unwrap().take_if(|_| worker == 0) {
                Some(listener) => first.listener(listener),
                None => first,
            };
            let group = Group::join(world, first).unwrap();
            let old = group.open("strategy", 1);
            make_equal(&old, MANY);
            let group = if worker == 2 {
                // Its process is replaced by a new one, which has made no call.
                group.end();
                drop((old, group));
                let (world, again) = rendezvous(worker, &leader, 0);
                Group::join(world, again).unwrap()
            } else {
                assert_eq!(make(&old, EQUAL, 0).unwrap_err().fault, Fault::Lost);
                drop(old);
                group.rejoin(rendezvous(worker, &leader, group.generation()).1).unwrap();
                group
            };
            assert_eq!((group.world().worker(), group.generation()), (worker, 2));
            let session = group.open("strategy", 2);
            // The first call differs on the new worker, for which nothing has been repeated.
            let blame = make(&session, if worker == 2 { changed() } else { EQUAL }, 0).unwrap_err();
            assert_eq!((blame.fault, &blame.culprits[..]), (Fault::Mismatch, &[2][..]), "{blame}");
            make_equal(&session, MANY);
            let blame = make(&session, if worker == 0 { changed() } else { EQUAL }, 0).unwrap_err();
            assert_eq!((blame.fault, &blame.culprits[..]), (Fault::Mismatch, &[0][..]), "{blame}");
            make_equal(&session, 1);
            // No worker exits before the others have its last call.
            session.leave(vec![ReplicaStatus::running(worker)]);
            session.await_leave(LONG).unwrap();
        };
        std::thread::scope(|scope| {
            let work = &work;
            let threads = [0, 1, 2].map(|worker| scope.spawn(move || work(worker)));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    });
}
