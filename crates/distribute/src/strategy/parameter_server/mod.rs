//! Training against parameter servers, on which variables are kept.

mod builder;
mod connect;
mod ending;
mod local_cluster;
mod members;

pub use builder::ParameterServerBuilder;
pub use local_cluster::{LocalCluster, LocalClusterResolver};

use super::kinds::handle;
use super::{CommunicationOptions, DeviceName, Strategy, StrategyExtended, VariablePlacement};
use crate::Result;
use crate::checkpoint::{Checkpointed, Reader, Restore, Writer};
use crate::servers::ParameterServers;
use distribute_cluster::resolver::ClusterResolver;
use distribute_params::{Partitioner, Placement};
use ending::Servers;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

const OPERATION: &str = "ParameterServerStrategy";

/// Variables on parameter servers, and the steps of one worker that uses them.
///
/// What takes a [`&Strategy`](Strategy) needs no change. A variable is cut into shards by the partitioner, each on a server, and
/// is read and written as one; the values of a model are fetched when a step begins, and its gradients are applied where the
/// variables are, by the optimizer's rule. Of an [`Embedding`](crate::nn::Embedding) only the rows of a batch's ids are fetched.
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
#[derive(Clone, Debug)]
pub struct ParameterServerStrategy(
    Strategy,
    Arc<ParameterServers>,
    /// The tasks in other processes, where there are some.
    Option<Arc<Servers>>,
);
handle!(ParameterServerStrategy);

impl ParameterServerStrategy {
    /// One replica that trains against the parameter servers that `resolver` knows of, with variables cut as `partitioner` says.
    /// [`builder`](Self::builder) has more settings, and does without a partitioner.
    ///
    /// # Errors
    /// [`Error::Cluster`](crate::Error::Cluster) for a cluster without parameter servers or workers, or with tasks that don't
    /// belong there; [`Error::InvalidArgument`](crate::Error::InvalidArgument) for an empty one, and for a process that is a
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
        self.1.placement()
    }

    /// Ends the [servers](crate::serve) of all workers and parameter servers in other processes, at the end of the training, when
    /// updates that are under way have arrived: their programs go on behind `serve`. Those that cannot be reached have ended. The
    /// chief may do so or, in a cluster without one, worker 0.
    ///
    /// # Errors
    /// That of an update that did not arrive; that of the first server that is there and does not end, when all others have been asked.
    pub fn end_servers(&self) -> Result<()> {
        self.1.steps().settle()?;
        self.2.as_ref().map_or(Ok(()), |others| others.end(self.1.timeout()))
    }

    /// How many workers the cluster has.
    pub fn workers(&self) -> usize {
        self.1.workers()
    }
}

/// The implementation of [`ParameterServerStrategy`].
struct OfServers {
    devices: Vec<DeviceName>,
    parameters: Vec<DeviceName>,
    resolver: Option<Box<dyn ClusterResolver>>,
    options: CommunicationOptions,
    servers: Arc<ParameterServers>,
}

impl StrategyExtended for OfServers {
    fn kind(&self) -> &'static str {
        OPERATION
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
        f.debug_struct(OPERATION)
            .field("devices", &self.devices)
            .field("servers", &self.parameters.len())
            .finish()
    }
}
