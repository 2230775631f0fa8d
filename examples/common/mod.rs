//! What all examples share, kept out of their way: options, the strategy that they ask for, the last line of output.

#![allow(dead_code)] // Each example uses its part.

pub mod compare;
pub mod progress;
mod servers;

use clap::{Parser, ValueEnum};
use distribute::net::Certificates;
use distribute::prelude::*;
use distribute::trace::{self, TraceFile};
use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;

/// candle allocates a tensor for each operation: this allocator makes whole programs faster.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// An example of the crate `distribute`. All examples take these options.
#[derive(Parser, Clone, Debug)]
pub struct Options {
    /// Where the replicas run
    #[arg(long, value_enum, default_value = "mirrored")]
    strategy: Kind,
    /// How many replicas a mirrored strategy has, on each of its workers [default: one for each core]
    #[arg(long)]
    replicas: Option<usize>,
    /// How many workers train together, threads of this process: for examples that compare trainings
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Certificates for links between machines: ca.pem, certificate.pem and key.pem of this folder [default: they are made from
    /// the secret of the job]
    #[arg(long, value_name = "FOLDER")]
    certificates: Option<PathBuf>,
    /// What initial weights and the order of examples are drawn from
    #[arg(long, default_value_t = 42)]
    pub seed: u64,
    /// How often all examples are seen [default: the example's own]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: Option<u64>,
    /// No progress; with --json, nothing but that line
    #[arg(long)]
    pub quiet: bool,
    /// End the output with one line of JSON
    #[arg(long)]
    pub json: bool,
    /// Write a timeline of what each replica does into this file, for <https://ui.perfetto.dev>
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq)]
#[value(rename_all = "snake_case")]
enum Kind {
    /// MirroredStrategy: a replica on each core
    Mirrored,
    /// MultiWorkerMirroredStrategy: all processes of the cluster that the environment names, a replica on each of their cores
    #[value(alias = "multi-worker")]
    MultiWorker,
    /// ParameterServerStrategy: variables on the parameter servers of the cluster that the environment names or, without one, on two of
    /// this process; the chief trains
    Ps,
    /// OneDeviceStrategy: one replica on cpu:0
    OneDevice,
    /// The strategy that is current where none was made
    Default,
}

impl Options {
    pub fn parse() -> Self {
        Parser::parse()
    }

    /// The strategy that was asked for.
    pub fn strategy(&self) -> distribute::Result<Strategy> {
        if self.workers != 1 {
            return Err(distribute::Error::other("--workers is for digits and packages"));
        }
        if self.certificates.is_some() && self.strategy != Kind::MultiWorker {
            return Err(distribute::Error::other("--certificates needs --strategy multi_worker"));
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
                    builder = builder.certificates(Certificates { ca, certificate, key });
                }
                Ok(builder.build()?.into())
            }
            (_, Some(replicas)) if replicas != 1 => Err(distribute::Error::other(format!(
                "--replicas {replicas} needs --strategy mirrored or multi_worker: the others have one replica"
            ))),
            (Kind::Ps, _) => servers::strategy(),
            (Kind::OneDevice, _) => Ok(OneDeviceStrategy::new("cpu:0")?.into()),
            (Kind::Default, _) => Ok(distribute::get_strategy()),
        }
    }

    /// How many workers were asked for, where that is not one, and how many replicas each of them has.
    pub fn workers(&self) -> distribute::Result<Option<(usize, usize)>> {
        if self.workers == 1 {
            return Ok(None);
        }
        if self.strategy != Kind::Mirrored {
            return Err(distribute::Error::other("--workers needs --strategy mirrored"));
        }
        let each = (cores() / self.workers.max(1)).max(1);
        Ok(Some((self.workers, self.replicas.unwrap_or(each))))
    }

    pub fn epochs(&self, default: usize) -> usize {
        self.epochs.map_or(default, |epochs| epochs as usize)
    }

    /// The timeline that was asked for, until it is dropped.
    pub fn trace(&self) -> distribute::Result<Option<TraceFile>> {
        self.trace.as_ref().map(trace::to_file).transpose()
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

/// Prints a line. Where nobody reads any more (`digits | head -1`) the program goes on in silence.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
