//! Workers that each run the entire program, as processes under a launcher: one is killed in the middle of a
//! step and restarted.

#![allow(clippy::unwrap_used, clippy::panic)]

mod launched;

use candle_core::{Device, Tensor};
use candle_nn::{Module, linear};
use distribute::between_graph::{self, AsyncWorkerStrategy};
use distribute::cluster::Job;
use distribute::cluster::resolver::TfConfigClusterResolver;
use distribute::optimizer::Adagrad;
use distribute::{Result, prelude::*};
use distribute_launch::{Layout, Plan};
use distribute_testing::{child, watched};
use launched::launched;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The folder to which workers write their results.
const FOLDER: &str = "DISTRIBUTE_TEST_FOLDER";
/// The variable with the number of the worker that dies.
const DIES: &str = "DISTRIBUTE_TEST_DIES";

const TOTAL: i64 = 200;
const PATIENCE: Duration = Duration::from_secs(40);

/// Runs the program of one task.
fn program(folder: &Path, dies: usize) -> Result<()> {
    // PSV1-1: the cluster is that of TF_CONFIG.
    if between_graph::serve(&TfConfigClusterResolver::from_env()?)?.has_served() {
        return Ok(());
    }
    let strategy = AsyncWorkerStrategy::new(0)?;
    let (died, back) = (folder.join("died"), folder.join("back"));
    let (dies, is_back) =
        (strategy.worker() == dies && !died.exists(), strategy.worker() == dies && died.exists());
    let model = strategy.replicate(|vb| linear(1, 1, vb.pp("fc")))?;
    let optimizer = Adagrad::new(&model.variables, 0.3)?;
    let steps = strategy.global_step()?;
    strategy.ready(PATIENCE)?;

    let batches = strategy.distribute_datasets_from_function(|context| {
        let mine = Dataset::range(64).shard(context.num_input_pipelines, context.input_pipeline_id);
        Ok(mine.shuffle(64, 7).repeat_forever().batch(context.get_per_replica_batch_size(8)?))
    })?;
    let (mut last, first) = (f32::NAN, steps.read::<i64>()?);
    for batch in &batches {
        let losses = strategy.run((&model, batch?), |ctx, (fc, ids): (_, HostTensor)| {
            let ids: Vec<f32> = ids.to_vec::<i64>()?.iter().map(|id| *id as f32 / 64.).collect();
            let x = Tensor::from_vec(ids.clone(), (ids.len(), 1), &Device::Cpu)?;
            let y = ((&x * 3.)? + 1.)?;
            let loss = (fc.forward(&x)? - y)?.sqr()?.mean_all()?;
            // Between the computation and the update.
            if dies && ctx.step() == 10 {
                fs::write(&died, "").unwrap();
                std::process::abort();
            }
            let loss = optimizer.minimize(ctx, loss, ids.len())?;
            steps.assign_add(1i64)?;
            Ok(loss)
        })?;
        last = losses.to_scalar::<f32>()?;
        if is_back && !back.exists() {
            fs::write(&back, first.to_string()).unwrap();
        }
        // All continue until the worker that died has restarted.
        if steps.read::<i64>()? >= TOTAL && back.exists() {
            break;
        }
    }
    if strategy.is_chief() {
        let weight = model.variables.get("fc.weight")?.flatten_all()?.to_vec1::<f32>()?[0];
        fs::write(folder.join("result"), format!("{last} {weight} {}", steps.read::<i64>()?)).unwrap();
    }
    strategy.finish(PATIENCE)
}

/// Runs the program if this process is a task that the launcher started.
#[test]
fn task() {
    if child::part().is_some() {
        let dies = std::env::var(DIES).unwrap().parse().unwrap();
        program(&PathBuf::from(std::env::var(FOLDER).unwrap()), dies)
            .unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Trains under a launcher, and checks the result. `dies` is the number of the worker that dies, counted from the
/// chief.
fn train(layout: Layout, dies: usize) {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan::new(&layout).unwrap();
    let workers = plan.tasks().iter().filter(|task| task.task.job != Job::Ps).count();
    let printed = launched(plan, "task", "train", |launch| {
        let launch = launch.env(FOLDER, folder.path()).env(DIES, dies.to_string());
        launch.max_restarts(1).backoff(Duration::from_millis(50))
    });
    let back: i64 = fs::read_to_string(folder.path().join("back")).unwrap().parse().unwrap();
    assert!(back >= 1, "it went on where the others were, not at the beginning: {back}\n{printed}");
    let result = fs::read_to_string(folder.path().join("result")).unwrap();
    let numbers: Vec<f64> = result.split(' ').map(|number| number.parse().unwrap()).collect();
    let [loss, weight, steps] = numbers[..] else { panic!("{result}") };
    assert!(loss < 0.05 && (weight - 3.).abs() < 1., "{result}\n{printed}");
    assert!(steps >= TOTAL as f64, "{workers} workers: {result}\n{printed}");
}

// PSV1-1, PSV1-3, PSV1-4, INV-63
#[test]
fn a_killed_worker_restarts_and_all_finish() {
    watched(|| train(Layout::new(2).ps(2), 1));
}

// INV-63
#[test]
fn the_chief_may_be_killed_and_finds_its_variables() {
    watched(|| train(Layout::new(2).ps(2), 0));
}

// CL-3
#[test]
fn a_separate_chief_trains_as_an_additional_worker() {
    watched(|| train(Layout::new(1).with_chief().ps(1), 1));
}
