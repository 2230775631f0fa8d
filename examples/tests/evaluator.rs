//! An evaluator under a launcher, next to two workers: it dies, is restarted, and in the end has evaluated
//! each checkpoint once.

#![allow(clippy::unwrap_used, clippy::panic)]

mod launched;

use candle_core::{Device, Tensor};
use candle_nn::{Linear, Module, linear};
use distribute::runner::{self, Datasets, Evaluator, Trainer};
use distribute::{Result, prelude::*};
use distribute_launch::{Layout, Plan};
use distribute_testing::{child, watched};
use launched::launched;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EPOCHS: usize = 3;

/// The folder of checkpoints and results.
const FOLDER: &str = "DISTRIBUTE_TEST_FOLDER";
/// The address at which the training waits until the evaluator has been restarted.
const GATE: &str = "DISTRIBUTE_TEST_GATE";

const PATIENCE: Duration = Duration::from_secs(50);

fn points() -> Dataset<Tensor> {
    let points = Tensor::arange(0f32, 64., &Device::Cpu).unwrap().sin().unwrap();
    Dataset::from_slices(points.reshape((32, 2)).unwrap()).unwrap()
}

fn loss(fc: &Linear, points: &Tensor) -> Result<(Tensor, usize)> {
    Ok((fc.forward(points)?.sqr()?.mean_all()?, points.dim(0)?))
}

/// Runs the program of all tasks. The workers do not know that there is an evaluator.
fn program(folder: &Path) -> Result<()> {
    let run = folder.join("run");
    // For the evaluator, this is a strategy of one process.
    let strategy = MultiWorkerMirroredStrategy::builder().replicas(1).build()?;
    let model = strategy.replicate(|vb| linear(2, 1, vb.pp("fc")))?;
    if Evaluator::is_this_task()? {
        return evaluate(folder, &run, &model);
    }
    assert_eq!(strategy.world().workers(), 2);
    let optimizer = Sgd::new(&model.variables, 0.1)?;
    let datasets =
        Datasets::new(|context| Ok(points().shard(context.num_input_pipelines, context.input_pipeline_id)));
    let first = strategy.world().is_chief();
    let trainer = Trainer::new(8).epochs(EPOCHS).backup(run).keep_backups(EPOCHS).on_epoch(|epoch| {
        if first && epoch.epoch + 1 == EPOCHS {
            gate(b"w").read_exact(&mut [0]).unwrap();
        }
        Ok(ControlFlow::Continue(()))
    });
    let history = runner::run(&trainer, &model, &optimizer, &datasets, |fc, points, _| loss(fc, &points))?;
    assert_eq!(history.epochs.len(), EPOCHS);
    Ok(())
}

/// Evaluates checkpoints. In its first life, the process dies in the second evaluation.
fn evaluate(folder: &Path, run: &Path, model: &Replicated<Linear>) -> Result<()> {
    let (died, mut count) = (folder.join("died"), 0);
    let batches = model.variables.strategy().distribute_dataset(points().batch(32))?;
    let evaluator = Evaluator::new(run, folder.join("results.jsonl")).patience(PATIENCE);
    evaluator.run(&Checkpoint::new().part("model", &model.variables), |_| {
        count += 1;
        if died.exists() {
            // Only this test waits for the third evaluation.
            gate(b"e");
        } else if count == 2 {
            fs::write(&died, "").unwrap();
            std::process::abort();
        }
        Ok(vec![("loss".into(), runner::evaluate(model, &batches, |fc, points| loss(fc, &points))?)])
    })?;
    Ok(())
}

fn gate(word: &[u8]) -> TcpStream {
    let mut gate = TcpStream::connect(std::env::var(GATE).unwrap()).unwrap();
    gate.set_read_timeout(Some(PATIENCE)).unwrap();
    gate.write_all(word).unwrap();
    gate
}

/// Lets the training continue after the evaluator has been restarted. Messages of later evaluations are ignored.
fn keep(gate: &TcpListener) {
    let (mut waits, mut is_there) = (None, false);
    while waits.is_none() || !is_there {
        let mut guest = gate.accept().unwrap().0;
        guest.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut word = [0];
        guest.read_exact(&mut word).unwrap();
        match &word {
            b"w" => waits = Some(guest),
            _ => is_there = true,
        }
    }
    waits.unwrap().write_all(b"!").unwrap();
}

/// Runs the program if this process is a task that the launcher started.
#[test]
fn task() {
    if child::part().is_some() {
        program(&PathBuf::from(std::env::var(FOLDER).unwrap())).unwrap();
    }
}

#[test]
fn a_restarted_evaluator_under_a_launcher_evaluates_each_checkpoint_once() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let keeper = std::thread::spawn(move || {
            keep(&listener);
            // Kept open until the end, for messages of later evaluations.
            listener
        });
        let plan = Plan::new(&Layout::new(2).with_evaluator()).unwrap();
        let printed = launched(plan, "task", "run", |launch| {
            launch.env(FOLDER, folder.path()).env(GATE, address).max_restarts(1)
        });
        drop(keeper.join().unwrap());
        assert!(folder.path().join("died").exists(), "{printed}");
        let results = fs::read_to_string(folder.path().join("results.jsonl")).unwrap();
        let results: Vec<serde_json::Value> =
            results.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let found: Vec<_> = results.iter().map(|one| (one["step"].as_u64(), one["last"].as_bool())).collect();
        assert_eq!(
            found,
            [(Some(4), Some(false)), (Some(8), Some(false)), (Some(12), Some(true))],
            "{printed}"
        );
        let losses: Vec<_> = results.iter().map(|one| one["metrics"]["loss"].as_f64().unwrap()).collect();
        assert!(losses.is_sorted_by(|a, b| a > b), "{losses:?}\n{printed}");
    });
}
