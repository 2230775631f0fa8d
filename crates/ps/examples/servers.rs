//! What parameter servers do over loopback: `cargo run --release -p distribute-ps --example servers`.
//!
//! Two servers are processes, two clients are threads. Dense variables are pulled and pushed; rows of 32 numbers are looked up and
//! scattered; a lookup of 1,024 rows is timed while another client pushes. All of it without a log, then with one.

use distribute_cluster::{ClusterSpec, Job, Stopwatch};
use distribute_net::Identity;
use distribute_optim::{RuleSpec, Sgd, Step};
use distribute_params::{
    Channel, Contents, DynamicOptions, Initializer, Push, Request, Response, RowPartition, Started, TableSpec,
};
use distribute_ps::{Connection, ParameterServer, SERVICE, ServerOptions};
use distribute_server::{ClientBuilder, Server};
use distribute_tensor::random::{Distribution, Draws};
use distribute_tensor::{DType, HostTensor};
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const SERVERS: usize = 2;
const CLIENTS: usize = 2;
const MINUTE: Duration = Duration::from_secs(60);
const WIDTH: usize = 32;
const ROWS: usize = 1_000_000;

/// How long each figure is measured.
const WHILE: f64 = 3.0;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", index, address, folder] => serve(index.parse()?, address, folder),
        [] => {
            for folder in [None, Some(tempfile::tempdir()?)] {
                println!("{}", if folder.is_some() { "with a log and snapshots" } else { "in memory" });
                measure(folder.as_ref().map_or("", |folder| folder.path().to_str().unwrap_or_default()))?;
            }
            Ok(())
        }
        other => Err(format!("unknown arguments {other:?}").into()),
    }
}

/// One server, until the process is killed.
fn serve(index: usize, address: &str, folder: &str) -> Result<()> {
    let cluster = ClusterSpec::from_lists([("ps", vec![address; SERVERS])])?;
    let tables = match folder {
        "" => ParameterServer::new(),
        folder => ParameterServer::open(ServerOptions::new(format!("{folder}/ps-{index}")))?,
    };
    let server = Server::builder(cluster).task(Job::Ps.task(index)).identity(Identity::None);
    let server = server.service(SERVICE, tables).start()?;
    println!("{}", server.address());
    server.join()?;
    Ok(())
}

/// A server's process, killed when this is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn start(index: usize, address: &str, folder: &str) -> Result<(Self, String)> {
        let mut command = Command::new(std::env::current_exe()?);
        let child =
            command.args(["serve", &index.to_string(), address, folder]).stdout(Stdio::piped()).spawn()?;
        let mut process = Self(child);
        let out = process.0.stdout.take().ok_or("no output")?;
        let address = BufReader::new(out).lines().next().ok_or("the server has ended")??;
        Ok((process, address))
    }
}

fn measure(folder: &str) -> Result<()> {
    let servers: Vec<_> =
        (0..SERVERS).map(|i| Process::start(i, "127.0.0.1:0", folder)).collect::<Result<_>>()?;
    let (mut processes, addresses): (Vec<_>, Vec<_>) = servers.into_iter().unzip();
    let cluster = ClusterSpec::from_lists([("ps", addresses.clone())])?;
    let channels = |client: usize| -> Vec<Arc<dyn Channel>> {
        let clients = ClientBuilder::new(cluster.clone(), Job::Worker.task(client)).identity(Identity::None);
        let one = |i| Arc::new(Connection::new(clients.clone(), Job::Ps.task(i))) as Arc<dyn Channel>;
        (0..SERVERS).map(one).collect()
    };
    let all: Vec<_> = (0..CLIENTS).map(channels).collect();
    dense(&all)?;
    rows(&all)?;
    if folder.is_empty() {
        return Ok(());
    }
    // Killed while all of this is there, and asked at once.
    drop(processes.remove(0));
    let away = Stopwatch::start();
    let _again = Process::start(0, &addresses[0], folder)?;
    let Response::Tables(tables) = all[0][0].call(Request::List, MINUTE)? else {
        return Err("no list".into());
    };
    let bytes: usize = tables.iter().map(|info| info.bytes).sum();
    println!(
        "  a killed server with {:.0} MB of tables answers again after {:.2} s",
        bytes as f64 / 1e6,
        away.seconds()
    );
    Ok(())
}

fn create(channels: &[Arc<dyn Channel>], name: &str, contents: impl Fn(usize) -> Contents) -> Result<()> {
    for (i, channel) in channels.iter().enumerate() {
        let rule = Some(RuleSpec::Sgd(Sgd));
        channel
            .call(Request::Create(TableSpec { name: name.into(), contents: contents(i), rule }), MINUTE)?;
    }
    Ok(())
}

/// Starts a request to each server, then waits for all.
fn together(channels: &[Arc<dyn Channel>], request: impl Fn(usize) -> Request) -> Result<Vec<Response>> {
    let started: Vec<Started> = channels
        .iter()
        .enumerate()
        .map(|(i, channel)| channel.start(request(i), MINUTE))
        .collect::<std::result::Result<_, _>>()?;
    Ok(started.into_iter().map(Started::wait).collect::<std::result::Result<_, _>>()?)
}

/// Lets each client do something again and again for a while, and gives how often a second all of them have.
fn rate(
    all: &[Vec<Arc<dyn Channel>>],
    work: impl Fn(usize, u64, &[Arc<dyn Channel>]) -> Result<()> + Sync,
) -> Result<f64> {
    let waited = Stopwatch::start();
    let done: Result<Vec<u64>> = std::thread::scope(|scope| {
        let (work, waited) = (&work, &waited);
        let client = |(i, channels): (usize, &Vec<Arc<dyn Channel>>)| {
            let channels = channels.clone();
            scope.spawn(move || -> Result<u64> {
                let mut done = 0;
                while waited.seconds() < WHILE {
                    work(i, done, &channels)?;
                    done += 1;
                }
                Ok(done)
            })
        };
        let threads: Vec<_> = all.iter().enumerate().map(client).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a client has panicked")?).collect()
    });
    Ok(done?.iter().sum::<u64>() as f64 / waited.seconds())
}

fn dense(all: &[Vec<Arc<dyn Channel>>]) -> Result<()> {
    const ELEMENTS: usize = 4 << 20;
    let zeros = HostTensor::zeros(DType::F32, [ELEMENTS])?;
    create(&all[0], "dense", |_| Contents::Values(zeros.clone()))?;
    let bytes = (SERVERS * ELEMENTS * 4) as f64;
    let pulls = rate(all, |_, _, channels| {
        together(channels, |_| Request::Read { table: "dense".into(), known: None }).map(drop)
    })?;
    let gradient = HostTensor::new(vec![1e-3f32; ELEMENTS], [ELEMENTS])?;
    let pushes = rate(all, |_, step, channels| {
        let push = Push::at(Step::after(step, 0.1));
        together(channels, |_| Request::Push { table: "dense".into(), push, gradient: gradient.clone() })
            .map(drop)
    })?;
    println!(
        "  dense, 16 MiB a server: pull {:.2} GB/s, push {:.2} GB/s",
        pulls * bytes / 1e9,
        pushes * bytes / 1e9
    );
    Ok(())
}

fn rows(all: &[Vec<Arc<dyn Channel>>]) -> Result<()> {
    const BATCH: usize = 8192;
    let initializer = Initializer::new(Distribution::Uniform { lo: -0.1, up: 0.1 }, 1, "rows");
    let partition = RowPartition::div(ROWS, SERVERS);
    create(&all[0], "rows", |shard| Contents::Drawn {
        shape: vec![ROWS, WIDTH],
        dtype: DType::F32,
        initializer,
        partition,
        shard,
    })?;
    println!("  a million dense rows of {WIDTH}: {:.0} MB", bytes_of_row(&all[0], "rows")?);
    let here = (ROWS / SERVERS) as u64;
    let ids = |client: usize, step: u64, count: usize| -> Vec<i64> {
        let draws = Draws::new(client as u64, step);
        (0..count as u64).map(|i| (draws.bits(i) % here) as i64).collect()
    };
    let look = |client: usize, step: u64, count: usize, channels: &[Arc<dyn Channel>]| {
        together(channels, |i| Request::ReadRows {
            table: "rows".into(),
            rows: ids(client, step * 2 + i as u64, count / SERVERS),
        })
        .map(drop)
    };
    let scatter = |table: &str, client: usize, step: u64, count: usize, channels: &[Arc<dyn Channel>]| {
        let count = count / SERVERS;
        let gradient = HostTensor::new(vec![1e-3f32; count * WIDTH], [count, WIDTH])?;
        let push = Push::at(Step::after(step, 0.1));
        together(channels, |i| Request::PushRows {
            table: table.into(),
            push,
            rows: ids(client, step * 2 + i as u64, count),
            gradient: gradient.clone(),
        })
        .map(drop)
    };
    let looked = rate(all, |client, step, channels| look(client, step, BATCH, channels))?;
    let scattered = rate(all, |client, step, channels| scatter("rows", client, step, BATCH, channels))?;
    let millions = BATCH as f64 / 1e6;
    println!(
        "  rows of {WIDTH}: {:.2} M/s looked up, {:.2} M/s scattered",
        looked * millions,
        scattered * millions
    );

    let stop = AtomicBool::new(false);
    let mut times = std::thread::scope(|scope| -> Result<Vec<f64>> {
        let load = scope.spawn(|| -> Result<()> {
            let mut step = 0;
            while !stop.load(Ordering::Relaxed) {
                scatter("rows", 1, step, BATCH, &all[1])?;
                step += 1;
            }
            Ok(())
        });
        let mut times = Vec::new();
        let waited = Stopwatch::start();
        while waited.seconds() < WHILE {
            let one = Stopwatch::start();
            look(0, times.len() as u64, 1024, &all[0])?;
            times.push(one.seconds());
        }
        stop.store(true, Ordering::Relaxed);
        load.join().map_err(|_| "a client has panicked")??;
        Ok(times)
    })?;
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize] * 1e6;
    println!(
        "  a lookup of 1,024 rows while another client scatters: p50 {:.0} µs, p99 {:.0} µs",
        at(0.5),
        at(0.99)
    );

    let options = DynamicOptions::default();
    create(&all[0], "ids", |_| Contents::Dynamic {
        row_shape: vec![WIDTH],
        dtype: DType::F32,
        initializer,
        options,
    })?;
    let made = rate(all, |client, step, channels| scatter("ids", client, step, BATCH, channels))?;
    println!(
        "  dynamic rows of {WIDTH}: {:.2} M/s scattered; {:.0} MB for a million",
        made * millions,
        bytes_of_row(&all[0], "ids")?
    );
    Ok(())
}

/// How many bytes a table takes for each of its rows, on all servers.
fn bytes_of_row(channels: &[Arc<dyn Channel>], name: &str) -> Result<f64> {
    let (mut rows, mut bytes) = (0, 0);
    for answer in together(channels, |_| Request::List)? {
        let Response::Tables(all) = answer else { return Err("no list".into()) };
        for info in all.iter().filter(|info| info.name == name) {
            (rows, bytes) = (rows + info.rows, bytes + info.bytes);
        }
    }
    Ok(bytes as f64 / rows as f64)
}
