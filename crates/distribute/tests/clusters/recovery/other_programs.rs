//! Programs with other state than most: they update weights without an optimizer, or omit a variable from the state.

use crate::recovery::program::{At, EPOCHS, Place, Task};
use crate::recovery::threads::train;
use distribute::{Error, Result, prelude::*};
use distribute_testing::watched;

/// The way in which a program updates its weights.
type Update = fn(&Strategy, &[Variable; 2], PerReplica<HostTensor>, &At, bool) -> Result<()>;

/// Updates the weights in a merge function of the step, one variable after the other.
fn in_the_step(
    strategy: &Strategy,
    weights: &[Variable; 2],
    batch: PerReplica<HostTensor>,
    at: &At,
    here: bool,
) -> Result<()> {
    strategy.run(batch, |ctx, ids| {
        if here {
            at(Place::InStep)?;
        }
        for weight in weights {
            ctx.merge_call(gradient(weight, &ids)?, |strategy, gradients| {
                let sum = strategy.reduce_to(ReduceOp::Sum, gradients, weight)?;
                strategy.update(weight, sum, |weight, sum| weight.assign_sub(sum)).map(drop)
            })?;
        }
        if here {
            at(Place::AfterUpdate)?;
        }
        ctx.all_reduce(ReduceOp::Sum, 1f32).map(drop)
    })?;
    Ok(())
}

/// Updates the weights between steps, with the results of the replicas.
fn between_steps(
    strategy: &Strategy,
    weights: &[Variable; 2],
    batch: PerReplica<HostTensor>,
    at: &At,
    here: bool,
) -> Result<()> {
    let gradients = strategy.run(batch, |_, ids| {
        if here {
            at(Place::InStep)?;
        }
        Ok((gradient(&weights[0], &ids)?, gradient(&weights[1], &ids)?))
    })?;
    let (first, second) = strategy.reduce(ReduceOp::Sum, gradients, None)?;
    weights[0].assign_sub(first)?;
    weights[1].assign_sub(second)?;
    if here {
        at(Place::AfterUpdate)?;
    }
    Ok(())
}

/// Returns a gradient that depends on the weight, so that applying it twice is detected.
fn gradient(weight: &Variable, ids: &HostTensor) -> Result<f32> {
    let ids: f32 = ids.to_vec::<i64>()?.iter().map(|id| (*id as f32).sin()).sum();
    Ok(0.1 * ids * weight.read::<f32>()?)
}

fn without_optimizer(task: &Task, at: &At, update: Update) -> Result<Vec<f32>> {
    let strategy = task.builder()?.build()?;
    let make = |name| strategy.scope(|| Variable::new(name, 1f32));
    let weights = [make("a")?, make("b")?];
    let batches = strategy.distribute_dataset(Dataset::range(16).shuffle(16, 7).batch(4))?;
    let parts = Checkpoint::new().part("strategy", &strategy).part("batches", &batches);
    let training = Training::new(parts.part("a", &weights[0]).part("b", &weights[1]))?;
    at(Place::First)?;
    let epochs = || {
        while batches.position().epoch < EPOCHS {
            for batch in &batches {
                let batch = batch?;
                let steps = (batches.position().epoch, batches.position().steps);
                if steps == (1, 2) {
                    at(Place::Between)?;
                }
                update(&strategy, &weights, batch, at, steps == (1, 3))?;
            }
            if batches.position().epoch == 2 {
                at(Place::AtEnd)?;
            }
        }
        at(Place::Ending)
    };
    // A loop of its own.
    loop {
        match epochs().and_then(|()| training.end()) {
            Ok(()) => break,
            Err(error) => training.recover(error)?,
        }
    }
    weights.iter().map(|weight| weight.read::<f32>()).collect()
}

fn same_weights(program: fn(&Task, &At) -> Result<Vec<f32>>) {
    let undisturbed = train(3, 1, None, program);
    assert_ne!(undisturbed[0], [1., 1.]);
    for place in Place::IN_TRAINING {
        for worker in [0, 2] {
            for weights in train(3, 1, Some((worker, place)), program) {
                assert_eq!(weights, undisturbed[0], "{place:?} of worker {worker}");
            }
        }
    }
}

// INV-42
#[test]
fn manual_updates_in_a_step_are_applied_once() {
    watched(|| same_weights(|task, at| without_optimizer(task, at, in_the_step)));
}

// INV-42
#[test]
fn manual_updates_between_steps_are_applied_once() {
    watched(|| same_weights(|task, at| without_optimizer(task, at, between_steps)));
}

/// Runs a program that omits a variable from its state. Returns the warning about that variable.
fn forgetful(task: &Task, at: &At) -> Result<String> {
    let strategy = task.builder()?.check_drift_every(1).build()?;
    let make = |name| strategy.scope(|| Variable::new(name, 1f32));
    let [kept, forgotten] = [make("kept")?, make("forgotten")?];
    let parts = Checkpoint::new().part("strategy", &strategy).part("kept", &kept);
    let ended = Training::new(parts)?.run(|| {
        while strategy.steps() < 8 {
            if strategy.steps() == 5 {
                at(Place::Between)?;
            }
            strategy.run((), |_, ()| Ok(()))?;
            [&kept, &forgotten].into_iter().try_for_each(|variable| variable.assign_add(1f32))?;
        }
        Ok(())
    });
    match ended {
        Err(error @ Error::Drift { .. }) => Ok(error.to_string()),
        Err(error) => Err(error),
        Ok(()) => Ok("nothing".into()),
    }
}

// INV-37
#[test]
fn a_forgotten_component_is_named_as_drifted_with_the_reason() {
    watched(|| {
        assert_eq!(train(3, 1, None, forgetful), ["nothing"; 3]);
        for said in train(3, 1, Some((1, Place::Between)), forgetful) {
            assert!(
                said.contains("variable forgotten (float32[]) on worker 1 is not that of the other 2"),
                "{said}"
            );
            assert!(
                said.contains(
"(generation 2): the replacement does not receive variables outside the Checkpoint passed to Training::new"),
                "{said}"
            );
        }
    });
}
