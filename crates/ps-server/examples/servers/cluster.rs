//! A cluster of server processes, and their clients in this process.

use crate::{MINUTE, Result};
use distribute_cluster::{ClusterSpec, Job, Stopwatch};
use distribute_net::Identity;
use distribute_ps_server::{Connection, ParameterServer, SERVICE, ServerOptions};
use distribute_ps_tables::{Channel, Request, Response, Started};
use distribute_rpc::{ClientBuilder, Server};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// The channels of one client to all servers.
pub type Channels = Vec<Arc<dyn Channel>>;

/// Runs one server until the process is killed.
pub fn serve(index: usize, servers: usize, address: &str, folder: &str) -> Result<()> {
    let cluster = ClusterSpec::from_lists([("ps", vec![address; servers])])?;
    let tables = match folder {
        "" => ParameterServer::new(),
        folder => ParameterServer::open(ServerOptions::new(format!("{folder}/ps-{index}")))?,
    };
    let server = Server::builder(cluster).task(Job::Ps.task(index)).credentials(Identity::None);
    let server = server.service(SERVICE, tables).start()?;
    println!("{}", server.address());
    server.join()?;
    Ok(())
}

/// The process of a server, which is killed when this value is dropped.
pub struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn start(index: usize, servers: usize, address: &str, folder: &str) -> Result<(Self, String)> {
        let mut command = Command::new(std::env::current_exe()?);
        let words = ["serve", &index.to_string(), &servers.to_string(), address, folder];
        let mut process = Self(command.args(words).stdout(Stdio::piped()).spawn()?);
        let out = process.0.stdout.take().ok_or("no output")?;
        let address = BufReader::new(out).lines().next().ok_or("the server has ended")??;
        Ok((process, address))
    }

    /// Returns the resident memory of the process in bytes.
    fn resident(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
        Ok(line.split_whitespace().next().ok_or("no VmRSS")?.parse::<f64>()? * 1024.)
    }
}

pub struct Cluster {
    processes: Vec<Process>,
    addresses: Vec<String>,
    spec: ClusterSpec,
    folder: String,
}

impl Cluster {
    pub fn start(servers: usize, folder: &str) -> Result<Self> {
        let all = (0..servers).map(|i| Process::start(i, servers, "127.0.0.1:0", folder));
        let (processes, addresses): (Vec<_>, Vec<_>) = all.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        let spec = ClusterSpec::from_lists([("ps", addresses.clone())])?;
        Ok(Self { processes, addresses, spec, folder: folder.to_owned() })
    }

    /// Returns the channels of each client.
    pub fn channels(&self, clients: usize) -> Vec<Channels> {
        let of = |client: usize| -> Channels {
            let clients =
                ClientBuilder::new(self.spec.clone(), Job::Worker.task(client)).credentials(Identity::None);
            let one = |i| Arc::new(Connection::new(clients.clone(), Job::Ps.task(i))) as Arc<dyn Channel>;
            (0..self.processes.len()).map(one).collect()
        };
        (0..clients).map(of).collect()
    }

    /// Returns the resident memory of all servers in bytes.
    pub fn resident(&self) -> Result<f64> {
        self.processes.iter().map(Process::resident).sum()
    }

    /// Kills the first server, starts it again, and sends it a request at once. Returns the size of its tables in
    /// bytes, and the seconds until it has answered.
    pub fn restart(&mut self, client: &Channels) -> Result<(f64, f64)> {
        drop(self.processes.remove(0));
        let away = Stopwatch::start();
        let (again, _) = Process::start(0, self.addresses.len(), &self.addresses[0], &self.folder)?;
        self.processes.insert(0, again);
        let Response::Tables(tables) = client[0].call(Request::List, MINUTE)? else {
            return Err("no list".into());
        };
        Ok((tables.iter().map(|info| info.bytes as f64).sum(), away.seconds()))
    }
}

/// Starts a request to each server, and waits for all responses.
pub fn together(channels: &Channels, request: impl Fn(usize) -> Request) -> Result<Vec<Response>> {
    let started: Vec<Started> = channels
        .iter()
        .enumerate()
        .map(|(i, channel)| channel.start(request(i), MINUTE))
        .collect::<std::result::Result<_, _>>()?;
    Ok(started.into_iter().map(Started::wait).collect::<std::result::Result<_, _>>()?)
}

/// Repeats `work` on each client for `seconds`. Returns the number of repetitions per second of all clients together.
pub fn rate(
    all: &[Channels],
    seconds: f64,
    work: impl Fn(usize, u64, &Channels) -> Result<()> + Sync,
) -> Result<f64> {
    let waited = Stopwatch::start();
    let done: Result<Vec<u64>> = std::thread::scope(|scope| {
        let (work, waited) = (&work, &waited);
        let client = |(i, channels)| {
            scope.spawn(move || -> Result<u64> {
                let mut done = 0;
                while waited.seconds() < seconds {
                    work(i, done, channels)?;
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
