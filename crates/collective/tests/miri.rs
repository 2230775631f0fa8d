//! Small tests without a clock that cover every path of the team's `unsafe` code under Miri: `cargo miri test -p
//! distribute-collective --test miri`.
#![cfg(not(shuttle))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/cooperate.rs"]
mod cooperate;

use cooperate::cooperate;
use distribute_cluster::{Fingerprint, Operation};
use distribute_collective::threads::{BroadcastPool, Team};
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(3600);

fn call() -> Fingerprint {
    Fingerprint::new(Operation::Barrier, "", Location::caller())
}

#[test]
fn a_run_borrows_from_its_caller() {
    for size in [1, 2, 3] {
        let team = Arc::new(Team::new(size).unwrap());
        for _ in 0..3 {
            let sums: Vec<_> = (0..size).map(|_| Mutex::new(0)).collect();
            team.run(1, LONG, &|member| {
                *sums[member.rank()].lock().unwrap() += member.all_gather_local(call(), ()).unwrap().len();
                true
            });
            assert!(sums.into_iter().all(|sum| sum.into_inner().unwrap() == size));
        }
    }
}

#[test]
fn helpers_borrow_disjoint_parts() {
    let team = Arc::new(Team::new(3).unwrap());
    team.run(1, LONG, &|member| {
        for _ in 0..2 {
            let made = cooperate(&member, call(), member.rank(), |_, helpers| {
                let mut data = vec![0; helpers.size()];
                for _ in 0..2 {
                    let parts: Vec<_> = data.iter_mut().map(Mutex::new).collect();
                    helpers.broadcast(&|rank| **parts[rank].lock().unwrap() += rank);
                }
                data
            });
            assert_eq!(*made.unwrap(), [0, 2, 4]);
        }
        true
    });
}

#[test]
fn borrows_outlive_panics() {
    let team = Arc::new(Team::new(3).unwrap());
    for guilty in [vec![0], vec![2], vec![0, 1, 2]] {
        let used = Mutex::new(Vec::new());
        let panic = catch_unwind(AssertUnwindSafe(|| {
            team.run(1, LONG, &|member| {
                used.lock().unwrap().push(member.rank());
                if guilty.contains(&member.rank()) {
                    resume_unwind(Box::new(member.rank()));
                }
                true
            });
        }));
        assert!(panic.is_err());
        assert_eq!(used.into_inner().unwrap().len(), 3);
    }
}

#[test]
fn a_nested_broadcast_or_run_is_refused() {
    let team = Arc::new(Team::new(2).unwrap());
    let nested = Mutex::new(0);
    team.run(1, LONG, &|member| {
        if member.rank() == 0 {
            let again = catch_unwind(AssertUnwindSafe(|| team.run(2, LONG, &|_| true)));
            *nested.lock().unwrap() += usize::from(again.is_err());
        }
        let made = cooperate(&member, call(), (), |_, helpers| {
            helpers.broadcast(&|rank| {
                let again = catch_unwind(AssertUnwindSafe(|| helpers.broadcast(&|_| ())));
                *nested.lock().unwrap() += usize::from(again.is_err());
                assert!(rank < 2);
            });
        });
        made.is_ok()
    });
    assert_eq!(nested.into_inner().unwrap(), 3);
}

#[test]
fn worker_threads_can_be_any_threads_and_get_no_old_work() {
    let broadcast_pool = BroadcastPool::new(1);
    std::thread::scope(|scope| {
        scope.spawn(|| broadcast_pool.serve(1));
        let data = Box::new(Mutex::new(0));
        broadcast_pool.broadcast(&|_| *data.lock().unwrap() += 1, LONG, &|| ());
        assert_eq!(data.into_inner().unwrap(), 2);
        broadcast_pool.dismiss();
    });
    // A member that comes after the end of the loan must not run the closure.
    broadcast_pool.dismiss();
    broadcast_pool.serve(1);
}
