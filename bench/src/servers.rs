//! Parameter servers in processes of this machine. Dense variables are pulled and pushed, and two clients look up and
//! scatter rows. The latency of a lookup under load and the memory of a table are also measured.

use super::error::invalid;
use super::figure::{About, Better, Effort, Figure, Target};
use super::program::{PATIENCE, Program};
use super::sample::Sample;
use crate::output;
use distribute::cluster::{ClusterSpec, Deadline, Job, Stopwatch};
use distribute::net::Identity;
use distribute::parameter_server::Initializer;
use distribute::tensor::random::{Distribution, Draws};
use distribute::tensor::{DType, HostTensor};
use distribute::{Error, Result};
use distribute_optim::{RuleSpec, Sgd, Step};
use distribute_ps_server::{Connection, ParameterServer, SERVICE};
use distribute_ps_tables::{Channel, Contents, Push, Request, Response, RowPartition, Started, TableSpec};
use distribute_rpc::{ClientBuilder, Server};
use std::io::Error as IoError;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The prefix of the name of a child process that is a server.
pub const CHILD: &str = "server/";

const SERVERS: usize = 2;
const CLIENTS: usize = 2;

/// The number of elements of the dense variable on each server. The work is the same as in
/// bench/peers/peer_tensorflow_servers.py.
const ELEMENTS: usize = 4 << 20;
const ROWS: usize = 1_000_000;
const WIDTH: usize = 32;
/// The number of rows in a lookup or scatter whose rate is measured, on all servers together.
const BATCH: usize = 8192;
/// The number of rows in a lookup whose latency is measured, on all servers together.
const FEW: usize = 1024;

const DENSE: &str = "dense";
const TABLE: &str = "rows";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    Pull,
    Push,
    LookUp,
    Scatter,
    /// A quantile of the latency of a lookup while the other client scatters rows.
    Latency(f64),
    Memory,
}

/// The channels of a client to all servers.
type Channels = Vec<Arc<dyn Channel>>;

/// Returns all figures.
pub fn figures() -> Vec<Box<dyn Figure>> {
    let all = [Work::Pull, Work::Push, Work::LookUp, Work::Scatter, Work::Latency(0.5), Work::Latency(0.99)];
    all.into_iter().chain([Work::Memory]).map(|work| Box::new(work) as Box<dyn Figure>).collect()
}

impl Figure for Work {
    fn about(&self) -> About {
        let of = |name: &str, unit, better, target, measures: String| About {
            name: format!("servers_{name}"),
            unit,
            better,
            measures: format!(
                "{measures}; {SERVERS} parameter servers that are processes, {CLIENTS} clients, loopback"
            ),
            targets: vec![target],
        };
        let (dense, rows) = (format!("{} MiB a server", ELEMENTS >> 18), format!("rows of {WIDTH} f32"));
        let more =
            |name, unit, times, measures| of(name, unit, Better::More, Target::BestPeer(times), measures);
        let less = |name, unit, measures| of(name, unit, Better::Less, Target::BestPeer(1.), measures);
        match self {
            Work::Pull => more("pull", "GB/s", 2., format!("dense variables pulled, {dense}")),
            Work::Push => more("push", "GB/s", 2., format!("their gradients applied by descent, {dense}")),
            Work::LookUp => {
                more("look_up", "M rows/s", 4., format!("{rows} of a million, {BATCH} at a time"))
            }
            Work::Scatter => {
                more("scatter", "M rows/s", 4., format!("gradients of {BATCH} {rows} of a million"))
            }
            Work::Latency(part) => {
                let name = format!("latency_p{:.0}", part * 100.);
                less(&name, "µs", format!("a lookup of {FEW} {rows} while the other client scatters"))
            }
            Work::Memory => less("memory", "MB", format!("what servers hold more with a million {rows}")),
        }
    }

    // The memory is constant.
    fn rounds(&self, wanted: usize) -> usize {
        if *self == Work::Memory { wanted.min(3) } else { wanted }
    }

    fn round(&self, effort: Effort) -> Result<Sample> {
        let servers = Servers::start()?;
        let all: Vec<Channels> = (0..CLIENTS).map(|client| servers.channels(client)).collect();
        let value = match self {
            Work::Pull | Work::Push => {
                let zeros = HostTensor::zeros(DType::F32, [ELEMENTS]).map_err(Error::other)?;
                create(&all[0], DENSE, |_| Contents::Values(zeros.clone()))?;
                let bytes = (SERVERS * ELEMENTS * 4) as f64 / 1e9;
                let gradient = HostTensor::new(vec![1e-3f32; ELEMENTS], [ELEMENTS]).map_err(Error::other)?;
                let request = |step| match self {
                    Work::Pull => Request::Read { table: DENSE.into(), known: None, may_round: false },
                    _ => Request::Push { table: DENSE.into(), push: push(step), gradient: gradient.clone() },
                };
                bytes
                    * rate(&all, effort, |_, step, channels| together(channels, |_| request(step)).map(drop))?
            }
            Work::Memory => {
                let before = servers.resident()?;
                create_rows(&all[0])?;
                (servers.resident()? - before) / 1e6
            }
            Work::LookUp => {
                create_rows(&all[0])?;
                BATCH as f64 / 1e6 * rate(&all, effort, |client, step, on| look_up(on, client, step, BATCH))?
            }
            Work::Scatter => {
                create_rows(&all[0])?;
                BATCH as f64 / 1e6 * rate(&all, effort, |client, step, on| scatter(on, client, step))?
            }
            Work::Latency(part) => {
                create_rows(&all[0])?;
                let mut times = under_load(&all, effort)?;
                times.sort_by(f64::total_cmp);
                let at = ((times.len() - 1) as f64 * part) as usize;
                times[at] * 1e6
            }
        };
        Ok(value.into())
    }
}

/// The processes of the servers, which are killed on drop.
struct Servers {
    programs: Vec<Program>,
    cluster: ClusterSpec,
}

impl Servers {
    fn start() -> Result<Self> {
        let io = |source| Error::Io { operation: "starting a parameter server".into(), source };
        let path = std::env::current_exe().map_err(io)?;
        let start =
            |index: usize| Program::start(Command::new(&path).args(["--child", &format!("{CHILD}{index}")]));
        let mut programs = (0..SERVERS).map(start).collect::<std::io::Result<Vec<_>>>().map_err(io)?;
        let deadline = Deadline::after(PATIENCE);
        let mut addresses = Vec::new();
        for program in &mut programs {
            let address = program.line(deadline).map_err(io)?;
            addresses.push(address.ok_or_else(|| io(IoError::other("it has ended")))?);
        }
        let cluster = ClusterSpec::from_lists([("ps", addresses)]).map_err(Error::other)?;
        Ok(Self { programs, cluster })
    }

    fn channels(&self, client: usize) -> Channels {
        let clients =
            ClientBuilder::new(self.cluster.clone(), Job::Worker.task(client)).credentials(Identity::None);
        let one = |i| Arc::new(Connection::new(clients.clone(), Job::Ps.task(i))) as Arc<dyn Channel>;
        (0..SERVERS).map(one).collect()
    }

    /// Returns the number of bytes of memory that the servers use.
    fn resident(&self) -> Result<f64> {
        let of = |program: &Program| {
            let io = |source| Error::Io { operation: "reading what a server holds".into(), source };
            let status = std::fs::read_to_string(format!("/proc/{}/status", program.id())).map_err(io)?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
            kib.map(|kib| kib * 1024.).ok_or_else(|| io(IoError::other("it has no VmRSS")))
        };
        self.programs.iter().map(of).sum()
    }
}

/// Runs one server in the child process, until the process is killed. The process prints the server's address.
pub fn child(name: &str) -> Result<()> {
    let index = name.strip_prefix(CHILD).and_then(|index| index.parse().ok()).filter(|i| *i < SERVERS);
    let index: usize = index.ok_or_else(|| invalid(format!("there is no server {name:?}")))?;
    let cluster = ClusterSpec::from_lists([("ps", vec!["127.0.0.1:0"; SERVERS])]).map_err(Error::other)?;
    let server = Server::builder(cluster).task(Job::Ps.task(index)).credentials(Identity::None);
    let server = server.service(SERVICE, ParameterServer::new()).start().map_err(Error::other)?;
    output::line(server.address().to_string())?;
    server.join().map(drop).map_err(Error::other)
}

fn push(step: u64) -> Push {
    Push::at(Step::after(step, 0.1))
}

fn create(channels: &Channels, name: &str, contents: impl Fn(usize) -> Contents) -> Result<()> {
    let spec = |shard| TableSpec {
        name: name.into(),
        contents: contents(shard),
        rule: Some(RuleSpec::Sgd(Sgd)),
        rounding: None,
    };
    together(channels, |shard| Request::Create(spec(shard))).map(drop)
}

fn create_rows(channels: &Channels) -> Result<()> {
    let initializer = Initializer::new(Distribution::Uniform { lo: -0.1, up: 0.1 }, 1, TABLE);
    let (partition, dtype) = (RowPartition::div(ROWS, SERVERS), DType::F32);
    create(channels, TABLE, |shard| Contents::Initialized {
        shape: vec![ROWS, WIDTH],
        dtype,
        initializer,
        partition,
        shard,
    })
}

/// Sends a request to each server at the same time, and waits for all responses.
fn together(channels: &Channels, request: impl Fn(usize) -> Request) -> Result<Vec<Response>> {
    let start = |(i, channel): (usize, &Arc<dyn Channel>)| channel.start(request(i), PATIENCE);
    let started: std::result::Result<Vec<Started>, _> = channels.iter().enumerate().map(start).collect();
    started.map_err(Error::other)?.into_iter().map(|one| one.wait().map_err(Error::other)).collect()
}

/// Returns the indices of random rows on one server.
fn ids(client: usize, turn: u64, count: usize) -> Vec<i64> {
    let draws = Draws::new(client as u64, turn);
    (0..count as u64).map(|i| (draws.bits(i) % (ROWS / SERVERS) as u64) as i64).collect()
}

fn look_up(channels: &Channels, client: usize, step: u64, count: usize) -> Result<()> {
    let rows = |server| ids(client, step * SERVERS as u64 + server as u64, count / SERVERS);
    together(channels, |server| Request::ReadRows { table: TABLE.into(), rows: rows(server) }).map(drop)
}

fn scatter(channels: &Channels, client: usize, step: u64) -> Result<()> {
    const COUNT: usize = BATCH / SERVERS;
    let gradient = HostTensor::new(vec![1e-3f32; COUNT * WIDTH], [COUNT, WIDTH]).map_err(Error::other)?;
    let rows = |server| ids(client, step * SERVERS as u64 + server as u64, COUNT);
    let request = |server| Request::PushRows {
        table: TABLE.into(),
        push: push(step),
        rows: rows(server),
        gradient: gradient.clone(),
    };
    together(channels, request).map(drop)
}

/// Runs the work of all clients at the same time, repeatedly, and returns the total number of calls per second.
fn rate(
    all: &[Channels],
    effort: Effort,
    work: impl Fn(usize, u64, &Channels) -> Result<()> + Sync,
) -> Result<f64> {
    // The first calls make connections and allocate memory.
    for (client, channels) in all.iter().enumerate() {
        (0..4).try_for_each(|step| work(client, step, channels))?;
    }
    let waited = Stopwatch::start();
    let done: Result<Vec<u64>> = std::thread::scope(|scope| {
        let (work, waited) = (&work, &waited);
        let client = |(client, channels)| {
            scope.spawn(move || {
                let mut done = 0;
                while waited.seconds() < effort.seconds || done == 0 {
                    work(client, 4 + done, channels)?;
                    done += 1;
                }
                Ok(done)
            })
        };
        let threads: Vec<_> = all.iter().enumerate().map(client).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
    });
    Ok(done?.iter().sum::<u64>() as f64 / waited.seconds())
}

/// Returns the latencies of lookups, in seconds, while another client scatters rows.
fn under_load(all: &[Channels], effort: Effort) -> Result<Vec<f64>> {
    let [reads, writes, ..] = all else { return Err(invalid("two clients are needed".into())) };
    // The first calls make connections and allocate memory.
    (0..4).try_for_each(|step| look_up(reads, 0, step, FEW))?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut step = 0;
            while !stop.load(Ordering::Relaxed) {
                scatter(writes, 1, step)?;
                step += 1;
            }
            Ok(())
        });
        let (mut times, waited) = (Vec::new(), Stopwatch::start());
        let measured = loop {
            if waited.seconds() >= effort.seconds && !times.is_empty() {
                break Ok(times);
            }
            let one = Stopwatch::start();
            if let Err(error) = look_up(reads, 0, times.len() as u64, FEW) {
                break Err(error);
            }
            times.push(one.seconds());
        };
        stop.store(true, Ordering::Relaxed);
        load.join().unwrap_or_else(|_| Err(panicked()))?;
        measured
    })
}

fn panicked() -> Error {
    Error::other("a client has panicked")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_child_is_a_server_that_there_is_not() {
        for name in ["server/", "server/x", "server/2"] {
            assert!(child(name).unwrap_err().to_string().contains("there is no server"), "{name}");
        }
    }
}
