//! Workers that are killed while all of them write a checkpoint in parts.

use candle_core::{Device, Module, Tensor};
use distribute::checkpoint::{
    Checkpoint, CheckpointManager, Checkpointed, HeldTensors, LiveTensors, Reader, Restore, RowPosition,
    SourceError, Writer,
};
use distribute::cluster::resolver::SimpleClusterResolver;
use distribute::cluster::{ClusterSpec, Job};
use distribute::nn::{dynamic_embedding, embedding};
use distribute::optimizer::Momentum;
use distribute::parameter_server::DynamicOptions;
use distribute::strategy::{TableHosts, TableOptions};
use distribute::tensor::DType;
use distribute::{HostTensor, Result, prelude::*};
use distribute_testing::{Port, child, names_in, watched_for};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const TEST: &str = "multi_worker::checkpoint::killed::a_worker_that_is_killed_at_any_point_of_a_save_in_parts_leaves_the_checkpoint_before";
const WORKERS: usize = 3;
/// The text after which a process waits to be killed.
const STOPPED: &str = "STOPPED";

/// The point of a save at which a worker is killed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Stop {
    /// It has written a part of its rows.
    Writing(usize),
    /// The chief writes its own file, after all parts.
    AfterParts,
    Never,
}

/// The task of a worker's process.
#[derive(Serialize, Deserialize)]
struct Task {
    worker: usize,
    addresses: Vec<String>,
    folder: PathBuf,
    stop: Stop,
}

/// A component with rows on each worker, and a tensor on the chief. Reading one of them stops the process.
struct Stops(usize, Stop);

fn stop() -> SourceError {
    println!("{STOPPED}");
    // Until the process is killed, or the test has ended.
    let _ = std::io::stdin().read(&mut [0]);
    "the test has ended".into()
}

impl Checkpointed for Stops {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        let stops = self.1 == Stop::Writing(self.0);
        let read = move |rows: std::ops::Range<usize>| match rows.start {
            1.. if stops => Err(stop()),
            _ => Ok(HostTensor::zeros(DType::F32, [rows.len(), 1 << 20])?),
        };
        writer.insert_own_read(format!("{prefix}/own"), RowPosition::Next, DType::F32, [6, 1 << 20], read)?;
        if self.0 == 0 {
            let live: Arc<dyn LiveTensors> = Arc::new(Stops(self.0, self.1));
            writer.insert_live(format!("{prefix}/chief"), DType::I64, [], &live, 0)?;
        }
        Ok(())
    }

    fn restore<'a>(&'a self, _: &str, _: &Reader) -> Result<Restore<'a>> {
        Ok(Box::new(|| Ok(())))
    }
}

impl LiveTensors for Stops {
    fn hold(&self) -> Result<Box<dyn HeldTensors + '_>, SourceError> {
        Ok(Box::new(Stops(self.0, self.1)))
    }
}

impl HeldTensors for Stops {
    fn copy(&self, _: usize) -> Result<HostTensor, SourceError> {
        if self.1 == Stop::AfterParts { Err(stop()) } else { Ok(HostTensor::scalar(7i64)) }
    }
}

/// Continues from the latest checkpoint, or saves the first one, trains a step, and saves with a component that may
/// stop this process. Prints the values before the step, and the error of the save.
fn work(task: &Task) -> Result<()> {
    let cluster: ClusterSpec = format!("{{\"worker\": {:?}}}", task.addresses).parse()?;
    let resolver = SimpleClusterResolver::new(cluster).with_task(Job::Worker.task(task.worker));
    let tables = TableOptions { min_bytes: 0, ..TableHosts::Workers.into() };
    let builder = MultiWorkerMirroredStrategy::builder().cluster_resolver(resolver).replicas(1);
    let strategy = builder.tables(tables).build()?;
    let model = strategy.replicate_seeded(3, |vb| {
        let users = dynamic_embedding(4, DynamicOptions::default(), vb.pp("users"))?;
        distribute::Ok((embedding(30, 4, vb.pp("words"))?, users))
    })?;
    let optimizer = Momentum::new(&model.variables, 0.1)?;
    let state = Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer);
    let step = || {
        strategy.run(&model, |ctx, (words, users)| {
            let row = task.worker as u32;
            let users = users.forward(&Tensor::new(&[-5, 3 + i64::from(row)], &Device::Cpu)?)?;
            let words = words.forward(&Tensor::new(&[row, 29], &Device::Cpu)?)?;
            optimizer.minimize(ctx, (users + words)?.sqr()?.mean_all()?, 2)
        })
    };
    let manager = CheckpointManager::new(&task.folder)?;
    if state.restore_latest(&manager)?.is_none() {
        step()?;
        state.save_to(&manager)?;
    }
    let users = model.variables.variable("users.weight")?.dynamic_rows()?;
    let words = model.variables.get("words.weight")?.flatten_all()?.to_vec1::<f32>()?;
    let slots: Vec<_> = users.slots.iter().map(|(_, slot)| slot.to_vec::<f32>().unwrap()).collect();
    let values = users.values.to_vec::<f32>().unwrap();
    println!("VALUES {:?} {values:?} {slots:?} {words:?}", users.ids);
    step()?;
    let stops = Stops(task.worker, task.stop);
    match state.part("stops", &stops).save_to(&manager) {
        Ok(path) => println!("SAVED {}", path.display()),
        Err(error) => println!("ERROR {error}"),
    }
    Ok(())
}

/// Starts all workers, and kills the one that stops. Returns the lines of the others.
fn run(folder: &Path, stop: Stop) -> Vec<Vec<String>> {
    let port = Port::reserve();
    let address = |rank: usize| format!("127.0.0.1:{}", if rank == 0 { port.number() } else { 0 });
    let addresses: Vec<_> = (0..WORKERS).map(address).collect();
    let command = |worker| {
        let task = Task { worker, addresses: addresses.clone(), folder: folder.to_path_buf(), stop };
        child::command(TEST, &serde_json::to_string(&task).unwrap())
    };
    let stopped = match stop {
        Stop::Writing(worker) => Some(worker),
        Stop::AfterParts => Some(0),
        Stop::Never => None,
    };
    std::thread::scope(|scope| {
        let start = |worker| {
            let command = command(worker);
            scope.spawn(move || match stopped {
                Some(stopped) if stopped == worker => kill(command),
                _ => child::output(command, Duration::from_secs(90)).0.lines().map(str::to_owned).collect(),
            })
        };
        let all: Vec<_> = (0..WORKERS).map(start).collect();
        all.into_iter().map(|worker| worker.join().unwrap()).collect()
    })
}

/// Starts a process, and kills it when it has stopped. Returns its lines.
fn kill(mut command: std::process::Command) -> Vec<String> {
    let mut process = child::Killed(command.stderr(std::process::Stdio::inherit()).spawn().unwrap());
    let lines = BufReader::new(process.0.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    let mut before: Vec<_> = Vec::new();
    for line in lines {
        if line.contains(STOPPED) {
            return before;
        }
        before.push(line);
    }
    panic!("it did not stop: {before:?}");
}

/// Returns what follows `begin` in a line of a worker.
fn after<'l>(lines: &'l [String], begin: &str) -> &'l str {
    let found = lines.iter().find_map(|line| line.split_once(begin));
    found.unwrap_or_else(|| panic!("no {begin:?} in {lines:?}")).1
}

// INV-111
#[test]
fn a_worker_that_is_killed_at_any_point_of_a_save_in_parts_leaves_the_checkpoint_before() {
    if let Some(part) = child::part() {
        return work(&serde_json::from_str(&part).unwrap()).unwrap();
    }
    watched_for(Duration::from_secs(400), || {
        let mut values = Vec::new();
        for (stop, killed) in [(Stop::Writing(1), 1), (Stop::Writing(0), 0), (Stop::AfterParts, 0)] {
            let folder = tempfile::tempdir().unwrap();
            let lines = run(folder.path(), stop);
            for worker in (0..WORKERS).filter(|worker| *worker != killed) {
                let error = after(&lines[worker], "ERROR ");
                assert!(error.contains(&format!("worker {killed}")), "{stop:?}: {error}");
            }
            values.push(after(&lines[2], "VALUES ").to_owned());
            let names = names_in(folder.path());
            assert!(names.contains(&"ckpt-000001".to_owned()) && !names.contains(&"ckpt-000002".to_owned()));
            // All are started again, continue with the checkpoint before, and save.
            let lines = run(folder.path(), Stop::Never);
            for lines in &lines {
                assert_eq!(after(lines, "VALUES "), values[0], "{stop:?}");
                assert!(after(lines, "SAVED ").ends_with("ckpt-000002"));
            }
            assert_eq!(names_in(folder.path()), [".lock", "ckpt-000001", "ckpt-000002"]);
            let saved = Reader::open(folder.path().join("ckpt-000002")).unwrap();
            saved.verify().unwrap();
            assert_eq!(saved.describe("stops/own").unwrap().shape, [18, 1 << 20]);
        }
        assert!(values.iter().all(|of| *of == values[0]));
    });
}
