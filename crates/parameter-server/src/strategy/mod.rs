//! Training against parameter servers, on which variables are kept.

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
use distribute_params::{Partitioner, Placement, Usage};
use distribute_ps_client::ParameterServers;
use distribute_server::ClientBuilder;
pub use ending::Servers;
use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

const OPERATION: &str = "ParameterServerStrategy";

/// Variables on parameter servers, and the steps of one worker that uses them.
///
/// What takes a [`&Strategy`](Strategy) needs no change. A variable is cut into shards by the partitioner, each on a server, and
/// is read and written as one; the values of a model are fetched when a step begins, and its gradients are applied where the
/// variables are, by the optimizer's rule. Of an `nn::Embedding` only the rows of a batch's ids are fetched.
/// Workers don't wait for each other.
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

/// What this kind of strategy has beside the handle of every strategy.
struct Behind {
    servers: Arc<ParameterServers>,
    /// The tasks in other processes, where there are some.
    others: Option<Servers>,
    /// What it was built of.
    settings: ParameterServerBuilder,
    /// Who schedules on its workers, if somebody does.
    coordinator: Mutex<Weak<dyn Any + Send + Sync>>,
}

impl ParameterServerStrategy {
    /// One replica that trains against the parameter servers that `resolver` knows of, with variables cut as `partitioner` says.
    /// [`builder`](Self::builder) has more settings, and does without a partitioner.
    ///
    /// # Errors
    /// [`Error::Cluster`](distribute_base::Error::Cluster) for a cluster without parameter servers or workers, or with tasks that don't
    /// belong there; [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument) for an empty one, and for a process that is a
    /// parameter server or evaluator itself.
    #[track_caller]
    pub fn new(resolver: impl ClusterResolver + 'static, partitioner: impl Partitioner) -> Result<Self> {
        Self::builder().cluster_resolver(resolver).partitioner(partitioner).build()
    }

    /// A builder for a strategy with more settings.
    pub fn builder() -> ParameterServerBuilder {
        ParameterServerBuilder::default()
    }

    /// Which server has which variable or shard. It can be printed.
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

    /// What each server has, and how many rows were read from it and pushed to it: see [`ParameterServers::usage`].
    ///
    /// # Errors
    /// [`Error::Server`](distribute_base::Error::Server) for one that does not answer within the strategy's timeout.
    pub fn server_usage(&self) -> Result<Vec<Usage>> {
        self.1.servers.usage()
    }

    /// Ends the [servers](crate::serve) of all workers and parameter servers in other processes, at the end of the training, when
    /// updates that are under way have arrived: their programs go on behind `serve`. Those that cannot be reached have ended. The
    /// chief may do so or, in a cluster without one, worker 0.
    ///
    /// # Errors
    /// That of an update that did not arrive; that of the first server that is there and does not end, when all others have been asked.
    pub fn end_servers(&self) -> Result<()> {
        self.1.servers.session().flush()?;
        self.1.others.as_ref().map_or(Ok(()), |others| others.end(self.1.servers.timeout()))
    }

    /// How many workers the cluster has.
    pub fn workers(&self) -> usize {
        self.1.servers.workers()
    }

    pub(crate) fn servers(&self) -> &ParameterServers {
        &self.1.servers
    }

    /// What it was built of.
    pub(crate) fn settings(&self) -> &ParameterServerBuilder {
        &self.1.settings
    }

    /// How other tasks are reached from this one.
    pub(crate) fn clients(&self) -> Option<&ClientBuilder> {
        self.1.others.as_ref().map(Servers::clients)
    }

    // CC-1
    /// Who schedules on its workers: one, which is made if there is none.
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

    /// The cluster, if its tasks are all in this process.
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
