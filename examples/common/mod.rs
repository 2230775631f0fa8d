//! Code shared by all examples: options, the requested strategy, the last line of output.

#![allow(dead_code)] // Each example uses its part.

pub mod compare;
mod fleet;
pub mod progress;
mod servers;

use clap::{Parser, ValueEnum};
use distribute::ParameterServerStrategy;
use distribute::monitor::{Monitor, MonitorBuilder};
use distribute::net::{Certificates, Credentials};
use distribute::prelude::*;
use distribute::summary::SummaryWriter;
use distribute::trace::{self, TraceFile};
use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;

/// candle allocates a tensor for each operation: this allocator makes entire programs faster.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

// No doc comment: it would become the beginning of each example's `--help`.
#[derive(Parser, Clone, Debug)]
pub struct Options {
    /// The placement of the replicas
    #[arg(long, value_enum, default_value = "mirrored")]
    strategy: Kind,
    /// The number of replicas of a mirrored strategy, on each worker [default: one for each core]
    #[arg(long)]
    replicas: Option<usize>,
    /// The devices of the replicas instead of cores, the same on each worker, such as gpu:0 or gpu:0,cpu:0,
    /// in a build with --features cuda
    #[arg(long, value_name = "DEVICE", value_delimiter = ',', conflicts_with_all = ["replicas", "workers"])]
    device: Vec<String>,
    /// The number of workers that train together, as threads of this process: for examples that compare
    /// trainings [default: 1; with --strategy ps 2]
    #[arg(long)]
    workers: Option<usize>,
    /// The number of parameter servers, with --strategy ps in this process [default: 2]
    #[arg(long, value_name = "N")]
    ps: Option<usize>,
    /// Certificates for links between machines: ca.pem, certificate.pem and key.pem in this folder [default:
    /// created from the secret of the job]
    #[arg(long, value_name = "FOLDER")]
    certificates: Option<PathBuf>,
    /// The seed of initial weights and of the order of examples
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// The number of passes over all examples [default: the example's own]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: Option<u64>,
    /// No progress; with --json, only that line
    #[arg(long)]
    pub quiet: bool,
    /// End the output with one line of JSON
    #[arg(long)]
    pub json: bool,
    /// Write a timeline of each replica into this file, for <https://ui.perfetto.dev>
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write loss, examples/s and histograms of variables into this folder, for TensorBoard. Each world has
    /// its own run
    #[arg(long, value_name = "FOLDER")]
    log_dir: Option<PathBuf>,
    /// Show the training at http://127.0.0.1:PORT, to browsers, Prometheus and
    /// `distribute status 127.0.0.1:PORT`
    #[arg(long, value_name = "PORT")]
    live: Option<u16>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq)]
#[value(rename_all = "snake_case")]
enum Kind {
    /// MirroredStrategy: a replica on each core
    Mirrored,
    /// MultiWorkerMirroredStrategy: all processes of the cluster in the environment, a replica on each of
    /// their cores
    #[value(alias = "multi-worker")]
    MultiWorker,
    /// ParameterServerStrategy: variables on the parameter servers of the cluster in the environment or,
    /// without one, on two in this process. The chief trains or, in packages, schedules steps on all workers
    Ps,
    /// between_graph::ParameterServerStrategy, in packages: each worker runs the entire program, with the
    /// parameter servers of the cluster in the environment. Without a cluster, one process does
    #[value(alias = "between-graph")]
    BetweenGraph,
    /// OneDeviceStrategy: one replica on cpu:0
    OneDevice,
    /// The default strategy
    Default,
}

/// Parses the options of an example, whose `--help` begins with `about`.
pub fn parse<A: Parser>(about: &'static str) -> A {
    let mut matches = A::command().about(about).get_matches();
    A::from_arg_matches_mut(&mut matches).unwrap_or_else(|error| error.exit())
}

impl Options {
    /// Returns the requested strategy.
    pub fn strategy(&self) -> distribute::Result<Strategy> {
        if self.workers.is_some_and(|workers| workers != 1) {
            return Err(distribute::Error::other("--workers is for digits and packages"));
        }
        if self.certificates.is_some() && self.strategy != Kind::MultiWorker {
            return Err(distribute::Error::other("--certificates needs --strategy multi_worker"));
        }
        if !self.device.is_empty() {
            let devices = self.device.iter().map(String::as_str);
            return match self.strategy {
                Kind::Mirrored => Ok(MirroredStrategy::new(devices)?.into()),
                Kind::MultiWorker => {
                    Ok(MultiWorkerMirroredStrategy::builder().devices(devices).build()?.into())
                }
                _ => Err(distribute::Error::other("--device needs --strategy mirrored or multi_worker")),
            };
        }
        match (self.strategy, self.replicas) {
            (Kind::Mirrored, None) => Ok(MirroredStrategy::all_cores()?.into()),
            (Kind::Mirrored, Some(replicas)) => Ok(MirroredStrategy::cpus(replicas)?.into()),
            (Kind::MultiWorker, replicas) => {
                let replicas = replicas.unwrap_or_else(cores);
                let mut builder = MultiWorkerMirroredStrategy::builder().replicas(replicas);
                if let Some(folder) = &self.certificates {
                    let [ca, certificate, key] =
                        ["ca.pem", "certificate.pem", "key.pem"].map(|name| folder.join(name));
                    let certificates = Certificates { ca, certificate, key };
                    builder = builder.credentials(Credentials::new().certificates(certificates));
                }
                Ok(builder.build()?.into())
            }
            (_, Some(replicas)) if replicas != 1 => Err(distribute::Error::other(format!(
                "--replicas {replicas} needs --strategy mirrored or multi_worker: the others have one replica"
            ))),
            (Kind::Ps, _) => Ok(servers::strategy(1, self.ps)?.into()),
            (Kind::BetweenGraph, _) => {
                Err(distribute::Error::other("--strategy between-graph is for packages"))
            }
            (Kind::OneDevice, _) => Ok(OneDeviceStrategy::new("cpu:0")?.into()),
            (Kind::Default, _) => Ok(distribute::get_strategy()),
        }
    }

    /// Returns the strategy with parameter servers, if requested, for a program that schedules on its
    /// workers. Worker and server processes serve in this call until the chief has finished.
    pub fn parameter_servers(&self) -> distribute::Result<Option<ParameterServerStrategy>> {
        match (self.strategy, self.replicas) {
            (Kind::Ps, None | Some(1)) => servers::strategy(self.workers.unwrap_or(2), self.ps).map(Some),
            (Kind::Ps, Some(_)) => Err(distribute::Error::other(
                "--replicas is not for --strategy ps: its workers have one each",
            )),
            _ => Ok(None),
        }
    }

    /// Whether all replicas make each step together.
    pub fn is_in_step(&self) -> bool {
        !matches!(self.strategy, Kind::Ps | Kind::BetweenGraph)
    }

    /// Whether each worker is to run the entire program, without a coordinator.
    pub fn is_between_graph(&self) -> bool {
        self.strategy == Kind::BetweenGraph
    }

    /// Returns the requested number of workers, if it is not one, and the number of replicas of each.
    pub fn workers(&self) -> distribute::Result<Option<(usize, usize)>> {
        let Some(workers) = self.workers.filter(|workers| *workers != 1) else { return Ok(None) };
        if self.strategy != Kind::Mirrored {
            return Err(distribute::Error::other("--workers needs --strategy mirrored"));
        }
        let each = (cores() / workers.max(1)).max(1);
        Ok(Some((workers, self.replicas.unwrap_or(each))))
    }

    pub fn epochs(&self, default: usize) -> usize {
        self.epochs.map_or(default, |epochs| epochs as usize)
    }

    /// Starts the requested timeline, which is written until it is dropped.
    pub fn trace(&self) -> distribute::Result<Option<TraceFile>> {
        self.trace.as_ref().map(trace::to_file).transpose()
    }

    /// Starts the requested page of the chief, which is served until it is dropped.
    pub fn monitor(&self, of: MonitorBuilder) -> distribute::Result<Option<Monitor>> {
        let Some(port) = self.live else { return Ok(None) };
        let monitor = of.address(format!("127.0.0.1:{port}")).start()?;
        if let Some(address) = monitor.address().filter(|_| !self.quiet) {
            say(&format!("watch it at http://{address}"));
        }
        Ok(Some(monitor))
    }

    /// Returns the writer of summaries for a training by this strategy.
    pub fn summaries(&self, strategy: &Strategy) -> distribute::Result<SummaryWriter> {
        let Some(folder) = &self.log_dir else { return Ok(SummaryWriter::noop()) };
        // The world as a word that is easy to type: worker-0-of-2-1-replica-each.
        let world = strategy.world().to_string();
        let words: Vec<_> =
            world.split(|c: char| !c.is_ascii_alphanumeric()).filter(|it| !it.is_empty()).collect();
        strategy.summary_writer(folder.join(words.join("-")))
    }

    /// Prints the result as text and, with `--json`, as the last line.
    pub fn finish(&self, text: &str, figures: &[(&str, Value)]) {
        servers::end();
        if !(self.quiet && self.json) {
            say(text);
        }
        if self.json {
            let fields: Vec<_> = figures.iter().map(|(name, value)| format!("{name:?}:{value}")).collect();
            say(&format!("{{{}}}", fields.join(",")));
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Prints a line. If the reader has exited (`digits | head -1`), the program continues silently.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
