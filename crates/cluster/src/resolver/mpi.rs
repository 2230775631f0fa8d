//! A cluster from the environment of an MPI launcher.

use super::by_rank::{self, counts};
use super::layout::Layout;
use super::{ClusterResolver, slurm};
use crate::environment::{Environment, ProcessEnvironment, number};
use crate::error::ClusterError;
use crate::spec::ClusterSpec;
use crate::task::{Job, Task};
use std::collections::BTreeMap;

/// The options of an [`MpiClusterResolver`], which determine the hosts, jobs and ports of the ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MpiOptions {
    /// The hosts in the order of their ranks, with the number of ranks on each. This is required if ranks are on
    /// several hosts, unless `DISTRIBUTE_HOSTS` or Slurm lists the hosts, because an MPI launcher provides only ranks.
    pub hosts: Option<Vec<(String, usize)>>,
    /// The number of tasks of each job. If it is `None`, it comes from `DISTRIBUTE_TASKS`, such as
    /// `chief:1,ps:1,worker:2`, which `distribute launch --print mpi` sets. Without it, all ranks are workers.
    pub jobs: Option<BTreeMap<Job, usize>>,
    /// The port of the first rank on each host. Further ranks on the host have the next ports. If it is `None`, it
    /// comes from `DISTRIBUTE_PORT_BASE` or, inside Slurm, from the number of the job; otherwise it is 8888.
    pub port_base: Option<u16>,
    /// The protocol prefix of addresses, such as `grpc`.
    pub rpc_layer: Option<String>,
}

/// A resolver for a program that was started by `mpirun` or `mpiexec`. MPI itself is not used.
///
/// The launcher passes the rank and the number of ranks to each process in environment variables, whose names
/// depend on the launcher:
///
/// | launcher | rank, size | on this host |
/// |---|---|---|
/// | Open MPI | `OMPI_COMM_WORLD_RANK`, `…_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK`, `…_LOCAL_SIZE` |
/// | MPICH, Intel MPI (Hydra) | `PMI_RANK`, `PMI_SIZE` | `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` |
/// | MVAPICH2 | `MV2_COMM_WORLD_RANK`, `…_SIZE` | `MV2_COMM_WORLD_LOCAL_RANK`, `…_LOCAL_SIZE` |
/// | PMIx (PRRTE, `srun --mpi=pmix`) | `PMIX_RANK`; the size from Slurm | `SLURM_LOCALID` |
///
/// The launcher does not provide the locations of the other ranks. The hosts come from the first of these sources that
/// is present:
///
/// - [`MpiOptions::hosts`];
/// - the variable `DISTRIBUTE_HOSTS`, such as `a:2,b:1` for two ranks on a and one on b, which
///   `distribute launch --print mpi` sets;
/// - `127.0.0.1`, if all ranks are on this host according to the launcher, even inside Slurm. Only processes on this
///   host can then connect to the ranks;
/// - Slurm, inside a Slurm job step with one task for each rank.
///
/// Without any of these, the resolver returns [`ClusterError::NoHosts`].
///
/// Ranks must fill one host after another, as with `mpirun --map-by slot`. `mpirun` begins with the host on which
/// it is started, if that host is one of them. `--map-by seq --host a,a,b` keeps the order of the hosts.
///
/// ```
/// use distribute_cluster::resolver::{ClusterResolver, MpiClusterResolver, MpiOptions};
/// let environment = [
///     ("OMPI_COMM_WORLD_RANK", "1"),
///     ("OMPI_COMM_WORLD_SIZE", "2"),
///     ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
/// ];
/// let resolver = MpiClusterResolver::from_environment(MpiOptions::default(), &environment)?;
/// assert_eq!(resolver.cluster_spec()?.to_string(), r#"{"worker":["127.0.0.1:8888","127.0.0.1:8889"]}"#);
/// # Ok::<(), distribute_cluster::ClusterError>(())
/// ```
#[derive(Clone, Debug)]
pub struct MpiClusterResolver {
    spec: ClusterSpec,
    task: Task,
    rpc_layer: Option<String>,
}

/// The environment variable that lists the hosts, and the number of ranks on each.
const HOSTS: &str = "DISTRIBUTE_HOSTS";

/// The environment variables of each launcher: rank, size, rank on this host, size on this host.
const LAUNCHERS: [[&str; 4]; 4] = [
    [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ],
    ["MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"],
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
    ["PMIX_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""],
];

/// The values that a launcher has passed to this process.
struct LauncherVariables {
    rank: usize,
    size: usize,
    local_rank: Option<usize>,
    local_size: Option<usize>,
}

fn launcher_variables(environment: &dyn Environment) -> Result<Option<LauncherVariables>, ClusterError> {
    for [rank, size, local_rank, local_size] in LAUNCHERS {
        if let (Some(rank), Some(size)) = (number(environment, rank)?, number(environment, size)?) {
            let (local_rank, local_size) =
                (number(environment, local_rank)?, number(environment, local_size)?);
            return Ok(Some(LauncherVariables { rank, size, local_rank, local_size }));
        }
    }
    Ok(None)
}

/// Parses the hosts in `DISTRIBUTE_HOSTS`, with the number of ranks on each; `None` if it is not set.
///
/// # Errors
/// Returns [`ClusterError::Malformed`] if the variable has a different form.
fn hosts(environment: &dyn Environment) -> Result<Option<Vec<(String, usize)>>, ClusterError> {
    counts(environment, HOSTS, "hosts and numbers of ranks, such as \"a:2,b:1\"")
}

/// Finds a launcher that set only one of rank and size. Returns the names of the set and of the missing variable;
/// `None` if there is no such launcher.
pub(super) fn incomplete(environment: &dyn Environment) -> Option<(&'static str, &'static str)> {
    let is_set = |name: &str| environment.get(name).is_some();
    // The size next to PMIX_RANK belongs to Slurm, and may be present without the rank.
    let own = LAUNCHERS.iter().filter(|[_, size, ..]| !size.starts_with("SLURM"));
    let halves = own.filter_map(|[rank, size, ..]| match (is_set(rank), is_set(size)) {
        (true, false) => Some((*rank, *size)),
        (false, true) => Some((*size, *rank)),
        _ => None,
    });
    halves.into_iter().next()
}

/// Returns the number of ranks that an MPI launcher started. Returns `None` if there is no launcher, or if its
/// variables are invalid.
pub(super) fn size(environment: &dyn Environment) -> Option<usize> {
    launcher_variables(environment).ok().flatten().map(|variables| variables.size)
}

impl MpiClusterResolver {
    /// Finds the cluster from the environment of this process.
    ///
    /// # Errors
    /// - [`ClusterError::NotSet`]: no MPI launcher started this process.
    /// - [`ClusterError::NoHosts`]: the hosts of the ranks are not known.
    /// - [`ClusterError::TaskCount`]: the number of tasks of all jobs differs from the number of ranks on all hosts.
    /// - [`ClusterError::Malformed`]: a variable is not as expected.
    /// - [`ClusterError::Dealt`]: the launcher placed this process differently than the resolver assumes.
    /// - [`ClusterError::HostTwice`], [`ClusterError::Host`]: a list of hosts is invalid.
    /// - [`ClusterError::Ports`], [`ClusterError::NoSuchRank`]: a host has too few ports, or the rank is too large.
    /// - [`ClusterError::TooLarge`]: a job has too many tasks.
    pub fn from_env(options: MpiOptions) -> Result<Self, ClusterError> {
        Self::from_environment(options, &ProcessEnvironment)
    }

    /// Finds the cluster from the given environment.
    ///
    /// # Errors
    /// Returns the errors of [`from_env`](Self::from_env).
    pub fn from_environment(
        options: MpiOptions,
        environment: &dyn Environment,
    ) -> Result<Self, ClusterError> {
        let LauncherVariables { rank, size, local_rank, local_size } = launcher_variables(environment)?
            .ok_or(ClusterError::NotSet {
                variable: "OMPI_COMM_WORLD_RANK (or PMI_RANK, PMIX_RANK, MV2_COMM_WORLD_RANK)",
                remedy: "no MPI launcher started this process: start the program with mpirun or mpiexec",
            })?;
        let in_step = environment.get("SLURM_STEP_TASKS_PER_NODE").is_some();
        let hosts = match options.hosts.or(hosts(environment)?) {
            Some(hosts) => hosts,
            None if local_size == Some(size) => vec![("127.0.0.1".into(), size)],
            // For an mpirun inside sbatch, the step consists of mpirun's daemons, one on each node.
            None if in_step && number(environment, "SLURM_STEP_NUM_TASKS")? == Some(size) => {
                slurm::step(environment)?
            }
            None => return Err(ClusterError::NoHosts { size, local: local_size }),
        };
        let jobs = options.jobs.map_or_else(|| by_rank::jobs(environment, size), Ok)?;
        let port_base = options.port_base.map_or_else(|| by_rank::port_base(environment), Ok)?;
        let placed = Layout { hosts: &hosts, jobs: &jobs, port_base }.place(rank)?;
        placed.check(rank, None, local_rank)?;
        Ok(Self { spec: placed.spec, task: placed.task, rpc_layer: options.rpc_layer })
    }
}

impl ClusterResolver for MpiClusterResolver {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve<const N: usize>(
        options: MpiOptions,
        environment: [(&str, &str); N],
    ) -> Result<(String, Task), String> {
        let resolver = MpiClusterResolver::from_environment(options, &environment);
        resolver.map(|resolver| (resolver.spec.to_string(), resolver.task)).map_err(|error| error.to_string())
    }

    #[test]
    fn ranks_of_one_host_are_on_loopback() {
        let here = (r#"{"worker":["127.0.0.1:8888","127.0.0.1:8889"]}"#.to_string(), Job::Worker.task(1));
        let ours = MpiOptions::default;
        for launcher in &LAUNCHERS[..3] {
            let environment =
                [(launcher[0], "1"), (launcher[1], "2"), (launcher[2], "1"), (launcher[3], "2")];
            assert_eq!(resolve(ours(), environment).unwrap(), here);
        }
    }

    #[test]
    fn hosts_are_given_or_slurms() {
        let rank = [("PMI_RANK", "2"), ("PMI_SIZE", "3")];
        let hosts = Some(vec![("b".into(), 2), ("a".into(), 1)]);
        let jobs = Some(BTreeMap::from([(Job::Ps, 1), (Job::Worker, 2)]));
        let options = MpiOptions { hosts, jobs, port_base: Some(100), ..MpiOptions::default() };
        let there = (r#"{"ps":["b:100"],"worker":["b:101","a:100"]}"#.to_string(), Job::Worker.task(1));
        assert_eq!(resolve(options.clone(), rank).unwrap(), there);
        let with_hosts = |hosts| [rank[0], rank[1], ("DISTRIBUTE_HOSTS", hosts)];
        let workers = r#"{"worker":["b:8888","b:8889","a:8888"]}"#.to_string();
        assert_eq!(
            resolve(MpiOptions::default(), with_hosts("b:2,a:1")).unwrap(),
            (workers, Job::Worker.task(2))
        );
        let servers = [
            rank[0],
            rank[1],
            ("DISTRIBUTE_HOSTS", "b:2,a:1"),
            ("DISTRIBUTE_TASKS", "chief:1,ps:1,worker:1"),
        ];
        let spec = r#"{"chief":["b:8888"],"ps":["b:8889"],"worker":["a:8888"]}"#.to_string();
        assert_eq!(resolve(MpiOptions::default(), servers).unwrap(), (spec, Job::Worker.task(0)));
        for (hosts, says) in [
            (
                "b:2,a",
                r#"DISTRIBUTE_HOSTS: expected hosts and numbers of ranks, such as "a:2,b:1", found "b:2,a""#,
            ),
            ("b:2,a:9", "the jobs have 3 tasks, but 11 were started"),
        ] {
            let error = resolve(MpiOptions::default(), with_hosts(hosts)).unwrap_err();
            assert!(error.starts_with(says), "{error}");
        }
        let dealt = [rank[0], rank[1], ("MPI_LOCALRANKID", "1")];
        assert!(resolve(options, dealt).unwrap_err().contains("--map-by slot"));

        let step = [
            ("PMIX_RANK", "2"),
            ("SLURM_STEP_NUM_TASKS", "3"),
            ("SLURM_STEP_NODELIST", "n[1-2]"),
            ("SLURM_STEP_TASKS_PER_NODE", "2,1"),
            ("SLURM_LOCALID", "0"),
        ];
        let there = (r#"{"worker":["n1:8888","n1:8889","n2:8888"]}"#.to_string(), Job::Worker.task(2));
        assert_eq!(resolve(MpiOptions::default(), step).unwrap(), there);
    }

    #[test]
    fn in_a_step_on_one_node_the_hosts_are_loopback_and_the_ports_differ_by_job() {
        let of = |job, rank| {
            let step = [
                ("OMPI_COMM_WORLD_RANK", rank),
                ("OMPI_COMM_WORLD_SIZE", "2"),
                ("OMPI_COMM_WORLD_LOCAL_RANK", rank),
                ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
                ("SLURM_JOB_ID", job),
                ("SLURM_STEP_NUM_TASKS", "2"),
                ("SLURM_STEP_NODELIST", "n1"),
                ("SLURM_STEP_TASKS_PER_NODE", "2"),
            ];
            resolve(MpiOptions::default(), step).unwrap()
        };
        let spec = r#"{"worker":["127.0.0.1:14480","127.0.0.1:14481"]}"#.to_string();
        assert_eq!(of("70", "0"), (spec.clone(), Job::Worker.task(0)));
        assert_eq!(of("70", "1"), (spec, Job::Worker.task(1)));
        assert_eq!(of("71", "1").0, r#"{"worker":["127.0.0.1:14544","127.0.0.1:14545"]}"#);
        // PMIx does not pass the number of ranks on this host.
        let pmix = [
            ("PMIX_RANK", "1"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_STEP_NODELIST", "n1"),
            ("SLURM_STEP_TASKS_PER_NODE", "2"),
            ("SLURM_LOCALID", "1"),
        ];
        assert_eq!(resolve(MpiOptions::default(), pmix).unwrap().0, r#"{"worker":["n1:8888","n1:8889"]}"#);
    }

    #[test]
    fn without_hosts_the_error_names_the_missing_input() {
        let error = resolve(MpiOptions::default(), [("PMI_RANK", "2"), ("PMI_SIZE", "3")]).unwrap_err();
        assert_eq!(
            error,
            "3 ranks were started, but MPI does not report the hosts; give MpiOptions::hosts, or TF_CONFIG"
        );
        let some = [("PMI_RANK", "2"), ("PMI_SIZE", "3"), ("MPI_LOCALNRANKS", "2")];
        assert!(
            resolve(MpiOptions::default(), some)
                .unwrap_err()
                .starts_with("3 ranks were started, 2 of them here, but")
        );
        let error = resolve(MpiOptions::default(), []).unwrap_err();
        assert!(
            error.starts_with("OMPI_COMM_WORLD_RANK (or PMI_RANK") && error.contains("mpirun"),
            "{error}"
        );
        let error = resolve(MpiOptions::default(), [("PMI_RANK", "-1"), ("PMI_SIZE", "3")]).unwrap_err();
        assert_eq!(error, r#"PMI_RANK: expected a whole number from 0, found "-1""#);
    }
}
