//! A replica that panics, fails or returns early: `run` returns its own error, even if others fail because of it
//! (RUN-7).

use crate::faults::support::{Training, assert_message, fault, fault_on, healthy, tensor};
use distribute::cluster::Fault;
use distribute::data::Dataset;
use distribute::prelude::*;
use distribute::{Error, Result};
use distribute_testing::watched;

#[derive(Debug)]
struct Wrapped(Error);
impl std::fmt::Display for Wrapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "in the step: {}", self.0)
    }
}
impl std::error::Error for Wrapped {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

fn for_each_culprit(test: impl Fn(usize, usize) + Send + 'static) {
    watched(move || (2..=4).for_each(|n| (0..n).for_each(|culprit| test(n, culprit))));
}

#[test]
fn run_7_a_panic_is_the_error_of_its_replica() {
    for_each_culprit(|replicas, culprit| {
        let error = fault(replicas, |ctx| {
            if ctx.replica_id_in_sync_group() == culprit {
                // Without the panic hook's lines in the test's output.
                std::panic::resume_unwind(Box::new("boom"));
            }
            ctx.all_reduce(ReduceOp::Sum, 1i32)
        });
        assert_message(
            &error,
            &[&format!("replica {culprit} (/job:localhost"), "failed in step 2: panicked: boom"],
        );
    });
}

#[test]
fn run_7_an_error_is_the_error_of_its_replica_also_where_victims_wrap_theirs() {
    for_each_culprit(|replicas, culprit| {
        let error = fault(replicas, |ctx| {
            if ctx.replica_id_in_sync_group() == culprit {
                return Err(Error::other("the disk is full"));
            }
            ctx.all_reduce(ReduceOp::Sum, 1i32).map_err(|error| {
                assert_eq!(error.blame().unwrap().fault, Fault::Failed);
                assert_message(
                    &error,
                    &[
                        &format!("replica {culprit} failed without making this call"),
                        "replicas.rs:",
                        "step 2",
                    ],
                );
                Error::other(Wrapped(error))
            })
        });
        assert_message(&error, &[&format!("replica {culprit} ("), "the disk is full"]);
        assert!(error.blame().is_none());
    });
}

#[test]
fn mc_4_an_early_return_is_named_with_its_last_call() {
    for_each_culprit(|replicas, culprit| {
        let error = fault(replicas, |ctx| {
            ctx.all_reduce(ReduceOp::Sum, 1i32)?;
            if ctx.replica_id_in_sync_group() == culprit {
                Ok(0)
            } else {
                ctx.all_reduce(ReduceOp::Sum, 2i32)
            }
        });
        let blame = error.blame().unwrap();
        assert_eq!((blame.fault, blame.step), (Fault::Returned, 2));
        assert_message(
            &error,
            &[
                &format!("replica {culprit} returned without making this call"),
                "its last call was all_reduce (SUM int32[]) at",
            ],
        );
        assert_message(&error, &["step 2, call 2", "replicas.rs:", "same number of calls"]);
    });
}

#[test]
fn several_that_return_are_all_named() {
    watched(|| {
        let error = fault(4, |ctx| match ctx.replica_id_in_sync_group() {
            0 | 2 => ctx.all_reduce(ReduceOp::Sum, 1i32),
            _ => Ok(0),
        });
        assert_message(
            &error,
            &[
                "replicas 0 and 2 wait in all_reduce",
                "replicas 1 and 3 returned",
                "replica 1: it has made no call",
            ],
        );
    });
}

#[test]
fn a_merge_function_that_fails_or_panics_is_the_error_of_run() {
    for_each_culprit(|replicas, _| {
        let error = fault(replicas, |ctx| {
            ctx.merge_call((), |_, _| -> Result<i32> { Err(Error::other("no merge")) })
        });
        assert_message(&error, &["replica 0 (", "failed in step 2: no merge"]);
        let error = fault(replicas, |ctx| {
            ctx.merge_call((), |_, _| -> Result<i32> { std::panic::resume_unwind(Box::new("merge boom")) })
        });
        assert_message(&error, &["replica 0 (", "panicked: merge boom"]);
    });
}

#[test]
fn a_failure_before_minimize_changes_no_variable() {
    for_each_culprit(|replicas, culprit| {
        let strategy = MirroredStrategy::cpus(replicas).unwrap();
        let training = Training::new(&strategy);
        let error = fault_on(&strategy, |ctx| {
            if ctx.replica_id_in_sync_group() == culprit {
                // The loss is not a scalar, which is an error on this replica only.
                return training.optimizer.minimize(ctx, tensor(&[1., 2.]), 1);
            }
            training.minimize(ctx)
        });
        assert_message(&error, &[&format!("replica {culprit} ("), "minimize: the loss has shape [2]"]);
        assert_eq!(training.optimizer.finished_steps(), 0);
        strategy.run((), |ctx, ()| training.minimize(ctx)).unwrap();
    });
}

#[test]
fn a_stock_loss_that_fails_on_an_empty_batch_gets_advice() {
    watched(|| {
        let strategy = MirroredStrategy::cpus(3).unwrap();
        let batches =
            strategy.distribute_dataset(Dataset::from_slices(tensor(&[1., 2.])).unwrap().batch(2)).unwrap();
        let batch = batches.iter().next().unwrap().unwrap();
        let error = strategy.run(batch, |ctx, piece| {
            // Some of candle's losses call max or argmax in the same way, which fails without elements.
            let loss = piece.max(0)?;
            ctx.all_reduce(ReduceOp::Sum, loss)
        });
        let error = error.unwrap_err();
        assert!(
            matches!(&error, Error::Replica { replica: 2, source, .. } if matches!(**source, Error::EmptyPiece { .. })),
            "{error}"
        );
        assert_message(
            &error,
            &["replica 2 got an empty batch", "distribute::nn::loss", "optimizer.skip(ctx)"],
        );
        healthy(&strategy);
        // The same error is returned if candle or the closure panics because there are no elements.
        let batch = batches.iter().next().unwrap().unwrap();
        let error = strategy.run(batch, |_, piece| Ok(piece.to_vec1::<f32>()?[0])).unwrap_err();
        assert_message(
            &error,
            &["replica 2 got an empty batch", "optimizer.skip(ctx)", "index out of bounds"],
        );
        healthy(&strategy);
    });
}
