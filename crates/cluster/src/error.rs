//! Errors in clusters and their descriptions. Their messages contain advice.

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
    /// An error in the cluster, with its location in the description.
    #[error("{origin}: {path}: {error}")]
    At {
        /// The source of the description, such as the name of an environment variable.
        origin: &'static str,
        /// The path of the value in the source, such as `task.index`.
        path: String,
        /// The error of the value at this location.
        error: Box<ClusterError>,
    },
    /// A string is not a valid address.
    #[error("expected \"host:port\", found {found:?}: {why}")]
    Address {
        /// The invalid string.
        found: String,
        /// The reason why the string is invalid.
        why: String,
    },
    /// The cluster does not contain the requested job.
    #[error("the cluster has no job {job:?}, it has {}", names(jobs), job = job.as_str())]
    NoSuchJob {
        /// The requested job.
        job: Job,
        /// The jobs of the cluster.
        jobs: Vec<Job>,
    },
    /// The job has no task with the requested index.
    #[error("the cluster has no {task}: {job:?} has {}", tasks(indices), job = task.job.as_str())]
    NoSuchTask {
        /// The requested task.
        task: Task,
        /// The indices of the job's tasks.
        indices: Vec<usize>,
    },
    /// A task is listed twice, with two addresses.
    #[error("{task} is listed twice, at {addresses}")]
    Duplicate {
        /// The task that is listed twice.
        task: Task,
        /// Both addresses, for the message.
        addresses: String,
    },
    /// The index of a task is too large.
    #[error("{task} is listed, but tasks are numbered from 0 to {}", crate::task::MAX_TASK_INDEX)]
    TooLarge {
        /// The task with the index that is too large.
        task: Task,
    },
    /// The cluster has a job that strategies do not use.
    #[error("the job {job:?} is not one that strategies use: chief, worker, ps, evaluator", job = job.as_str())]
    DisallowedJob {
        /// The job that strategies do not use.
        job: Job,
    },
    /// The job of this process is one that strategies do not use.
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
    /// The cluster has more than one chief, or more than one evaluator.
    #[error("there are {count} tasks of the job {job:?}, but there can be only one", job = job.as_str())]
    Several {
        /// The job of which there are several tasks.
        job: Job,
        /// The number of tasks of this job.
        count: usize,
    },
    /// The index of this process's task is not less than the number of tasks of its job.
    #[error("this task is {task}, but {job:?} has {}", tasks(indices), job = task.job.as_str())]
    NoSuchIndex {
        /// The task of this process.
        task: Task,
        /// The indices of the job's tasks.
        indices: Vec<usize>,
    },
    /// The indices of the workers have gaps.
    #[error("{job:?} has {}: workers of a strategy are numbered from 0 without gaps", tasks(indices), job = job.as_str())]
    Gaps {
        /// The job whose indices have gaps.
        job: Job,
        /// The indices of the job's tasks.
        indices: Vec<usize>,
    },
    /// The task is a parameter server, which has no rank among the workers.
    #[error(
        "{task} is a parameter server: it has no rank among the workers, and trains nothing; before the strategy is made, call \
         distribute::between_graph::serve, which serves variables in this task and returns at once in workers, or leave the job ps out \
         of the cluster, since workers in lock step use none"
    )]
    NoRank {
        /// The parameter server.
        task: Task,
    },
    /// There is a cluster, but the task of this process is not known.
    #[error("there is a cluster of {tasks} tasks, but {missing} of this process is not given; {remedy}")]
    NoTask {
        /// The number of tasks of the cluster.
        tasks: usize,
        /// The missing part of the task: the job, the index, or both.
        missing: &'static str,
        /// Advice on how to fix it.
        remedy: &'static str,
    },
    /// A task has a loopback address in a cluster of several hosts. Every host would treat that address as its own.
    #[error(
        "{task} is at {address}, which means the local machine on every host, while {other} is on another \
         host; give the name or the address by which the others reach it"
    )]
    Loopback {
        /// The task with the loopback address.
        task: Task,
        /// The loopback address.
        address: String,
        /// A task whose address is on another host.
        other: Task,
    },
    /// Two tasks have the same address, on which only one of them can listen.
    #[error(
        "{task} and {other} are both at {address}; give each task a separate address: another host, or \
         another port"
    )]
    AddressTwice {
        /// The first task.
        task: Task,
        /// The second task.
        other: Task,
        /// The address of both tasks.
        address: String,
    },
    /// A task has an unspecified address, such as `0.0.0.0`, to which no process can connect.
    #[error(
        "{task} is at {address}, to which no task can connect; give the name or the address by which the \
         others reach it"
    )]
    Unspecified {
        /// The task with the unspecified address.
        task: Task,
        /// The unspecified address.
        address: String,
    },
    /// A required environment variable is not set.
    #[error("{variable} is not set: {remedy}")]
    NotSet {
        /// The name of the variable.
        variable: &'static str,
        /// Advice on how to set it.
        remedy: &'static str,
    },
    /// Environment variables show that this is one of several processes, but not how to reach the others. This process
    /// would train alone.
    #[error("found {found} without {missing}: {remedy}")]
    HalfAnEnvironment {
        /// The variables that are set.
        found: String,
        /// The missing variables.
        missing: &'static str,
        /// Advice on how to fix it.
        remedy: &'static str,
    },
    /// A string is not a valid host.
    #[error("expected a host, found {found:?}: {why}")]
    Host {
        /// The invalid string.
        found: String,
        /// The reason why the string is invalid.
        why: String,
    },
    /// The total number of tasks of all jobs differs from the number of tasks that were started.
    #[error(
        "the jobs have {wanted} tasks, but {started} were started; ask the scheduler for {wanted}, or give the jobs {started}"
    )]
    TaskCount {
        /// The number of tasks of all jobs.
        wanted: usize,
        /// The number of tasks that the scheduler started.
        started: usize,
    },
    /// The rank of this process is not less than the number of tasks that were started.
    #[error("this process has rank {rank}, but {started} tasks were started")]
    NoSuchRank {
        /// The rank of this process.
        rank: usize,
        /// The number of tasks that the scheduler started.
        started: usize,
    },
    /// A list of hosts contains a host more than once.
    #[error("the host {host:?} is listed twice; give each host once, with all of its tasks")]
    HostTwice {
        /// The host that is listed twice.
        host: String,
    },
    /// A host has more tasks than there are ports from the first port up.
    #[error("there are no {tasks} ports from {port_base} up; give a smaller port_base")]
    Ports {
        /// The first port.
        port_base: u16,
        /// The number of the host's tasks, up to and including the first one without a port.
        tasks: usize,
    },
    /// The scheduler placed a rank differently than the resolver assumes. Each position is the index of a host, and the
    /// index of a task on that host.
    #[error(
        "rank {rank} should be task {} of host {}, but is task {} of host {}: have the scheduler fill one host after the \
         other (Slurm: --distribution=block; Open MPI: --map-by slot)",
        expected.1, expected.0, found.1, found.0
    )]
    Dealt {
        /// The rank that is placed differently.
        rank: usize,
        /// The position if ranks fill one host after another.
        expected: (usize, usize),
        /// The position according to the scheduler.
        found: (usize, usize),
    },
    /// The tasks of a node need more GPUs than the node has.
    #[error(
        "{tasks} tasks of a node cannot have {} each of its {gpus}; give gpus_per_node, gpus_per_task (0 \
         for none), or start fewer tasks on a node",
        gpus_each(*each)
    )]
    Gpus {
        /// The number of tasks on the node with the most tasks.
        tasks: usize,
        /// The number of GPUs of each task; 0 if there are fewer GPUs than tasks.
        each: usize,
        /// The number of GPUs of the node.
        gpus: usize,
    },
    /// An MPI launcher started ranks on several hosts, but does not provide the names of the hosts.
    #[error(
        "{size} ranks were started, {}but MPI does not report the hosts; give MpiOptions::hosts, or \
         TF_CONFIG",
        here(local)
    )]
    NoHosts {
        /// The number of ranks.
        size: usize,
        /// The number of ranks on this host; `None` if it is not known.
        local: Option<usize>,
    },
    /// A union of resolvers was created without any resolver.
    #[error("a union needs at least one resolver")]
    NoResolver,
    /// A request to an API failed.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// An API denies access to this process.
    #[error("{error}; {remedy}")]
    Forbidden {
        /// The error response of the API.
        error: HttpError,
        /// Advice on how to get access.
        remedy: &'static str,
    },
    /// An API returned a list with too many pages.
    #[error("{url}: the list has too many pages")]
    Endless {
        /// The URL of the list.
        url: String,
    },
    /// A file of the pod's service account cannot be read, or contains no valid certificate.
    #[error("{path}: {what}; does the pod have a service account with a mounted token?")]
    Account {
        /// The path of the file.
        path: String,
        /// The reason why the file cannot be used.
        what: String,
    },
    /// A pod of the cluster is not running.
    #[error("the pod {pod:?} is not running, its phase is {phase}; wait until all pods run, and retry")]
    PodNotRunning {
        /// The name of the pod.
        pod: String,
        /// The phase of the pod, as reported by Kubernetes.
        phase: String,
    },
    /// Two pods would have the same address.
    #[error(
        "{one:?} and {other:?} would both be at {address}; give them separate ports, or a separate network"
    )]
    SharedAddress {
        /// The first pod.
        one: String,
        /// The second pod.
        other: String,
        /// The address of both.
        address: String,
    },
    /// This machine is not a running instance of the instance group.
    #[error(
        "this machine has the address {own}, which no running machine of the instance group {group:?} has; \
         give GceOptions::task_id if it participates"
    )]
    NotInGroup {
        /// The address of this machine.
        own: String,
        /// The name of the instance group.
        group: String,
    },
    /// The numbers of workers and replicas do not form a valid world.
    #[error(transparent)]
    World(#[from] WorldError),
}
