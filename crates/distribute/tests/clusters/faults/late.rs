//! A replica that misses the deadline.

use crate::faults::support::{healthy, says};
use distribute::cluster::Fault;
use distribute::prelude::*;
use distribute::{Error, Result};
use distribute_testing::watched;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

fn impatient(replicas: usize) -> MirroredStrategy {
    let names: Vec<_> = (0..replicas).map(|i| format!("cpu:{i}")).collect();
    MirroredStrategy::with_timeout(names.iter().map(String::as_str), Duration::from_millis(50)).unwrap()
}

/// A gate that holds the straggler until all others have timed out.
struct Gate(Mutex<mpsc::Sender<()>>, Mutex<mpsc::Receiver<()>>);

impl Gate {
    fn new() -> Self {
        let (tell, wait) = mpsc::channel();
        Self(Mutex::new(tell), Mutex::new(wait))
    }
    fn gave_up(&self) {
        self.0.lock().unwrap().send(()).unwrap();
    }
    fn wait_for(&self, others: usize) {
        (0..others).for_each(|_| self.1.lock().unwrap().recv_timeout(MINUTE).unwrap());
    }
}

#[test]
fn a_late_replica_is_named_at_the_deadline_with_its_last_call_replica_0_too() {
    watched(|| {
        for replicas in 2..=4 {
            for culprit in 0..replicas {
                let strategy = impatient(replicas);
                let gate = Gate::new();
                let error = strategy.run((), |ctx, ()| {
                    ctx.all_reduce(ReduceOp::Sum, 1i32)?;
                    let late = ctx.replica_id_in_sync_group() == culprit;
                    if late {
                        gate.wait_for(replicas - 1);
                    }
                    let result = ctx.all_gather(HostTensor::vector(vec![1i32]), 0);
                    if !late {
                        gate.gave_up();
                    }
                    result
                });
                let error = error.unwrap_err();
                let blame = error.blame().unwrap();
                assert_eq!(
                    (blame.fault, blame.culprits.as_slice()),
                    (Fault::Late, &[culprit][..]),
                    "{error}"
                );
                says(
                    &error,
                    &[
                        "step 1: replica",
                        "waited 50ms in all_gather",
                        "late.rs:",
                        "raise the strategy's timeout",
                    ],
                );
                says(
                    &error,
                    &[&format!(
                        "replica {culprit} has not come (its last call was all_reduce (SUM int32[]) at"
                    )],
                );
                healthy(&MirroredStrategy::cpus(replicas).unwrap());
                // The same strategy: a run that needs no waiting.
                strategy.run((), |_, ()| Ok(())).unwrap();
            }
        }
    });
}

#[test]
fn a_slow_merge_function_is_given_up_by_the_others_and_its_own_error_wins() {
    watched(|| {
        let strategy = impatient(3);
        let gate = Gate::new();
        let run = |fails: bool| {
            strategy.run((), |ctx, ()| {
                let result = ctx.merge_call((), |_, _| -> Result<()> {
                    gate.wait_for(2);
                    if fails { Err(Error::other("slow and wrong")) } else { Ok(()) }
                });
                if ctx.replica_id_in_sync_group() > 0 {
                    gate.gave_up();
                }
                result
            })
        };
        let error = run(false).unwrap_err();
        says(&error, &["in merge_call", "its outcome on replica 0", "replica 0 has not come", "late.rs:"]);
        assert_eq!(error.blame().unwrap().culprits, [0]);
        says(&run(true).unwrap_err(), &["replica 0 (", "slow and wrong"]);
    });
}

#[test]
fn a_failure_is_the_cause_also_where_a_third_replica_is_late() {
    watched(|| {
        let strategy = impatient(3);
        let gate = Gate::new();
        let error = strategy.run((), |ctx, ()| match ctx.replica_id_in_sync_group() {
            0 => {
                let result = ctx.all_reduce(ReduceOp::Sum, 1i32);
                gate.gave_up();
                result
            }
            1 => {
                gate.wait_for(1);
                ctx.all_reduce(ReduceOp::Sum, 1i32)
            }
            _ => Err(Error::other("the cause")),
        });
        says(&error.unwrap_err(), &["replica 2 (", "the cause"]);
    });
}
