//! Tests of the engine under shuttle, which runs its threads in many orders and reports deadlocks: `RUSTFLAGS="--cfg
//! shuttle" cargo test -p distribute-collective --test shuttle`.
//!
//! Waits never time out under shuttle. A deadline that has already passed simulates a missed one.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/cooperate.rs"]
mod cooperate;

use cooperate::cooperate;
use distribute_cluster::{Fault, Fingerprint, Operation};
use distribute_collective::Failure;
use distribute_collective::group::{Group, Links, local};
use distribute_collective::threads::{BroadcastPool, Member, Team};
use shuttle::sync::{Arc, Mutex, atomic::AtomicUsize};
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Returns the number of schedules of each kind. `SHUTTLE_ITERATIONS` sets it.
fn iterations() -> usize {
    std::env::var("SHUTTLE_ITERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(10_000)
}

/// Runs random schedules, and schedules that change priorities at few points, which find other bugs.
fn explore(scenario: impl Fn() + Send + Sync + Copy + 'static) {
    shuttle::check_random(scenario, iterations());
    shuttle::check_pct(scenario, iterations(), 3);
}

fn call(detail: &'static str) -> Fingerprint {
    Fingerprint::new(Operation::Barrier, detail, Location::caller())
}

fn team(size: usize) -> std::sync::Arc<Team> {
    std::sync::Arc::new(Team::new(size).unwrap())
}

fn rounds(size: usize) {
    let team = team(size);
    for step in 1..3 {
        team.run(step, MINUTE, &|member| {
            for round in 0..2 {
                let all = member.all_gather_local(call(""), (step, round, member.rank())).unwrap();
                let all: Vec<_> = all.iter().map(|payload| **payload).collect();
                assert_eq!(all, (0..size).map(|r| (step, round, r)).collect::<Vec<_>>());
            }
            true
        });
    }
}

#[test]
fn two_members_rendezvous() {
    explore(|| rounds(2));
}

#[test]
fn three_members_rendezvous() {
    explore(|| rounds(3));
}

#[test]
fn a_mismatch_costs_only_its_round() {
    explore(|| {
        team(3).run(1, MINUTE, &|member| {
            let detail = if member.rank() == 1 { "other" } else { "" };
            let blame = member.all_gather_local(call(detail), ()).unwrap_err();
            assert_eq!((blame.fault, blame.culprits.as_slice()), (Fault::Mismatch, &[1][..]));
            assert_eq!(member.all_gather_local(call(""), ()).unwrap().len(), 3);
            true
        });
    });
}

#[test]
fn a_member_that_leaves_early_releases_the_others() {
    explore(|| {
        let team = team(3);
        team.run(1, MINUTE, &|member| {
            if member.rank() != 1 {
                let blame = member.all_gather_local(call(""), ()).unwrap_err();
                assert_eq!((blame.fault, blame.culprits.as_slice()), (Fault::Returned, &[1][..]));
            }
            true
        });
        team.run(2, MINUTE, &|member| member.all_gather_local(call(""), ()).is_ok());
    });
}

#[test]
fn a_member_that_panics_releases_the_others() {
    explore(|| {
        let team = team(3);
        for guilty in [0, 2] {
            let panic = catch_unwind(AssertUnwindSafe(|| {
                team.run(1, MINUTE, &|member| {
                    if member.rank() == guilty {
                        // Without the panic hook, in which shuttle would report a failure.
                        resume_unwind(Box::new("boom"));
                    }
                    let blame = member.all_gather_local(call(""), ()).unwrap_err();
                    assert_eq!((blame.fault, blame.culprits.as_slice()), (Fault::Failed, &[guilty][..]));
                    true
                });
            }));
            assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"boom"));
        }
        team.run(2, MINUTE, &|member| member.all_gather_local(call(""), ()).is_ok());
    });
}

#[test]
fn the_leader_merges_once_and_all_get_its_result() {
    explore(|| {
        team(3).run(1, MINUTE, &|member| {
            let sum = member.reduce_on_leader(call(""), member.rank(), |payloads| {
                payloads.iter().map(|o| **o).sum::<usize>()
            });
            assert_eq!(*sum.unwrap(), 3);
            true
        });
    });
}

/// Data that members borrow. It records accesses after its owner has taken it back.
struct Loan {
    over: AtomicUsize,
    uses: Mutex<usize>,
}

impl Loan {
    fn new() -> Arc<Self> {
        Arc::new(Self { over: AtomicUsize::new(0), uses: Mutex::new(0) })
    }

    fn use_it(&self) {
        assert_eq!(self.over.load(Ordering::SeqCst), 0, "used after it was returned");
        *self.uses.lock().unwrap() += 1;
        assert_eq!(self.over.load(Ordering::SeqCst), 0, "used after it was returned");
    }

    fn end(&self, uses: usize) {
        self.over.store(1, Ordering::SeqCst);
        assert_eq!(*self.uses.lock().unwrap(), uses, "each member uses it once");
    }
}

fn cooperation(member: &Member, broadcasts: usize) {
    let made = cooperate(member, call(""), member.rank(), |payloads, helpers| {
        for _ in 0..broadcasts {
            let loan = Loan::new();
            helpers.broadcast(&|_| loan.use_it());
            loan.end(helpers.size());
        }
        payloads.len()
    });
    assert_eq!(*made.unwrap(), member.size());
}

#[test]
fn cooperations_use_borrowed_data_only_during_the_borrow() {
    explore(|| {
        team(3).run(1, MINUTE, &|member| {
            cooperation(&member, 2);
            cooperation(&member, 0);
            cooperation(&member, 1);
            true
        });
    });
}

#[test]
fn a_panic_in_a_cooperation_reaches_the_leader_and_the_next_one_works() {
    explore(|| {
        team(3).run(1, MINUTE, &|member| {
            let loan = Loan::new();
            let made = catch_unwind(AssertUnwindSafe(|| {
                cooperate(&member, call(""), (), |_, helpers| {
                    helpers.broadcast(&|rank| {
                        loan.use_it();
                        if rank == 1 {
                            resume_unwind(Box::new("boom"));
                        }
                    });
                })
            }));
            match member.rank() {
                0 => loan.end(3 + usize::from(made.is_ok())),
                _ => assert_eq!(made.unwrap().unwrap_err().fault, Fault::Failed),
            }
            cooperation(&member, 1);
            true
        });
    });
}

#[test]
fn worker_threads_serve_until_dismissed() {
    explore(|| {
        let broadcast_pool = Arc::new(BroadcastPool::new(2));
        let members: Vec<_> = (1..3)
            .map(|rank| {
                let broadcast_pool = broadcast_pool.clone();
                shuttle::thread::spawn(move || broadcast_pool.serve(rank))
            })
            .collect();
        for _ in 0..3 {
            let loan = Loan::new();
            broadcast_pool.broadcast(&|_| loan.use_it(), MINUTE, &|| ());
            loan.end(3);
        }
        broadcast_pool.dismiss();
        members.into_iter().for_each(|member| member.join().unwrap());
    });
}

#[test]
fn a_slot_runs_an_order_once_on_any_thread() {
    explore(|| {
        let broadcast_pool = Arc::new(BroadcastPool::new(1));
        let left = Arc::new(AtomicUsize::new(0));
        let sit = || {
            let (broadcast_pool, left) = (broadcast_pool.clone(), left.clone());
            shuttle::thread::spawn(move || {
                broadcast_pool.serve(1);
                left.fetch_add(1, Ordering::SeqCst);
            })
        };
        let members = [sit(), sit()];
        for _ in 0..2 {
            let loan = Loan::new();
            broadcast_pool.broadcast(&|_| loan.use_it(), MINUTE, &|| ());
            loan.end(2);
        }
        // The second member takes the seat after the first has left it, and waits for a command that it has not seen.
        while left.load(Ordering::SeqCst) < 2 {
            broadcast_pool.dismiss();
            shuttle::thread::yield_now();
        }
        members.into_iter().for_each(|member| member.join().unwrap());
    });
}

#[test]
fn a_missed_deadline_ends_the_session_for_all_with_one_message() {
    explore(|| {
        let team = team(2);
        let texts = Mutex::new(Vec::new());
        team.run(1, Duration::ZERO, &|member| {
            for _ in 0..2 {
                if let Err(blame) = member.all_gather_local(call(""), ()) {
                    texts.lock().unwrap().push(blame.to_string());
                    return false;
                }
            }
            true
        });
        // Either both members succeed or, if one gives up and the other is late, both get the same error.
        let texts = texts.into_inner().unwrap();
        assert!(texts.is_empty() || (texts.len() == 2 && texts[0] == texts[1]), "{texts:?}");
        team.run(2, MINUTE, &|member| member.all_gather_local(call(""), ()).is_ok());
    });
}

/// Runs `body` on each replica of two workers with `replicas` each, as threads of one process. Each replica runs it
/// twice, in two steps.
fn two_workers(replicas: usize, body: impl Fn(&Member) -> bool + Send + Sync + Copy + 'static) {
    let groups = local::groups(Links::Memory, 2, replicas).unwrap();
    let worker = move |group: Group| {
        let team = team(replicas);
        for step in 1..3 {
            let session = std::sync::Arc::new(group.open("steps", step));
            team.run_with_session(step, MINUTE, Some(session), &|member| body(&member));
        }
    };
    let threads: Vec<_> =
        groups.into_iter().map(|group| shuttle::thread::spawn(move || worker(group))).collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Gathers the ids of all replicas of both workers.
fn exchange(member: &Member, detail: &'static str) -> Result<Vec<u8>, Failure> {
    let (_, made) =
        member.all_gather_with_group(call(detail), member.replica() as u8, |mine, mut calling| {
            let mine: Vec<u8> = mine.iter().map(|id| **id).collect();
            Ok(calling.all_gather_bytes(mine.into())?.concat())
        })?;
    Ok(made.unwrap().to_vec())
}

/// Runs fewer schedules than [`explore`], because each has four threads and many operations.
fn explore_workers(scenario: impl Fn() + Send + Sync + Copy + 'static) {
    shuttle::check_random(scenario, iterations() / 5);
    shuttle::check_pct(scenario, iterations() / 5, 3);
}

#[test]
fn workers_exchange_through_their_delegates() {
    explore_workers(|| {
        two_workers(2, |member| {
            for _ in 0..2 {
                assert_eq!(exchange(member, "").unwrap(), [0, 1, 2, 3]);
            }
            true
        });
    });
}

#[test]
fn a_mismatch_between_workers_costs_only_its_round() {
    explore_workers(|| {
        two_workers(2, |member| {
            let detail = if member.replica() == 2 { "other" } else { "" };
            let Err(Failure::Blame(blame)) = exchange(member, detail) else { panic!("no blame") };
            assert_eq!((blame.fault, blame.culprits.as_slice()), (Fault::Mismatch, &[2][..]));
            assert_eq!(exchange(member, "").unwrap(), [0, 1, 2, 3]);
            true
        });
    });
}

#[test]
fn a_replica_that_leaves_early_releases_those_of_all_workers() {
    explore_workers(|| {
        two_workers(2, |member| {
            if member.replica() != 3 {
                let Err(Failure::Blame(blame)) = exchange(member, "") else { panic!("no blame") };
                assert_eq!((blame.fault, blame.culprits.as_slice()), (Fault::Returned, &[3][..]));
            }
            true
        });
    });
}

#[test]
fn a_worker_that_leaves_early_releases_the_other() {
    explore_workers(|| {
        two_workers(1, |member| {
            if member.replica() == 0 {
                let Err(Failure::Blame(blame)) = exchange(member, "") else { panic!("no blame") };
                assert_eq!((blame.fault, blame.culprits.as_slice()), (Fault::Returned, &[1][..]));
            }
            true
        });
    });
}
