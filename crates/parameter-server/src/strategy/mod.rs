//! Training with parameter servers, on which variables are stored.

pub mod builder;
mod connect;
mod ending;
mod layout;
mod local_cluster;
mod members;
pub mod of_workers;
pub use builder::Assembled;
pub use builder::Role;
pub use members::Members;

pub use builder::ParameterServerBuilder;
pub use local_cluster::{LocalCluster, LocalClusterResolver};
pub use of_workers::SharedSettings;

use distribute_base::internal::lock;
use distribute_base::{DeviceName, Result};
use distribute_cluster::resolver::ClusterResolver;
use distribute_core::{
    CommunicationOptions, IndependentWorker, Strategy, StrategyExtended, VariablePlacement, handle,
};
use distribute_ps_client::ParameterServers;
use distribute_ps_tables::{Partitioner, Placement, Usage};
use distribute_rpc::ClientBuilder;
pub use ending::Servers;
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

const OPERATION: &str = "ParameterServerStrategy";

/// A strategy that stores variables on parameter servers, and runs the steps of one worker.
///
/// Code that takes a [`&Strategy`](Strategy) works unchanged. The partitioner splits a variable into shards,
/// each on a server; the variable is read and written as a whole. The values of a model are fetched at the
/// beginning of a step. Gradients are applied on the servers, by the optimizer's rule. For an `nn::Embedding`,
/// only the rows of a batch's ids are fetched. Workers train asynchronously.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{Device, Module, Tensor};
/// use distribute::{LocalCluster, ParameterServerStrategy, nn, params::MinSizePartitioner};
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
/// # use distribute::Adagrad;
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.distribute.ParameterServerStrategy")]
#[doc(alias = "tf.distribute.experimental.ParameterServerStrategy")]
#[derive(Clone)]
pub struct ParameterServerStrategy(Strategy, Arc<Behind>);
handle!(ParameterServerStrategy);

/// The state of this kind of strategy, in addition to the handle that every strategy has.
struct Behind {
    servers: Arc<ParameterServers>,
    /// The tasks in other processes, if there are any.
    others: Option<Servers>,
    /// The settings of the strategy.
    settings: ParameterServerBuilder,
    /// The coordinator of its workers, if there is one.
    coordinator: Mutex<Weak<dyn Any + Send + Sync>>,
}

impl ParameterServerStrategy {
    /// Creates a strategy with one replica that trains with the parameter servers of `resolver`'s cluster.
    /// Variables are split by `partitioner`. [`builder`](Self::builder) has more settings, and works without a
    /// partitioner.
    ///
    /// # Errors
    /// - [`Error::Cluster`](distribute_base::Error::Cluster): the cluster has no parameter servers or no
    ///   workers, or has tasks that do not belong there.
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): the cluster is empty, or this
    ///   process is a parameter server or an evaluator.
    #[track_caller]
    pub fn new(resolver: impl ClusterResolver + 'static, partitioner: impl Partitioner) -> Result<Self> {
        Self::builder().cluster_resolver(resolver).partitioner(partitioner).build()
    }

    /// Returns a builder for a strategy with more settings.
    pub fn builder() -> ParameterServerBuilder {
        ParameterServerBuilder::default()
    }

    /// Returns the placement of variables and shards on servers. It can be printed.
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

    /// Returns the tables of each server, and how many rows were read from it and pushed to it; see
    /// [`ParameterServers::usage`].
    ///
    /// # Errors
    /// - [`Error::Server`](distribute_base::Error::Server): a server does not answer within the strategy's
    ///   timeout.
    pub fn server_usage(&self) -> Result<Vec<Usage>> {
        self.1.servers.usage()
    }

    /// Stops the [servers](crate::serve) of all workers and parameter servers in other processes, at the end of
    /// the training. Updates in flight are flushed first. In these processes, `serve` returns. Servers that
    /// cannot be reached count as stopped. Call this from the chief or, in a cluster without a chief, from
    /// worker 0.
    ///
    /// # Errors
    /// Returns the error of an update that did not arrive, or of the first reachable server that does not stop,
    /// after all servers have been asked.
    pub fn end_servers(&self) -> Result<()> {
        self.1.servers.session().flush()?;
        self.1.others.as_ref().map_or(Ok(()), |others| others.end(self.1.servers.timeout()))
    }

    /// Returns the number of workers in the cluster.
    pub fn workers(&self) -> usize {
        self.1.servers.workers()
    }

    pub(crate) fn servers(&self) -> &ParameterServers {
        &self.1.servers
    }

    /// Returns the settings of the strategy.
    pub(crate) fn settings(&self) -> &ParameterServerBuilder {
        &self.1.settings
    }

    /// Returns the client that connects to other tasks.
    pub(crate) fn clients(&self) -> Option<&ClientBuilder> {
        self.1.others.as_ref().map(Servers::clients)
    }

    // CC-1
    /// Returns the coordinator of its workers, or creates it with `make` if there is none.
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

    /// Returns the cluster, if all its tasks are in this process.
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
struct OfServers {
    kind: &'static str,
    devices: Vec<DeviceName>,
    parameters: Vec<DeviceName>,
    resolver: Option<Arc<dyn ClusterResolver>>,
    options: CommunicationOptions,
    servers: Arc<ParameterServers>,
    independent: Option<IndependentWorker>,
}

impl StrategyExtended for OfServers {
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

impl fmt::Debug for OfServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(self.kind)
            .field("devices", &self.devices)
            .field("servers", &self.parameters.len())
            .finish()
    }
}
