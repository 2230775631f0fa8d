//! What can be wrong with a cluster, and what to do about it.

use crate::Malformed;
use crate::http::HttpError;
use crate::task::{Job, Task};
use crate::words::{gpus_each, here, names, tasks};
use crate::world::WorldError;

/// What is wrong with a cluster, or with what describes it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// A value is not what it should be, in a text that describes the cluster.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// What is wrong with the cluster, and where that stands.
    #[error("{origin}: {path}: {error}")]
    At {
        /// What holds it, such as the environment variable.
        origin: &'static str,
        /// Where in it: `task.index`.
        path: String,
        /// What is wrong.
        error: Box<ClusterError>,
    },
    /// A text is no address.
    #[error("expected \"host:port\", found {found:?}: {why}")]
    Address {
        /// The text.
        found: String,
        /// What is wrong with it.
        why: String,
    },
    /// The cluster has no job of this name.
    #[error("the cluster has no job {job:?}, it has {}", names(jobs), job = job.as_str())]
    NoSuchJob {
        /// The job that was asked for.
        job: Job,
        /// The jobs that it has.
        jobs: Vec<Job>,
    },
    /// The job has no task of this number.
    #[error("the cluster has no {task}: {job:?} has {}", tasks(indices), job = task.job.as_str())]
    NoSuchTask {
        /// The task that was asked for.
        task: Task,
        /// The numbers that its job has.
        indices: Vec<usize>,
    },
    /// Two addresses for one task.
    #[error("{task} is there twice, at {addresses}")]
    Duplicate {
        /// The task.
        task: Task,
        /// Both addresses.
        addresses: String,
    },
    /// The number of a task is too large to be one.
    #[error("{task} is there, but tasks are numbered from 0 to {}", crate::task::MAX_TASK_INDEX)]
    TooLarge {
        /// The task.
        task: Task,
    },
    /// Strategies don't use a job of this name.
    #[error("the job {job:?} is none that a strategy uses: chief, worker, ps, evaluator", job = job.as_str())]
    DisallowedJob {
        /// The job.
        job: Job,
    },
    /// This process's own job is none that a strategy uses.
    #[error("this task is {task}, but the tasks of strategies are chief, worker, ps and evaluator")]
    DisallowedTask {
        /// This process.
        task: Task,
    },
    /// This process's job is not part of the cluster.
    #[error("this task is {task}, but the cluster has no job {job:?}, it has {}", names(jobs), job = task.job.as_str())]
    NotInCluster {
        /// This process.
        task: Task,
        /// The jobs of the cluster.
        jobs: Vec<Job>,
    },
    /// More than one chief, or more than one evaluator.
    #[error("there are {count} tasks of the job {job:?}, where there can be one", job = job.as_str())]
    Several {
        /// The job.
        job: Job,
        /// How many tasks it has.
        count: usize,
    },
    /// This process's number is not below the number of tasks of its job.
    #[error("this task is {task}, but {job:?} has {}", tasks(indices), job = task.job.as_str())]
    NoSuchIndex {
        /// This process.
        task: Task,
        /// The numbers that its job has.
        indices: Vec<usize>,
    },
    /// Workers are numbered with gaps.
    #[error("{job:?} has {}: workers of a strategy are numbered from 0 without gaps", tasks(indices), job = job.as_str())]
    Gaps {
        /// The job.
        job: Job,
        /// The numbers that it has.
        indices: Vec<usize>,
    },
    /// A parameter server is no worker: it has no rank, and counts no workers.
    #[error(
        "{task} is a parameter server: it has no rank among the workers, and trains nothing; before the strategy is made, call \
         distribute::between_graph::serve, which serves variables in this task and returns false in workers, or leave the job ps out \
         of the cluster, since workers in lock step use none"
    )]
    NoRank {
        /// The task.
        task: Task,
    },
    /// There is a cluster, but which of its tasks this process is isn't known.
    #[error("there is a cluster of {tasks} tasks, but {missing} of this process is not given; {remedy}")]
    NoTask {
        /// How many tasks the cluster has.
        tasks: usize,
        /// What is missing: the job, the index, or both.
        missing: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// An address that each host takes for itself, in a cluster of several hosts.
    #[error(
        "{task} is at {address}, which every host takes for itself, while {other} is on another host; give the name or \
         the address by which the others reach it"
    )]
    Loopback {
        /// The task.
        task: Task,
        /// Its address.
        address: String,
        /// A task with an address of another host.
        other: Task,
    },
    /// One address for two tasks, of which one can listen there.
    #[error(
        "{task} and {other} are both at {address}; give each task an address of its own: another host, or another port"
    )]
    AddressTwice {
        /// The first task.
        task: Task,
        /// The second.
        other: Task,
        /// Their address.
        address: String,
    },
    /// An address to listen at, to which nobody can connect.
    #[error(
        "{task} is at {address}, to which nobody can connect; give the name or the address by which the others reach it"
    )]
    Unspecified {
        /// The task.
        task: Task,
        /// Its address.
        address: String,
    },
    /// An environment variable that is needed is not set.
    #[error("{variable} is not set: {remedy}")]
    NotSet {
        /// The variable.
        variable: &'static str,
        /// What sets it.
        remedy: &'static str,
    },
    /// Variables say that this is one of several processes, and not how it finds the others: it would train alone.
    #[error("found {found} without {missing}: {remedy}")]
    HalfAnEnvironment {
        /// What is set.
        found: String,
        /// What is missing.
        missing: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// A text is no host.
    #[error("expected a host, found {found:?}: {why}")]
    Host {
        /// The text.
        found: String,
        /// What is wrong with it.
        why: String,
    },
    /// The jobs have another number of tasks than were started.
    #[error(
        "the jobs have {wanted} tasks, but {started} were started; ask the scheduler for {wanted}, or give the jobs {started}"
    )]
    TaskCount {
        /// The tasks of all jobs.
        wanted: usize,
        /// The tasks that the scheduler started.
        started: usize,
    },
    /// This process's rank is not below the number of tasks.
    #[error("this process has rank {rank}, but {started} tasks were started")]
    NoSuchRank {
        /// The rank.
        rank: usize,
        /// How many tasks there are.
        started: usize,
    },
    /// A host is in a list more than once.
    #[error("the host {host:?} is there twice; give each host once, with all of its tasks")]
    HostTwice {
        /// The host.
        host: String,
    },
    /// There are fewer ports than tasks of a host.
    #[error("there are no {tasks} ports from {port_base} up; give a smaller port_base")]
    Ports {
        /// The first port.
        port_base: u16,
        /// How many tasks need one, at least.
        tasks: usize,
    },
    /// The scheduler put a rank elsewhere than the resolver does. Numbers are of a host, and of a task of this host.
    #[error(
        "rank {rank} should be task {} of host {}, but is task {} of host {}: have the scheduler fill one host after the \
         other (Slurm: --distribution=block; Open MPI: --map-by slot)",
        expected.1, expected.0, found.1, found.0
    )]
    Dealt {
        /// The rank.
        rank: usize,
        /// Its host and its number there, where ranks fill one host after the other.
        expected: (usize, usize),
        /// What the scheduler says.
        found: (usize, usize),
    },
    /// The tasks of a node need more GPUs than it has.
    #[error(
        "{tasks} tasks of a node can not have {} each of its {gpus}; give gpus_per_node, gpus_per_task (0 for none), or \
         start fewer tasks on a node",
        gpus_each(*each)
    )]
    Gpus {
        /// The tasks of the fullest node.
        tasks: usize,
        /// The GPUs of each; 0 where there are fewer than tasks.
        each: usize,
        /// The GPUs of the node.
        gpus: usize,
    },
    /// An MPI launcher started ranks on several hosts, and doesn't tell which.
    #[error(
        "{size} ranks were started, {}but MPI doesn't tell on which hosts; give MpiOptions::hosts, or TF_CONFIG",
        here(local)
    )]
    NoHosts {
        /// The number of ranks.
        size: usize,
        /// How many of them are on this host, if that is known.
        local: Option<usize>,
    },
    /// A union of no resolvers.
    #[error("a union needs at least one resolver")]
    NoResolver,
    /// An API could not be asked.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// An API does not let this process ask.
    #[error("{error}; {remedy}")]
    Forbidden {
        /// What it said.
        error: HttpError,
        /// What it takes to be let in.
        remedy: &'static str,
    },
    /// An API gives page after page.
    #[error("{url}: the list has no end")]
    Endless {
        /// The list.
        url: String,
    },
    /// A file of the pod's service account cannot be read.
    #[error("{path}: {what}; does the pod have a service account with a mounted token?")]
    Account {
        /// The file.
        path: String,
        /// What the system said.
        what: String,
    },
    /// A pod does not run.
    #[error("the pod {pod:?} doesn't run, its phase is {phase}; wait until all pods run, then try again")]
    PodNotRunning {
        /// Its name.
        pod: String,
        /// Its phase.
        phase: String,
    },
    /// Two pods would have one address.
    #[error(
        "{one:?} and {other:?} would both be at {address}; give them ports of their own, or a network of their own"
    )]
    SharedAddress {
        /// One of them.
        one: String,
        /// The other.
        other: String,
        /// The address.
        address: String,
    },
    /// This machine is none of the group.
    #[error(
        "this machine has the address {own}, which no running machine of the instance group {group:?} has; give \
         GceOptions::task_id if it is to take part"
    )]
    NotInGroup {
        /// Its address.
        own: String,
        /// The group.
        group: String,
    },
    /// The tasks don't make a world.
    #[error(transparent)]
    World(#[from] WorldError),
}
