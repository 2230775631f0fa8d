//! A team on real threads: exchange, merge, cooperate, and every way to break them.

#![cfg(not(shuttle))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/cooperate.rs"]
mod cooperate;

use cooperate::cooperate;
use distribute_cluster::{Fault, Fingerprint, Operation, Stopwatch};
use distribute_collective::threads::{Member, Team, TeamPool};
use distribute_testing::watched;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

fn call(operation: Operation, detail: &'static str) -> Fingerprint {
    Fingerprint::new(operation, detail, Location::caller())
}

fn barrier() -> Fingerprint {
    call(Operation::Barrier, "")
}

#[test]
fn all_members_get_all_payloads_in_order() {
    watched(|| {
        for size in [1, 2, 3, 8] {
            let team = Arc::new(Team::new(size).unwrap());
            let sum = AtomicUsize::new(0);
            team.run(1, MINUTE, &|member: Member| {
                for round in 0..100 {
                    let all = member.all_gather_local(barrier(), (round, member.rank())).unwrap();
                    let all: Vec<_> = all.iter().map(|o| **o).collect();
                    assert_eq!(all, (0..size).map(|r| (round, r)).collect::<Vec<_>>());
                }
                sum.fetch_add(member.rank() + 1, Ordering::Relaxed);
                true
            });
            assert_eq!(sum.into_inner(), size * (size + 1) / 2);
        }
    });
}

// INV-4
#[test]
fn helpers_run_each_closure_once_and_closures_may_borrow() {
    watched(|| {
        for size in [1, 2, 3, 8] {
            let team = Arc::new(Team::new(size).unwrap());
            team.run(1, MINUTE, &|member| {
                for _ in 0..50 {
                    let made = cooperate(&member, barrier(), member.rank(), |payloads, helpers| {
                        let mut data: Vec<_> = payloads.iter().map(|o| **o).collect();
                        for _ in 0..3 {
                            let parts: Vec<_> = data.iter_mut().map(|x| Mutex::new(Some(x))).collect();
                            helpers.broadcast(&|rank| *parts[rank].lock().unwrap().take().unwrap() += 10);
                        }
                        data
                    });
                    assert_eq!(*made.unwrap(), (0..size).map(|r| r + 30).collect::<Vec<_>>());
                }
                true
            });
        }
    });
}

#[test]
fn merge_runs_once_on_replica_0() {
    watched(|| {
        let team = Arc::new(Team::new(3).unwrap());
        let calls = AtomicUsize::new(0);
        team.run(1, MINUTE, &|member| {
            let sum = member.reduce_on_leader(barrier(), member.rank(), |payloads| {
                calls.fetch_add(1, Ordering::Relaxed);
                payloads.iter().map(|o| **o).sum::<usize>()
            });
            *sum.unwrap() == 3
        });
        assert_eq!(calls.into_inner(), 1);
    });
}

// INV-1, INV-2
#[test]
fn a_mismatch_fails_on_all_members_and_the_next_round_works() {
    watched(|| {
        let team = Arc::new(Team::new(3).unwrap());
        team.run(4, MINUTE, &|member| {
            let detail = if member.rank() == 1 { "SUM float32[3]" } else { "SUM float32[2]" };
            let blame = member.all_gather_local(call(Operation::AllReduce, detail), ()).unwrap_err();
            assert_eq!((blame.fault, blame.culprits.as_slice()), (Fault::Mismatch, &[1][..]));
            assert!(blame.to_string().contains("step 4"), "{blame}");
            assert_eq!(member.all_gather_local(barrier(), ()).unwrap().len(), 3);
            true
        });
    });
}

#[test]
fn values_of_different_types_are_an_error_on_all_members() {
    watched(|| {
        let team = Arc::new(Team::new(2).unwrap());
        team.run(1, MINUTE, &|member| {
            let fault = match member.rank() {
                0 => member.all_gather_local(barrier(), 1u8).unwrap_err().fault,
                _ => member.all_gather_local(barrier(), "x").unwrap_err().fault,
            };
            assert_eq!(fault, Fault::Mismatch);
            true
        });
    });
}

// INV-3
#[test]
fn a_replica_that_returns_early_is_named() {
    watched(|| {
        let team = Arc::new(Team::new(2).unwrap());
        for early in [0, 1] {
            team.run(1, MINUTE, &|member| {
                if member.rank() == early {
                    return true;
                }
                let blame = member.all_gather_local(barrier(), ()).unwrap_err();
                assert_eq!((blame.fault, blame.culprits.as_slice()), (Fault::Returned, &[early][..]));
                true
            });
        }
    });
}

// INV-2, INV-3, INV-4, INV-5
#[test]
fn a_panic_releases_the_others_and_is_resumed_by_run() {
    watched(|| {
        let team = Arc::new(Team::new(3).unwrap());
        for guilty in 0..3 {
            let panic = catch_unwind(AssertUnwindSafe(|| {
                team.run(1, MINUTE, &|member| {
                    if member.rank() == guilty {
                        std::panic::resume_unwind(Box::new("boom"));
                    }
                    let blame = member.all_gather_local(barrier(), ()).unwrap_err();
                    assert_eq!((blame.fault, blame.culprits.as_slice()), (Fault::Failed, &[guilty][..]));
                    true
                });
            }));
            assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"boom"));
            team.run(2, MINUTE, &|member| member.all_gather_local(barrier(), ()).is_ok());
        }
    });
}

// INV-3, INV-4
#[test]
fn a_panic_of_the_leader_reaches_the_helpers() {
    watched(|| {
        let team = Arc::new(Team::new(3).unwrap());
        let panic = catch_unwind(AssertUnwindSafe(|| {
            team.run(1, MINUTE, &|member| {
                let made = cooperate(&member, barrier(), (), |_, helpers| {
                    helpers.broadcast(&|rank| assert_ne!(rank, 1));
                });
                assert_eq!(made.unwrap_err().fault, Fault::Failed);
                true
            });
        }));
        assert!(panic.is_err());
        team.run(2, MINUTE, &|member| cooperate(&member, barrier(), (), |_, _| ()).is_ok());
    });
}

// INV-2, INV-3
#[test]
fn a_member_that_times_out_is_named_and_finds_the_session_closed() {
    watched(|| {
        let team = Arc::new(Team::new(2).unwrap());
        let (told, wait) = mpsc::channel();
        let wait = Mutex::new(wait);
        let told = Mutex::new(told);
        team.run(9, Duration::from_millis(50), &|member| {
            if member.rank() == 1 {
                // Makes the call only after the other member has given up.
                wait.lock().unwrap().recv_timeout(MINUTE).unwrap();
            }
            let blame = member.all_gather_local(barrier(), ()).unwrap_err();
            assert_eq!((blame.fault, blame.culprits.as_slice()), (Fault::TimedOut, &[1][..]));
            assert!(blame.to_string().contains("step 9: replica 0 waited 50ms in barrier"), "{blame}");
            let _ = told.lock().unwrap().send(());
            true
        });
        team.run(10, MINUTE, &|member| member.all_gather_local(barrier(), ()).is_ok());
    });
}

// INV-3
#[test]
fn a_deadline_passes_in_time_if_members_yield_to_other_programs() {
    watched(|| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (members, over) = (cores + 2, AtomicBool::new(false));
        std::thread::scope(|scope| {
            // These threads keep the cores busy, so a member that yields gets a core back only after a time slice of
            // the scheduler.
            for _ in 0..2 * cores {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let _over = Over(&over);
            let (told, wait) = mpsc::channel();
            let (told, wait) = (Mutex::new(told), Mutex::new(wait));
            let run = |team: &Arc<Team>| {
                team.run(1, Duration::from_secs(1), &|member| {
                    if member.rank() == 0 {
                        let wait = wait.lock().unwrap();
                        (1..members).for_each(|_| wait.recv_timeout(MINUTE).unwrap());
                        return true;
                    }
                    let watch = Stopwatch::start();
                    let blame = member.all_gather_local(barrier(), ()).unwrap_err();
                    let elapsed = watch.elapsed();
                    told.lock().unwrap().send(()).unwrap();
                    assert_eq!(blame.fault, Fault::TimedOut);
                    // Where a member yields in each slice of its wait, a slice lasts much longer, and half of one
                    // counts.
                    assert!(elapsed < Duration::from_secs(5), "{elapsed:?}");
                    true
                });
            };
            TeamPool::shared().with_team(members, run).unwrap();
        });
    });
}

/// A guard that stops the threads that occupy the cores, even if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

// INV-2, INV-3
#[test]
fn subrounds_of_a_call_end_at_the_deadline() {
    watched(|| {
        // The late member is member 0, which hands out data, or member 1, which contributes its part.
        for culprit in [0, 1] {
            let team = Arc::new(Team::new(3).unwrap());
            let (told, wait) = mpsc::channel();
            let (told, wait) = (Mutex::new(told), Mutex::new(wait));
            team.run(1, MINUTE, &|member| {
                let call = call(Operation::Minimize, "adam 1");
                member.all_gather_local(call.clone(), ()).unwrap();
                let member = member.with_timeout(Duration::from_millis(500));
                let hang = || (0..2).for_each(|_| wait.lock().unwrap().recv_timeout(MINUTE).unwrap());
                let blame = match culprit {
                    0 => member.run_on_leader(&call, "a part", hang).map(drop).unwrap_err(),
                    _ => {
                        let mine = |rank| {
                            if rank == culprit {
                                hang()
                            }
                        };
                        member.all_gather_with(&call, "a part", mine).map(drop).unwrap_err()
                    }
                };
                assert_eq!((blame.fault, blame.culprits.as_slice()), (Fault::TimedOut, &[culprit][..]));
                let text = blame.to_string();
                for part in
                    ["waited 500ms in minimize (adam 1: a part)", "its last call was minimize (adam 1) at"]
                {
                    assert!(text.contains(part), "{part:?} is not in {text}");
                }
                if member.rank() != culprit {
                    told.lock().unwrap().send(()).unwrap();
                }
                true
            });
            team.run(2, MINUTE, &|member| {
                let call = barrier();
                member.all_gather_local(call.clone(), ()).unwrap();
                assert_eq!(*member.run_on_leader(&call, "a part", || 5).unwrap(), 5);
                let all = member.all_gather_with(&call, "a part", |rank| rank).unwrap();
                all.iter().map(|made| **made).eq(0..3)
            });
        }
    });
}

#[test]
fn runs_nest_and_run_side_by_side() {
    watched(|| {
        let nested = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        TeamPool::shared()
                            .with_team(2, |team| {
                                team.run(1, MINUTE, &|member| {
                                    let merged = member.reduce_on_leader(barrier(), (), |_| {
                                        TeamPool::shared()
                                            .with_team(2, |inner| {
                                                inner.run(1, MINUTE, &|m| {
                                                    nested.fetch_add(1, Ordering::Relaxed);
                                                    m.all_gather_local(barrier(), ()).is_ok()
                                                });
                                            })
                                            .is_ok()
                                    });
                                    *merged.unwrap()
                                });
                            })
                            .unwrap();
                    }
                });
            }
        });
        assert_eq!(nested.into_inner(), 4 * 20 * 2);
    });
}
