//! The builder of a strategy with parameter servers.

use super::members::Members;
use super::{Inner, OPERATION, ParameterServerStrategy, ServersExtended};
use distribute_base::{DeviceName, Error, Result};
use distribute_cluster::Job;
use distribute_cluster::deadline::DEFAULT_TIMEOUT;
use distribute_cluster::resolver::{self, ClusterResolver};
use distribute_collective::threads::MAX_THREADS;
use distribute_core::internal::{check_count, prepare, resolve, warn_single};
use distribute_core::{CommunicationOptions, IndependentWorker, Strategy};
use distribute_net::Credentials;
use distribute_ps_client::internal::{CreationPolicy, Servers, connect};
use distribute_ps_client::{ParameterServers, RowCacheOptions};
use distribute_ps_server::Connection;
use distribute_ps_tables::{Channel, Partitioner, PlacementPolicy};
use distribute_rpc::ClientBuilder;
use distribute_tensor::Wire;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// A builder of a [`ParameterServerStrategy`]; see [`ParameterServerStrategy::builder`].
///
/// ```
/// # use distribute::prelude::*;
/// use distribute::{LocalCluster, ParameterServerStrategy};
/// use distribute::parameter_server::{FixedShardsPartitioner, PlacementPolicy};
/// let cluster = LocalCluster::new(1, 2)?;
/// let strategy = ParameterServerStrategy::builder()
///     .cluster_resolver(cluster.resolver())
///     .partitioner(FixedShardsPartitioner::new(2)?)
///     .placement(PlacementPolicy::GreedyByBytes)
///     .devices(["cpu:0", "cpu:1"])
///     .build()?;
/// assert_eq!(strategy.num_replicas_in_sync(), 2);
/// # Ok::<(), distribute::Error>(())
/// ```
#[must_use = "a builder does nothing until `build` is called"]
#[derive(Clone, Default)]
pub struct ParameterServerStrategyBuilder {
    resolver: Option<Arc<dyn ClusterResolver>>,
    channels: Option<Vec<Arc<dyn Channel>>>,
    pub(super) partitioner: Option<Arc<dyn Partitioner>>,
    pub(super) placement: PlacementPolicy,
    devices: Option<Vec<String>>,
    pub(super) timeout: Option<Duration>,
    pub(super) staleness: usize,
    pub(super) row_cache: Option<RowCacheOptions>,
    pub(super) wire: Wire,
    credentials: Credentials,
    pub(super) join_timeout: Option<Duration>,
}

impl ParameterServerStrategyBuilder {
    /// Sets the resolver of the cluster. By default, environment variables such as `TF_CONFIG` determine the resolver.
    pub fn cluster_resolver(mut self, resolver: impl ClusterResolver + 'static) -> Self {
        self.resolver = Some(Arc::new(resolver));
        self
    }

    /// Sets the channels to the parameter servers, in the order of the servers' indices. By default, the builder
    /// connects to the servers.
    pub fn channels(mut self, channels: impl IntoIterator<Item = Arc<dyn Channel>>) -> Self {
        self.channels = Some(channels.into_iter().collect());
        self
    }

    /// Sets the partitioner, which decides into how many shards each variable is split. By default, variables are not
    /// split.
    #[doc(alias = "variable_partitioner")]
    pub fn partitioner(mut self, partitioner: impl Partitioner) -> Self {
        self.partitioner = Some(Arc::new(partitioner));
        self
    }

    /// Sets the policy that assigns variables and shards to servers; round-robin by default.
    #[doc(alias = "GreedyLoadBalancingStrategy")]
    pub fn placement(mut self, policy: PlacementPolicy) -> Self {
        self.placement = policy;
        self
    }

    /// Uses the first `gpus` GPUs of this process, with one replica on each; with 0, a single replica on
    /// `cpu:0`. Replaces [`devices`](Self::devices).
    #[doc(alias = "num_gpus_per_worker")]
    pub fn gpus_per_worker(mut self, gpus: usize) -> Self {
        self.devices =
            (gpus > 0).then(|| (0..gpus.min(MAX_THREADS + 1)).map(|gpu| format!("gpu:{gpu}")).collect());
        self
    }

    /// Sets the devices of this process's replicas, one per replica; `cpu:0` by default.
    pub fn devices<'a>(mut self, devices: impl IntoIterator<Item = &'a str>) -> Self {
        self.devices = Some(devices.into_iter().map(String::from).collect());
        self
    }

    /// Sets the maximum time to wait for a server's response, and for the other replicas of this process in one call;
    /// 60 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the maximum time to wait until all servers have answered for the first time; 60 s by default. It is also
    /// the maximum time that a worker waits for the coordinator to create a variable. Servers may start in any order.
    pub fn join_timeout(mut self, timeout: Duration) -> Self {
        self.join_timeout = Some(timeout);
        self
    }

    /// Sets how the tasks of the job authenticate each other and protect connections between machines. This replaces
    /// earlier settings, including [`job`](Self::job), and applies to all connections of a task. By default, the secret
    /// in `DISTRIBUTE_SECRET` is used, if it is set.
    pub fn credentials(mut self, credentials: impl Into<Credentials>) -> Self {
        self.credentials = credentials.into();
        self
    }

    /// Sets the name of the job. The default is the value of `DISTRIBUTE_JOB` or, if that is not set, the file name of
    /// the program. See [`Credentials::job`].
    pub fn job(mut self, name: impl Into<String>) -> Self {
        self.credentials = self.credentials.job(name);
        self
    }

    /// Sets how many of this worker's most recent updates may be missing from the values that a step uses; 0 by
    /// default. With 1 or more, a step does not wait for servers: gradients are sent and values are fetched while the
    /// following steps compute.
    ///
    /// With 0, a single worker trains in the same way as a single device. With 1 or more, gradients are computed from
    /// slightly stale values, which usually costs little accuracy if updates are small. A server's error about
    /// gradients is then returned by a later step, or by a call that reads variables or slots.
    pub fn staleness(mut self, steps: usize) -> Self {
        self.staleness = steps;
        self
    }

    /// Caches the rows of tables that this process reads. A cached row is not fetched again in the same step or, with
    /// [`RowCacheOptions::staleness`], in the following ones. By default, rows are not cached.
    ///
    /// A cached row lacks the changes of at most [`RowCacheOptions::staleness`] steps of this process, in addition to
    /// the updates that [`staleness`](Self::staleness) permits. It also lacks all changes of other workers in that
    /// time. [`ParameterServerStrategy::row_cache_usage`](super::ParameterServerStrategy::row_cache_usage) returns how
    /// many rows were read from the cache.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::parameter_server::RowCacheOptions;
    /// use distribute::{LocalCluster, ParameterServerStrategy};
    /// let cluster = LocalCluster::new(1, 2)?;
    /// let builder = ParameterServerStrategy::builder().cluster_resolver(cluster.resolver());
    /// let strategy = builder.row_cache(RowCacheOptions { staleness: 4, ..Default::default() }).build()?;
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "CachedEmbedding")]
    pub fn row_cache(mut self, options: RowCacheOptions) -> Self {
        self.row_cache = Some(options);
        self
    }

    /// Sets the type in which `f32` numbers are sent to servers and received from them; [`Wire::Full`] by default. The
    /// other types halve the bytes.
    ///
    /// The gradient of each push is rounded once, after the sum over this process's replicas. The values of models, and
    /// rows that are looked up, are rounded when they are sent to this worker. Servers store, add and save values and
    /// slots in full precision, so rounding errors do not accumulate. Values that the program writes, complete values
    /// that it reads outside a model, and values of checkpoints are sent unchanged. `f64` is never rounded. Servers in
    /// this process send nothing, so nothing is rounded for them.
    ///
    /// [`Wire::Bf16`] has the range of `f32`. With [`Wire::F16`], gradients from 65,520 on become infinite, and those
    /// below 3e-8 become zero.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::{LocalCluster, ParameterServerStrategy, strategy::Wire};
    /// let cluster = LocalCluster::new(1, 2)?;
    /// let builder = ParameterServerStrategy::builder().cluster_resolver(cluster.resolver());
    /// let strategy = builder.wire(Wire::Bf16).build()?;
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "bf16_compress_hook")]
    #[doc(alias = "fp16_compress_hook")]
    pub fn wire(mut self, wire: Wire) -> Self {
        self.wire = wire;
        self
    }

    /// Resolves the cluster and builds the strategy. Unless channels were given, waits first until all servers have
    /// answered.
    ///
    /// # Errors
    /// - The errors of [`ParameterServerStrategy::new`]. If servers cannot be reached, the kind is
    ///   [`ServerUnavailable`](distribute_base::ErrorKind::ServerUnavailable).
    /// - [`Error::Device`]: this build does not support a device.
    /// - [`Error::InvalidArgument`]: the number of channels differs from the number of parameter servers, or the
    ///   timeout is zero.
    #[track_caller]
    pub fn build(self) -> Result<ParameterServerStrategy> {
        let (devices, settings) = (self.resolved_devices()?, self.clone());
        self.options()?;
        let resolver = self.resolver()?;
        let members = Members::of(&*resolver)?;
        let task =
            TaskSettings { kind: OPERATION, creation_policy: members.creation_policy(), independent: None };
        let Assembled { strategy, servers, others } = self.assemble(devices, resolver, &members, task)?;
        let inner = Inner { servers, others, settings, coordinator: Mutex::new(Weak::<()>::new()) };
        Ok(ParameterServerStrategy(strategy, Arc::new(inner)))
    }

    /// Returns the devices of this process's replicas.
    ///
    /// # Errors
    /// Returns an error if a device name is not valid or the number of devices is out of range.
    #[doc(hidden)]
    pub fn resolved_devices(&self) -> Result<Vec<DeviceName>> {
        let devices = match &self.devices {
            Some(devices) => resolve(OPERATION, devices.iter().map(String::as_str))?,
            None => vec![DeviceName::cpu(0)],
        };
        check_count(OPERATION, devices.len())?;
        Ok(devices)
    }

    /// Checks and returns the communication options of the replicas.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the timeout is zero.
    #[doc(hidden)]
    pub fn options(&self) -> Result<CommunicationOptions> {
        let options = CommunicationOptions { timeout: self.timeout, ..Default::default() };
        options.check(OPERATION)?;
        Ok(options)
    }

    /// Returns the resolver of the cluster.
    ///
    /// # Errors
    /// - [`Error::Cluster`]: no resolver was set, and the environment variables that describe the cluster are
    ///   incomplete or invalid.
    #[doc(hidden)]
    pub fn resolver(&self) -> Result<Arc<dyn ClusterResolver>> {
        match &self.resolver {
            Some(resolver) => Ok(resolver.clone()),
            None => Ok(Arc::from(resolver::from_env()?)),
        }
    }

    /// Returns the maximum time to wait for other tasks to start, and for the coordinator to create variables.
    pub(super) fn patience(&self) -> Duration {
        self.join_timeout.unwrap_or(DEFAULT_TIMEOUT)
    }

    /// Creates the strategy of a task. Unless channels were given, waits first until all servers have answered.
    ///
    /// # Errors
    /// Returns the errors of [`build`](Self::build).
    #[track_caller]
    #[doc(hidden)]
    pub fn assemble(
        self,
        devices: Vec<DeviceName>,
        resolver: Arc<dyn ClusterResolver>,
        members: &Members,
        task: TaskSettings,
    ) -> Result<Assembled> {
        let (options, patience) = (self.options()?, self.patience());
        let mut others = None;
        let channels = match self.channels {
            Some(channels) if channels.len() != members.servers.len() => {
                let (given, expected) = (channels.len(), members.servers.len());
                let reason =
                    format!("{given} channels were given, but the cluster has {expected} parameter servers");
                return Err(Error::invalid(OPERATION, reason));
            }
            Some(channels) => channels,
            None => {
                // A coordinator is not necessarily one of the cluster's tasks.
                let client = members.task.clone().unwrap_or(Job::Chief.task(0));
                let clients = ClientBuilder::new(members.spec.clone(), client).credentials(self.credentials);
                // Workers that run the whole program do not serve.
                let jobs: &[Job] =
                    if task.independent.is_some() { &[Job::Ps] } else { &[Job::Worker, Job::Ps] };
                others = members.are_remote().then(|| Servers::new(clients.clone(), members.others(jobs)));
                let begins = task.creation_policy == CreationPolicy::CreateMissing;
                let clients = Connection::builder(clients).wire(self.wire);
                connect(&members.servers, &clients, patience, begins)?
            }
        };
        prepare(devices.len());
        warn_single::suppress();
        let servers = ParameterServers::new(
            channels,
            (self.timeout.unwrap_or(DEFAULT_TIMEOUT), patience),
            (self.partitioner, self.placement),
            (members.workers, task.creation_policy),
            self.staleness,
        )?;
        let servers = Arc::new(servers.with_row_cache(self.row_cache).with_wire(self.wire));
        others.iter().for_each(|others| servers.set_tasks(others.clone()));
        let parameters = (0..members.servers.len()).map(DeviceName::of_server).collect();
        let TaskSettings { kind, independent, .. } = task;
        let of_servers = ServersExtended {
            kind,
            devices,
            parameters,
            resolver: Some(resolver),
            options,
            servers: servers.clone(),
            independent,
        };
        Ok(Assembled { strategy: Strategy::new(of_servers)?, servers, others })
    }
}

/// The settings of one task in a training run with parameter servers.
pub struct TaskSettings {
    /// The name of the strategy, for messages.
    pub kind: &'static str,
    /// The policy that determines whether the task creates missing variables.
    pub creation_policy: CreationPolicy,
    /// The index of the task among independent workers, and their number; `None` if it is not one of them.
    pub independent: Option<IndependentWorker>,
}

/// A strategy, the client of its parameter servers, and the tasks in other processes.
pub struct Assembled {
    /// The strategy that was assembled.
    pub strategy: Strategy,
    /// The client of the parameter servers.
    pub servers: Arc<ParameterServers>,
    /// The tasks in other processes, if there are any.
    pub others: Option<Servers>,
}

impl fmt::Debug for ParameterServerStrategyBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParameterServerStrategyBuilder")
            .field("partitioner", &self.partitioner)
            .field("placement", &self.placement)
            .field("devices", &self.devices)
            .field("staleness", &self.staleness)
            .field("row_cache", &self.row_cache)
            .field("wire", &self.wire)
            .finish_non_exhaustive()
    }
}
