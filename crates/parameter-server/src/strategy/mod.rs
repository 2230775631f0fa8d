//! Strategies that store variables on parameter servers.
//!
//! | module | contents |
//! |---|---|
//! | `builder`, `members` | the settings; the tasks that a cluster must have, as a pure function |
//! | `shared_settings` | the settings that a coordinator's strategy shares with those of its workers |

pub mod builder;
mod members;
pub mod shared_settings;
pub use builder::Assembled;
pub use builder::TaskSettings;
pub use members::Members;

pub use builder::ParameterServerStrategyBuilder;
pub use shared_settings::SharedSettings;

use distribute_base::internal::lock;
use distribute_base::{DeviceName, Result};
use distribute_cluster::resolver::ClusterResolver;
use distribute_core::checkpoint::{Reader, Restore, Writer};
use distribute_core::{
    Checkpointed, CommunicationOptions, IndependentWorker, Strategy, StrategyExtended, VariablePlacement,
};
use distribute_ps_client::internal::Servers;
use distribute_ps_client::{LocalCluster, ParameterServers, RowCacheUsage};
use distribute_ps_tables::{Partitioner, Placement, Usage};
use distribute_rpc::ClientBuilder;
use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

const OPERATION: &str = "ParameterServerStrategy";

/// A strategy that stores variables on parameter servers, and runs the steps of a single worker.
///
/// Code that takes a [`&Strategy`](Strategy) works unchanged. The partitioner splits a variable into shards, each on
/// one server. The variable is still read and written as a single value. The values of a model are fetched at the
/// beginning of each step. Gradients are applied on the servers by the optimizer's rule. For an `nn::Embedding`, only
/// the rows for the ids of a batch are fetched. Workers train asynchronously.
///
/// This type dereferences to [`Strategy`], whose methods (`scope`, `replicate`, `run`, …) can be called on it directly.
/// Pass `&strategy` to functions that take a `&Strategy`. Clones refer to the same strategy.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{Device, Module, Tensor};
/// use distribute::{LocalCluster, ParameterServerStrategy, nn, parameter_server::MinSizePartitioner};
///
/// let cluster = LocalCluster::new(1, 2)?;                                       // tasks of this process
/// let strategy = ParameterServerStrategy::new(cluster.resolver(), MinSizePartitioner::new(1024, 2)?)?;
/// let model = strategy.replicate(|vb| {
///     distribute::Ok((nn::embedding(1000, 8, vb.pp("words"))?, nn::linear(8, 1, vb.pp("out"))?))
/// })?;
/// let optimizer = Adagrad::new(&model.variables, 0.1)?;
/// let ids = Tensor::new(&[7u32, 999, 7], &Device::Cpu)?;
/// for _ in 0..10 {
///     strategy.run(&model, |ctx, (words, out)| {
///         let loss = out.forward(&words.forward(&ids)?)?.sqr()?.mean_all()?;
///         optimizer.minimize(ctx, loss, 3)
///     })?;
/// }
/// assert_eq!(strategy.placement().of("words.weight").map(<[_]>::len), Some(2));
/// # use distribute::optimizer::Adagrad;
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.distribute.ParameterServerStrategy")]
#[doc(alias = "tf.distribute.experimental.ParameterServerStrategy")]
#[derive(Clone)]
pub struct ParameterServerStrategy(Strategy, Arc<Inner>);

impl Deref for ParameterServerStrategy {
    type Target = Strategy;

    fn deref(&self) -> &Strategy {
        &self.0
    }
}

impl From<ParameterServerStrategy> for Strategy {
    fn from(strategy: ParameterServerStrategy) -> Strategy {
        strategy.0
    }
}

impl Checkpointed for ParameterServerStrategy {
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()> {
        Checkpointed::save(&self.0, prefix, writer)
    }

    fn restore<'a>(&'a self, prefix: &str, from: &Reader) -> Result<Restore<'a>> {
        Checkpointed::restore(&self.0, prefix, from)
    }

    fn strategy(&self) -> Option<&Strategy> {
        Some(&self.0)
    }
}

/// The state that only this kind of strategy has.
struct Inner {
    servers: Arc<ParameterServers>,
    /// The tasks in other processes; `None` if there are none.
    others: Option<Servers>,
    settings: ParameterServerStrategyBuilder,
    /// The coordinator of the strategy's workers, if there is one.
    coordinator: Mutex<Weak<dyn Any + Send + Sync>>,
}

impl ParameterServerStrategy {
    /// Creates a strategy with one replica. The strategy uses the parameter servers in `resolver`'s cluster, and
    /// `partitioner` splits variables into shards. [`builder`](Self::builder) has more settings, and does not require a
    /// partitioner.
    ///
    /// # Errors
    /// - [`Error::Cluster`](distribute_base::Error::Cluster): the cluster has no parameter servers or no
    ///   workers, or has tasks of other jobs.
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): the cluster is empty, this process is a
    ///   parameter server or an evaluator, or servers have tables of a different training run.
    /// - [`Error::Failed`](distribute_base::Error::Failed): some servers cannot be reached. The error names them.
    /// - [`Error::Server`](distribute_base::Error::Server): a server cannot store its record of the training run.
    #[track_caller]
    pub fn new(resolver: impl ClusterResolver + 'static, partitioner: impl Partitioner) -> Result<Self> {
        Self::builder().cluster_resolver(resolver).partitioner(partitioner).build()
    }

    /// Returns a builder for a strategy with more settings.
    pub fn builder() -> ParameterServerStrategyBuilder {
        ParameterServerStrategyBuilder::default()
    }

    /// Returns the placement of variables and shards on servers. It can be displayed as a table.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # use distribute::{LocalCluster, ParameterServerStrategy, Variable};
    /// let cluster = LocalCluster::new(1, 2)?;
    /// let strategy = ParameterServerStrategy::builder().cluster_resolver(cluster.resolver()).build()?;
    /// let _both = strategy.scope(|| Ok((Variable::new("a", 1f32)?, Variable::new("b", 2i64)?)))?;
    /// assert_eq!(strategy.placement().of("b").map(|placed| placed[0].server), Some(1));
    /// println!("{}", strategy.placement());
    /// # Ok::<(), distribute::Error>(())
    /// ```
    pub fn placement(&self) -> Placement {
        self.1.servers.placement()
    }

    /// Returns the tables on each server, and the numbers of rows that have been read from the server and pushed to it.
    /// See [`ParameterServers::usage`].
    ///
    /// # Errors
    ///
    /// - [`Error::Server`](distribute_base::Error::Server): a server did not answer within the strategy's timeout.
    pub fn server_usage(&self) -> Result<Vec<Usage>> {
        self.1.servers.usage()
    }

    /// Returns the usage of this process's [caches of rows](ParameterServerStrategyBuilder::row_cache), such as the
    /// number of rows that were read from them.
    pub fn row_cache_usage(&self) -> RowCacheUsage {
        self.1.servers.row_cache_usage()
    }

    /// Returns the number of workers in the cluster.
    pub fn workers(&self) -> usize {
        self.1.servers.workers()
    }

    pub(crate) fn servers(&self) -> &ParameterServers {
        &self.1.servers
    }

    pub(crate) fn settings(&self) -> &ParameterServerStrategyBuilder {
        &self.1.settings
    }

    /// Returns the builder of clients that connect to tasks in other processes; `None` if there are none.
    pub(crate) fn clients(&self) -> Option<&ClientBuilder> {
        self.1.others.as_ref().map(Servers::clients)
    }

    // CC-1
    /// Returns the coordinator of the strategy's workers. If there is none, calls `make` to create it.
    pub(crate) fn coordinator<C: Any + Send + Sync>(
        &self,
        make: impl FnOnce() -> Result<Arc<C>>,
    ) -> Result<Arc<C>> {
        let mut coordinator = lock(&self.1.coordinator);
        if let Some(there) = coordinator.upgrade().and_then(|there| there.downcast().ok()) {
            return Ok(there);
        }
        let made = make()?;
        let there: Arc<dyn Any + Send + Sync> = made.clone();
        *coordinator = Arc::downgrade(&there);
        Ok(made)
    }

    /// Returns the cluster if all its tasks are in this process; otherwise `None`.
    pub(crate) fn local_cluster(&self) -> Option<LocalCluster> {
        LocalCluster::of(&self.cluster_resolver()?.cluster_spec().ok()?)
    }
}

impl fmt::Debug for ParameterServerStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple(OPERATION).field(&self.0).field(&self.1.servers).finish()
    }
}

/// The implementation of [`ParameterServerStrategy`].
struct ServersExtended {
    kind: &'static str,
    devices: Vec<DeviceName>,
    parameters: Vec<DeviceName>,
    resolver: Option<Arc<dyn ClusterResolver>>,
    options: CommunicationOptions,
    servers: Arc<ParameterServers>,
    independent: Option<IndependentWorker>,
}

impl StrategyExtended for ServersExtended {
    fn kind(&self) -> &'static str {
        self.kind
    }
    fn independent(&self) -> Option<IndependentWorker> {
        self.independent
    }
    fn worker_devices(&self) -> &[DeviceName] {
        &self.devices
    }
    fn variable_placement(&self) -> VariablePlacement {
        VariablePlacement::Servers
    }
    // PSV2-5
    fn parameter_devices(&self) -> Vec<DeviceName> {
        self.parameters.clone()
    }
    fn parameter_servers(&self) -> Option<&Arc<ParameterServers>> {
        Some(&self.servers)
    }
    fn cluster_resolver(&self) -> Option<&dyn ClusterResolver> {
        self.resolver.as_deref()
    }
    fn communication_options(&self) -> CommunicationOptions {
        self.options
    }
    fn timeout(&self) -> Duration {
        self.servers.timeout()
    }
}

impl fmt::Debug for ServersExtended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(self.kind)
            .field("devices", &self.devices)
            .field("servers", &self.parameters.len())
            .finish()
    }
}
