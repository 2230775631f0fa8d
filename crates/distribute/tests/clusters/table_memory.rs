//! Tests of the peak of a worker's memory while tables that workers store together are saved and restored.

use candle_core::{Device, Module, Tensor};
use distribute::checkpoint::{Checkpoint, Reader};
use distribute::cluster::resolver::SimpleClusterResolver;
use distribute::cluster::{ClusterSpec, Job};
use distribute::nn::{dynamic_embedding, embedding};
use distribute::optimizer::Momentum;
use distribute::parameter_server::DynamicOptions;
use distribute::strategy::{TableHosts, TableOptions};
use distribute::{Result, prelude::*};
use distribute_testing::{Port, child, watched_for};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

const WORKERS: usize = 4;
/// The number of rows of each of the two tables. A row has 4 KiB, and as many slots.
const ROWS: usize = 16 << 10;
const COLUMNS: usize = 1024;
/// The size of a complete table with its slots in MiB.
const TABLE: f64 = 128.;

/// The task of a worker's process.
#[derive(Serialize, Deserialize)]
struct Task {
    worker: usize,
    addresses: Vec<String>,
    /// The checkpoint that is restored; `None` trains a step instead.
    from: Option<PathBuf>,
    to: PathBuf,
}

/// Returns a field of `/proc/self/status`, in MiB.
fn status(field: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<f64>().unwrap() / 1024.
}

/// Returns by how many MiB the memory of this process grew at most while `body` ran.
fn growth(body: impl FnOnce() -> Result<()>) -> Result<f64> {
    // Resets the peak to the current size.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmRSS:");
    body()?;
    Ok(status("VmHWM:") - before)
}

/// Restores and saves a worker's model. Returns the growth of memory in both.
fn work(task: &Task) -> Result<[f64; 2]> {
    let cluster: ClusterSpec = format!("{{\"worker\": {:?}}}", task.addresses).parse()?;
    let resolver = SimpleClusterResolver::new(cluster).with_task(Job::Worker.task(task.worker));
    let tables = TableOptions { min_bytes: 0, ..TableHosts::Workers.into() };
    let builder = MultiWorkerMirroredStrategy::builder().cluster_resolver(resolver).replicas(1);
    let strategy = builder.tables(tables).build()?;
    let model = strategy.replicate_seeded(3, |vb| {
        let users = dynamic_embedding(COLUMNS, DynamicOptions::default(), vb.pp("users"))?;
        distribute::Ok((embedding(ROWS, COLUMNS, vb.pp("words"))?, users))
    })?;
    let optimizer = Momentum::new(&model.variables, 0.1)?;
    let state = Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer);
    let restored = match &task.from {
        Some(from) => growth(|| state.restore(from).map(drop))?,
        None => {
            let own = ROWS / WORKERS;
            strategy.run(&model, |ctx, (words, users)| {
                let first = (task.worker * own) as i64;
                let ids = Tensor::arange(first, first + own as i64, &Device::Cpu)?;
                let words = words.forward(&Tensor::arange(0u32, own as u32, &Device::Cpu)?)?;
                optimizer.minimize(ctx, (users.forward(&ids)? + words)?.sqr()?.mean_all()?, own)
            })?;
            0.
        }
    };
    let saved = growth(|| state.save(&task.to))?;
    Ok([restored, saved])
}

/// Starts all workers. Returns the growth of memory of each while it restored and while it saved.
fn run(from: Option<&PathBuf>, to: impl Fn(usize) -> PathBuf) -> Vec<[f64; 2]> {
    let port = Port::reserve();
    let address = |rank: usize| format!("127.0.0.1:{}", if rank == 0 { port.number() } else { 0 });
    let addresses: Vec<_> = (0..WORKERS).map(address).collect();
    let command = |worker| {
        let (addresses, from) = (addresses.clone(), from.cloned());
        let task = Task { worker, addresses, from, to: to(worker) };
        let mut command = child::command(TEST, &serde_json::to_string(&task).unwrap());
        // Otherwise glibc keeps memory that other threads have freed, up to 40 MiB on the chief, which counts as used.
        command.env("MALLOC_ARENA_MAX", "1");
        command
    };
    std::thread::scope(|scope| {
        let start = |worker| {
            let command = command(worker);
            scope.spawn(move || child::output(command, Duration::from_secs(120)).0)
        };
        let all: Vec<_> = (0..WORKERS).map(start).collect();
        let read = |out: String| {
            let (_, figures) = out.lines().find_map(|line| line.split_once("MiB: ")).unwrap();
            serde_json::from_str(figures).unwrap()
        };
        all.into_iter().map(|worker| read(worker.join().unwrap())).collect()
    })
}

const TEST: &str = "table_memory::no_worker_has_a_complete_table_while_it_is_saved_or_restored";

/// Two tables of 128 MiB with their slots, of which each of four workers stores 32 MiB.
// INV-111
#[test]
fn no_worker_has_a_complete_table_while_it_is_saved_or_restored() {
    if let Some(part) = child::part() {
        return println!("MiB: {:?}", work(&serde_json::from_str(&part).unwrap()).unwrap());
    }
    watched_for(Duration::from_secs(400), || {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        run(None, |_| path("trained"));
        let shared = run(Some(&path("trained")), |_| path("again"));
        println!("restored and saved by each: {shared:.0?}");
        // Restored are a quarter of both tables, which is half of a table.
        for [restored, saved] in &shared {
            assert!(*restored < TABLE && *restored > TABLE / 4., "{shared:?}");
            assert!(*saved < TABLE / 2., "{shared:?}");
        }
        let [trained, again] = ["trained", "again"].map(|name| Reader::open(path(name)).unwrap());
        assert!(trained.names().eq(again.names()));
        for name in trained.names() {
            assert!(trained.tensor(name).unwrap() == again.tensor(name).unwrap(), "{name}");
        }
        // Without a shared folder, the chief does have a complete table of ids, with its slots.
        let alone = run(Some(&path("trained")), |worker| match worker {
            0 => path("alone"),
            worker => path(&format!("of {worker}/alone")),
        });
        println!("restored by each and saved by the chief: {alone:.0?}");
        assert!(alone[0][1] > TABLE, "{alone:?}");
    });
}
