//! Checks that `runner::run` with a lost worker has the same history as a training without a failure, bit for bit.

use crate::recovery::in_parent;
use crate::recovery::job::{Job, WORKERS};
use crate::recovery::program::{At, Place, Task};
use crate::recovery::threads::train;
use crate::recovery::worker;
use candle_core::{Device, Tensor};
use candle_nn::{Module, linear};
use distribute::Result;
use distribute::prelude::*;
use distribute::runner::{self, Datasets, Phase, ReduceOnPlateau, Trainer};
use distribute_testing::{child, watched};
use rustix::process::Signal;
use std::time::Duration;

const WORKER: &str = "recovery::runner::a_worker_in_a_separate_process";

/// Runs a worker in a process that another test starts. This is not a test itself.
#[test]
fn a_worker_in_a_separate_process() {
    if let Some(part) = child::part() {
        worker::live(&part, |task, at| Ok(printed(&program(task, at)?)));
    }
}

fn printed(outcome: &Outcome) -> String {
    format!("trained {outcome:?}")
}

/// The steps, the bits of both losses and the rate of each epoch, and the checksum of the weights.
type Outcome = (Vec<(usize, u64, Option<u64>, u64)>, String);

fn points(count: usize) -> Dataset<Tensor> {
    let points = Tensor::arange(0f32, count as f32 * 2., &Device::Cpu).unwrap().sin().unwrap();
    Dataset::from_slices(points.reshape((count, 2)).unwrap()).unwrap()
}

/// Runs three epochs of four steps, with validations of the averaged weights. The rate is halved after the second and
/// third epoch.
fn program(task: &Task, at: &At) -> Result<Outcome> {
    let strategy = task.builder()?.build()?;
    let model = strategy.replicate(|vb| linear(2, 1, vb.pp("fc")))?;
    let optimizer = Adam::new(&model.variables, 0.05)?.with_ema(0.75)?;
    let of = |count: usize| {
        move |context: distribute::data::InputContext| {
            Ok(points(count).shard(context.num_input_pipelines, context.input_pipeline_id).shuffle(count, 3))
        }
    };
    let datasets = Datasets::new(of(48)).validation(of(20));
    at(Place::Setup)?;
    let trainer = Trainer::new(12).epochs(3).recover(Duration::from_secs(60)).validate_ema();
    let trainer = trainer.callback(ReduceOnPlateau::new(0.5, 1).min_delta(100.)).without_progress();
    let trainer =
        trainer.on_step(|step| if (step.epoch, step.step) == (1, 2) { at(Place::Made) } else { Ok(()) });
    let trainer = trainer.on_epoch(|epoch| {
        if epoch.epoch == 1 {
            at(Place::AtEnd)?;
        }
        Ok(std::ops::ControlFlow::Continue(()))
    });
    let history = runner::run(&trainer, &model, &optimizer, &datasets, |fc, points, phase| {
        match (optimizer.finished_steps(), phase) {
            (0, Phase::Training) => at(Place::First)?,
            (5, Phase::Training) => at(Place::InStep)?,
            // A validation that has only begun.
            (8, Phase::Validation) => at(Place::Between)?,
            _ => {}
        }
        Ok((fc.forward(&points)?.sqr()?.mean_all()?, points.dim(0)?))
    })?;
    let epochs = history.epochs.iter().map(|epoch| {
        let validation_loss = epoch.validation_loss.map(f64::to_bits);
        (epoch.steps, epoch.loss.to_bits(), validation_loss, epoch.learning_rate.to_bits())
    });
    Ok((epochs.collect(), model.variables.sha256()?))
}

// GNN-4, INV-42, INV-66
#[test]
fn gnn_4_a_training_in_one_call_has_the_same_history_when_a_worker_is_lost() {
    watched(|| {
        let undisturbed = train(2, 1, None, program);
        let rates: Vec<f64> = undisturbed[0].0.iter().map(|epoch| f64::from_bits(epoch.3)).collect();
        assert_eq!(rates, [0.05, 0.05, 0.025]);
        for place in [Place::First, Place::InStep, Place::Made, Place::Between, Place::AtEnd] {
            for worker in 0..2 {
                let disturbed = train(2, 1, Some((worker, place)), program);
                assert_eq!(disturbed, undisturbed, "worker {worker}, {place:?}");
            }
        }
    });
}

// GNN-4, INV-42, INV-66
#[test]
fn gnn_4_a_training_of_processes_with_one_killed_has_the_same_history() {
    in_parent(|| {
        let undisturbed = printed(&train(WORKERS, 1, None, program)[0]);
        for (killed, place) in [(0, Place::InStep), (2, Place::Between)] {
            let mut job = Job::new(WORKER);
            job.start_all(Some((killed, place)));
            job.wait_for_line(killed, &format!("at {place:?}"), Duration::ZERO);
            job.signal(killed, Signal::KILL);
            job.wait_for_exit(killed);
            let restarted = job.now();
            job.start(killed, None);
            for worker in 0..WORKERS {
                let since = if worker == killed { restarted } else { Duration::ZERO };
                let line = job.wait_for_line(worker, "trained ", since).line;
                assert_eq!(line, undisturbed, "worker {worker}, {place:?} of worker {killed}");
            }
        }
    });
}
