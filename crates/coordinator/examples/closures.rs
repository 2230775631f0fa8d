//! A benchmark of closures that a coordinator schedules on two workers over loopback:
//! `cargo run --release -p distribute-coordinator --example closures`.
//!
//! Workers are processes. Empty closures are scheduled and joined, and then scheduled and fetched one by one. Finally,
//! a worker is killed while it runs a closure, which the other worker then runs again.

use bytes::Bytes;
use distribute_cluster::{ClusterSpec, Job, Stopwatch};
use distribute_coordinator::{
    Argument, Call, CallContext, Connect, Coordinator, Executor, Failure, FailureKind, FunctionId, Options,
    Program, RemoteWorker, ResourceId, SERVICE, Worker,
};
use distribute_net::Identity;
use distribute_rpc::{ClientBuilder, Server};
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const WORKERS: usize = 2;

fn main() -> Result<()> {
    match std::env::args().nth(1) {
        Some(index) => serve(index.parse()?),
        None => measure(),
    }
}

/// The functions of the workers: `echo` returns its argument, and `hold` takes long on all workers but one.
struct Functions;

fn functions() -> Vec<FunctionId> {
    ["echo", "hold"].map(|name| FunctionId { name: name.to_owned(), source: 1 }).to_vec()
}

impl Program for Functions {
    fn functions(&self) -> Vec<FunctionId> {
        functions()
    }

    fn start(
        &self,
        worker: usize,
        _workers: usize,
        _settings: &Bytes,
    ) -> std::result::Result<Arc<dyn Executor>, Failure> {
        Ok(Arc::new(OfWorker(worker)))
    }
}

struct OfWorker(usize);

impl Executor for OfWorker {
    fn call(&self, context: &CallContext, call: &Call) -> std::result::Result<Bytes, Failure> {
        let (Some(Argument::Value(value)), name) = (call.arguments.first(), &call.function.name) else {
            return Err(Failure::new(FailureKind::InvalidArgument, "it takes a value"));
        };
        if name == "hold" && value[..] == [self.0 as u8] {
            loop {
                context.cancellation().check()?;
                std::thread::yield_now();
            }
        }
        Ok(value.clone())
    }

    fn create(
        &self,
        _context: &CallContext,
        _resource: ResourceId,
        _call: &Call,
        _position: Option<&Bytes>,
    ) -> std::result::Result<(), Failure> {
        Ok(())
    }

    fn positions(&self) -> Vec<(ResourceId, Bytes)> {
        Vec::new()
    }

    fn rewind(&self) {}

    fn forget(&self, _resource: ResourceId) {}
}

/// Runs a worker until the process is killed.
fn serve(index: usize) -> Result<()> {
    let cluster = ClusterSpec::from_lists([("worker", vec!["127.0.0.1:0"; WORKERS])])?;
    let server = Server::builder(cluster).task(Job::Worker.task(index)).credentials(Identity::None);
    let server = server.service(SERVICE, Worker::new(Arc::new(Functions))).start()?;
    println!("{}", server.address());
    server.join()?;
    Ok(())
}

/// A worker's process, killed when this is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn start(index: usize) -> Result<(Self, String)> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut process = Self(command.arg(index.to_string()).stdout(Stdio::piped()).spawn()?);
        let out = process.0.stdout.take().ok_or("no output")?;
        let address = BufReader::new(out).lines().next().ok_or("the worker has ended")??;
        Ok((process, address))
    }
}

fn call(name: &str, value: Vec<u8>) -> Call {
    let function = FunctionId { name: name.to_owned(), source: 1 };
    Call { function, arguments: vec![Argument::Value(value.into())] }
}

fn measure() -> Result<()> {
    let workers: Vec<_> = (0..WORKERS).map(Process::start).collect::<Result<_>>()?;
    let (mut processes, addresses): (Vec<_>, Vec<_>) = workers.into_iter().unzip();
    let cluster = ClusterSpec::from_lists([("worker", addresses)])?;
    let connect = |index| {
        let clients = ClientBuilder::new(cluster.clone(), Job::Chief.task(0)).credentials(Identity::None);
        Box::new(RemoteWorker::new(clients, Job::Worker.task(index))) as Box<dyn Connect>
    };
    let coordinator = Coordinator::new(
        (0..WORKERS).map(connect).collect(),
        functions(),
        1,
        Bytes::new(),
        Options::default(),
    )?;

    for round in 0..3 {
        let (count, clock) = (100_000, Stopwatch::start());
        for _ in 0..count {
            coordinator.schedule(call("echo", vec![0; 8]))?;
        }
        coordinator.join()?;
        println!("round {round}: {:.0} closures/s scheduled and joined", count as f64 / clock.seconds());
    }
    let mut times = Vec::new();
    for _ in 0..5000 {
        let clock = Stopwatch::start();
        coordinator.schedule(call("echo", vec![0; 8]))?.fetch()?;
        times.push(clock.seconds() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    println!("one scheduled and fetched: p50 {:.0} µs, p99 {:.0} µs", times[2500], times[4950]);

    // A worker is killed while it runs a closure, which continues at once on the other worker.
    let held = loop {
        let held = coordinator.schedule(call("hold", vec![0]))?;
        if held.fetch_timeout(Duration::from_millis(100)).is_err() {
            break held;
        }
    };
    let clock = Stopwatch::start();
    processes.remove(0);
    held.fetch()?;
    println!("the closure of a killed worker ended on the other one after {:.1} ms", clock.seconds() * 1e3);
    Ok(())
}
