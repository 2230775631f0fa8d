//! The plan of a simulation: the program and faults of its workers, as a function of its seed.

use crate::checks::Certain;
use crate::course::Course;
use crate::script::Script;
use std::time::Duration;

/// A fault of processes or the network.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// A process is killed, and its connections are reset.
    Kill(usize),
    /// The machine of a process fails silently.
    Vanish(usize),
    /// A process is stopped for this time.
    Pause(usize, Duration),
    /// The network between two sets of hosts is cut for a time, in both directions unless `one_way` is set.
    Cut {
        /// The side of each host.
        sides: Vec<bool>,
        /// Whether the other direction works.
        one_way: bool,
        /// The duration.
        lasts: Duration,
    },
    /// The connections between two hosts break.
    Break(usize, usize),
    /// A process comes back that had joined an earlier generation, and has been out of reach since.
    Revenant(usize),
    /// A second process of a worker is started, by mistake.
    Twin(usize),
}

/// The time of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At this time.
    At(Duration),
    /// After a worker has begun a call.
    InCall {
        /// The generation.
        generation: u64,
        /// The worker.
        rank: usize,
        /// The step; 0 for the agreement after a rendezvous.
        step: u64,
        /// The call.
        call: u64,
        /// The delay after the beginning of the call.
        after: Duration,
    },
}

/// The limits of worlds of an elastic job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elastic {
    /// The minimum number of workers.
    pub least: usize,
    /// The time to wait for more workers if enough have come.
    pub grace: Duration,
    /// The maximum delay until a process is replaced.
    pub away: Duration,
}

/// The parameters of a simulation, fixed before it begins.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number of workers.
    pub workers: usize,
    /// The script of the workers.
    pub script: Script,
    /// The training that replaces the script, if any.
    pub course: Option<Course>,
    /// The limits of worlds, if not all workers are required.
    pub elastic: Option<Elastic>,
    /// The start time of each worker.
    pub starts: Vec<Duration>,
    /// The maximum duration of joining.
    pub join: Duration,
    /// The shortest and the longest delay of the network.
    pub delay: [Duration; 2],
    /// The faults and their times.
    pub faults: Vec<(When, Fault)>,
    /// The certainty about the outcome.
    pub certain: Certain,
    /// Whether all workers must have the same blame when a session is over. Not if the network is cut between
    /// them, or if two faults coincide.
    pub one_blame: bool,
}

impl When {
    /// Returns the time `by` later.
    pub fn later(self, by: Duration) -> Self {
        match self {
            When::At(time) => When::At(time + by),
            When::InCall { generation, rank, step, call, after } => {
                When::InCall { generation, rank, step, call, after: after + by }
            }
        }
    }
}

impl Plan {
    /// Returns the faults that follow a call of a worker, with their delays.
    pub fn triggered(&self, generation: u64, rank: usize, step: u64, call: u64) -> Vec<(usize, Duration)> {
        let follows = |when: &When| match *when {
            When::InCall { generation: of, rank: who, step: in_step, call: in_call, after } => {
                ((of, who, in_step, in_call) == (generation, rank, step, call)).then_some(after)
            }
            When::At(_) => None,
        };
        let all = self.faults.iter().enumerate();
        all.filter_map(|(number, (when, _))| Some((number, follows(when)?))).collect()
    }
}
