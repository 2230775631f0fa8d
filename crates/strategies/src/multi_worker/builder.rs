//! The builder of a strategy over several processes.

use super::checksums::ChecksumSetting;
use super::elastic::Elastic;
use super::join::JoinSettings;
use super::local_steps;
use super::logical::{largest_share, require_no_feedback};
use super::table_options::{TableHosts, TableOptions};
use super::tables::{ServerSettings, ServiceSettings, server_settings, shared_tables};
use super::{MultiWorker, cpus};
use distribute_base::{Error, Result};
use distribute_cluster::resolver::{self, ClusterResolver};
use distribute_cluster::{ClusterError, Job, ReplicaCount, World};
use distribute_collective::group::Group;
use distribute_core::internal::{CHECK_DRIFT_EVERY, check_count, prepare, resolve, warn_single};
use distribute_core::strategy::{Checksums, Compression, LocalSteps, StragglerPolicy};
use distribute_core::{CommunicationImplementation, CommunicationOptions, Strategy};
use distribute_net::{Credentials, SharedMemory};
use std::time::Duration;

const OPERATION: &str = "MultiWorkerMirroredStrategy";

/// A builder of a strategy over several processes. See
/// [`MultiWorkerMirroredStrategy::builder`](super::MultiWorkerMirroredStrategy::builder).
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
#[must_use = "a builder does nothing until `build` is called"]
#[derive(Default)]
pub struct MultiWorkerMirroredStrategyBuilder {
    resolver: Option<Box<dyn ClusterResolver>>,
    group: Option<Group>,
    pub(super) replicas: Option<usize>,
    pub(super) logical_replicas: Option<usize>,
    pub(super) devices: Option<Vec<String>>,
    options: CommunicationOptions,
    credentials: Credentials,
    job: Option<String>,
    listen: Option<String>,
    join_timeout: Option<Duration>,
    shared_memory: SharedMemory,
    pub(super) checksums: Option<Checksums>,
    check_drift_every: Option<u64>,
    compression: Compression,
    pub(super) local_steps: Option<LocalSteps>,
    min_workers: Option<usize>,
    pub(super) spares: Option<usize>,
    pub(super) stragglers: StragglerPolicy,
    shrink_after: Option<Duration>,
    tables: TableOptions,
    /// The settings of the parameter servers that store tables, if the caller has set the group.
    servers: Option<ServerSettings>,
}

impl std::fmt::Debug for MultiWorkerMirroredStrategyBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MultiWorkerMirroredStrategyBuilder")
            .field("replicas", &self.replicas)
            .field("logical_replicas", &self.logical_replicas)
            .field("devices", &self.devices)
            .field("options", &self.options)
            .field("compression", &self.compression)
            .field("local_steps", &self.local_steps)
            .field("min_workers", &self.min_workers)
            .field("spares", &self.spares)
            .field("tables", &self.tables)
            .finish_non_exhaustive()
    }
}

impl MultiWorkerMirroredStrategyBuilder {
    /// Sets the resolver of the cluster. By default the cluster is read from the environment: `TF_CONFIG`, MPI,
    /// Slurm or SageMaker. If none of these is set, there is a single worker.
    pub fn cluster_resolver(mut self, resolver: impl ClusterResolver + 'static) -> Self {
        self.resolver = Some(Box::new(resolver));
        self
    }

    /// Sets a group of workers that are already connected, for example over MPI with the crate `distribute-mpi`. The
    /// group's world determines the number of replicas. No cluster is resolved, the credentials have no effect, and the
    /// other options for connections must be left out.
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

    /// Sets the number of CPU replicas of each worker; 1 by default. It must be the same on all workers.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = Some(replicas);
        self
    }

    /// Puts a replica on each of the given devices of this worker, such as `["gpu:0", "gpu:1"]`, instead of on
    /// CPUs. Workers may have different devices, but must have the same number of them.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # use distribute::cluster::{ClusterSpec, Job, resolver::SimpleClusterResolver};
    /// # let cluster: ClusterSpec = r#"{"worker": ["localhost:0"]}"#.parse()?;
    /// # let resolver = || SimpleClusterResolver::new(cluster.clone()).with_task(Job::Worker.task(0));
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

    /// Sets the maximum time that a replica waits for the replicas of all workers in one exchange; 60 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// Sets the options of collectives. Options left at their defaults keep their previous values. With
    /// [`Ring`](CommunicationImplementation::Ring), even workers on the same machine communicate through sockets.
    pub fn communication_options(mut self, options: CommunicationOptions) -> Self {
        self.options = options.over(self.options);
        self
    }

    /// Sets the maximum time to wait until all workers have joined; one minute by default. Workers may start in any
    /// order.
    pub fn join_timeout(mut self, timeout: Duration) -> Self {
        self.join_timeout = Some(timeout);
        self
    }

    /// Sets the name of the job, which must be the same on all workers. Connections from processes of a job with a
    /// different name are rejected, even if no secret is used. The default is the value of `DISTRIBUTE_JOB` or, if that
    /// is not set, the file name of the program. Set different names if two jobs of the same program could reach each
    /// other's addresses.
    pub fn job(mut self, name: impl Into<String>) -> Self {
        self.job = Some(name.into());
        self
    }

    /// Sets the credentials for all connections of this task. Tasks of the job use them to authenticate each other
    /// and to protect connections between machines. By default, the secret in `DISTRIBUTE_SECRET` is used, if it is
    /// set.
    pub fn credentials(mut self, credentials: impl Into<Credentials>) -> Self {
        self.credentials = credentials.into();
        self
    }

    /// Sets whether workers on the same machine exchange messages through shared memory. By default they do if it
    /// is available.
    pub fn shared_memory(mut self, shared_memory: SharedMemory) -> Self {
        self.shared_memory = shared_memory;
        self
    }

    /// Sets the number of steps within which the workers compare all variables that must be equal on all of them; 100
    /// by default. 0 disables the comparison. The setting must be the same on all workers.
    ///
    /// With a setting of N, the workers compare a checksum of one Nth of the variables' bytes in each step. With the
    /// default of 100, if a step reads all variables of the model, the comparison takes less than 0.1 % of its time.
    /// Steps that read only a few rows of large tables are short, so a larger number may be appropriate for them.
    /// If a variable differs, [`run`](distribute_core::Strategy::run) returns
    /// [`Error::Drift`](distribute_base::Error::Drift) on all workers.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # use distribute::cluster::{ClusterSpec, Job, resolver::SimpleClusterResolver};
    /// # let cluster: ClusterSpec = r#"{"worker": ["localhost:0"]}"#.parse()?;
    /// # let resolver = SimpleClusterResolver::new(cluster).with_task(Job::Worker.task(0));
    /// let builder = MultiWorkerMirroredStrategy::builder().cluster_resolver(resolver);
    /// let strategy = builder.check_drift_every(1000).build()?;
    /// # Ok::<(), distribute::Error>(())
    /// ```
    pub fn check_drift_every(mut self, steps: u64) -> Self {
        self.check_drift_every = Some(steps);
        self
    }

    /// Sets the form in which optimizers send the gradients of `f32` variables; [`Compression::None`] by default. The
    /// [others](Compression) take fewer bytes, for slow links. The setting must be the same on all workers, which
    /// compare it in the first step, or with local steps in the first outer step.
    ///
    /// The reduced gradients are bit-identical on all workers, and depend only on the number of replicas. Therefore a
    /// single worker compresses as well. Transforms before the reduction get exact gradients, and those after it the
    /// received sum. All other values, and the new weights with a [sharded state], are sent unchanged.
    ///
    /// With [`local_steps`](Self::local_steps), no gradients are sent. What a worker has changed since the last outer
    /// step is sent in this form instead.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # use distribute::cluster::{ClusterSpec, Job, resolver::SimpleClusterResolver};
    /// # let cluster: ClusterSpec = r#"{"worker": ["localhost:0"]}"#.parse()?;
    /// # let resolver = SimpleClusterResolver::new(cluster).with_task(Job::Worker.task(0));
    /// use distribute::strategy::Compression;
    /// let builder = MultiWorkerMirroredStrategy::builder().cluster_resolver(resolver);
    /// let strategy = builder.compression(Compression::EightBits).build()?;
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// [sharded state]:
    /// https://docs.rs/distribute/latest/distribute/optimizer/struct.Optimizer.html#method.shard_state
    #[doc(alias = "wire")]
    #[doc(alias = "bf16_compress_hook")]
    #[doc(alias = "fp16_compress_hook")]
    #[doc(alias = "powerSGD_hook")]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Sets where the tables of models are stored. Tables are the weights of layers that look up rows, such as
    /// [`embedding`](https://docs.rs/distribute/latest/distribute/nn/fn.embedding.html). By default, each worker has a
    /// copy of each table. With [`TableHosts::Workers`], each worker stores a share of the rows, and their slots. In
    /// each step, a worker reads the rows of its ids from the workers that store them, and sends the gradients of these
    /// rows to those workers. The results are bit-identical. All workers must set the same options.
    ///
    /// If a table is not only used by layers that look up rows, each worker fetches all of it in each step. If a worker
    /// is lost, its share is lost as well, and the training continues from the last checkpoint. If tables are stored on
    /// workers or servers, [`min_workers`](Self::min_workers) cannot be set.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # use distribute::cluster::{ClusterSpec, Job, resolver::SimpleClusterResolver};
    /// # let cluster: ClusterSpec = r#"{"worker": ["localhost:0"]}"#.parse()?;
    /// # let resolver = SimpleClusterResolver::new(cluster).with_task(Job::Worker.task(0));
    /// use distribute::strategy::TableHosts;
    /// let builder = MultiWorkerMirroredStrategy::builder().cluster_resolver(resolver);
    /// let strategy = builder.tables(TableHosts::Workers).build()?;
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "HybridStrategy")]
    #[doc(alias = "TPUEmbedding")]
    pub fn tables(mut self, tables: impl Into<TableOptions>) -> Self {
        self.tables = tables.into();
        self
    }

    /// Sets the minimum number of workers, which makes the training run elastic. It defaults to the number of workers
    /// in the cluster, which is also the maximum.
    ///
    /// Training starts with the workers that have joined. The first worker of the cluster must be one of them, because
    /// the others connect to its address. If a worker fails and no replacement joins within
    /// [`shrink_after`](Self::shrink_after), the others continue without it. Workers that join later are admitted
    /// between two steps. The group then re-forms, new workers receive the state, and the rest of the input is
    /// repartitioned: every example of an epoch is used once. [`world`](distribute_core::Strategy::world) changes, but
    /// the global batch size stays the same. The program must use a `Training`.
    ///
    /// The default can be set with the environment variable `DISTRIBUTE_MIN_WORKERS`, which `distribute launch
    /// --min-workers` sets.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # use distribute::cluster::{ClusterSpec, Job, resolver::SimpleClusterResolver};
    /// # let cluster: ClusterSpec = r#"{"worker": ["localhost:0"]}"#.parse()?;
    /// # let resolver = SimpleClusterResolver::new(cluster).with_task(Job::Worker.task(0));
    /// let strategy = MultiWorkerMirroredStrategy::builder().min_workers(1).cluster_resolver(resolver).build()?;
    /// # Ok::<(), distribute::Error>(())
    /// ```
    pub fn min_workers(mut self, workers: usize) -> Self {
        self.min_workers = Some(workers);
        self
    }

    /// Sets how long to wait for more workers after [enough](Self::min_workers) have joined; 30 s by default. The time
    /// restarts with each worker that joins. The environment variable `DISTRIBUTE_SHRINK_AFTER`, in seconds, changes
    /// the default.
    pub fn shrink_after(mut self, wait: Duration) -> Self {
        self.shrink_after = Some(wait);
        self
    }

    /// Sets the address that this worker listens on, as `host:port`. This is only needed if it differs from the
    /// worker's address in the cluster, for example `0.0.0.0:2222` in a container.
    pub fn listen(mut self, address: impl Into<String>) -> Self {
        self.listen = Some(address.into());
        self
    }

    /// Returns the settings of connections to the cluster's parameter servers; `None` if they store no tables.
    ///
    /// # Errors
    /// Returns the errors of the cluster resolver.
    pub(super) fn table_servers(&self) -> Result<Option<ServerSettings>> {
        let Some(resolver) = self.resolver.as_deref().filter(|_| self.tables.hosts == TableHosts::Servers)
        else {
            return Ok(None);
        };
        let of = (resolver.cluster_spec()?, Job::Worker.task(0));
        Ok(Some(server_settings(of, &self.job, &self.credentials, self.join_timeout)))
    }

    /// Returns a builder for a worker of a group, with the same settings except for the cluster and the connections.
    pub(super) fn of_group(&self, group: Group, servers: Option<ServerSettings>) -> Self {
        let Self { options, checksums, check_drift_every, compression, local_steps, .. } = *self;
        Self {
            group: Some(group),
            options,
            checksums,
            check_drift_every,
            compression,
            local_steps,
            tables: self.tables.clone(),
            servers,
            ..Self::default()
        }
    }

    /// Waits until all workers have joined, and builds the strategy. While workers are missing, their names are
    /// logged once a second. On a [spare](Self::spares), returns a strategy that can create models, but runs no step
    /// before its `Training`.
    ///
    /// # Errors
    /// - [`Error::Cluster`]: the cluster is malformed, or this process is not one of its workers but, for example, a
    ///   parameter server. A program that was started as one of several workers never trains alone.
    /// - [`Error::Join`]: a worker has not joined before the join timeout, a worker rejects another, or connections
    ///   over the network would be unprotected.
    /// - [`Error::UnusedSpare`]: the training has ended, and there are spares.
    /// - [`Error::Device`]: this build cannot use a device.
    /// - [`Error::InvalidArgument`]: there are no replicas; the numbers of devices and replicas differ; logical
    ///   replicas are combined with devices, replicas per worker, or error feedback; the minimum number of workers is 0
    ///   or exceeds that of the cluster; `shrink_after` is too short; there are fewer than two workers next to the
    ///   spares; an option needs tables that are not mirrored; a group is combined with a cluster resolver, spares, or
    ///   an option for connections or the number of workers or replicas; an option of [`CommunicationOptions`] is out
    ///   of range; tables are stored on workers that may be missing; an environment variable is malformed; or
    ///   [local steps](Self::local_steps) are out of range or do not combine with another setting.
    /// - [`Error::Failed`]: the parameter servers that store tables cannot be reached.
    /// - [`Error::Worker`], [`Error::Collective`], [`Error::Server`]: a worker cannot offer its share of tables, cannot
    ///   reach the servers or the shares of the others, or does not build a strategy with the same tables.
    #[track_caller]
    pub fn build(self) -> Result<Strategy> {
        let names = self.devices.as_ref().map(|names| names.iter().map(String::as_str));
        let devices = names.map(|names| resolve(OPERATION, names)).transpose()?;
        let asked = self.replicas.or(devices.as_ref().map(Vec::len));
        let count = match &self.group {
            Some(group) => group.world().count(),
            None => self.replica_count(asked)?,
        };
        require_no_feedback(count, self.compression)?;
        let (ReplicaCount::PerWorker(stated) | ReplicaCount::Total(stated)) = count;
        check_count(OPERATION, stated)?;
        let replicas = self.group.as_ref().map_or(stated, |group| group.world().replicas());
        if let Some(devices) = &devices
            && devices.len() != replicas
        {
            let reason = format!(
                "{} devices for {replicas} replicas: a device holds one replica; leave out replicas, or name this \
                 number of devices",
                devices.len()
            );
            return Err(Error::invalid(OPERATION, reason));
        }
        let (mut options, mut shared_memory) = (self.options, self.shared_memory);
        if options.implementation == CommunicationImplementation::Ring {
            // The implementation is a property of the connections, which are made once for all calls.
            (options.implementation, shared_memory) =
                (CommunicationImplementation::Auto, SharedMemory::Never);
        }
        options.check(OPERATION)?;
        self.tables.check(OPERATION)?;
        let check_drift_every = self.check_drift_every.unwrap_or(CHECK_DRIFT_EVERY);
        let checksums = ChecksumSetting::resolve(self.checksums)?;
        if let Some(group) = self.group.map(|group| checksums.apply(group)) {
            if self.min_workers.is_some() || self.spares.is_some() {
                let reason =
                    "a group was passed, whose workers are already fixed: leave out min_workers and spares";
                return Err(Error::invalid(OPERATION, reason));
            }
            let connects = self.job.is_some()
                || self.listen.is_some()
                || self.join_timeout.is_some()
                || self.shared_memory != SharedMemory::default();
            if connects {
                let reason = "a group was passed, whose workers are already connected: leave out job, listen, join_timeout \
                              and shared_memory, and set them where the group is made";
                return Err(Error::invalid(OPERATION, reason));
            }
            if self.resolver.is_some()
                || self.logical_replicas.is_some_and(|asked| ReplicaCount::Total(asked) != count)
                || asked.is_some_and(|asked| asked != replicas)
            {
                let reason = "a group was passed, which has the workers and their number of replicas: leave out \
                              cluster_resolver and replicas";
                return Err(Error::invalid(OPERATION, reason));
            }
            prepare(replicas);
            warn_single::suppress();
            let (compression, has_tables) = (self.compression, self.tables.hosts != TableHosts::Mirrored);
            let local_steps = local_steps::checked(self.local_steps, group.world(), false, has_tables)?;
            let settings = (ServiceSettings::default(), self.servers);
            let tables = shared_tables(Some(&group), &self.tables, settings, options.timeout)?;
            let devices = devices.map_or_else(|| cpus(replicas), Ok)?;
            let worker = MultiWorker::new(devices, Some(group), options)?;
            return Strategy::new(MultiWorker {
                check_drift_every,
                compression,
                local_steps,
                tables,
                table_options: self.tables,
                ..worker
            });
        }
        let resolver = match self.resolver {
            Some(resolver) => resolver,
            None => resolver::from_env()?,
        };
        let membership = resolver.membership()?;
        let world = match &membership {
            Some((cluster, task)) => cluster.world_with(task, count)?,
            None => World::with_count(1, 0, count).map_err(ClusterError::from)?,
        };
        let elastic = Elastic::new(self.min_workers, self.spares, self.shrink_after, world.workers())?;
        let servers = match &membership {
            Some((cluster, task)) if self.tables.hosts == TableHosts::Servers => {
                let of = (cluster.clone(), task.clone());
                Some(server_settings(of, &self.job, &self.credentials, self.join_timeout))
            }
            _ => None,
        };
        if self.tables.hosts != TableHosts::Mirrored && elastic.min_workers < world.workers() {
            let reason = "the workers share tables, so none of them may be missing: leave out min_workers, spares and \
                          their environment variables (DISTRIBUTE_MIN_WORKERS, DISTRIBUTE_SPARES), or leave out tables";
            return Err(Error::invalid(OPERATION, reason));
        }
        let local_steps = local_steps::checked(
            self.local_steps,
            world,
            elastic.min_workers < world.workers(),
            self.tables.hosts != TableHosts::Mirrored,
        )?;
        let replicas = largest_share(world, elastic.min_workers, self.stragglers);
        let devices = devices.map_or_else(|| cpus(replicas), Ok)?;
        // Before threads are started.
        prepare(replicas);
        let joining = match &membership {
            Some((cluster, task)) if world.is_multi_worker() => {
                let (tasks, addresses) =
                    cluster.workers().into_iter().map(|(task, address)| (task, address.to_string())).unzip();
                Some(JoinSettings {
                    all: world,
                    job: self.job.unwrap_or_else(|| self.credentials.job_name()),
                    credentials: self.credentials,
                    min_workers: elastic.min_workers,
                    max_workers: elastic.max_workers,
                    shrink_after: elastic.shrink_after,
                    task: task.clone(),
                    addresses,
                    tasks,
                    listen: self.listen,
                    shared_memory,
                    checksums: checksums.checksums(),
                    timeout: self.join_timeout,
                    tables: self.tables.clone(),
                    stragglers: self.stragglers,
                })
            }
            _ => None,
        };
        if membership.is_none() {
            warn_single::warn_without_srun();
        }
        let group = joining.as_ref().map(JoinSettings::join).transpose()?;
        if group.is_some() {
            warn_single::suppress();
        }
        let settings = joining.as_ref().map(JoinSettings::table_service).transpose()?.unwrap_or_default();
        let tables = shared_tables(group.as_ref(), &self.tables, (settings, servers), options.timeout)?;
        let worker = MultiWorker::new(devices, group, options)?;
        Strategy::new(MultiWorker {
            resolver: Some(resolver),
            stragglers: self.stragglers,
            joining,
            check_drift_every,
            compression: self.compression,
            local_steps,
            tables,
            table_options: self.tables,
            ..worker
        })
    }
}
