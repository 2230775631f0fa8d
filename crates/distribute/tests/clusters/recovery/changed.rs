//! Data that is corrupted on a link: the group re-forms and repeats the step.

use crate::recovery::program::Task;
use crate::recovery::relay::through_relay;
use candle_core::{Device, Tensor};
use candle_nn::Module;
use distribute::cluster::Fault;
use distribute::strategy::{Checksums, Compression, LocalSteps, MultiWorkerMirroredStrategyBuilder, Outer};
use distribute::{Error, Result, prelude::*};
use distribute_testing::watched;
use std::cell::Cell;
use std::time::Duration;

/// The result of a worker: the checksum of its weights, and the faults after which it continued.
type Trained = (String, Vec<Option<Fault>>);

/// The options of a strategy that a test sets.
type Set = fn(MultiWorkerMirroredStrategyBuilder) -> MultiWorkerMirroredStrategyBuilder;

/// Trains, and calls `disturb` once in the middle.
fn train(task: &Task, set: Set, disturb: impl Fn()) -> Result<Trained> {
    let strategy = set(task.builder()?).checksums(Checksums::Always).build()?;
    let model = strategy.replicate(|vb| distribute::nn::linear(64, 300, vb.pp("fc")))?;
    let optimizer = Adam::new(&model.variables, 0.01)?;
    let points = Tensor::arange(0f32, 24. * 64., &Device::Cpu)?.sin()?.reshape((24, 64))?;
    let batches = strategy.distribute_dataset(Dataset::from_slices(points)?.shuffle(24, 3).batch(6))?;
    let state = Checkpoint::new().part("strategy", &strategy).part("model", &model.variables);
    let state = state.part("optimizer", &optimizer).part("batches", &batches);
    let training = Training::builder(state).patience(Duration::from_secs(20)).build()?;
    let (mut faults, is_disturbed) = (Vec::new(), Cell::new(false));
    let attempt = || {
        while batches.position().epoch < 4 {
            for batch in &batches {
                if optimizer.finished_steps() == 5 && !is_disturbed.replace(true) {
                    disturb();
                }
                strategy.run((&model, batch?), |ctx, (fc, points)| {
                    optimizer.minimize(ctx, fc.forward(&points)?.sqr()?.mean_all()?, points.dim(0)?)
                })?;
            }
        }
        optimizer.finish_local_steps()?;
        training.end()
    };
    while let Err(error) = attempt() {
        faults.push(error.blame().map(|blame| blame.fault));
        training.recover(error)?;
    }
    Ok((model.variables.sha256()?, faults))
}

/// Trains on two workers in lock step, and flips a bit in each of `flips` messages from the sixth step on.
fn trained(flips: usize) -> Vec<Result<Trained>> {
    trained_with(|builder| builder, flips)
}

/// Acts like [`trained`], with options of the strategy.
fn trained_with(set: Set, flips: usize) -> Vec<Result<Trained>> {
    watched(move || {
        through_relay(2, |task, relay| {
            let disturb = || {
                if task.worker == 0 {
                    relay.flip_bits(flips);
                }
            };
            train(task, set, disturb)
        })
    })
}

// INV-42, INV-104
#[test]
fn a_step_whose_data_has_changed_is_repeated() {
    let undisturbed = trained(0).remove(0).unwrap();
    assert!(undisturbed.1.is_empty());
    for disturbed in trained(1) {
        assert_eq!(disturbed.unwrap(), (undisturbed.0.clone(), vec![Some(Fault::Corrupted)]));
    }
}

// INV-104
#[test]
fn a_link_that_changes_data_again_and_again_is_an_error() {
    for result in trained(usize::MAX) {
        let error = result.unwrap_err();
        assert!(matches!(error.root_cause(), Error::Collective(_)), "{error}");
        assert_eq!(error.blame().map(|blame| blame.fault), Some(Fault::Corrupted), "{error}");
        assert!(error.to_string().contains("Suspect the memory or the network card"), "{error}");
    }
}

// INV-42, INV-94, INV-104
#[test]
fn an_outer_step_whose_compressed_data_has_changed_is_repeated_with_the_residuals_before_it() {
    // The only large messages are packets of 19,200 weights. The sixth step ends with an outer step.
    fn set(builder: MultiWorkerMirroredStrategyBuilder) -> MultiWorkerMirroredStrategyBuilder {
        let outer = Outer::Nesterov { learning_rate: 0.7, momentum: 0.9 };
        builder.local_steps(LocalSteps { steps: 3, outer }).compression(Compression::EightBits)
    }
    let undisturbed = trained_with(set, 0).remove(0).unwrap();
    assert!(undisturbed.1.is_empty());
    for disturbed in trained_with(set, 1) {
        assert_eq!(disturbed.unwrap(), (undisturbed.0.clone(), vec![Some(Fault::Corrupted)]));
    }
}
