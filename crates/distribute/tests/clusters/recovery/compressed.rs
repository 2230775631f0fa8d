//! The loss of a worker that sends compressed gradients. Its residuals are lost, and those of the others stay.

use crate::recovery::program::{At, EPOCHS, Place, Task};
use crate::recovery::threads::train;
use candle_core::{Device, Tensor};
use candle_nn::{Module, linear};
use distribute::strategy::Compression;
use distribute::{Error, Result, prelude::*};
use distribute_testing::watched;

/// The checksum of the weights, the generation, and the loss of the last step.
type Outcome = (String, u64, f32);

type Program = fn(&Task, &At) -> Result<Outcome>;

fn program(task: &Task, at: &At, form: Compression) -> Result<Outcome> {
    let strategy = task.builder()?.compression(form).build()?;
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
                    ctx.all_reduce(ReduceOp::Sum, 1f32)?;
                    Ok(loss)
                })?;
                last = losses.values()[0].to_scalar()?;
            }
        }
        Ok(last)
    })?;
    Ok((model.variables.sha256()?, training.generation(), loss))
}

// INV-42
fn assert_converges(places: &'static [Place], run: Program) {
    watched(move || {
        let (undisturbed, _, loss) = train(2, 1, None, run).remove(0);
        for place in places {
            let all = train(2, 1, Some((1, *place)), run);
            assert!(all.iter().all(|one| one == &all[0]), "{place:?}: {all:?}");
            let (weights, generation, after) = &all[0];
            assert_eq!(*generation, 2);
            // The residual of the lost worker was not zero.
            assert_ne!(*weights, undisturbed, "{place:?}");
            assert!(*after < 1.5 * loss + 0.01, "{place:?}: {after} and {loss}");
        }
    });
}

#[test]
fn all_workers_have_the_same_weights_after_a_loss() {
    fn eight_bits(task: &Task, at: &At) -> Result<Outcome> {
        program(task, at, Compression::EightBits)
    }
    assert_converges(&[Place::InStep, Place::AfterUpdate], eight_bits);
}

#[test]
fn all_workers_have_the_same_factors_after_a_loss() {
    fn low_rank(task: &Task, at: &At) -> Result<Outcome> {
        program(task, at, Compression::LowRank { rank: 2 })
    }
    assert_converges(&[Place::Between], low_rank);
}
