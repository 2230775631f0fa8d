//! User code that a step calls: schedules, and closures that change gradients.

use crate::gradients::{mirrored, one_weight, vector};
use distribute::optimizer::rules::Adam;
use distribute::optimizer::{Gradients, Transform};
use distribute::{Checkpoint, Error, Optimizer, ReduceOp, Replicated, Result, Strategy};
use distribute_testing::watched;
use std::sync::{Arc, Mutex, OnceLock};

type Shared = Arc<OnceLock<Optimizer<Adam>>>;

/// Creates an optimizer of one weight, which the optimizer's own closures can access through the cell.
fn shared(
    strategy: &Strategy,
    prepare: impl Fn(Optimizer<Adam>, Shared) -> Result<Optimizer<Adam>>,
) -> (Replicated<candle_core::Tensor>, Shared) {
    let (model, cell) = (one_weight(strategy, 1), Shared::default());
    let optimizer = Optimizer::with_rule(Adam::default(), &model.variables, 0.5).unwrap();
    let optimizer = prepare(optimizer, cell.clone()).unwrap();
    assert!(cell.set(optimizer).is_ok());
    (model, cell)
}

/// Makes a step, and returns the message of the error on each replica; an empty message for a success.
fn step(strategy: &Strategy, optimizer: &Shared) -> Vec<String> {
    let said = strategy.run((), |ctx, ()| {
        let optimizer = optimizer.get().unwrap();
        let mut gradients = Gradients::new(optimizer);
        gradients.insert("w", vector(&[1.]))?;
        let made = optimizer.apply_gradients(ctx, gradients, ReduceOp::Mean);
        Ok(made.map_or_else(|error| error.root_cause().to_string(), |()| String::new()))
    });
    said.unwrap().into_values()
}

#[test]
fn callbacks_of_a_step_may_read_the_optimizers_progress() {
    watched(|| {
        for n in [1, 3] {
            let strategy = mirrored(n);
            let seen = Arc::new(Mutex::new(Vec::new()));
            let (_, optimizer) = shared(&strategy, |optimizer, cell| {
                let (seen, again) = (seen.clone(), cell.clone());
                let ask = Transform::each(move |_, gradient| {
                    let optimizer = cell.get().unwrap();
                    let busy =
                        |result: Result<()>| result.unwrap_err().to_string().contains("a step of this");
                    let checkpoint = Checkpoint::new().part("o", optimizer);
                    let refused =
                        busy(optimizer.slot("w", "m").map(drop)) && busy(checkpoint.writer().map(drop));
                    seen.lock().unwrap().push((
                        optimizer.finished_steps(),
                        optimizer.learning_rate(),
                        refused,
                    ));
                    Ok(gradient)
                });
                let rate = move |finished| match again.get() {
                    Some(optimizer) => 0.5 + optimizer.finished_steps() as f64 - finished as f64,
                    None => 0.5,
                };
                optimizer.after_reduce(ask)?.with_schedule(rate)
            });
            for _ in 0..2 {
                assert!(step(&strategy, &optimizer).iter().all(String::is_empty));
            }
            assert_eq!(*seen.lock().unwrap(), [(0, 0.5, true), (1, 0.5, true)], "{n} replicas");
            // After the steps, slots can be read and the optimizer can be saved.
            let optimizer = optimizer.get().unwrap();
            optimizer.slot("w", "m").unwrap();
            Checkpoint::new().part("o", optimizer).writer().unwrap();
        }
    });
}

#[test]
fn before_the_reduction_slots_can_be_read() {
    watched(|| {
        let strategy = mirrored(2);
        let (_, optimizer) = shared(&strategy, |optimizer, cell| {
            optimizer.before_reduce(Transform::each(move |name, gradient| {
                cell.get().unwrap().slot(name, "m")?;
                Ok(gradient)
            }))
        });
        for _ in 0..50 {
            assert_eq!(step(&strategy, &optimizer), ["", ""]);
        }
    });
}

#[test]
fn a_nested_step_is_refused() {
    watched(|| {
        let strategy = mirrored(2);
        let inner = strategy.clone();
        let (_, optimizer) = shared(&strategy, |optimizer, cell| {
            let inner = inner.clone();
            optimizer.after_reduce(Transform::each(move |_, gradient| {
                inner.run((), |ctx, ()| {
                    let optimizer = cell.get().unwrap();
                    let mut gradients = Gradients::new(optimizer);
                    gradients.insert("w", vector(&[1.]))?;
                    optimizer.apply_gradients(ctx, gradients, ReduceOp::Mean)
                })?;
                Ok(gradient)
            }))
        });
        for said in step(&strategy, &optimizer) {
            assert!(said.contains("apply_gradients: a step of this optimizer is in progress"), "{said}");
        }
        assert_eq!(optimizer.get().unwrap().finished_steps(), 0);
    });
}

#[test]
fn a_collective_after_the_reduction_is_refused_at_once_and_before_it_works() {
    watched(|| {
        for n in [1, 2] {
            let strategy = mirrored(n);
            let sum = |gradient| {
                let Some(ctx) = distribute::context::get_replica_context() else {
                    return Err(Error::other("no replica context"));
                };
                ctx.all_reduce(ReduceOp::Sum, 1f32)?;
                Ok(gradient)
            };
            let (_, before) = shared(&strategy, |optimizer, _| {
                optimizer.before_reduce(Transform::each(move |_, gradient| sum(gradient)))
            });
            assert!(step(&strategy, &before).iter().all(String::is_empty));
            let (_, after) = shared(&strategy, |optimizer, _| {
                optimizer.after_reduce(Transform::each(move |_, gradient| sum(gradient)))
            });
            assert_eq!(step(&strategy, &after), vec!["no replica context"; n]);

            // Also with the context that the closure given to run had.
            let context = Arc::new(OnceLock::new());
            let taken = context.clone();
            let (_, after) = shared(&strategy, |optimizer, _| {
                let taken = taken.clone();
                optimizer.after_reduce(Transform::each(move |_, gradient| {
                    let context: &distribute::ReplicaContext = taken.get().unwrap();
                    context.all_reduce(ReduceOp::Sum, 1f32)?;
                    Ok(gradient)
                }))
            });
            let said = strategy.run((), |ctx, ()| {
                if ctx.replica_id_in_sync_group() == 0 {
                    let _ = context.set(ctx.clone());
                }
                let optimizer = after.get().unwrap();
                let mut gradients = Gradients::new(optimizer);
                gradients.insert("w", vector(&[1.]))?;
                let error = optimizer.apply_gradients(ctx, gradients, ReduceOp::Mean).unwrap_err();
                Ok(matches!(error.root_cause(), Error::WrongContext { operation: "all_reduce", .. }))
            });
            assert_eq!(said.unwrap().into_values(), vec![true; n]);
        }
    });
}

#[test]
fn a_schedule_that_panics_is_an_error_on_every_replica_and_the_optimizer_survives() {
    watched(|| {
        for n in [1, 3] {
            let strategy = mirrored(n);
            let (_, optimizer) = shared(&strategy, |optimizer, _| {
                let broken = Mutex::new(false);
                optimizer.with_schedule(move |finished: u64| {
                    let mut broken = broken.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    let now = std::mem::replace(&mut *broken, finished == 1);
                    assert!(finished != 1 || now, "no rate of step {finished}");
                    0.5
                })
            });
            assert_eq!(step(&strategy, &optimizer), vec![""; n]);
            assert_eq!(step(&strategy, &optimizer), vec!["panicked: no rate of step 1"; n]);
            assert_eq!(step(&strategy, &optimizer), vec![""; n]);
            assert_eq!(optimizer.get().unwrap().finished_steps(), 2);
        }
    });
}
