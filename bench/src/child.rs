//! Measurements that need a new process: the time until a program's first step, and its peak memory.

use super::coordinator;
use super::figure::{About, Better, Effort, Figure, Target};
use super::growth;
use super::precision;
use super::program::PATIENCE;
use super::sample::Sample;
use super::servers;
use super::spawned::{peak_mib, spawned};
use super::work::{Mlp, Model, Recommender, Training};
use super::workers;
use crate::output;
use distribute::{Error, Result};
use std::io::Error as IoError;

/// A figure that is measured from outside a child process.
struct Child {
    name: &'static str,
    unit: &'static str,
    measures: &'static str,
    target: Target,
}

/// Returns the figures for the start of a program and for memory.
pub fn figures() -> Vec<Box<dyn Figure>> {
    let child =
        |name, unit, measures, target| Box::new(Child { name, unit, measures, target }) as Box<dyn Figure>;
    vec![
        child(
            "start_to_first_step",
            "ms",
            "from the start of a program to the end of its first step of the MLP on 2 replicas",
            Target::Value(50.),
        ),
        child(
            "memory_mlp",
            "MiB",
            "most memory held in 50 steps of the MLP on 2 replicas",
            Target::BestPeer(1.),
        ),
        child(
            "memory_recommender",
            "MiB",
            "most memory held in 50 steps of the recommender on 2 replicas",
            Target::BestPeer(1.),
        ),
    ]
}

impl Figure for Child {
    fn about(&self) -> About {
        About {
            name: self.name.into(),
            unit: self.unit,
            better: Better::Less,
            measures: self.measures.into(),
            targets: vec![self.target],
        }
    }

    // A peer's process takes seconds to start.
    fn rounds(&self, wanted: usize) -> usize {
        wanted.min(3)
    }

    fn round(&self, _: Effort) -> Result<Sample> {
        let (line, seconds) = spawned(self.name, PATIENCE)?;
        match self.unit {
            "ms" => Ok((seconds * 1e3).into()),
            _ => line
                .parse()
                .map(|mib: f64| mib.into())
                .map_err(|error| failed(format!("{error} in {line:?}"))),
        }
    }
}

/// Does the work `name` in the child process. Prints a line when the measured work has ended.
pub fn run(name: &str) -> Result<()> {
    match name {
        "start_to_first_step" => {
            Training::<Mlp>::new(2)?.step()?;
            output::line("stepped")
        }
        "memory_mlp" => fifty_steps::<Mlp>(),
        "memory_recommender" => fifty_steps::<Recommender>(),
        _ if name.starts_with("workers/") => workers::child::run(name),
        _ if name.starts_with(precision::CHILD) => precision::child(name),
        _ if name.starts_with(servers::CHILD) => servers::child(name),
        _ if name.starts_with(coordinator::CHILD) => coordinator::child(name),
        _ => growth::child(name),
    }
}

fn fifty_steps<M: Model>() -> Result<()> {
    let mut training = Training::<M>::new(2)?;
    for _ in 0..50 {
        training.step()?;
    }
    output::line(peak_mib()?.to_string())
}

fn failed(reason: String) -> Error {
    Error::Io { operation: "measuring a new process".into(), source: IoError::other(reason) }
}
