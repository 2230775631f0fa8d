//! Teams of several workers in one process: all their replicas join one call.

use bytes::Bytes;
use distribute_cluster::{Blame, Fault, Fingerprint, Operation};
use distribute_collective::group::{Group, Links, local};
use distribute_collective::threads::{Member, Team};
use distribute_collective::{Failure, all_gather, all_reduce};
use distribute_tensor::{HostTensor, Leaf, Packing, ReduceOp};
use distribute_testing::watched;
use proptest::prelude::*;
use std::panic::Location;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(100);

/// A process with its own team.
struct Worker {
    group: Group,
    team: Arc<Team>,
}

impl Worker {
    /// Runs `body` on each replica of this worker, together with those of the other workers, and returns the results.
    fn run<T: Send>(
        &self,
        step: u64,
        timeout: Duration,
        body: impl Fn(&Member) -> Result<T, Arc<Blame>> + Sync,
    ) -> Vec<Result<T, Arc<Blame>>> {
        let results: Vec<_> = (0..self.team.size()).map(|_| Mutex::new(None)).collect();
        let session = self.group.open("strategy", step);
        self.team.run_with_session(step, timeout, Some(Arc::new(session)), &|member| {
            let result = body(&member);
            let succeeded = result.is_ok();
            *results[member.rank()].lock().unwrap() = Some(result);
            succeeded
        });
        results.into_iter().map(|result| result.into_inner().unwrap().unwrap()).collect()
    }
}

fn workers<T: Send + 'static>(
    workers: usize,
    replicas: usize,
    body: impl Fn(Worker) -> T + Send + Sync + 'static,
) -> Vec<T> {
    watched(move || {
        let groups = local::groups(Links::Memory, workers, replicas).unwrap();
        std::thread::scope(|scope| {
            let body = &body;
            let start = |group| move || body(Worker { group, team: Arc::new(Team::new(replicas).unwrap()) });
            let threads: Vec<_> = groups.into_iter().map(|group| scope.spawn(start(group))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    })
}

fn sum(member: &Member, detail: &str, value: f64) -> Result<f64, Arc<Blame>> {
    let call = Fingerprint::new(Operation::AllReduce, detail, Location::caller());
    let leaf = Leaf::Host(HostTensor::scalar(value));
    match all_reduce(member, call, ReduceOp::Sum, Packing::APART, vec![leaf]) {
        Ok(sum) => Ok(sum.leaves[0].to_host().unwrap().item().unwrap()),
        Err(Failure::Blame(blame)) => Err(blame),
        Err(other) => panic!("{other}"),
    }
}

/// Returns the error text, which all failed replicas share.
fn one_message<T>(all: &[Vec<Result<T, Arc<Blame>>>]) -> String {
    let mut texts: Vec<_> =
        all.iter().flatten().filter_map(|r| r.as_ref().err()).map(ToString::to_string).collect();
    texts.dedup();
    assert_eq!(texts.len(), 1, "{texts:#?}");
    texts.remove(0)
}

#[test]
fn replicas_of_all_workers_reduce_and_gather() {
    for (n, replicas) in [(1, 1), (1, 3), (2, 1), (2, 2), (3, 1), (3, 2), (5, 3)] {
        workers(n, replicas, move |worker| {
            for step in 1..=3 {
                let results = worker.run(step, LONG, |member| {
                    let id = member.replica();
                    let total = sum(member, "ids", id as f64)?;
                    let call = Fingerprint::new(Operation::AllGather, "axis 0", Location::caller());
                    // Different sizes along the axis.
                    let mine = Leaf::Host(HostTensor::vector(vec![id as i64; id % 3 + 1]));
                    let (gathered, offsets) = all_gather(member, call, 0, vec![mine]).unwrap();
                    Ok((total, gathered.leaves[0].to_host().unwrap().to_vec::<i64>().unwrap(), offsets[0]))
                });
                let all = n * replicas;
                let ids: Vec<i64> = (0..all).flat_map(|id| vec![id as i64; id % 3 + 1]).collect();
                for (local, result) in results.into_iter().enumerate() {
                    let id = worker.group.world().global(local);
                    let offset: usize = (0..id).map(|id| id % 3 + 1).sum();
                    assert_eq!(result.unwrap(), ((all * (all - 1) / 2) as f64, ids.clone(), offset));
                }
            }
        });
    }
}

#[test]
fn sendable_values_are_exchanged_in_the_order_of_ids() {
    for (n, replicas) in [(1, 1), (1, 3), (2, 1), (2, 2), (3, 2)] {
        workers(n, replicas, move |worker| {
            let of = |id: usize| (!id.is_multiple_of(3)).then(|| vec![(id as u64, id); id]);
            let shared = worker.run(1, LONG, |member| {
                let call = Fingerprint::new(Operation::Minimize, "orders", Location::caller());
                Ok(member.all_gather(call, of(member.replica())).unwrap())
            });
            for shared in shared {
                let shared: Vec<_> = shared.unwrap().iter().map(|payload| Option::clone(payload)).collect();
                assert_eq!(shared, (0..n * replicas).map(of).collect::<Vec<_>>());
            }
        });
    }
}

#[test]
fn a_member_that_calls_other_workers_does_not_time_out_for_its_peers() {
    let met = Arc::new(Barrier::new(4));
    let all = workers(2, 2, move |worker| {
        worker.run(1, SHORT, |member| {
            if member.replica() >= 2 {
                // Until the others have given up.
                met.wait();
                return Ok(None);
            }
            let call = Fingerprint::new(Operation::MergeCall, "speaks", Location::caller());
            let result = member.reduce_on_leader(call.clone(), (), |_| {
                let result =
                    member.with_group(|_| call.clone(), |mut calling| calling.all_gather_bytes(Bytes::new()));
                result.expect("there is another worker").map(drop)
            });
            met.wait();
            match &*result? {
                Err(Failure::Blame(blame)) => Ok(Some(blame.clone())),
                other => panic!("{other:?}"),
            }
        })
    });
    let all: Vec<_> = all.into_iter().flatten().map(Result::unwrap).collect();
    let blame = all[0].as_ref().unwrap();
    assert_eq!((blame.fault, blame.culprits.as_slice()), (Fault::TimedOut, &[2, 3][..]), "{blame}");
    assert_eq!(all[1].as_ref(), Some(blame));
}

// INV-1, INV-2, INV-25
#[test]
fn a_replica_that_differs_is_named_by_its_global_id_on_all() {
    let all = workers(3, 2, |worker| {
        let failed = worker.run(1, LONG, |member| {
            let detail = if member.replica() == 3 { "other" } else { "same" };
            let failed = sum(member, detail, 1.);
            assert_eq!(sum(member, "next", 1.), Ok(6.));
            failed
        });
        let again = worker.run(2, LONG, |member| sum(member, "again", 1.));
        assert!(again.iter().all(|sum| *sum == Ok(6.)));
        failed
    });
    let text = one_message(&all);
    assert!(text.contains("replicas 0, 1, 2, 4 and 5 called") && text.contains("replica 3 called"), "{text}");
}

/// A payload that cannot be sent if `fails` is set.
struct Payload {
    fails: bool,
}

impl serde::Serialize for Payload {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.fails {
            return Err(serde::ser::Error::custom("out of memory"));
        }
        serializer.serialize_bool(false)
    }
}

impl<'de> serde::Deserialize<'de> for Payload {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        bool::deserialize(deserializer).map(|fails| Self { fails })
    }
}

// INV-31
#[test]
fn a_worker_that_cannot_contribute_is_named_to_all_and_the_step_continues() {
    let all = workers(3, 2, |worker| {
        worker.run(1, LONG, |member| {
            let call = Fingerprint::new(Operation::Minimize, "orders", Location::caller());
            let mine = Payload { fails: worker.group.world().worker() == 1 };
            let shared = member.all_gather(call, mine);
            assert_eq!(sum(member, "next", 1.), Ok(6.));
            match shared {
                Err(Failure::Blame(blame)) => Err(blame),
                Err(Failure::Shared(own)) => Ok(own.to_string()),
                other => panic!("{:?}", other.map(|all| all.len())),
            }
        })
    });
    for own in &all[1] {
        assert!(own.as_ref().is_ok_and(|text| text.contains("failed to decode a message")), "{own:?}");
    }
    assert!(all[0].iter().chain(&all[2]).all(Result::is_err));
    let text = one_message(&all);
    assert!(text.contains("replicas 2 and 3 failed"), "{text}");
}

// INV-31
#[test]
fn a_merge_function_that_fails_before_its_call_is_named_to_all() {
    let all = workers(2, 2, |worker| {
        worker.run(1, LONG, |member| {
            let call = Fingerprint::new(Operation::MergeCall, "", Location::caller());
            let merged = member.reduce_on_leader(call.clone(), (), |_| {
                if worker.group.world().worker() == 1 {
                    member.abort();
                    return Ok(());
                }
                let result =
                    member.with_group(|_| call.clone(), |mut calling| calling.all_gather_bytes(Bytes::new()));
                match result.expect("there is another worker") {
                    Ok(_) => panic!("nobody takes part"),
                    Err(Failure::Blame(blame)) => Err(blame),
                    Err(other) => panic!("{other}"),
                }
            });
            assert_eq!(sum(member, "next", 1.), Ok(4.));
            Result::clone(&*merged?)
        })
    });
    assert!(all[0].iter().all(Result::is_err) && all[1].iter().all(Result::is_ok));
    let text = one_message(&all);
    assert!(text.contains("replicas 2 and 3 failed"), "{text}");
}

/// An idle team is acquired by other runs, and outlives the group of its last run.
#[test]
fn a_worker_that_has_ended_is_lost_to_the_others_while_its_team_is_idle() {
    let idle = Arc::new(Mutex::new(Vec::new()));
    let all = workers(2, 2, move |worker| {
        let first = worker.run(1, LONG, |member| sum(member, "a", 1.));
        assert!(first.iter().all(|sum| sum.as_ref().is_ok_and(|sum| *sum == 4.)));
        if worker.group.world().worker() == 1 {
            idle.lock().unwrap().push(worker.team.clone());
            return Vec::new();
        }
        worker.run(2, LONG, |member| sum(member, "b", 1.))
    });
    let text = one_message(&all);
    assert!(text.contains("worker 1 (replicas 2 and 3) was lost"), "{text}");
}

#[test]
fn a_hung_replica_is_named_to_all_workers_and_gets_the_error_later() {
    let met = Arc::new(Barrier::new(5));
    let all = workers(3, 2, move |worker| {
        let failed = worker.run(1, SHORT, |member| {
            if member.replica() == 4 {
                // Until the others have given up.
                met.wait();
                return sum(member, "a", 1.);
            }
            let failed = sum(member, "a", 1.);
            assert_eq!(failed.as_ref().unwrap_err().fault, Fault::TimedOut);
            if member.replica() < 4 {
                met.wait();
            }
            failed
        });
        let again = worker.run(2, LONG, |member| sum(member, "again", 1.));
        assert!(again.iter().all(|sum| *sum == Ok(6.)), "{again:?}");
        failed
    });
    assert!(all.iter().flatten().all(Result::is_err));
    let text = one_message(&all);
    assert!(
        text.contains("replica 4 did not arrive") || text.contains("replicas 4 and 5 did not arrive"),
        "{text}"
    );
}

#[derive(Clone, Copy, Debug)]
enum Planted {
    OtherCall,
    OtherShape,
    Returns,
    Fails,
    Skips,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    /// Runs programs of random length over W × R replicas, in which one replica deviates at a random position.
    // INV-2
    #[test]
    fn a_planted_fault_has_one_message_on_all_replicas(
        n in 2usize..4, replicas in 1usize..4, calls in 1usize..5, at in 0usize..5, who in 0usize..12,
        planted in prop_oneof![
            Just(Planted::OtherCall), Just(Planted::OtherShape), Just(Planted::Returns), Just(Planted::Fails),
            Just(Planted::Skips),
        ],
    ) {
        let (at, who) = (at % calls, who % (n * replicas));
        let all = workers(n, replicas, move |worker| {
            let failed = worker.run(1, LONG, |member| {
                let all = (n * replicas) as f64;
                for i in 0..calls {
                    let here = member.replica() == who && i == at;
                    let detail = match planted {
                        Planted::OtherCall if here => "another".into(),
                        Planted::OtherShape if here => format!("call {i} of another shape"),
                        Planted::Returns if here => return Ok(()),
                        Planted::Fails if here => {
                            let call = Fingerprint::new(Operation::Barrier, "mine", Location::caller());
                            return Err(Arc::new(Blame::failed(1, who, &call)));
                        }
                        Planted::Skips if here => continue,
                        _ => format!("call {i}"),
                    };
                    let now = sum(member, &detail, 1.);
                    if i < at || (i == at && matches!(planted, Planted::Skips) && member.replica() == who) {
                        assert_eq!(now, Ok(all));
                    }
                    now?;
                }
                Ok(())
            });
            let again = worker.run(2, LONG, |member| sum(member, "again", 1.));
            assert!(again.iter().all(|sum| *sum == Ok((n * replicas) as f64)), "{again:?}");
            failed
        });
        let mut all: Vec<_> = all.into_iter().flatten().collect();
        if matches!(planted, Planted::Fails) {
            // Its own error is the cause.
            drop(all.remove(who));
        }
        prop_assert!(!one_message(&[all]).is_empty());
    }
}
