//! Workers that are processes: who takes part, and how they find each other.

use super::elastic::Elastic;
use super::joining::Joining;
use super::{MultiWorker, MultiWorkerMirroredStrategy, cpus};
use distribute_base::{Error, Result};
use distribute_cluster::resolver::{self, ClusterResolver};
use distribute_cluster::{ClusterError, World};
use distribute_collective::group::Group;
use distribute_core::internal::{CHECK_DRIFT_EVERY, alone, check_count, prepare, resolve};
use distribute_core::{CommunicationImplementation, CommunicationOptions};
use distribute_net::{Credentials, SharedMemory};
use std::time::Duration;

const OPERATION: &str = "MultiWorkerMirroredStrategy";

/// The settings of a [`MultiWorkerMirroredStrategy`] over processes; see [`MultiWorkerMirroredStrategy::builder`].
///
/// ```
/// # use distribute::prelude::*;
/// use distribute::cluster::{ClusterSpec, Job, resolver::SimpleClusterResolver};
/// let cluster: ClusterSpec = r#"{"worker": ["localhost:0"]}"#.parse()?;
/// let resolver = SimpleClusterResolver::new(cluster).with_task(Job::Worker.task(0));
/// let strategy = MultiWorkerMirroredStrategy::builder().cluster_resolver(resolver).replicas(2).build()?;
/// assert_eq!(strategy.world().to_string(), "2 replicas");
/// # Ok::<(), distribute::Error>(())
/// ```
#[derive(Default)]
pub struct MultiWorkerBuilder {
    resolver: Option<Box<dyn ClusterResolver>>,
    group: Option<Group>,
    replicas: Option<usize>,
    devices: Option<Vec<String>>,
    options: CommunicationOptions,
    credentials: Credentials,
    job: Option<String>,
    listen: Option<String>,
    join_timeout: Option<Duration>,
    shared_memory: SharedMemory,
    check_drift_every: Option<u64>,
    min_workers: Option<usize>,
    shrink_after: Option<Duration>,
}

impl MultiWorkerBuilder {
    /// Sets the resolver of the cluster. By default the cluster is read from the environment: `TF_CONFIG`, MPI, Slurm
    /// or SageMaker. Without any of these, there is one worker.
    pub fn cluster_resolver(mut self, resolver: impl ClusterResolver + 'static) -> Self {
        self.resolver = Some(Box::new(resolver));
        self
    }

    /// Uses workers that are linked already, by something other than this builder: by MPI, with the crate
    /// `distribute-mpi`. The group's world says the number of replicas, no cluster is resolved, and no option about
    /// links can be set.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::strategy::Links;
    /// use distribute_collective::group::local;
    /// let group = local::groups(Links::Memory, 1, 2)?.remove(0); // the only worker of its world
    /// let strategy = MultiWorkerMirroredStrategy::builder().group(group).build()?;
    /// assert_eq!(strategy.world().to_string(), "2 replicas");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn group(mut self, group: Group) -> Self {
        self.group = Some(group);
        self
    }

    /// Sets the number of CPU replicas of each worker; 1 by default. It is the same on all workers.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = Some(replicas);
        self
    }

    /// Puts a replica on each of these devices of this worker, such as `["gpu:0", "gpu:1"]`, instead of CPUs. Workers
    /// may have different devices, but the same number of them.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # let cluster: distribute::ClusterSpec = r#"{"worker": ["localhost:0"]}"#.parse()?;
    /// # let worker = distribute::Job::Worker.task(0);
    /// # let resolver = || distribute::SimpleClusterResolver::new(cluster.clone()).with_task(worker.clone());
    /// let builder = || MultiWorkerMirroredStrategy::builder().cluster_resolver(resolver());
    /// let strategy = builder().devices(["cpu:0", "cpu:1"]).build()?;
    /// assert_eq!(strategy.world().to_string(), "2 replicas");
    /// let error = builder().devices(["cpu:0", "cpu:1"]).replicas(3).build().unwrap_err();
    /// assert!(error.to_string().contains("2 devices for 3 replicas"));
    /// # Ok::<(), distribute::Error>(())
    /// ```
    pub fn devices<'a>(mut self, devices: impl IntoIterator<Item = &'a str>) -> Self {
        self.devices = Some(devices.into_iter().map(String::from).collect());
        self
    }

    /// Sets the time that a replica waits for those of all workers in one exchange; 60 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// Sets the options of collectives. Options left at their defaults keep their previous values.
    /// [`Ring`](CommunicationImplementation::Ring) uses sockets, also between workers of one machine.
    pub fn communication_options(mut self, options: CommunicationOptions) -> Self {
        self.options = options.over(self.options);
        self
    }

    /// Sets the time to wait until all workers have joined; a minute by default. Workers may start in any order.
    pub fn join_timeout(mut self, timeout: Duration) -> Self {
        self.join_timeout = Some(timeout);
        self
    }

    /// Sets the name of the job, which is the same on all workers: a process of another job that connects to an
    /// address of this one is refused, also without a secret. `DISTRIBUTE_JOB` is used if the program sets no name,
    /// and the name of the program's file without either. Two jobs of one program that might get each other's
    /// addresses need names of their own.
    pub fn job(mut self, name: impl Into<String>) -> Self {
        self.job = Some(name.into());
        self
    }

    /// Sets the credentials by which the tasks of the job recognise each other and protect connections between
    /// machines, for all connections of a task. By default they are the secret in `DISTRIBUTE_SECRET`, if it is set.
    pub fn credentials(mut self, credentials: impl Into<Credentials>) -> Self {
        self.credentials = credentials.into();
        self
    }

    /// Sets whether workers of one machine exchange messages through shared memory; by default they do if they can.
    pub fn shared_memory(mut self, shared_memory: SharedMemory) -> Self {
        self.shared_memory = shared_memory;
        self
    }

    /// Sets the number of steps within which each variable that is the same on all workers has been compared between
    /// them; 100 by default, 0 for never. It is the same on all workers.
    ///
    /// In each step workers compare the checksum of that fraction of all bytes of variables. For a model whose step
    /// reads all of its variables this takes less than 0.1 % of the time at 100 steps; a step that reads a few rows
    /// of large tables is short, and may use a larger number. If a variable differs,
    /// [`run`](distribute_core::Strategy::run) returns [`Error::Drift`](distribute_base::Error::Drift) on all
    /// workers.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # let cluster: distribute::ClusterSpec = r#"{"worker": ["localhost:0"]}"#.parse()?;
    /// # let resolver = distribute::SimpleClusterResolver::new(cluster).with_task(distribute::Job::Worker.task(0));
    /// let builder = MultiWorkerMirroredStrategy::builder().cluster_resolver(resolver);
    /// let strategy = builder.check_drift_every(1000).build()?;
    /// # Ok::<(), distribute::Error>(())
    /// ```
    pub fn check_drift_every(mut self, steps: u64) -> Self {
        self.check_drift_every = Some(steps);
        self
    }

    /// Sets the minimum number of workers. It defaults to all workers of the cluster, which is also the maximum.
    ///
    /// The workers that have joined train. The first worker of the cluster has to be one of them, because the others
    /// connect to its address. If a worker fails and no replacement joins within
    /// [`shrink_after`](Self::shrink_after), the others continue without it; workers that join are admitted between
    /// two steps. The group then re-forms, new workers receive the state, and the rest of the input is repartitioned:
    /// every example of an epoch is used once. [`world`](distribute_core::Strategy::world) changes then; the global
    /// batch stays the same. The program uses a `Training`.
    ///
    /// The environment variable `DISTRIBUTE_MIN_WORKERS` is used if the program sets no number;
    /// `distribute launch --min-workers` sets it.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # let cluster: distribute::ClusterSpec = r#"{"worker": ["localhost:0"]}"#.parse()?;
    /// # let resolver = distribute::SimpleClusterResolver::new(cluster).with_task(distribute::Job::Worker.task(0));
    /// let strategy = MultiWorkerMirroredStrategy::builder().min_workers(1).cluster_resolver(resolver).build()?;
    /// # Ok::<(), distribute::Error>(())
    /// ```
    pub fn min_workers(mut self, workers: usize) -> Self {
        self.min_workers = Some(workers);
        self
    }

    /// Sets the time to wait for more workers once there are [enough](Self::min_workers), counted from the last one
    /// that joined; 30 s by default. `DISTRIBUTE_SHRINK_AFTER`, in seconds, is used if the program sets no time.
    pub fn shrink_after(mut self, wait: Duration) -> Self {
        self.shrink_after = Some(wait);
        self
    }

    /// Sets the address that this worker listens on, `host:port`, if it is not its address in the cluster:
    /// `0.0.0.0:2222` in a container.
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = Some(address.into());
        self
    }

    /// Waits until all workers have joined, and builds the strategy. While workers are missing, it logs their names
    /// once a second.
    ///
    /// # Errors
    /// - [`Error::Cluster`]: the cluster is malformed or this process is not one of its workers, for example a
    ///   parameter server. A program that was started as one of several never trains alone.
    /// - [`Error::Join`]: a worker is missing after the join timeout, workers refuse each other, or links over the
    ///   network would not be protected.
    /// - [`Error::Device`]: this build cannot use a device.
    /// - [`Error::InvalidArgument`]: there are no replicas, another number of devices, or fewer workers than the
    ///   minimum; a group is combined with a cluster resolver or another number of replicas; or an option of
    ///   [`CommunicationOptions`] is out of range.
    #[track_caller]
    pub fn build(self) -> Result<MultiWorkerMirroredStrategy> {
        let devices = self.devices.map(|names| resolve(names.iter().map(String::as_str))).transpose()?;
        let asked = self.replicas.or(devices.as_ref().map(Vec::len));
        let replicas = match &self.group {
            Some(group) => group.world().replicas(),
            None => asked.unwrap_or(1),
        };
        check_count(OPERATION, replicas)?;
        if let Some(devices) = &devices
            && devices.len() != replicas
        {
            let reason = format!(
                "{} devices for {replicas} replicas: a device holds one replica; leave out replicas, or name as many devices",
                devices.len()
            );
            return Err(Error::invalid(OPERATION, reason));
        }
        let devices = devices.map_or_else(|| cpus(replicas), Ok)?;
        let (mut options, mut shared_memory) = (self.options, self.shared_memory);
        if options.implementation == CommunicationImplementation::Ring {
            // That is said of the links, which are made once for all calls.
            (options.implementation, shared_memory) =
                (CommunicationImplementation::Auto, SharedMemory::Never);
        }
        options.check(OPERATION)?;
        let check_drift_every = self.check_drift_every.unwrap_or(CHECK_DRIFT_EVERY);
        if let Some(group) = self.group {
            if self.min_workers.is_some() {
                let reason =
                    "a group was given, whose workers are those that have met: leave out min_workers";
                return Err(Error::invalid(OPERATION, reason));
            }
            if self.resolver.is_some() || asked.is_some_and(|asked| asked != replicas) {
                let reason = "a group was given, which says who takes part and how many replicas each worker has: leave out \
                              cluster_resolver and replicas";
                return Err(Error::invalid(OPERATION, reason));
            }
            prepare(replicas);
            alone::joined();
            let worker = MultiWorker::new(devices, Some(group), options)?;
            return MultiWorkerMirroredStrategy::of(MultiWorker { check_drift_every, ..worker });
        }
        let resolver = match self.resolver {
            Some(resolver) => resolver,
            None => resolver::from_env()?,
        };
        let membership = resolver.membership()?;
        let world = match &membership {
            Some((cluster, task)) => cluster.world(task, replicas)?,
            None => World::alone(replicas).map_err(ClusterError::from)?,
        };
        let elastic = Elastic::new(self.min_workers, self.shrink_after, world.workers())?;
        // Before threads are started.
        prepare(replicas);
        let joining = match &membership {
            Some((cluster, task)) if world.is_multi_worker() => {
                let (tasks, addresses) =
                    cluster.workers().into_iter().map(|(task, address)| (task, address.to_string())).unzip();
                Some(Joining {
                    all: world,
                    job: self.job.unwrap_or_else(|| self.credentials.job_name()),
                    credentials: self.credentials,
                    least: elastic.least,
                    shrink_after: elastic.shrink_after,
                    task: task.clone(),
                    addresses,
                    tasks,
                    listen: self.listen,
                    shared_memory,
                    timeout: self.join_timeout,
                })
            }
            _ => None,
        };
        if membership.is_none() {
            alone::warn_without_srun();
        }
        let group = joining.as_ref().map(Joining::join).transpose()?;
        if group.is_some() {
            alone::joined();
        }
        let worker = MultiWorker::new(devices, group, options)?;
        MultiWorkerMirroredStrategy::of(MultiWorker {
            resolver: Some(resolver),
            joining,
            check_drift_every,
            ..worker
        })
    }
}
