//! The loss of a worker that trains alone. Its replacement continues with the state of another worker.

use crate::recovery::program::{At, EPOCHS, Place, Task};
use crate::recovery::threads::train;
use candle_core::{Device, Tensor};
use candle_nn::{Module, linear};
use distribute::strategy::{LocalSteps, Outer};
use distribute::{Error, Result, prelude::*};
use distribute_testing::watched;

/// The checksum of the weights, the generation, and the loss of the last step.
type Outcome = (String, u64, f32);

type Program = fn(&Task, &At) -> Result<Outcome>;

/// There are four steps in an epoch, and a worker is lost in the third or fourth of the second.
fn program(task: &Task, at: &At, local: LocalSteps) -> Result<Outcome> {
    let strategy = task.builder()?.local_steps(local).build()?;
    let model = strategy.replicate_seeded(3, |vb| {
        Ok::<_, Error>((linear(40, 64, vb.pp("a"))?, linear(64, 40, vb.pp("b"))?))
    })?;
    let optimizer = Adam::new(&model.variables, 0.01)?;
    let batches = strategy.distribute_dataset(Dataset::range(32).shuffle(32, 7).batch(8))?;
    let parts = Checkpoint::new()
        .part("strategy", &strategy)
        .part("model", &model.variables)
        .part("optimizer", &optimizer)
        .part("batches", &batches);
    let training = Training::new(parts)?;
    let loss = training.run(|| {
        let mut last = f32::INFINITY;
        while batches.position().epoch < 2 * EPOCHS {
            for batch in &batches {
                let step = (batches.position().epoch, batches.position().steps);
                if step == (1, 2) {
                    at(Place::Between)?;
                }
                let losses = strategy.run((&model, batch?), |ctx, ((a, b), ids): (_, HostTensor)| {
                    let ids: Vec<f32> = ids.to_vec::<i64>()?.into_iter().map(|id| id as f32).collect();
                    let n = ids.len();
                    let x = Tensor::from_vec(ids, (n, 1), &Device::Cpu)?;
                    let x = x.broadcast_add(&Tensor::arange(0f32, 40., &Device::Cpu)?)?.sin()?;
                    if step == (1, 3) {
                        at(Place::InStep)?;
                    }
                    let loss = (b.forward(&a.forward(&x)?.tanh()?)? - &x)?.sqr()?.mean_all()?;
                    let loss = optimizer.minimize(ctx, loss, n)?;
                    if step == (1, 3) {
                        at(Place::AfterUpdate)?;
                    }
                    Ok(loss)
                })?;
                last = losses.values()[0].to_scalar()?;
            }
        }
        optimizer.finish_local_steps()?;
        Ok(last)
    })?;
    Ok((model.variables.sha256()?, training.generation(), loss))
}

// INV-42
fn assert_converges(places: &'static [Place], run: Program) {
    watched(move || {
        let undisturbed = train(2, 1, None, run);
        assert_eq!(undisturbed[0].0, undisturbed[1].0);
        for place in places {
            let all = train(2, 1, Some((1, *place)), run);
            assert_eq!(all[0].0, all[1].0, "{place:?}: {all:?}");
            for ((_, generation, loss), (_, _, expected)) in all.iter().zip(&undisturbed) {
                assert_eq!(*generation, 2, "{place:?}");
                assert!(*loss < 1.5 * expected + 0.01, "{place:?}: {loss} and {expected}");
            }
        }
    });
}

#[test]
fn all_workers_agree_after_the_loss_of_one_that_trained_alone() {
    // Outer steps after the 3rd, 6th, 9th step: a worker is lost after the 6th, and in the 8th.
    fn diloco(task: &Task, at: &At) -> Result<Outcome> {
        let outer = Outer::Nesterov { learning_rate: 0.7, momentum: 0.9 };
        program(task, at, LocalSteps { steps: 3, outer })
    }
    assert_converges(&[Place::Between, Place::InStep, Place::AfterUpdate], diloco);
}

#[test]
fn all_workers_agree_after_the_loss_of_one_in_an_outer_step() {
    // An outer step after the 8th step, in which a worker is lost.
    fn average(task: &Task, at: &At) -> Result<Outcome> {
        program(task, at, LocalSteps { steps: 4, outer: Outer::Average })
    }
    assert_converges(&[Place::InStep, Place::AfterUpdate], average);
}
