//! A replica that misses the deadline.

use crate::faults::support::{assert_message, healthy};
use distribute::cluster::Fault;
use distribute::prelude::*;
use distribute::{Error, Result};
use distribute_testing::watched;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

fn impatient(replicas: usize) -> Strategy {
    let names: Vec<_> = (0..replicas).map(|i| format!("cpu:{i}")).collect();
    MirroredStrategy::builder()
        .devices(names.iter().map(String::as_str))
        .timeout(Duration::from_millis(50))
        .build()
        .unwrap()
}

/// A gate that holds the straggler until all others have timed out.
struct Gate(Mutex<mpsc::Sender<()>>, Mutex<mpsc::Receiver<()>>);

impl Gate {
    fn new() -> Self {
        let (tell, wait) = mpsc::channel();
        Self(Mutex::new(tell), Mutex::new(wait))
    }
    fn timed_out(&self) {
        self.0.lock().unwrap().send(()).unwrap();
    }
    fn wait_for(&self, others: usize) {
        (0..others).for_each(|_| self.1.lock().unwrap().recv_timeout(MINUTE).unwrap());
    }
}

#[test]
fn a_replica_that_times_out_is_named_with_its_last_call_even_replica_0() {
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
                        gate.timed_out();
                    }
                    result
                });
                let error = error.unwrap_err();
                let blame = error.blame().unwrap();
                assert_eq!(
                    (blame.fault, blame.culprits.as_slice()),
                    (Fault::TimedOut, &[culprit][..]),
                    "{error}"
                );
                assert_message(
                    &error,
                    &[
                        "step 1: replica",
                        "waited 50ms in all_gather",
                        "late.rs:",
                        "raise the strategy's timeout",
                    ],
                );
                assert_message(
                    &error,
                    &[&format!(
                        "replica {culprit} did not arrive (its last call was all_reduce (SUM int32[]) at"
                    )],
                );
                healthy(&MirroredStrategy::cpus(replicas).unwrap());
                // A run without a collective call succeeds with the same strategy.
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
                    gate.timed_out();
                }
                result
            })
        };
        let error = run(false).unwrap_err();
        assert_message(
            &error,
            &["in merge_call", "its outcome on replica 0", "replica 0 did not arrive", "late.rs:"],
        );
        assert_eq!(error.blame().unwrap().culprits, [0]);
        assert_message(&run(true).unwrap_err(), &["replica 0 (", "slow and wrong"]);
    });
}

#[test]
fn a_failure_is_the_cause_even_if_a_third_replica_times_out() {
    watched(|| {
        let strategy = impatient(3);
        let gate = Gate::new();
        let error = strategy.run((), |ctx, ()| match ctx.replica_id_in_sync_group() {
            0 => {
                let result = ctx.all_reduce(ReduceOp::Sum, 1i32);
                gate.timed_out();
                result
            }
            1 => {
                gate.wait_for(1);
                ctx.all_reduce(ReduceOp::Sum, 1i32)
            }
            _ => Err(Error::other("the cause")),
        });
        assert_message(&error.unwrap_err(), &["replica 2 (", "the cause"]);
    });
}
