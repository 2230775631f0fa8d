//! The benchmark's work in burn, with its stock layers and optimizer: on one thread, or with matrix products on
//! several. The options are those of the Python scripts: with `--list`, the program prints its figures; with
//! `--serve`, it measures a round per request; by default, it measures several rounds. The formulas are those of
//! common.py.

use burn::nn::loss::{BinaryCrossEntropyLossConfig, CrossEntropyLossConfig};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::prelude::*;
use burn::tensor::activation::relu;
use burn::module::Param;
use serde_json::json;
use std::io::BufRead;
use std::process::{Command, Stdio};
use std::time::Instant;

// As in burn's own benchmarks of allocation: without it, glibc returns each large block to the kernel.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const VERSION: &str = "0.22.1";
const ROWS: usize = 100_000;
const BATCHES: usize = 16;
const LOSS_STEPS: usize = 50;

fn noise(stream: u32, i: usize) -> u32 {
    let mut x = (i as u32).wrapping_add(stream.wrapping_mul(0x9E37_79B9));
    x ^= x >> 16;
    x = x.wrapping_mul(0x7FEB_352D);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846C_A68B);
    (x ^ (x >> 16)) >> 8
}

fn unit(stream: u32, i: usize) -> f32 {
    noise(stream, i) as f32 * (-24f32).exp2()
}

/// Creates a layer with the formula's weights. burn stores weights as (in, out), the transpose of the formula's.
fn layer(k: u32, width: usize, height: usize, device: &Device) -> Linear {
    let scale = (1. / (width as f64).sqrt()) as f32;
    let draw = |stream, i| (unit(stream, i) * 2. - 1.) * scale;
    let weight = (0..width * height).map(|i| draw(2 * k, (i % height) * width + i / height)).collect();
    let bias = (0..height).map(|i| draw(2 * k + 1, i)).collect::<Vec<f32>>();
    let mut linear = LinearConfig::new(width, height).init(device);
    linear.weight = Param::from_tensor(floats(weight, [width, height], device));
    linear.bias = Some(Param::from_tensor(floats(bias, [height], device)));
    linear
}

fn floats<const D: usize>(values: Vec<f32>, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), device)
}

fn ints<const D: usize>(values: Vec<i64>, shape: [usize; D], device: &Device) -> Tensor<D, Int> {
    Tensor::from_data(TensorData::new(values, shape), device)
}

#[derive(Module, Debug)]
struct Mlp {
    layers: Vec<Linear>,
}

#[derive(Module, Debug)]
struct Recommender {
    table: Embedding,
    hidden: Linear,
    out: Linear,
}

/// Returns a function that makes step n and returns its loss, which may be read later.
fn training(work: &str, rate: f64) -> Box<dyn FnMut(usize) -> Tensor<1>> {
    // Inputs need no gradients; parameters do, on the same device with autodiff.
    let device = Device::flex().autodiff();
    let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    if work == "mlp" {
        let shapes = [(784, 512), (512, 256), (256, 10)];
        let layers = (0..).zip(shapes).map(|(k, (i, o))| layer(k, i, o, &device)).collect();
        let mut model = Some(Mlp { layers });
        let criterion = CrossEntropyLossConfig::new().init(&device);
        let batches: Vec<_> = (0..BATCHES as u32)
            .map(|b| {
                let labels: Vec<_> = (0..128).map(|i| (noise(200 + b, i) % 10) as i64).collect();
                let mut images: Vec<_> = (0..128 * 784).map(|i| unit(100 + b, i)).collect();
                for (image, label) in images.chunks_mut(784).zip(&labels) {
                    image[*label as usize * 10..][..10].iter_mut().for_each(|pixel| *pixel += 1.);
                }
                (floats(images, [128, 784], &device), ints(labels, [128], &device))
            })
            .collect();
        Box::new(move |n| {
            let current = model.take().expect("put back below");
            let (images, labels) = &batches[n % BATCHES];
            let [a, b, c] = &current.layers[..] else { unreachable!("three layers") };
            let logits = c.forward(relu(b.forward(relu(a.forward(images.clone())))));
            let loss = criterion.forward(logits, labels.clone());
            let gradients = GradientsParams::from_grads(loss.backward(), &current);
            model = Some(optimizer.step(rate, current, gradients));
            loss
        })
    } else {
        let mut table = EmbeddingConfig::new(ROWS, 32).init(&device);
        let values = (0..ROWS * 32).map(|i| unit(10, i) - 0.5).collect();
        table.weight = Param::from_tensor(floats(values, [ROWS, 32], &device));
        let (hidden, out) = (layer(0, 256, 128, &device), layer(1, 128, 1, &device));
        let mut model = Some(Recommender { table, hidden, out });
        let criterion = BinaryCrossEntropyLossConfig::new().with_logits(true).init(&device);
        let batches: Vec<_> = (0..BATCHES as u32)
            .map(|b| {
                let ids: Vec<_> = (0..1024 * 8).map(|i| (noise(300 + b, i) as usize % ROWS) as i64).collect();
                let targets = ids.iter().step_by(8).map(|id| i64::from(*id < ROWS as i64 / 2)).collect();
                (ints(ids, [1024, 8], &device), ints(targets, [1024, 1], &device))
            })
            .collect();
        Box::new(move |n| {
            let current = model.take().expect("put back below");
            let (ids, targets) = &batches[n % BATCHES];
            let rows = current.table.forward(ids.clone()).reshape([1024, 256]);
            let logits = current.out.forward(relu(current.hidden.forward(rows)));
            let loss = criterion.forward(logits, targets.clone());
            let gradients = GradientsParams::from_grads(loss.backward(), &current);
            model = Some(optimizer.step(rate, current, gradients));
            loss
        })
    }
}

fn scalar(loss: Tensor<1>) -> f64 {
    f64::from(loss.into_scalar::<f32>())
}

/// A figure that burn can measure in one configuration.
struct Entry {
    figure: String,
    unit: &'static str,
    peer: String,
    threads: usize,
    work: &'static str,
}

fn entries(threads: usize) -> Vec<Entry> {
    let mut all = Vec::new();
    let several = format!("burn, {threads} threads");
    for work in ["mlp", "recommender"] {
        let mut add = |figure: String, unit, peer: &str, threads| {
            all.push(Entry { figure, unit, peer: peer.into(), threads, work });
        };
        add(format!("{work}_1_replicas"), "steps/s", "burn, 1 thread", 1);
        add(format!("{work}_2_replicas"), "steps/s", &several, threads);
        add(format!("memory_{work}"), "MiB", &several, threads);
        add(format!("losses_{work}"), "", &several, threads);
    }
    all.push(Entry { figure: "start_to_first_step".into(), unit: "ms", peer: several, threads, work: "mlp" });
    all
}

type Step = Box<dyn FnMut(usize) -> Tensor<1>>;

/// Returns the mean seconds per step over `calls` steps. The time ends when the last loss has been read.
fn time(step: &mut Step, done: &mut usize, calls: usize) -> f64 {
    let start = Instant::now();
    for n in *done..*done + calls {
        let loss = step(n);
        if n + 1 == *done + calls {
            scalar(loss);
        }
    }
    *done += calls;
    start.elapsed().as_secs_f64() / calls as f64
}

/// Measures one round. Returns the value in the entry's unit and, for losses, the loss of each step.
fn round(entry: &Entry, seconds: f64, kept: &mut Option<(Step, usize, f64)>) -> (f64, Vec<f64>) {
    match entry.unit {
        "" => {
            let mut step = training(entry.work, if entry.work == "mlp" { 0.1 } else { 1. });
            let losses: Vec<f64> = (0..LOSS_STEPS).map(|n| scalar(step(n))).collect();
            (losses[LOSS_STEPS - 1], losses)
        }
        "MiB" | "ms" => {
            let start = Instant::now();
            let me = std::env::current_exe().expect("the path of this program");
            let mut child = Command::new(me)
                .args(["--only", &entry.figure, "--peer", &entry.peer, "--once"])
                .env("RAYON_NUM_THREADS", entry.threads.to_string())
                .stdout(Stdio::piped())
                .spawn()
                .expect("starts");
            let mut line = String::new();
            std::io::BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
            let first = start.elapsed().as_secs_f64() * 1e3;
            child.wait().expect("ends");
            (if entry.unit == "ms" { first } else { line.trim().parse().expect("a number") }, Vec::new())
        }
        _ => {
            let (step, done, each) = kept.get_or_insert_with(|| {
                let mut step = training(entry.work, 0.01);
                let mut done = 0;
                let each = time(&mut step, &mut done, 5);
                let each = time(&mut step, &mut done, (seconds / 2. / each) as usize + 1);
                (step, done, each)
            });
            *each = time(step, done, (seconds / *each) as usize + 1);
            (1. / *each, Vec::new())
        }
    }
}

fn peak() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("VmHWM");
    line.split_whitespace().nth(1).expect("kB").parse::<f64>().expect("a number") / 1024.
}

fn main() {
    let given: Vec<String> = std::env::args().collect();
    let has = |name: &str| given.iter().any(|a| a == name);
    let value = |name: &str| given.iter().position(|a| a == name).and_then(|at| given.get(at + 1)).cloned();
    let number = |name: &str, default: f64| value(name).map_or(default, |v| v.parse().expect("a number"));
    let threads = number("--threads", 2.) as usize;
    let (only, peer) = (value("--only"), value("--peer"));
    let chosen: Vec<_> = entries(threads)
        .into_iter()
        .filter(|e| only.as_ref().is_none_or(|o| *o == e.figure) && peer.as_ref().is_none_or(|p| *p == e.peer))
        .collect();
    if has("--list") {
        for e in &chosen {
            println!("{}", json!({"figure": e.figure, "unit": e.unit, "peer": e.peer}));
        }
        return;
    }
    let entry = chosen.first().expect("no such entry; --list names all");
    let wanted = entry.threads.to_string();
    if std::env::var("RAYON_NUM_THREADS").ok().as_ref() != Some(&wanted) || (chosen.len() > 1) {
        // rayon and gemm read it when they start, so each entry has a process.
        for entry in &chosen {
            let me = std::env::current_exe().expect("the path of this program");
            let status = Command::new(me)
                .args(&given[1..])
                .args(["--only", &entry.figure, "--peer", &entry.peer])
                .env("RAYON_NUM_THREADS", entry.threads.to_string())
                .status();
            assert!(status.expect("starts").success());
        }
        return;
    }
    if has("--once") {
        let mut step = training(entry.work, 0.01);
        for n in 0..if entry.unit == "ms" { 1 } else { 50 } {
            scalar(step(n));
        }
        println!("{}", peak());
    } else if has("--serve") {
        println!("{}", json!({"figure": entry.figure, "peer": entry.peer, "version": VERSION}));
        let mut kept = None;
        for line in std::io::stdin().lines() {
            let seconds = line.expect("a line").trim().parse().expect("seconds");
            let (value, losses) = round(entry, seconds, &mut kept);
            println!("{}", json!({"value": value, "losses": losses}));
        }
    } else {
        let mut kept = None;
        let seconds = number("--seconds", 0.3);
        let mut losses = Vec::new();
        let rounds: Vec<f64> = (0..number("--rounds", 9.) as usize)
            .map(|_| {
                let (value, all) = round(entry, seconds, &mut kept);
                losses = all;
                value
            })
            .collect();
        let mut sorted = rounds.clone();
        sorted.sort_by(f64::total_cmp);
        println!(
            "{}",
            json!({"figure": entry.figure, "unit": entry.unit, "value": sorted[sorted.len() / 2], "rounds": rounds,
                   "peer": entry.peer, "version": VERSION, "losses": losses})
        );
    }
}
