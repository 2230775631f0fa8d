//! A cluster whose tasks are all in this process.

use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_cluster::resolver::ClusterResolver;
use distribute_cluster::{Address, ClusterError, ClusterSpec, Host, Job, Task};
use distribute_ps_tables::{Channel, LocalChannel, Tables};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};

/// A cluster of workers and parameter servers in this process. Use it in tests, and to try out a program for several
/// machines, which differs only in its resolver.
///
/// The servers exist as long as the cluster, one of its resolvers, or a strategy that uses them.
///
/// ```
/// # use distribute::prelude::*;
/// use distribute::{LocalCluster, ParameterServerStrategy, Variable, parameter_server::FixedShardsPartitioner};
///
/// let cluster = LocalCluster::new(2, 3)?;
/// let strategy = ParameterServerStrategy::new(cluster.resolver(), FixedShardsPartitioner::new(3)?)?;
/// let rows = HostTensor::new(vec![1f32, 2., 3., 4., 5., 6., 7., 8.], [4, 2])?;
/// let table = strategy.scope(|| Variable::new("table", rows))?;
/// assert_eq!(strategy.placement().to_string(), "\
/// variable      rows  shape   dtype    bytes  server
/// table/part_0  0..2  [2, 2]  float32  16     0
/// table/part_1  2..3  [1, 2]  float32  8      1
/// table/part_2  3..4  [1, 2]  float32  8      2
///
/// server 0: 1 variable, 16 bytes
/// server 1: 1 variable, 8 bytes
/// server 2: 1 variable, 8 bytes
/// ");
/// assert_eq!(table.gather(&[3, 0])?, HostTensor::new(vec![7f32, 8., 1., 2.], [2, 2])?);
/// # Ok::<(), distribute::Error>(())
/// ```
#[derive(Clone)]
pub struct LocalCluster(Arc<Tasks>);

struct Tasks {
    spec: ClusterSpec,
    servers: BTreeMap<Address, Arc<Tables>>,
}

/// The clusters of this process, by host name.
static CLUSTERS: Mutex<BTreeMap<String, Weak<Tasks>>> = Mutex::new(BTreeMap::new());

/// The maximum number of tasks in a job, which is limited by the number of ports.
const MOST_TASKS: usize = 1 << 15;

impl LocalCluster {
    /// Creates a cluster of `workers` workers and `servers` parameter servers.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: `workers` or `servers` is zero or greater than 32,768.
    pub fn new(workers: usize, servers: usize) -> Result<Self> {
        let fits = |count: usize| (1..=MOST_TASKS).contains(&count);
        if !fits(workers) || !fits(servers) {
            let reason = format!(
                "{workers} workers and {servers} parameter servers: each number must be from 1 to {MOST_TASKS}"
            );
            return Err(Error::invalid("LocalCluster::new", reason));
        }
        static NUMBERS: Mutex<u64> = Mutex::new(0);
        let number = {
            let mut numbers = lock(&NUMBERS);
            *numbers += 1;
            *numbers
        };
        // These host names cannot be resolved outside this process.
        let host = format!("cluster-{number}.in-process.invalid");
        let mut spec = ClusterSpec::new();
        let mut all = BTreeMap::new();
        for (job, first, count) in [(Job::Worker, 1, workers), (Job::Ps, 1 + MOST_TASKS, servers)] {
            for index in 0..count {
                let port = u16::try_from(first + index)
                    .map_err(|_| Error::invalid("LocalCluster::new", "there are too many tasks"))?;
                let address = Address::new(Host::Name(host.as_str().into()), port);
                spec.insert(job.clone().task(index), address.clone())?;
                if job == Job::Ps {
                    all.insert(address, Arc::new(Tables::new()));
                }
            }
        }
        let tasks = Arc::new(Tasks { spec, servers: all });
        let mut clusters = lock(&CLUSTERS);
        clusters.retain(|_, tasks| tasks.strong_count() > 0);
        clusters.insert(host, Arc::downgrade(&tasks));
        Ok(Self(tasks))
    }

    /// Returns the cluster in this process to which the tasks in `spec` belong; `None` if they belong to none.
    #[doc(hidden)]
    pub fn of(spec: &ClusterSpec) -> Option<Self> {
        let servers = spec.job_tasks(&Job::Ps).ok()?;
        find(servers.into_iter().flatten().next()?).map(Self)
    }

    /// Returns the tasks of the cluster.
    pub fn spec(&self) -> &ClusterSpec {
        &self.0.spec
    }

    /// Returns the resolver for the coordinator, which is the chief of the cluster.
    pub fn resolver(&self) -> LocalClusterResolver {
        self.resolver_of(Job::Chief.task(0))
    }

    /// Returns the resolver for another task, such as [`Job::Worker.task(1)`](Job::task).
    pub fn resolver_of(&self, task: Task) -> LocalClusterResolver {
        LocalClusterResolver { tasks: self.0.clone(), task }
    }
}

/// The resolver for one task of a [`LocalCluster`]. It keeps the cluster alive.
#[derive(Clone)]
pub struct LocalClusterResolver {
    tasks: Arc<Tasks>,
    task: Task,
}

impl ClusterResolver for LocalClusterResolver {
    fn cluster_spec(&self) -> Result<ClusterSpec, ClusterError> {
        Ok(self.tasks.spec.clone())
    }
    fn task_type(&self) -> Option<Job> {
        Some(self.task.job.clone())
    }
    fn task_id(&self) -> Option<usize> {
        Some(self.task.index)
    }
}

impl fmt::Debug for LocalClusterResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalClusterResolver({} of {})", self.task, self.tasks.spec)
    }
}

impl fmt::Debug for LocalCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LocalCluster").field(&self.0.spec).finish()
    }
}

/// Returns the channel to parameter server `number` at `address`; `None` if no cluster in this process has the address.
pub fn channel(number: usize, address: &Address) -> Option<Arc<dyn Channel>> {
    let tables = find(address)?.servers.get(address)?.clone();
    Some(Arc::new(LocalChannel::new(number, tables)))
}

/// Returns the cluster in this process to which `address` belongs; `None` if it belongs to none.
fn find(address: &Address) -> Option<Arc<Tasks>> {
    lock(&CLUSTERS).get(&address.host().to_string()).and_then(Weak::upgrade)
}
