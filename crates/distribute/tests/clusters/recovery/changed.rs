//! Data that is corrupted on a link: the group re-forms and repeats the step.

use crate::recovery::program::Task;
use crate::recovery::relay::through_relay;
use candle_core::{Device, Tensor};
use candle_nn::{Module, VarBuilder};
use distribute::cluster::Fault;
use distribute::nn::Linear;
use distribute::optimizer::rules::Rule;
use distribute::strategy::{Checksums, Compression, LocalSteps, MultiWorkerMirroredStrategyBuilder, Outer};
use distribute::{Error, Optimizer, Result, Variables, prelude::*};
use distribute_testing::watched;
use std::cell::Cell;
use std::time::Duration;

/// The result of a worker: the checksum of its weights, and the faults after which it continued.
type Trained = (String, Vec<Option<Fault>>);

/// The result of a worker, with the number of finished steps at each fault.
type Failed = (String, Vec<(u64, Option<Fault>)>);

/// The options of a strategy that a test sets.
type Set = fn(MultiWorkerMirroredStrategyBuilder) -> MultiWorkerMirroredStrategyBuilder;

/// Trains a layer with Adam. See [`train_layer`].
fn train(task: &Task, set: Set, disturb: impl Fn()) -> Result<Trained> {
    let layer = |vb: VarBuilder| distribute::nn::linear(64, 300, vb.pp("fc"));
    let (weights, faults) = train_layer(task, set, layer, |all| Adam::new(all, 0.01), disturb)?;
    Ok((weights, faults.into_iter().map(|(_, fault)| fault).collect()))
}

/// Trains a layer, and calls `disturb` once in the middle.
fn train_layer<R: Rule>(
    task: &Task,
    set: Set,
    layer: fn(VarBuilder) -> candle_core::Result<Linear>,
    optimizer: impl Fn(&Variables) -> Result<Optimizer<R>>,
    disturb: impl Fn(),
) -> Result<Failed> {
    let strategy = set(task.builder()?).checksums(Checksums::Always).build()?;
    let model = strategy.replicate(layer)?;
    let optimizer = optimizer(&model.variables)?;
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
        faults.push((optimizer.finished_steps(), error.blame().map(|blame| blame.fault)));
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

// INV-42, INV-94
#[test]
fn a_worker_keeps_the_residuals_of_an_outer_step_that_only_the_other_has_completed() {
    // The packets of 76,800 weights are the last messages of an outer step.
    const PACKET: usize = 76_800;
    fn set(builder: MultiWorkerMirroredStrategyBuilder) -> MultiWorkerMirroredStrategyBuilder {
        let outer = Outer::Nesterov { learning_rate: 0.7, momentum: 0.9 };
        builder.local_steps(LocalSteps { steps: 3, outer }).compression(Compression::EightBits)
    }
    // Without slots, which a worker gets from the other one.
    fn trained(disturbs: bool) -> Vec<Failed> {
        through_relay(2, |task, relay| {
            let disturb = || {
                if task.worker == 0 && disturbs {
                    // Worker 1 has sent its packet before it finds that the other one has changed.
                    relay.flip_after_answer(PACKET);
                }
            };
            let layer = |vb: VarBuilder| distribute::nn::linear_no_bias(64, 1200, vb.pp("fc"));
            train_layer(task, set, layer, |all| Sgd::new(all, 0.1), disturb).unwrap()
        })
    }
    watched(|| {
        let undisturbed = trained(false).remove(0);
        assert!(undisturbed.1.is_empty());
        // Rarely, worker 0 learns of the failure before it has read the packet, and both make the step again.
        let mut attempts = (0..5).map(|_| trained(true));
        let one_has_completed = attempts.any(|all| {
            let finished: Vec<_> =
                all.iter().map(|(_, failures)| failures.first().map(|one| one.0)).collect();
            assert!(all.iter().all(|one| one.0 == undisturbed.0), "{all:?}");
            finished == [Some(6), Some(5)]
        });
        assert!(one_has_completed);
    });
}
