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
use distribute_params::{Channel, Partitioner, PlacementPolicy};
use distribute_ps_client::ParameterServers;
use distribute_ps_client::internal::Makes;
use distribute_server::ClientBuilder;
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
    /// Who takes part. By default that is found out from the environment.
    pub fn cluster_resolver(mut self, resolver: impl ClusterResolver + 'static) -> Self {
        self.resolver = Some(Arc::new(resolver));
        self
    }

    /// How each parameter server of the cluster is reached, in the order of their numbers, where something other than this builder
    /// has found that out.
    pub fn channels(mut self, channels: impl IntoIterator<Item = Arc<dyn Channel>>) -> Self {
        self.channels = Some(channels.into_iter().collect());
        self
    }

    /// Into how many shards variables are cut; by default they stay whole.
    #[doc(alias = "variable_partitioner")]
    pub fn partitioner(mut self, partitioner: impl Partitioner) -> Self {
        self.partitioner = Some(Arc::new(partitioner));
        self
    }

    /// Which server gets which variable or shard; by default they go to the servers in turn.
    #[doc(alias = "GreedyLoadBalancingStrategy")]
    pub fn placement(mut self, policy: PlacementPolicy) -> Self {
        self.placement = policy;
        self
    }

    /// The first so many GPUs of this process, a replica on each; with 0, one on `cpu:0`. In place of [`devices`](Self::devices).
    #[doc(alias = "num_gpus_per_worker")]
    pub fn gpus_per_worker(mut self, gpus: usize) -> Self {
        self.devices =
            (gpus > 0).then(|| (0..gpus.min(MOST_THREADS + 1)).map(|gpu| format!("gpu:{gpu}")).collect());
        self
    }

    /// The devices of this process's replicas, `cpu:0` by default.
    pub fn devices<'a>(mut self, devices: impl IntoIterator<Item = &'a str>) -> Self {
        self.devices = Some(devices.into_iter().map(String::from).collect());
        self
    }

    /// How long to wait for an answer of a server, and for the other replicas of this process in one call; 60 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// How long to wait until all servers answer for the first time, and a worker for each variable until the coordinator has made it; a
    /// minute by default. They may start in any order.
    pub fn join_timeout(mut self, timeout: Duration) -> Self {
        self.join_timeout = Some(timeout);
        self
    }

    /// How the tasks of the job know each other, and protect connections between machines, in place of what was said before, of [`job`](Self::job)
    /// too: one value for all that a task opens. By default by the secret in `DISTRIBUTE_SECRET`, if there is one.
    pub fn credentials(mut self, credentials: impl Into<Credentials>) -> Self {
        self.credentials = credentials.into();
        self
    }

    /// The name of the job, if that is neither in `DISTRIBUTE_JOB` nor the name of the program's file: see [`Credentials::job`].
    pub fn job(mut self, name: impl Into<String>) -> Self {
        self.credentials = self.credentials.job(name);
        self
    }

    /// How many of its own latest updates the values may lack that a step of this worker computes with; 0 by default. With 1 or more, a
    /// step doesn't wait for servers: gradients are sent and values are fetched while the next ones compute.
    ///
    /// With 0 one worker trains as one device does. Otherwise its gradients are of somewhat older values, which mostly costs
    /// little where updates are small; and a server's error about gradients is that of a later step, or of whoever reads
    /// variables and slots.
    pub fn staleness(mut self, steps: usize) -> Self {
        self.staleness = steps;
        self
    }

    /// Finds out who takes part, waits until all servers answer, and builds the strategy.
    ///
    /// # Errors
    /// Those of [`ParameterServerStrategy::new`]; [`Error::Device`] for a device that this build does not support;
    /// [`Error::InvalidArgument`] for another number of channels than of parameter servers, a timeout of zero, and servers that cannot
    /// be reached, which it names.
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

    /// The devices of this process's replicas.
    #[doc(hidden)]
    pub fn resolved_devices(&self) -> Result<Vec<DeviceName>> {
        let devices = match &self.devices {
            Some(devices) => resolve(devices.iter().map(String::as_str))?,
            None => vec![DeviceName::cpu(0)],
        };
        check_count(OPERATION, devices.len())?;
        Ok(devices)
    }

    /// How its replicas communicate, checked.
    #[doc(hidden)]
    pub fn options(&self) -> Result<CommunicationOptions> {
        let options = CommunicationOptions { timeout: self.timeout, ..Default::default() };
        options.check(OPERATION)?;
        Ok(options)
    }

    /// Who knows who takes part.
    #[doc(hidden)]
    pub fn resolver(&self) -> Result<Arc<dyn ClusterResolver>> {
        match &self.resolver {
            Some(resolver) => Ok(resolver.clone()),
            None => Ok(Arc::from(resolver::from_env()?)),
        }
    }

    /// How long to wait for what others start or make.
    pub(super) fn patience(&self) -> Duration {
        self.join_timeout.unwrap_or(DEFAULT_TIMEOUT)
    }

    /// The strategy of one task, when all servers have answered.
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
                // A coordinator need not be among the tasks.
                let task = members.task.clone().unwrap_or(Job::Chief.task(0));
                let clients = ClientBuilder::new(members.spec.clone(), task).credentials(self.credentials);
                // Workers that run the program by themselves serve nobody.
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

/// What a task is in a training against parameter servers.
pub struct Role {
    /// The strategy's name.
    pub kind: &'static str,
    /// The variables that it makes.
    pub makes: Makes,
    /// Its number among the workers that train by themselves, if it is one.
    pub independent: Option<IndependentWorker>,
}

/// A strategy, and what it uses.
pub struct Assembled {
    /// The strategy.
    pub strategy: Strategy,
    /// The client of its servers.
    pub servers: Arc<ParameterServers>,
    /// The tasks in other processes, where there are some.
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
