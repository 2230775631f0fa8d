//! Workers that leave and return, as processes under a launcher: one of three dies, the others continue, and
//! it comes back.

#![allow(clippy::unwrap_used, clippy::panic)]

mod launched;

use candle_core::{Device, Tensor};
use candle_nn::{Module, linear};
use distribute::{Result, prelude::*};
use distribute_launch::{Layout, Plan};
use distribute_testing::{child, watched};
use launched::launched;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

const ROWS: i64 = 60;
const BATCH: usize = 12;
const STEPS: u64 = ROWS as u64 / BATCH as u64;

/// The folder to which workers write their results.
const FOLDER: &str = "DISTRIBUTE_TEST_FOLDER";
/// The address at which the worker that comes back waits until the others have continued without it.
const GATE: &str = "DISTRIBUTE_TEST_GATE";

const PATIENCE: Duration = Duration::from_secs(50);

/// Runs the program of one worker.
fn program(folder: &Path) -> Result<()> {
    let died = folder.join("died");
    if died.exists() && index() == 2 {
        let mut gate = gate(b"c");
        let mut word = [0];
        gate.read_exact(&mut word).unwrap();
    }
    let strategy = MultiWorkerMirroredStrategy::builder().shrink_after(Duration::from_secs(1)).build()?;
    let model = strategy.replicate(|vb| linear(1, 1, vb.pp("fc")))?;
    let optimizer = Adam::new(&model.variables, 0.05)?;
    let batches = strategy.distribute_dataset(Dataset::range(ROWS).shuffle(ROWS as usize, 7).batch(BATCH))?;
    let parts = Checkpoint::new().part("strategy", &strategy).part("model", &model.variables);
    let parts = parts.part("optimizer", &optimizer).part("batches", &batches);
    let mut steps = fs::File::create(folder.join(format!("steps-{}", std::process::id()))).unwrap();
    let mut shrunk = false;
    Training::new(parts)?.run(|| {
        loop {
            let mut is_over = false;
            for batch in &batches {
                let (batch, workers, made) = (batch?, strategy.world().workers(), optimizer.finished_steps());
                let grown = index() == 0 && shrunk && workers == 3;
                let dies = index() == 2 && !died.exists() && workers == 3 && made >= STEPS + 2;
                let all = strategy.run((&model, batch), |ctx, (fc, ids): (_, HostTensor)| {
                    if dies {
                        fs::write(&died, "").unwrap();
                        std::process::abort();
                    }
                    // All end together: the first one decides.
                    let is_over = ctx.all_reduce(ReduceOp::Sum, vec![f32::from(u8::from(grown))])?;
                    let ids = ids.to_vec::<i64>()?;
                    let x: Vec<f32> = ids.iter().map(|id| (*id as f32).sin()).collect();
                    if ids.is_empty() {
                        optimizer.skip(ctx)?;
                    } else {
                        let x = Tensor::from_vec(x, (ids.len(), 1), &Device::Cpu)?;
                        optimizer.minimize(ctx, fc.forward(&x)?.sqr()?.mean_all()?, ids.len())?;
                    }
                    Ok((is_over, ids))
                })?;
                let (over, ids) = all.values()[0].clone();
                is_over = over[0] > 0.;
                let ids: Vec<_> = ids.iter().map(i64::to_string).collect();
                writeln!(steps, "{made} {workers} {}", ids.join(" ")).unwrap();
                // A step has been made without the worker that died.
                if index() == 0 && workers == 2 && died.exists() && !shrunk {
                    shrunk = true;
                    drop(gate(b"s"));
                }
            }
            if is_over {
                return Ok(());
            }
        }
    })?;
    fs::write(folder.join(format!("weights-{}", std::process::id())), model.variables.sha256()?).unwrap();
    Ok(())
}

/// Returns the index of this process's worker, which the launcher sets.
fn index() -> usize {
    let config: serde_json::Value = serde_json::from_str(&std::env::var("TF_CONFIG").unwrap()).unwrap();
    config["task"]["index"].as_u64().unwrap() as usize
}

fn gate(word: &[u8]) -> TcpStream {
    let mut gate = TcpStream::connect(std::env::var(GATE).unwrap()).unwrap();
    gate.set_read_timeout(Some(PATIENCE)).unwrap();
    gate.write_all(word).unwrap();
    gate
}

/// Lets the returning worker continue only after the others have continued without it.
fn keep(gate: &TcpListener) {
    let mut both = [gate.accept().unwrap().0, gate.accept().unwrap().0];
    for guest in &mut both {
        guest.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut word = [0];
        guest.read_exact(&mut word).unwrap();
        if word == *b"c" {
            guest.write_all(b"!").unwrap();
        }
    }
}

/// Runs the program if this process is a worker that the launcher started.
#[test]
fn worker() {
    if child::part().is_some() {
        program(&PathBuf::from(std::env::var(FOLDER).unwrap())).unwrap();
    }
}

/// Returns the contents of the files that workers have written under names that start with `name`.
fn written(folder: &Path, name: &str) -> Vec<String> {
    let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let named = all.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(name));
    named.map(|path| fs::read_to_string(path).unwrap()).collect()
}

// INV-43
#[test]
fn a_world_under_a_launcher_shrinks_and_grows_and_uses_each_example_once() {
    watched(|| {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let keeper = std::thread::spawn(move || keep(&listener));

        let plan = Plan::new(&Layout::new(3)).unwrap();
        let printed = launched(plan, "worker", "train", |launch| {
            launch.env(FOLDER, folder.path()).env(GATE, address).min_workers(1).max_restarts(1)
        });
        keeper.join().unwrap();

        let mut steps = BTreeMap::<u64, (usize, Vec<i64>)>::new();
        for line in written(folder.path(), "steps-").iter().flat_map(|text| text.lines()) {
            let mut numbers = line.split_whitespace();
            let made = numbers.next().unwrap().parse().unwrap();
            let (workers, ids) = steps.entry(made).or_default();
            *workers = numbers.next().unwrap().parse().unwrap();
            ids.extend(numbers.map(|id| id.parse::<i64>().unwrap()));
        }
        let mut sizes: Vec<_> = steps.values().map(|(workers, _)| *workers).collect();
        sizes.dedup();
        assert!(sizes.ends_with(&[3, 2, 3]), "{sizes:?}\n{printed}");
        assert!(steps.len() as u64 >= 2 * STEPS && (steps.len() as u64).is_multiple_of(STEPS));
        for epoch in 0..steps.len() as u64 / STEPS {
            let of = steps.range(epoch * STEPS..(epoch + 1) * STEPS);
            let mut ids: Vec<_> = of.flat_map(|(_, (_, ids))| ids.clone()).collect();
            ids.sort_unstable();
            assert_eq!(ids, (0..ROWS).collect::<Vec<_>>(), "epoch {epoch}\n{printed}");
        }
        let weights = written(folder.path(), "weights-");
        assert!(weights.len() == 3 && weights.iter().all(|of| *of == weights[0]), "{weights:?}\n{printed}");
    });
}
