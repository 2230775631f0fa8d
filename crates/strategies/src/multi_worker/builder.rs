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
use distribute_net::{Certificates, JoinError, Secret, SharedMemory};
use distribute_server::Credentials;
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
    /// Who takes part. By default that is found out from the environment: `TF_CONFIG`, or that of MPI, Slurm or SageMaker.
    /// Without any of these, there is one worker.
    pub fn cluster_resolver(mut self, resolver: impl ClusterResolver + 'static) -> Self {
        self.resolver = Some(Box::new(resolver));
        self
    }

    /// Workers that are linked already, by something other than this builder: MPI, by the crate `distribute-mpi`. They have as many
    /// replicas as the group's world says, and no cluster is looked for, nor anything else set that says how they are linked.
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

    /// How many CPU replicas each worker has; 1 by default. The same on all workers.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = Some(replicas);
        self
    }

    /// A replica on each of these devices of this worker, such as `["gpu:0", "gpu:1"]`, in place of CPUs. Workers may have other devices, but
    /// equally many.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # let cluster: distribute::ClusterSpec = r#"{"worker": ["localhost:0"]}"#.parse()?;
    /// # let resolver = || distribute::SimpleClusterResolver::new(cluster.clone()).with_task(distribute::Job::Worker.task(0));
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

    /// How long a replica waits for those of all workers in one exchange; 60 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// How collectives communicate. Options left at their defaults keep their previous values.
    /// [`Ring`](CommunicationImplementation::Ring) is links over sockets, also between workers of one machine.
    pub fn communication_options(mut self, options: CommunicationOptions) -> Self {
        self.options = options.over(self.options);
        self
    }

    /// How long to wait until all workers have joined; a minute by default. Workers may start in any order.
    pub fn join_timeout(mut self, timeout: Duration) -> Self {
        self.join_timeout = Some(timeout);
        self
    }

    /// The name of the job, the same on all workers: a process of another one that comes to an address of this job is refused, also where
    /// there is no secret. `DISTRIBUTE_JOB` says it where the program doesn't; without either, it is the name of the program's file. Two
    /// jobs of one program that might get each other's addresses have names of their own.
    pub fn job(mut self, name: impl Into<String>) -> Self {
        self.job = Some(name.into());
        self
    }

    /// How the tasks of the job know each other, in place of what was said before: one value for all that a task opens.
    pub fn credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = credentials;
        self
    }

    /// Certificates for links between machines: the CA's, this process's, and its key, as PEM files. By default links are
    /// protected by the secret of the job, if `DISTRIBUTE_SECRET` has one.
    pub fn certificates(mut self, certificates: Certificates) -> Self {
        self.credentials = self.credentials.certificates(certificates);
        self
    }

    /// The secret of the job, if it isn't in `DISTRIBUTE_SECRET`.
    pub fn secret(mut self, secret: Secret) -> Self {
        self.credentials = self.credentials.secret(secret);
        self
    }

    /// Lets links between machines go without encryption: everybody on the way can read and write the weights, also where a
    /// secret keeps strangers from joining. For networks that nobody else can reach.
    pub fn allow_plain_text_on_the_network(mut self) -> Self {
        self.credentials = self.credentials.allow_plain_text_on_the_network();
        self
    }

    /// Whether workers of one machine send each other messages through shared memory; by default they do where they can.
    pub fn shared_memory(mut self, shared_memory: SharedMemory) -> Self {
        self.shared_memory = shared_memory;
        self
    }

    /// Within how many steps each variable that is the same on all workers has been compared between them; 100 by default, and 0 for
    /// never. The same on all workers.
    ///
    /// In each step workers compare the checksum of that fraction of all bytes of variables. For a model whose step reads all of its
    /// variables that takes less than 0.1 % of the time at 100 steps; a step that reads a few rows of large tables is short, and may ask
    /// for more of them. Where a variable differs, [`run`](distribute_core::Strategy::run) is
    /// [`Error::Drift`](distribute_base::Error::Drift) on all workers.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # let cluster: distribute::ClusterSpec = r#"{"worker": ["localhost:0"]}"#.parse()?;
    /// # let resolver = distribute::SimpleClusterResolver::new(cluster).with_task(distribute::Job::Worker.task(0));
    /// let strategy = MultiWorkerMirroredStrategy::builder().check_drift_every(1000).cluster_resolver(resolver).build()?;
    /// # Ok::<(), distribute::Error>(())
    /// ```
    pub fn check_drift_every(mut self, steps: u64) -> Self {
        self.check_drift_every = Some(steps);
        self
    }

    /// With how many workers there is a training, where not all of the cluster have to be there; all of them, by default. The
    /// cluster names as many as there may be.
    ///
    /// The workers that are there train; the first of the cluster has to be one of them, because the others meet at its address.
    /// They go on without one that was lost once nobody has come for [`shrink_after`](Self::shrink_after), and let in who comes
    /// between two steps. Then all meet again, those that have come take over the state, and the input is dealt anew from where it
    /// stands: every example of an epoch is used once. [`world`](distribute_core::Strategy::world) is another one then; the global batch stays
    /// as it is. The program is that of a `Training`.
    ///
    /// The environment variable `DISTRIBUTE_MIN_WORKERS` says it where the program doesn't; `distribute launch --min-workers` sets it.
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

    /// How long to wait for more workers where there are [enough](Self::min_workers), counted from when the last one came; 30 s by
    /// default. `DISTRIBUTE_SHRINK_AFTER` says it in seconds where the program doesn't.
    pub fn shrink_after(mut self, wait: Duration) -> Self {
        self.shrink_after = Some(wait);
        self
    }

    /// Where this worker listens, `host:port`, if that is not its address in the cluster: `0.0.0.0:2222` in a container.
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = Some(address.into());
        self
    }

    /// Waits until all workers have joined, says which one this is, and builds the strategy. While workers are missing, it says
    /// once a second which.
    ///
    /// # Errors
    /// [`Error::Cluster`] for a cluster that is malformed or has no place for this process, a parameter server say: a program
    /// that was started as one of several never trains alone. [`Error::Join`] if a worker is missing after the join timeout, if
    /// the workers don't let each other in, or if links over the network would not be protected. [`Error::Device`] for a device that
    /// this build cannot use. [`Error::InvalidArgument`]
    /// for no replicas, for another number of devices, for fewer workers than the least, for a group beside a cluster resolver or another number of replicas, and those of [`CommunicationOptions`].
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
                let identity = self.credentials.identity().map_err(JoinError::from)?;
                let (tasks, addresses) =
                    cluster.workers().into_iter().map(|(task, address)| (task, address.to_string())).unzip();
                Some(Joining {
                    all: world,
                    job: self.job.unwrap_or_else(|| self.credentials.job_name()),
                    least: elastic.least,
                    shrink_after: elastic.shrink_after,
                    task: task.clone(),
                    addresses,
                    tasks,
                    identity,
                    allow_plain_text: self.credentials.allows_plain_text(),
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
