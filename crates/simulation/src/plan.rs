//! What is going to happen to the workers of a simulation, as a function of its seed.

use crate::checks::Certain;
use crate::course::Course;
use crate::script::Script;
use std::time::Duration;

/// Something that happens to processes or the network.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// A process is killed, and its connections are reset.
    Kill(usize),
    /// The machine of a process is gone: nobody is told.
    Vanish(usize),
    /// A process is stopped for so long.
    Pause(usize, Duration),
    /// Nothing goes from these hosts to those for so long; the other way round neither, unless it is one way.
    Cut {
        /// For each host, on which side it is.
        sides: Vec<bool>,
        /// Whether the other direction works.
        one_way: bool,
        /// How long.
        lasts: Duration,
    },
    /// The connections between two hosts break.
    Break(usize, usize),
    /// A process comes back that was told of an earlier generation, and has been out of reach since.
    Revenant(usize),
    /// A second process of a worker is started, by mistake.
    Twin(usize),
}

/// When something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// At this time.
    At(Duration),
    /// So long after a worker has begun a call.
    InCall {
        /// In which generation.
        generation: u64,
        /// The worker.
        rank: usize,
        /// The step; 0 where the workers that have met agree.
        step: u64,
        /// The call.
        call: u64,
        /// How long after.
        after: Duration,
    },
}

/// Of how many workers there are worlds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elastic {
    /// At least.
    pub least: usize,
    /// How long to wait for more where there are enough.
    pub grace: Duration,
    /// After how long another process is started in the place of one that is gone, at most.
    pub away: Duration,
}

/// Everything that is settled before the simulation begins.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number of workers.
    pub workers: usize,
    /// What they do.
    pub script: Script,
    /// What they train instead, if so.
    pub course: Option<Course>,
    /// Of how many workers there are worlds, where not all have to be there.
    pub elastic: Option<Elastic>,
    /// When each starts.
    pub starts: Vec<Duration>,
    /// How long joining may take.
    pub join: Duration,
    /// The shortest and the longest delay of the network.
    pub delay: [Duration; 2],
    /// What happens.
    pub faults: Vec<(When, Fault)>,
    /// What is certain about the outcome.
    pub certain: Certain,
    /// Whether all workers have to have one blame where a session is over: not where they can't talk to each other, nor where
    /// two things go wrong at once.
    pub one_blame: bool,
}

impl When {
    /// So much later.
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
    /// The faults that follow a call of a worker, and how long after.
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
