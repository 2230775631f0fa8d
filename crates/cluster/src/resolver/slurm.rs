//! A cluster from the environment of a Slurm job step.

use super::by_rank;
use super::hostlist::{expand_hostlist, expand_tasks_per_node};
use super::layout::Layout;
use super::{Accelerators, ClusterResolver};
use crate::environment::{Environment, ProcessEnvironment, number, required, required_number, unexpected};
use crate::spec::ClusterSpec;
use crate::task::{Job, Task};
use crate::{ClusterError, Malformed};
use std::collections::BTreeMap;

/// The options of a [`SlurmClusterResolver`], which determine the jobs, ports and GPUs of the tasks of a job step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmOptions {
    /// The number of tasks of each job. If it is `None`, it comes from `DISTRIBUTE_TASKS`, which `distribute launch
    /// --print slurm` sets to a value such as `chief:1,ps:1,worker:2`. Without that variable, all tasks are workers.
    pub jobs: Option<BTreeMap<Job, usize>>,
    /// The port of the first task on each node. Further tasks on the node have the next ports. If it is `None`, it
    /// comes from `DISTRIBUTE_PORT_BASE` or from the number of the Slurm job, so that jobs on one node have different
    /// ports; otherwise it is 8888.
    pub port_base: Option<u16>,
    /// The number of GPUs of each node. If it is `None`, it comes from `CUDA_VISIBLE_DEVICES` or
    /// `SLURM_GPUS_ON_NODE`, or is 0.
    pub gpus_per_node: Option<usize>,
    /// The number of GPUs of each task. If it is `None`, it is the number of GPUs of a node, divided by the largest
    /// number of tasks on a node and rounded down.
    pub gpus_per_task: Option<usize>,
    /// The number of tasks on each node; `None` means the number in the job step.
    pub tasks_per_node: Option<TasksPerNode>,
    /// The protocol prefix of addresses, such as `grpc`.
    pub rpc_layer: Option<String>,
}

/// The number of tasks on each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TasksPerNode {
    /// The same number of tasks on each node of the step.
    Each(usize),
    /// The nodes in the order of their ranks, with the number of tasks on each.
    Nodes(Vec<(String, usize)>),
}

impl Default for SlurmOptions {
    fn default() -> Self {
        Self {
            jobs: None,
            port_base: None,
            gpus_per_node: None,
            gpus_per_task: None,
            tasks_per_node: None,
            rpc_layer: Some("grpc".into()),
        }
    }
}

/// A resolver for a program that `srun` started as a Slurm job step.
///
/// Strategies that find their cluster in the environment use this resolver automatically. `distribute launch` prints a
/// job script that calls `srun` and passes the tasks their secret:
///
/// ```sh
/// distribute launch --workers 4 --print slurm -- ./train > train.sbatch
/// sbatch train.sbatch
/// ```
///
/// Ranks fill one node after another, in Slurm's order of the nodes. Jobs take consecutive ranks, in the order of their
/// names. The position of this process is compared with Slurm's values (`SLURM_NODEID`, `SLURM_LOCALID`).
///
/// ```
/// use distribute_cluster::resolver::{ClusterResolver, SlurmClusterResolver, SlurmOptions};
/// let step = [
///     ("SLURM_PROCID", "2"),
///     ("SLURM_STEP_NUM_TASKS", "3"),
///     ("SLURM_STEP_NODELIST", "n[01-02]"),
///     ("SLURM_STEP_TASKS_PER_NODE", "2,1"),
/// ];
/// let resolver = SlurmClusterResolver::from_environment(SlurmOptions::default(), &step)?;
/// assert_eq!(resolver.cluster_spec()?.to_string(), r#"{"worker":["n01:8888","n01:8889","n02:8888"]}"#);
/// assert_eq!(resolver.master()?, "grpc://n02:8888");
/// # Ok::<(), distribute_cluster::ClusterError>(())
/// ```
#[doc(alias = "tf.distribute.cluster_resolver.SlurmClusterResolver")]
#[derive(Clone, Debug)]
pub struct SlurmClusterResolver {
    spec: ClusterSpec,
    task: Task,
    rpc_layer: Option<String>,
    gpus_per_task: usize,
    visible_devices: Option<String>,
}

const NO_STEP: &str = "this process is not part of a Slurm job step: start the program with srun";

impl SlurmClusterResolver {
    /// Finds the cluster from the environment of this process.
    ///
    /// # Errors
    /// - [`ClusterError::NotSet`]: this process is not part of a job step.
    /// - [`ClusterError::Malformed`]: a variable is not as expected.
    /// - [`ClusterError::TaskCount`]: the number of tasks of all jobs differs from the number of tasks on all nodes.
    /// - [`ClusterError::Dealt`]: Slurm placed this process differently than the resolver assumes.
    /// - [`ClusterError::Gpus`]: a node has too few GPUs.
    /// - [`ClusterError::HostTwice`], [`ClusterError::Host`]: a list of hosts is invalid.
    /// - [`ClusterError::Ports`], [`ClusterError::NoSuchRank`]: a node has too few ports, or the rank is too large.
    /// - [`ClusterError::TooLarge`]: a job has too many tasks.
    pub fn from_env(options: SlurmOptions) -> Result<Self, ClusterError> {
        Self::from_environment(options, &ProcessEnvironment)
    }

    /// Finds the cluster from the given environment.
    ///
    /// # Errors
    /// Returns the errors of [`from_env`](Self::from_env).
    pub fn from_environment(
        options: SlurmOptions,
        environment: &dyn Environment,
    ) -> Result<Self, ClusterError> {
        let rank = required_number(environment, "SLURM_PROCID", NO_STEP)?;
        let jobs = match options.jobs {
            Some(jobs) => jobs,
            None => {
                by_rank::jobs(environment, required_number(environment, "SLURM_STEP_NUM_TASKS", NO_STEP)?)?
            }
        };
        let hosts = match options.tasks_per_node {
            Some(TasksPerNode::Nodes(nodes)) => nodes,
            Some(TasksPerNode::Each(tasks)) => nodes(environment)?.into_iter().map(|n| (n, tasks)).collect(),
            None => step(environment)?,
        };
        let port_base = options.port_base.map_or_else(|| by_rank::port_base(environment), Ok)?;
        let placed = Layout { hosts: &hosts, jobs: &jobs, port_base }.place(rank)?;
        let (node, local) = (number(environment, "SLURM_NODEID")?, number(environment, "SLURM_LOCALID")?);
        placed.check(rank, node, local)?;

        let visible = visible(environment);
        let gpus = match (options.gpus_per_node, &visible) {
            (Some(gpus), _) => gpus,
            (None, Some(visible)) => visible.len(),
            (None, None) => number(environment, "SLURM_GPUS_ON_NODE")?.unwrap_or(0),
        };
        let most = hosts.iter().map(|(_, tasks)| *tasks).max().unwrap_or(0).max(1);
        let each = options.gpus_per_task.unwrap_or(gpus / most);
        // Without GPUs this is a cluster of CPUs; with some, a task without a GPU would be a mistake.
        let shared = options.gpus_per_task.is_none() && gpus > 0 && each == 0;
        if shared || most.saturating_mul(each) > gpus {
            return Err(ClusterError::Gpus { tasks: most, each, gpus });
        }
        let mine = placed.local * each..(placed.local + 1) * each;
        let visible_devices = (each > 0).then(|| match visible.filter(|visible| visible.len() == gpus) {
            Some(visible) => visible[mine].join(","),
            None => mine.map(|gpu| gpu.to_string()).collect::<Vec<_>>().join(","),
        });
        Ok(Self {
            spec: placed.spec,
            task: placed.task,
            rpc_layer: options.rpc_layer,
            gpus_per_task: each,
            visible_devices,
        })
    }

    /// Returns the GPUs of this task as a value for `CUDA_VISIBLE_DEVICES`; `None` if it has no GPU. The resolver does
    /// not set the variable itself, because that is safe only before any other thread starts.
    pub fn visible_devices(&self) -> Option<&str> {
        self.visible_devices.as_deref()
    }
}

/// Returns the names of the job step's nodes.
///
/// # Errors
/// - [`ClusterError::NotSet`]: this process does not belong to a job step.
/// - [`ClusterError::Malformed`]: the list of nodes is malformed.
fn nodes(environment: &dyn Environment) -> Result<Vec<String>, ClusterError> {
    const NODELIST: &str = "SLURM_STEP_NODELIST";
    expand_hostlist(&required(environment, NODELIST, NO_STEP)?).map_err(|error| of_variable(error, NODELIST))
}

/// Returns the names of the job step's nodes, with the number of tasks on each.
///
/// # Errors
/// - [`ClusterError::NotSet`]: this process does not belong to a job step.
/// - [`ClusterError::Malformed`]: one of the lists is malformed, or they have different lengths.
pub(super) fn step(environment: &dyn Environment) -> Result<Vec<(String, usize)>, ClusterError> {
    const TASKS: &str = "SLURM_STEP_TASKS_PER_NODE";
    let nodes = nodes(environment)?;
    let text = required(environment, TASKS, NO_STEP)?;
    let tasks = expand_tasks_per_node(&text).map_err(|error| of_variable(error, TASKS))?;
    if tasks.len() != nodes.len() {
        let expected =
            format!("the same number of entries as SLURM_STEP_NODELIST has nodes, {}", nodes.len());
        return Err(unexpected(TASKS, expected, &text));
    }
    Ok(nodes.into_iter().zip(tasks).collect())
}

/// Replaces the origin of an error with the name of the variable that contains the short form.
fn of_variable(error: ClusterError, variable: &str) -> ClusterError {
    match error {
        ClusterError::Malformed(error) => Malformed { origin: variable.into(), ..error }.into(),
        other => other,
    }
}

/// Returns the GPUs that `CUDA_VISIBLE_DEVICES` allows this process to use; `None`, for all GPUs, if the variable is
/// not set.
fn visible(environment: &dyn Environment) -> Option<Vec<String>> {
    let text = environment.get("CUDA_VISIBLE_DEVICES")?;
    let devices = text.split(',').map(str::trim);
    // Devices after a -1 are hidden as well. Slurm writes NoDevFiles if there is none.
    let hidden = |device: &str| matches!(device, "" | "-1" | "NoDevFiles");
    Some(devices.take_while(|device| !hidden(device)).map(String::from).collect())
}

impl ClusterResolver for SlurmClusterResolver {
    fn cluster_spec(&self) -> Result<ClusterSpec, ClusterError> {
        Ok(self.spec.clone())
    }

    fn task_type(&self) -> Option<Job> {
        Some(self.task.job.clone())
    }

    fn task_id(&self) -> Option<usize> {
        Some(self.task.index)
    }

    fn rpc_layer(&self) -> Option<String> {
        self.rpc_layer.clone()
    }

    fn num_accelerators(&self) -> Accelerators {
        Accelerators::from([("GPU".into(), self.gpus_per_task)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: [(&str, &str); 4] = [
        ("SLURM_PROCID", "1"),
        ("SLURM_STEP_NUM_TASKS", "3"),
        ("SLURM_STEP_NODELIST", "n[01-02]"),
        ("SLURM_STEP_TASKS_PER_NODE", "2,1"),
    ];

    /// Returns the environment of the step, with some variables changed or removed.
    fn environment(changes: &[(&str, Option<&str>)]) -> BTreeMap<String, String> {
        let mut map: BTreeMap<String, String> =
            STEP.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        for (name, value) in changes {
            match value {
                Some(value) => drop(map.insert((*name).into(), (*value).into())),
                None => drop(map.remove(*name)),
            }
        }
        map
    }

    fn resolve(
        options: SlurmOptions,
        changes: &[(&str, Option<&str>)],
    ) -> Result<SlurmClusterResolver, String> {
        let resolver = SlurmClusterResolver::from_environment(options, &environment(changes));
        resolver.map_err(|error| error.to_string())
    }

    fn jobs(jobs: &[(Job, usize)]) -> Option<BTreeMap<Job, usize>> {
        Some(jobs.iter().cloned().collect())
    }

    // RES-3, its example
    #[test]
    fn res_3_ranks_ports_and_gpus_follow_the_step() {
        let options = SlurmOptions {
            jobs: jobs(&[(Job::Ps, 1), (Job::Worker, 2)]),
            gpus_per_node: Some(2),
            ..SlurmOptions::default()
        };
        let resolver = resolve(options, &[]).unwrap();
        assert_eq!(resolver.spec.to_string(), r#"{"ps":["n01:8888"],"worker":["n01:8889","n02:8888"]}"#);
        assert_eq!(resolver.task(), Some(Job::Worker.task(0)));
        assert_eq!(resolver.visible_devices(), Some("1"));
        assert_eq!(resolver.num_accelerators(), Accelerators::from([("GPU".into(), 1)]));
        assert_eq!(resolver.master().unwrap(), "grpc://n01:8889");
    }

    // RES-3: text order would be n10, n11, n9, and every task would take the rank of another.
    #[test]
    fn res_3_nodes_are_in_slurms_order() {
        let changes =
            [("SLURM_STEP_NODELIST", Some("n[9-11]")), ("SLURM_STEP_TASKS_PER_NODE", Some("1(x3)"))];
        let resolver = resolve(SlurmOptions::default(), &changes).unwrap();
        assert_eq!(resolver.spec.to_string(), r#"{"worker":["n9:8888","n10:8888","n11:8888"]}"#);
        assert_eq!(resolver.master().unwrap(), "grpc://n10:8888");
        let dealt = [changes[0], changes[1], ("SLURM_NODEID", Some("2"))];
        assert!(resolve(SlurmOptions::default(), &dealt).unwrap_err().contains("--distribution=block"));
    }

    // RES-3: TensorFlow's resolver fails without GPUs.
    #[test]
    fn res_3_a_cluster_may_have_no_gpus() {
        let resolver = resolve(SlurmOptions::default(), &[]).unwrap();
        assert_eq!(resolver.visible_devices(), None);
        assert_eq!(resolver.num_accelerators(), Accelerators::from([("GPU".into(), 0)]));
        let options = SlurmOptions { gpus_per_task: Some(0), ..SlurmOptions::default() };
        assert!(resolve(options, &[("SLURM_GPUS_ON_NODE", Some("4"))]).unwrap().visible_devices().is_none());
    }

    #[test]
    fn the_gpus_are_those_that_the_step_may_use() {
        let gpus = |value: &str| resolve(SlurmOptions::default(), &[("CUDA_VISIBLE_DEVICES", Some(value))]);
        assert_eq!(gpus("4,5,6,7").unwrap().visible_devices(), Some("6,7"));
        assert_eq!(gpus("").unwrap().visible_devices(), None);
        assert_eq!(gpus("-1").unwrap().visible_devices(), None);
        assert_eq!(
            gpus("3").unwrap_err(),
            "2 tasks of a node cannot have a GPU each of its 1; give gpus_per_node, gpus_per_task (0 for \
             none), or start fewer tasks on a node"
        );
        let four = resolve(SlurmOptions::default(), &[("SLURM_GPUS_ON_NODE", Some("4"))]).unwrap();
        assert_eq!(four.visible_devices(), Some("2,3"));
        let options =
            SlurmOptions { gpus_per_node: Some(1), gpus_per_task: Some(1), ..SlurmOptions::default() };
        assert!(
            resolve(options, &[]).unwrap_err().contains("2 tasks of a node cannot have 1 GPU each of its 1")
        );
    }

    // RES-3
    #[test]
    fn res_3_a_wrong_step_is_refused_by_the_variables_name() {
        let error = |changes: &[(&str, Option<&str>)]| resolve(SlurmOptions::default(), changes).unwrap_err();
        for (name, _) in STEP {
            let error = error(&[(name, None)]);
            assert!(error.starts_with(&format!("{name} is not set: this process is not part of")), "{error}");
        }
        assert_eq!(
            error(&[("SLURM_PROCID", Some("x"))]),
            r#"SLURM_PROCID: expected a whole number from 0, found "x""#
        );
        assert!(
            error(&[("SLURM_STEP_NODELIST", Some("n["))]).starts_with("SLURM_STEP_NODELIST: expected hosts")
        );
        assert!(error(&[("SLURM_STEP_TASKS_PER_NODE", Some("3"))]).contains("the same number of entries as"));
        assert!(
            error(&[("SLURM_STEP_TASKS_PER_NODE", Some("3,3"))])
                .contains("the jobs have 3 tasks, but 6 were")
        );
        assert!(error(&[("SLURM_PROCID", Some("3"))]).contains("rank 3"));
    }

    #[test]
    fn servers_and_ports_come_from_the_script() {
        let changes = [
            ("DISTRIBUTE_TASKS", Some("chief:1,ps:1,worker:1")),
            ("DISTRIBUTE_PORT_BASE", Some("12000")),
            ("SLURM_JOB_ID", Some("7")),
        ];
        let resolver = resolve(SlurmOptions::default(), &changes).unwrap();
        let spec = r#"{"chief":["n01:12000"],"ps":["n01:12001"],"worker":["n02:12000"]}"#;
        assert_eq!((resolver.spec.to_string().as_str(), resolver.task()), (spec, Some(Job::Ps.task(0))));
        let resolver = resolve(SlurmOptions::default(), &changes[2..]).unwrap();
        assert_eq!(resolver.spec.to_string(), r#"{"worker":["n01:10448","n01:10449","n02:10448"]}"#);
        let own =
            SlurmOptions { port_base: Some(9), jobs: jobs(&[(Job::Worker, 3)]), ..SlurmOptions::default() };
        assert_eq!(
            resolve(own, &changes).unwrap().spec.to_string(),
            r#"{"worker":["n01:9","n01:10","n02:9"]}"#
        );
    }

    // RES-3
    #[test]
    fn res_3_tasks_per_node_may_be_given() {
        let options = |tasks| SlurmOptions { tasks_per_node: Some(tasks), ..SlurmOptions::default() };
        let without = [("SLURM_STEP_TASKS_PER_NODE", None), ("SLURM_STEP_NUM_TASKS", Some("2"))];
        let resolver = resolve(options(TasksPerNode::Each(1)), &without).unwrap();
        assert_eq!(resolver.spec.to_string(), r#"{"worker":["n01:8888","n02:8888"]}"#);
        let nodes = TasksPerNode::Nodes(vec![("b".into(), 1), ("a".into(), 2)]);
        let resolver = resolve(options(nodes), &[("SLURM_STEP_NODELIST", None)]).unwrap();
        assert_eq!(resolver.spec.to_string(), r#"{"worker":["b:8888","a:8888","a:8889"]}"#);
    }
}
