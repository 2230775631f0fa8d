//! Tests of the peak of a worker's memory, with one large variable as the model.
//!
//! `DISTRIBUTE_TEST_MEMORY=264 cargo test -p distribute --test clusters memory:: -- --nocapture` prints peaks for a
//! variable of 264 MiB, and for more kinds of workers.

use candle_core::{DType, Device, Tensor};
use candle_nn::{Module, VarBuilder};
use distribute::cluster::resolver::SimpleClusterResolver;
use distribute::cluster::{ClusterSpec, Job};
use distribute::{Result, nn, prelude::*};
use distribute_net::SharedMemory;
use distribute_optim::Rule;
use distribute_testing::{Port, child, watched_for};
use serde::{Deserialize, Serialize};
use std::time::Duration;

const STEPS: usize = 3;
const COLUMNS: usize = 1024;

/// The size of the variable in MiB. It is larger than the messages whose memory is kept for reuse.
const SIZE: usize = 132;

/// The memory of messages that may be kept for each other worker, in MiB. With two workers, all messages are larger.
const KEPT: usize = 64;

/// The memory that does not grow with the variable, in MiB.
const REST: f64 = 32.;

/// The settings of a worker's training.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Training {
    workers: usize,
    shares_memory: bool,
    /// Whether the layer is candle_nn's, for which candle creates a tensor with the gradient.
    is_stock: bool,
    /// Whether Adam's state is sharded; `None` if the rule is SGD.
    adam: Option<bool>,
    /// The size of the variable in MiB.
    size: usize,
}

/// The task of a worker's process.
#[derive(Serialize, Deserialize)]
struct Task {
    worker: usize,
    addresses: Vec<String>,
    training: Training,
}

/// Returns a field of `/proc/self/status`, in MiB.
fn status(field: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<f64>().unwrap() / 1024.
}

/// Trains a worker's model.
fn train(task: &Task) -> Result<()> {
    let Training { shares_memory, is_stock, adam, size, .. } = task.training;
    let cluster: ClusterSpec = format!("{{\"worker\": {:?}}}", task.addresses).parse()?;
    let resolver = SimpleClusterResolver::new(cluster).with_task(Job::Worker.task(task.worker));
    let shared = if shares_memory { SharedMemory::Auto } else { SharedMemory::Never };
    let builder = MultiWorkerMirroredStrategy::builder().cluster_resolver(resolver);
    let strategy = builder.shared_memory(shared).build()?;
    let rows = (size << 20) / size_of::<f32>() / COLUMNS;
    let model: Replicated<Box<dyn Module + Send + Sync>> = strategy.replicate(move |vb: VarBuilder| {
        Ok::<Box<dyn Module + Send + Sync>, candle_core::Error>(if is_stock {
            Box::new(candle_nn::linear_no_bias(COLUMNS, rows, vb)?)
        } else {
            Box::new(nn::linear_no_bias(COLUMNS, rows, vb)?)
        })
    })?;
    match adam {
        None => steps(&strategy, &model, &Sgd::new(&model.variables, 0.1)?),
        Some(false) => steps(&strategy, &model, &Adam::new(&model.variables, 0.1)?),
        Some(true) => steps(&strategy, &model, &Adam::new(&model.variables, 0.1)?.shard_state()?),
    }
}

fn steps<R: Rule>(
    strategy: &Strategy,
    model: &Replicated<Box<dyn Module + Send + Sync>>,
    optimizer: &Optimizer<R>,
) -> Result<()> {
    for _ in 0..STEPS {
        strategy.run(model, |ctx, model| {
            let x = Tensor::ones((1, COLUMNS), DType::F32, &Device::Cpu)?;
            optimizer.minimize(ctx, model.forward(&x)?.sqr()?.mean_all()?, 1)
        })?;
    }
    Ok(())
}

/// Returns the memory between steps and the peak of each worker, in MiB.
fn memory(training: Training) -> Vec<[f64; 2]> {
    let port = Port::reserve();
    let address = |rank: usize| format!("127.0.0.1:{}", if rank == 0 { port.number() } else { 0 });
    let addresses: Vec<_> = (0..training.workers).map(address).collect();
    let command = |worker| {
        let task = Task { worker, addresses: addresses.clone(), training };
        child::command(TEST, &serde_json::to_string(&task).unwrap())
    };
    std::thread::scope(|scope| {
        let start = |worker| {
            let command = command(worker);
            scope.spawn(move || child::output(command, Duration::from_secs(120)).0)
        };
        let all: Vec<_> = (0..training.workers).map(start).collect();
        let read = |out: String| {
            let (_, figures) = out.lines().find_map(|line| line.split_once("MiB: ")).unwrap();
            serde_json::from_str(figures).unwrap()
        };
        all.into_iter().map(|worker| read(worker.join().unwrap())).collect()
    })
}

const TEST: &str = "memory::a_step_needs_its_variable_its_gradient_and_another";

// INV-108
#[test]
fn a_step_needs_its_variable_its_gradient_and_another() {
    if let Some(part) = child::part() {
        train(&serde_json::from_str(&part).unwrap()).unwrap();
        return println!("MiB: {:?}", ["VmRSS:", "VmHWM:"].map(status));
    }
    let Some(size) = std::env::var("DISTRIBUTE_TEST_MEMORY").ok() else {
        return watched_for(Duration::from_secs(250), || {
            for (workers, shares_memory) in [(2, false), (2, true), (3, true)] {
                let training = Training { workers, shares_memory, is_stock: false, adam: None, size: SIZE };
                let memory = memory(training);
                println!("{training:?}: {memory:.0?}");
                check(training, &memory);
            }
        });
    };
    let size = size.parse().unwrap();
    watched_for(Duration::from_secs(1200), move || {
        let mut all = Vec::new();
        for (workers, is_stock) in [(2, false), (3, false), (2, true)] {
            for shares_memory in [false, true] {
                all.push(Training { workers, shares_memory, is_stock, adam: None, size });
            }
        }
        for workers in 1..=4 {
            for is_sharded in [false, true] {
                let adam = Some(is_sharded);
                all.push(Training { workers, shares_memory: true, is_stock: false, adam, size: 64 });
            }
        }
        for training in all {
            let memory = memory(training);
            println!("{training:?}: {memory:.0?}");
            if !training.is_stock && training.adam.is_none() && size >= 2 * SIZE {
                check(training, &memory);
            }
        }
    });
}

/// Checks that the peaks of all workers are below the limit.
fn check(training: Training, memory: &[[f64; 2]]) {
    let kept = if training.workers > 2 { (training.workers - 1) * KEPT } else { 0 };
    let most = 3.5 * training.size as f64 + kept as f64 + REST;
    assert!(memory.iter().all(|[_, peak]| *peak < most), "more than {most} MiB: {training:?}: {memory:?}");
}
