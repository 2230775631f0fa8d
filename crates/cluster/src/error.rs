//! Errors of clusters, with advice.

use crate::Malformed;
use crate::http::HttpError;
use crate::task::{Job, Task};
use crate::words::{gpus_each, here, names, tasks};
use crate::world::WorldError;

/// An error in a cluster, or in its description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// A value in the description of a cluster is not as expected.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// An error in the cluster, and its location.
    #[error("{origin}: {path}: {error}")]
    At {
        /// The source, such as the environment variable.
        origin: &'static str,
        /// The path in the source: `task.index`.
        path: String,
        /// The error.
        error: Box<ClusterError>,
    },
    /// A text is not an address.
    #[error("expected \"host:port\", found {found:?}: {why}")]
    Address {
        /// The text.
        found: String,
        /// The reason.
        why: String,
    },
    /// The cluster has no job of this name.
    #[error("the cluster has no job {job:?}, it has {}", names(jobs), job = job.as_str())]
    NoSuchJob {
        /// The requested job.
        job: Job,
        /// The jobs of the cluster.
        jobs: Vec<Job>,
    },
    /// The job has no task of this index.
    #[error("the cluster has no {task}: {job:?} has {}", tasks(indices), job = task.job.as_str())]
    NoSuchTask {
        /// The requested task.
        task: Task,
        /// The indices of the job's tasks.
        indices: Vec<usize>,
    },
    /// One task has two addresses.
    #[error("{task} is there twice, at {addresses}")]
    Duplicate {
        /// The task.
        task: Task,
        /// Both addresses.
        addresses: String,
    },
    /// The index of a task is too large.
    #[error("{task} is there, but tasks are numbered from 0 to {}", crate::task::MAX_TASK_INDEX)]
    TooLarge {
        /// The task.
        task: Task,
    },
    /// Strategies do not use a job of this name.
    #[error("the job {job:?} is none that a strategy uses: chief, worker, ps, evaluator", job = job.as_str())]
    DisallowedJob {
        /// The job.
        job: Job,
    },
    /// Strategies do not use this process's job.
    #[error("this task is {task}, but the tasks of strategies are chief, worker, ps and evaluator")]
    DisallowedTask {
        /// The task of this process.
        task: Task,
    },
    /// The job of this process is not part of the cluster.
    #[error("this task is {task}, but the cluster has no job {job:?}, it has {}", names(jobs), job = task.job.as_str())]
    NotInCluster {
        /// The task of this process.
        task: Task,
        /// The jobs of the cluster.
        jobs: Vec<Job>,
    },
    /// More than one chief, or more than one evaluator.
    #[error("there are {count} tasks of the job {job:?}, where there can be one", job = job.as_str())]
    Several {
        /// The job.
        job: Job,
        /// The number of its tasks.
        count: usize,
    },
    /// The index of this process is not less than the number of tasks of its job.
    #[error("this task is {task}, but {job:?} has {}", tasks(indices), job = task.job.as_str())]
    NoSuchIndex {
        /// The task of this process.
        task: Task,
        /// The indices of the job's tasks.
        indices: Vec<usize>,
    },
    /// The indices of workers have gaps.
    #[error("{job:?} has {}: workers of a strategy are numbered from 0 without gaps", tasks(indices), job = job.as_str())]
    Gaps {
        /// The job.
        job: Job,
        /// The indices of the job's tasks.
        indices: Vec<usize>,
    },
    /// A parameter server is not a worker: it has no rank.
    #[error(
        "{task} is a parameter server: it has no rank among the workers, and trains nothing; before the strategy is made, call \
         distribute::between_graph::serve, which serves variables in this task and returns false in workers, or leave the job ps out \
         of the cluster, since workers in lock step use none"
    )]
    NoRank {
        /// The task.
        task: Task,
    },
    /// There is a cluster, but the task of this process is not known.
    #[error("there is a cluster of {tasks} tasks, but {missing} of this process is not given; {remedy}")]
    NoTask {
        /// The number of tasks of the cluster.
        tasks: usize,
        /// The missing part: the job, the index, or both.
        missing: &'static str,
        /// Advice.
        remedy: &'static str,
    },
    /// A loopback address in a cluster of several hosts: each host takes it for its own.
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
    /// One address for two tasks, of which only one can listen there.
    #[error(
        "{task} and {other} are both at {address}; give each task an address of its own: another host, or another port"
    )]
    AddressTwice {
        /// The first task.
        task: Task,
        /// The second task.
        other: Task,
        /// Their address.
        address: String,
    },
    /// An unspecified address, to which no process can connect.
    #[error(
        "{task} is at {address}, to which nobody can connect; give the name or the address by which the others reach it"
    )]
    Unspecified {
        /// The task.
        task: Task,
        /// Its address.
        address: String,
    },
    /// A required environment variable is not set.
    #[error("{variable} is not set: {remedy}")]
    NotSet {
        /// The variable.
        variable: &'static str,
        /// Advice on how to set it.
        remedy: &'static str,
    },
    /// The environment says that this is one of several processes, but not how to reach the others. The
    /// process would train alone.
    #[error("found {found} without {missing}: {remedy}")]
    HalfAnEnvironment {
        /// The variables that are set.
        found: String,
        /// The missing variables.
        missing: &'static str,
        /// Advice.
        remedy: &'static str,
    },
    /// A text is not a host.
    #[error("expected a host, found {found:?}: {why}")]
    Host {
        /// The text.
        found: String,
        /// The reason.
        why: String,
    },
    /// The number of tasks of all jobs differs from the number of tasks that were started.
    #[error(
        "the jobs have {wanted} tasks, but {started} were started; ask the scheduler for {wanted}, or give the jobs {started}"
    )]
    TaskCount {
        /// The number of tasks of all jobs.
        wanted: usize,
        /// The number of tasks that the scheduler started.
        started: usize,
    },
    /// The rank of this process is not less than the number of tasks.
    #[error("this process has rank {rank}, but {started} tasks were started")]
    NoSuchRank {
        /// The rank.
        rank: usize,
        /// The number of tasks.
        started: usize,
    },
    /// A list contains a host more than once.
    #[error("the host {host:?} is there twice; give each host once, with all of its tasks")]
    HostTwice {
        /// The host.
        host: String,
    },
    /// A host has fewer ports than tasks.
    #[error("there are no {tasks} ports from {port_base} up; give a smaller port_base")]
    Ports {
        /// The first port.
        port_base: u16,
        /// The number of tasks that need a port, at least.
        tasks: usize,
    },
    /// The scheduler placed a rank on another task than the resolver. Pairs are the numbers of a host, and of
    /// a task on it.
    #[error(
        "rank {rank} should be task {} of host {}, but is task {} of host {}: have the scheduler fill one host after the \
         other (Slurm: --distribution=block; Open MPI: --map-by slot)",
        expected.1, expected.0, found.1, found.0
    )]
    Dealt {
        /// The rank.
        rank: usize,
        /// The host and the number there, if ranks fill one host after another.
        expected: (usize, usize),
        /// The host and the number according to the scheduler.
        found: (usize, usize),
    },
    /// The tasks of a node need more GPUs than it has.
    #[error(
        "{tasks} tasks of a node can not have {} each of its {gpus}; give gpus_per_node, gpus_per_task (0 for none), or \
         start fewer tasks on a node",
        gpus_each(*each)
    )]
    Gpus {
        /// The number of tasks of the fullest node.
        tasks: usize,
        /// The number of GPUs of each task; 0 if there are fewer GPUs than tasks.
        each: usize,
        /// The number of GPUs of the node.
        gpus: usize,
    },
    /// An MPI launcher started ranks on several hosts, but does not pass the hosts.
    #[error(
        "{size} ranks were started, {}but MPI doesn't tell on which hosts; give MpiOptions::hosts, or TF_CONFIG",
        here(local)
    )]
    NoHosts {
        /// The number of ranks.
        size: usize,
        /// The number of ranks on this host, if known.
        local: Option<usize>,
    },
    /// A union of zero resolvers.
    #[error("a union needs at least one resolver")]
    NoResolver,
    /// A request to an API failed.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// An API denies access to this process.
    #[error("{error}; {remedy}")]
    Forbidden {
        /// The answer of the API.
        error: HttpError,
        /// Advice on how to get access.
        remedy: &'static str,
    },
    /// An API returns too many pages.
    #[error("{url}: the list has no end")]
    Endless {
        /// The URL of the list.
        url: String,
    },
    /// A file of the pod's service account cannot be read.
    #[error("{path}: {what}; does the pod have a service account with a mounted token?")]
    Account {
        /// The file.
        path: String,
        /// The error of the system.
        what: String,
    },
    /// A pod is not running.
    #[error("the pod {pod:?} doesn't run, its phase is {phase}; wait until all pods run, then try again")]
    PodNotRunning {
        /// The name of the pod.
        pod: String,
        /// The phase of the pod.
        phase: String,
    },
    /// Two pods would have one address.
    #[error(
        "{one:?} and {other:?} would both be at {address}; give them ports of their own, or a network of their own"
    )]
    SharedAddress {
        /// The first pod.
        one: String,
        /// The second pod.
        other: String,
        /// The address.
        address: String,
    },
    /// This machine is not part of the instance group.
    #[error(
        "this machine has the address {own}, which no running machine of the instance group {group:?} has; give \
         GceOptions::task_id if it is to take part"
    )]
    NotInGroup {
        /// The address of this machine.
        own: String,
        /// The group.
        group: String,
    },
    /// The tasks do not make a world.
    #[error(transparent)]
    World(#[from] WorldError),
}
