//! The plan of a simulation: the workers' program and the faults, as functions of the seed.

use crate::checks::Certain;
use crate::course::Course;
use crate::script::Script;
use distribute_net::rendezvous::election::Electorate;
use std::time::Duration;

/// A fault of processes or the network.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// A process is killed, and its connections are reset.
    Kill(usize),
    /// The machine of a process fails silently.
    Vanish(usize),
    /// A process is stopped for the given time.
    Pause(usize, Duration),
    /// The network between two sets of hosts is interrupted for a time, in both directions unless `one_way` is `true`.
    Cut {
        /// The set to which each host belongs.
        sides: Vec<bool>,
        /// Whether the opposite direction is not interrupted.
        one_way: bool,
        /// The duration of the interruption.
        lasts: Duration,
    },
    /// The network between the hosts of groups 1 and 2 is interrupted for a time. Hosts of group 0 reach all others.
    Bridge {
        /// The group to which each host belongs.
        groups: Vec<usize>,
        /// The duration of the interruption.
        lasts: Duration,
    },
    /// The connections between two hosts break.
    Break(usize, usize),
    /// A process that joined an earlier generation, and has been unreachable since then, becomes reachable again.
    /// Nothing happens if there has been only one generation.
    Revenant(usize),
    /// A second process of a worker is started by mistake.
    Twin(usize),
    /// A process is killed, and never replaced.
    Remove(usize),
    /// The process that has led the latest world is killed, or removed if the field is `true`.
    Leader(bool),
    /// All workers that wait in a call are killed.
    Callers,
}

/// The time of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The fault occurs at the given time.
    At(Duration),
    /// The fault occurs after a worker has begun a call.
    InCall {
        /// The generation in which the call is made.
        generation: u64,
        /// The rank of the worker.
        rank: usize,
        /// The step in which the call is made; 0 for the agreement after a rendezvous.
        step: u64,
        /// The index of the call in the step.
        call: u64,
        /// The delay after the start of the call.
        after: Duration,
    },
    /// The fault occurs after the leader of a world has completed it, before or after the others have.
    Formed {
        /// The generation of the world.
        generation: u64,
        /// The delay after the leader has sent the table.
        after: Duration,
    },
}

/// The limits on the worlds of an elastic job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elastic {
    /// The minimum number of workers with which a world may begin.
    pub least: usize,
    /// The time to wait for more workers after enough have joined.
    pub grace: Duration,
    /// The maximum time until a process is replaced, in addition to 100 ms.
    pub away: Duration,
    /// The number of processes that are spares. A world has at most as many workers as there are other processes.
    pub spares: usize,
}

/// The parameters of a simulation, which are fixed before it begins.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number of workers.
    pub workers: usize,
    /// The script that the workers run.
    pub script: Script,
    /// The training run that replaces the script, if there is one.
    pub course: Option<Course>,
    /// The limits on worlds; `None` if all workers are required.
    pub elastic: Option<Elastic>,
    /// The start time of each worker.
    pub starts: Vec<Duration>,
    /// The time after which a worker that has not joined gives up. After a training run was interrupted, its `patience`
    /// applies instead.
    pub join: Duration,
    /// The minimum and maximum delay of a message.
    pub delay: [Duration; 2],
    /// The faults and their times.
    pub faults: Vec<(When, Fault)>,
    /// The way in which the faults may affect the outcomes of calls.
    pub certain: Certain,
    /// Whether all workers must receive the same blame when a session is over. If a worker was lost, only the culprits
    /// must be the same. In scenarios in which workers may notice a fault at different times, or several faults may
    /// coincide, this is `false`.
    pub one_blame: bool,
}

impl When {
    /// Returns this time, delayed by `by`.
    pub fn later(self, by: Duration) -> Self {
        match self {
            When::At(time) => When::At(time + by),
            When::InCall { generation, rank, step, call, after } => {
                When::InCall { generation, rank, step, call, after: after + by }
            }
            When::Formed { generation, after } => When::Formed { generation, after: after + by },
        }
    }
}

impl Plan {
    /// Returns the maximum number of workers of a world.
    pub fn most(&self) -> usize {
        self.workers - self.elastic.map_or(0, |elastic| elastic.spares)
    }

    /// Returns the faults that follow a worker's call: for each, its index, and its delay after the start of the call.
    pub fn triggered(&self, generation: u64, rank: usize, step: u64, call: u64) -> Vec<(usize, Duration)> {
        let follows = |when: &When| match *when {
            When::InCall { generation: of, rank: who, step: in_step, call: in_call, after } => {
                ((of, who, in_step, in_call) == (generation, rank, step, call)).then_some(after)
            }
            When::At(_) | When::Formed { .. } => None,
        };
        let all = self.faults.iter().enumerate();
        all.filter_map(|(number, (when, _))| Some((number, follows(when)?))).collect()
    }

    /// Returns the faults that follow the completion of a world by its leader: for each, its index and its delay.
    pub fn triggered_by_world(&self, generation: u64) -> Vec<(usize, Duration)> {
        let follows = |when: &When| match *when {
            When::Formed { generation: of, after } => (of == generation).then_some(after),
            When::At(_) | When::InCall { .. } => None,
        };
        let all = self.faults.iter().enumerate();
        all.filter_map(|(number, (when, _))| Some((number, follows(when)?))).collect()
    }

    /// Returns the tasks among which the leaders of worlds are elected; `None` if the first worker leads.
    pub fn electorate(&self) -> Option<Electorate> {
        let is_fixed = self.elastic.is_some_and(|elastic| elastic.spares > 0 && elastic.least == self.most());
        is_fixed.then(|| Electorate::new(self.workers, self.most()))
    }
}
