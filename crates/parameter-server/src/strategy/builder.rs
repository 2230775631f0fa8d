//! The settings of a strategy with parameter servers.

use super::connect::connect;
use super::ending::Servers;
use super::members::Members;
use super::{Behind, OPERATION, OfServers, ParameterServerStrategy};
use distribute_base::{DeviceName, Error, Result};
use distribute_cluster::Job;
use distribute_cluster::deadline::DEFAULT_TIMEOUT;
use distribute_cluster::resolver::{self, ClusterResolver};
use distribute_collective::threads::MOST_THREADS;
use distribute_core::internal::{alone, check_count, prepare, resolve};
use distribute_core::{CommunicationOptions, IndependentWorker, Strategy};
use distribute_net::Credentials;
use distribute_ps_client::ParameterServers;
use distribute_ps_client::internal::Makes;
use distribute_ps_tables::{Channel, Partitioner, PlacementPolicy};
use distribute_rpc::ClientBuilder;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The settings of a [`ParameterServerStrategy`]; see [`ParameterServerStrategy::builder`].
///
/// ```
/// # use distribute::prelude::*;
/// use distribute::{LocalCluster, ParameterServerStrategy};
/// use distribute::params::{FixedShardsPartitioner, PlacementPolicy};
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
#[derive(Clone, Default)]
pub struct ParameterServerBuilder {
    resolver: Option<Arc<dyn ClusterResolver>>,
    channels: Option<Vec<Arc<dyn Channel>>>,
    pub(super) partitioner: Option<Arc<dyn Partitioner>>,
    pub(super) placement: PlacementPolicy,
    devices: Option<Vec<String>>,
    pub(super) timeout: Option<Duration>,
    pub(super) staleness: usize,
    credentials: Credentials,
    pub(super) join_timeout: Option<Duration>,
}

impl ParameterServerBuilder {
    /// Sets the resolver of the cluster. By default it is determined from the environment.
    pub fn cluster_resolver(mut self, resolver: impl ClusterResolver + 'static) -> Self {
        self.resolver = Some(Arc::new(resolver));
        self
    }

    /// Sets the channels to the parameter servers, in the order of their numbers, if they are not to be
    /// resolved by this builder.
    pub fn channels(mut self, channels: impl IntoIterator<Item = Arc<dyn Channel>>) -> Self {
        self.channels = Some(channels.into_iter().collect());
        self
    }

    /// Sets the partitioner, which decides into how many shards each variable is split. By default variables
    /// are not split.
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

    /// Uses the first `gpus` GPUs of this process, with a replica on each; 0 means one replica on `cpu:0`. This
    /// replaces [`devices`](Self::devices).
    #[doc(alias = "num_gpus_per_worker")]
    pub fn gpus_per_worker(mut self, gpus: usize) -> Self {
        self.devices =
            (gpus > 0).then(|| (0..gpus.min(MOST_THREADS + 1)).map(|gpu| format!("gpu:{gpu}")).collect());
        self
    }

    /// Sets the devices of this process's replicas; `cpu:0` by default.
    pub fn devices<'a>(mut self, devices: impl IntoIterator<Item = &'a str>) -> Self {
        self.devices = Some(devices.into_iter().map(String::from).collect());
        self
    }

    /// Sets how long to wait for a server to answer, and for the other replicas of this process in one call;
    /// 60 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets how long to wait until all servers answer for the first time, and how long a worker waits for the
    /// coordinator to create each variable; 60 s by default. Servers may start in any order.
    pub fn join_timeout(mut self, timeout: Duration) -> Self {
        self.join_timeout = Some(timeout);
        self
    }

    /// Sets how the tasks of the job authenticate each other and protect connections between machines. This
    /// replaces earlier settings, including [`job`](Self::job), and applies to all connections of a task. By
    /// default the secret in `DISTRIBUTE_SECRET` is used, if there is one.
    pub fn credentials(mut self, credentials: impl Into<Credentials>) -> Self {
        self.credentials = credentials.into();
        self
    }

    /// Sets the name of the job; by default the value of `DISTRIBUTE_JOB` or, without it, the name of the
    /// program's file. See [`Credentials::job`].
    pub fn job(mut self, name: impl Into<String>) -> Self {
        self.credentials = self.credentials.job(name);
        self
    }

    /// Sets how many of this worker's own latest updates may be missing from the values that a step computes
    /// with; 0 by default. With 1 or more, a step does not wait for servers: gradients are sent and values are
    /// fetched while the next steps compute.
    ///
    /// With 0, a single worker trains like a single device. Otherwise gradients are computed from slightly
    /// stale values, which usually costs little if updates are small. A server's error about gradients is then
    /// returned by a later step, or by a call that reads variables or slots.
    pub fn staleness(mut self, steps: usize) -> Self {
        self.staleness = steps;
        self
    }

    /// Resolves the cluster, waits until all servers answer, and builds the strategy.
    ///
    /// # Errors
    /// Returns the errors of [`ParameterServerStrategy::new`], and:
    /// - [`Error::Device`]: this build does not support a device.
    /// - [`Error::InvalidArgument`]: the number of channels differs from the number of parameter servers, the
    ///   timeout is zero, or servers cannot be reached; the message names these servers.
    #[track_caller]
    pub fn build(self) -> Result<ParameterServerStrategy> {
        let (devices, settings) = (self.resolved_devices()?, self.clone());
        self.options()?;
        let resolver = self.resolver()?;
        let members = Members::of(&*resolver)?;
        let role = Role { kind: OPERATION, makes: members.makes(), independent: None };
        let Assembled { strategy, servers, others } = self.assemble(devices, resolver, &members, role)?;
        let behind = Behind { servers, others, settings, coordinator: Mutex::new(Weak::<()>::new()) };
        Ok(ParameterServerStrategy(strategy, Arc::new(behind)))
    }

    /// Returns the devices of this process's replicas.
    #[doc(hidden)]
    pub fn resolved_devices(&self) -> Result<Vec<DeviceName>> {
        let devices = match &self.devices {
            Some(devices) => resolve(devices.iter().map(String::as_str))?,
            None => vec![DeviceName::cpu(0)],
        };
        check_count(OPERATION, devices.len())?;
        Ok(devices)
    }

    /// Returns the checked communication options of the replicas.
    #[doc(hidden)]
    pub fn options(&self) -> Result<CommunicationOptions> {
        let options = CommunicationOptions { timeout: self.timeout, ..Default::default() };
        options.check(OPERATION)?;
        Ok(options)
    }

    /// Returns the resolver of the cluster.
    #[doc(hidden)]
    pub fn resolver(&self) -> Result<Arc<dyn ClusterResolver>> {
        match &self.resolver {
            Some(resolver) => Ok(resolver.clone()),
            None => Ok(Arc::from(resolver::from_env()?)),
        }
    }

    /// Returns how long to wait for other tasks to start or to create variables.
    pub(super) fn patience(&self) -> Duration {
        self.join_timeout.unwrap_or(DEFAULT_TIMEOUT)
    }

    /// Creates the strategy of one task after all servers have answered.
    #[track_caller]
    #[doc(hidden)]
    pub fn assemble(
        self,
        devices: Vec<DeviceName>,
        resolver: Arc<dyn ClusterResolver>,
        members: &Members,
        role: Role,
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
                let task = members.task.clone().unwrap_or(Job::Chief.task(0));
                let clients = ClientBuilder::new(members.spec.clone(), task).credentials(self.credentials);
                // Workers that run the whole program do not serve.
                let jobs: &[Job] =
                    if role.independent.is_some() { &[Job::Ps] } else { &[Job::Worker, Job::Ps] };
                others = members.are_elsewhere().then(|| Servers::new(clients.clone(), members, jobs));
                connect(members, &clients, patience, role.makes)?
            }
        };
        prepare(devices.len());
        alone::joined();
        let servers = Arc::new(ParameterServers::new(
            channels,
            (self.timeout.unwrap_or(DEFAULT_TIMEOUT), patience),
            (self.partitioner, self.placement),
            (members.workers, role.makes),
            self.staleness,
        )?);
        let parameters = (0..members.servers.len()).map(DeviceName::of_server).collect();
        let Role { kind, independent, .. } = role;
        let of_servers = OfServers {
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

/// The role of a task in a training with parameter servers.
pub struct Role {
    /// The name of the strategy.
    pub kind: &'static str,
    /// The variables that the task creates.
    pub makes: Makes,
    /// The number of the task among the independent workers, if it is one.
    pub independent: Option<IndependentWorker>,
}

/// A strategy with its client and tasks.
pub struct Assembled {
    /// The strategy.
    pub strategy: Strategy,
    /// The client of the parameter servers.
    pub servers: Arc<ParameterServers>,
    /// The tasks in other processes, if there are any.
    pub others: Option<Servers>,
}

impl fmt::Debug for ParameterServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParameterServerBuilder")
            .field("partitioner", &self.partitioner)
            .field("placement", &self.placement)
            .field("devices", &self.devices)
            .field("staleness", &self.staleness)
            .finish_non_exhaustive()
    }
}
