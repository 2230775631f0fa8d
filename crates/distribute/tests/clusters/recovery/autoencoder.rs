//! A training in which the loss of a worker changes the result, because some of the worker's state is on that worker
//! only.

use crate::recovery::program::{At, EPOCHS, Place, Task};
use candle_core::{Device, Tensor};
use candle_nn::{Module, linear};
use distribute::optimizer::rules::Rule;
use distribute::{Error, Optimizer, ReplicaContext, Result, Variables, prelude::*};

/// The checksum of the weights, the generation, and the loss of the last step.
pub type Outcome = (String, u64, f32);

pub type Program = fn(&Task, &At) -> Result<Outcome>;

/// Trains an autoencoder with Adam. See [`train_with`].
pub fn train(
    strategy: &Strategy,
    at: &At,
    after_step: impl Fn(&ReplicaContext) -> Result<()> + Sync,
    end: impl Fn(&Adam) -> Result<()>,
) -> Result<Outcome> {
    train_with(strategy, at, |variables| Adam::new(variables, 0.01), after_step, end)
}

/// Trains an autoencoder. There are four steps in an epoch, and a worker is lost in the third or fourth of the second.
/// `after_step` is called at the end of each step, and `end` at the end of the training.
pub fn train_with<R: Rule>(
    strategy: &Strategy,
    at: &At,
    optimizer: impl Fn(&Variables) -> Result<Optimizer<R>>,
    after_step: impl Fn(&ReplicaContext) -> Result<()> + Sync,
    end: impl Fn(&Optimizer<R>) -> Result<()>,
) -> Result<Outcome> {
    let model = strategy.replicate_seeded(3, |vb| {
        Ok::<_, Error>((linear(40, 64, vb.pp("a"))?, linear(64, 40, vb.pp("b"))?))
    })?;
    let optimizer = optimizer(&model.variables)?;
    let batches = strategy.distribute_dataset(Dataset::range(32).shuffle(32, 7).batch(8))?;
    let parts = Checkpoint::new()
        .part("strategy", strategy)
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
                    after_step(ctx)?;
                    Ok(loss)
                })?;
                last = losses.values()[0].to_scalar()?;
            }
        }
        end(&optimizer)?;
        Ok(last)
    })?;
    Ok((model.variables.sha256()?, training.generation(), loss))
}
