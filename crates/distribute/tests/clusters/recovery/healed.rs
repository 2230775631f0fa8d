//! The loss of a worker while another one, whose variables have drifted, receives the state of a third.

use crate::recovery::program::Task;
use crate::recovery::relay::through_relay;
use candle_core::{Device, Tensor};
use candle_nn::Module;
use distribute::checkpoint::{Checkpointed, Reader, Restore, Writer};
use distribute::{Result, prelude::*};
use distribute_testing::watched;
use std::cell::Cell;
use std::time::Duration;

/// A component that calls a function each time it is saved, which happens when the state is transferred.
struct Saved<F>(F);

impl<F: Fn()> Checkpointed for Saved<F> {
    fn save(&self, _: &str, _: &mut Writer) -> Result<()> {
        (self.0)();
        Ok(())
    }
    fn restore<'a>(&'a self, _: &str, _: &Reader) -> Result<Restore<'a>> {
        Ok(Box::new(|| Ok(())))
    }
}

/// The result of a worker: the checksum of its weights, and the number of times that the group has formed.
type Trained = (String, u64);

/// Trains. Changes a weight in the middle if `flips` is `true`, and calls `saving` when the state is saved.
fn train(task: &Task, flips: bool, saving: impl Fn()) -> Result<Trained> {
    let strategy = task.builder()?.check_drift_every(1).build()?;
    let model = strategy.replicate(|vb| distribute::nn::linear(4, 3, vb.pp("fc")))?;
    let optimizer = Adam::new(&model.variables, 0.01)?;
    let points = Tensor::arange(0f32, 96., &Device::Cpu)?.sin()?.reshape((24, 4))?;
    let batches = strategy.distribute_dataset(Dataset::from_slices(points)?.shuffle(24, 3).batch(6))?;
    let saved = Saved(saving);
    let state = Checkpoint::new().part("strategy", &strategy).part("model", &model.variables);
    let state = state.part("optimizer", &optimizer).part("batches", &batches).part("saved", &saved);
    let training = Training::builder(state).heal_drift().patience(Duration::from_secs(20)).build()?;
    let has_flipped = Cell::new(false);
    training.run(|| {
        while batches.position().epoch < 4 {
            for batch in &batches {
                if flips && optimizer.finished_steps() == 5 && !has_flipped.replace(true) {
                    let (_, bias) = &model.variables.trainable()?[0];
                    bias.set(&bias.affine(1.0, 0.25)?)?;
                }
                strategy.run((&model, batch?), |ctx, (fc, points)| {
                    optimizer.minimize(ctx, fc.forward(&points)?.sqr()?.mean_all()?, points.dim(0)?)
                })?;
            }
        }
        Ok(())
    })?;
    Ok((model.variables.sha256()?, training.generation()))
}

/// Trains on three workers. If a variable of worker 0 drifts, its link to worker 1 breaks when worker 1 sends its
/// state.
fn trained(drifts: bool) -> Vec<Result<Trained>> {
    watched(move || {
        through_relay(3, |task, relay| {
            let has_broken = Cell::new(false);
            train(task, drifts && task.worker == 0, || {
                if task.worker == 1 && !has_broken.replace(true) {
                    relay.close();
                }
            })
        })
    })
}

// INV-42, INV-105
#[test]
fn a_worker_that_has_drifted_never_gives_its_state_to_others() {
    let undisturbed = trained(false).remove(0).unwrap();
    assert_eq!(undisturbed.1, 1);
    for healed in trained(true) {
        assert_eq!(healed.unwrap(), (undisturbed.0.clone(), 2));
    }
}
