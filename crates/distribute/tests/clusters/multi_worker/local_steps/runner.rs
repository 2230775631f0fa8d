//! A complete training run in one call, whose workers train alone.

use super::{DILOCO, bits, local, model, on, weights};
use candle_core::{Device, Module, Tensor};
use distribute::data::Dataset;
use distribute::runner::{self, Callback, CallbackContext, Datasets, Step, Trainer};
use distribute::strategy::LocalSteps;
use distribute::{Adam, Error, Result, Strategy};
use distribute_testing::watched;
use std::path::Path;

/// The bits of an epoch's losses: of the training, and of the validation if there is one.
type Losses = (u64, Option<u64>);

/// A callback that ends the run with an error after the given epoch and step.
struct Ends(Option<(usize, usize)>);

impl Callback for Ends {
    fn on_step(&self, _: &CallbackContext<'_>, step: &Step) -> Result<()> {
        if self.0 == Some((step.epoch, step.step)) { Err(Error::other("killed")) } else { Ok(()) }
    }
}

/// Trains, and returns the bits of each epoch's losses and of the weights. An epoch has seven steps, of which the last
/// has three rows.
fn train(
    strategy: &Strategy,
    folder: Option<&Path>,
    ends: Option<(usize, usize)>,
) -> Result<(Vec<Losses>, Vec<u32>)> {
    let model = model(strategy)?;
    let optimizer = Adam::new(&model.variables, 0.01)?;
    let rows = Dataset::from_slices(Tensor::arange(0f32, 255., &Device::Cpu)?.sin()?.reshape((51, 5))?)?;
    let datasets = Datasets::new(move |context| {
        Ok(rows.shard(context.num_input_pipelines, context.input_pipeline_id).shuffle(51, 7))
    });
    let validation = Dataset::from_slices(Tensor::arange(0f32, 50., &Device::Cpu)?.cos()?.reshape((10, 5))?)?;
    let datasets = datasets.validation(move |context| {
        Ok(validation.shard(context.num_input_pipelines, context.input_pipeline_id))
    });
    let mut trainer = Trainer::new(8).epochs(3).callback(Ends(ends));
    if let Some(folder) = folder {
        trainer = trainer.backup(folder).backup_every(2);
    }
    let history = runner::run(&trainer, &model, &optimizer, &datasets, |(a, b), x, _| {
        let n = x.dim(0)?;
        Ok(((b.forward(&a.forward(&x)?.tanh()?)? - &x)?.sqr()?.mean_all()?, n))
    })?;
    let losses = |epoch: &runner::Epoch| (epoch.loss.to_bits(), epoch.validation_loss.map(f64::to_bits));
    Ok((history.epochs.iter().map(losses).collect(), bits(&weights(&model)?)))
}

fn of() -> LocalSteps {
    local(3, DILOCO)
}

// INV-66, INV-98
#[test]
fn losses_are_those_of_all_workers_and_a_resumed_training_has_the_same() {
    watched(|| {
        for world in [(2, 1), (2, 2)] {
            let folder = tempfile::tempdir().unwrap();
            let undisturbed = on(world, of(), |strategy| train(strategy, None, None));
            assert!(undisturbed[0] == undisturbed[1], "{world:?}");
            assert!(undisturbed[0].0[2].0 < undisturbed[0].0[0].0);
            // Outer steps follow after the third and sixth step of an epoch, and at its end. The last backup is that
            // of the third step of the second epoch, although every second step asks for one.
            let (folder, ends) = (folder.path(), (1, 4));
            on(world, of(), |strategy| Ok(train(strategy, Some(folder), Some(ends)).unwrap_err()));
            let resumed = on(world, of(), |strategy| train(strategy, Some(folder), None));
            assert!(resumed == undisturbed, "{world:?}");
        }
    });
}
