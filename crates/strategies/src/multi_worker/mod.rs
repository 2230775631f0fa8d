//! Strategies over several workers that train one model synchronously.
//!
//! | module | contents |
//! |---|---|
//! | `builder` | workers that are processes: their settings, and how they find each other |
//! | `checksums` | the links on which messages have checksums |
//! | `join` | the rendezvous, at the start and after a failure |
//! | `elastic` | the minimum number of workers in elastic training, and the number of spares |
//! | `local_steps` | steps that each worker trains alone |
//! | `logical` | logical replicas, which the workers share |
//! | `spares` | processes that wait until a worker is lost, or is too slow |
//! | `on_threads` | workers that are threads of one process |
//! | `table_options`, `tables` | the location of tables; tables that the workers store together |

mod builder;
mod checksums;
mod elastic;
mod join;
mod local_steps;
mod logical;
mod on_threads;
mod spares;
mod table_options;
mod tables;

pub use builder::MultiWorkerMirroredStrategyBuilder;
pub use table_options::{HostedWeights, TableHosts, TableOptions};

use distribute_base::{DeviceName, Result};
use distribute_cluster::resolver::ClusterResolver;
use distribute_collective::group::Group;
use distribute_core::internal::CHECK_DRIFT_EVERY;
use distribute_core::strategy::{Compression, LocalSteps, StragglerPolicy};
use distribute_core::{CommunicationOptions, Strategy, StrategyExtended, Threads, VariablePlacement};
use distribute_ps_client::{ParameterServers, RowFormat};
use join::JoinSettings;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use tables::SharedTables;

/// The implementation of the strategy on one of the workers.
struct MultiWorker {
    /// The devices of the largest number of replicas that this worker may have.
    devices: Vec<DeviceName>,
    /// The group, if its workers share logical replicas, so that the number of replicas of this worker may change.
    sharing: Option<Group>,
    /// The group of all workers; `None` if this is the only worker.
    group: Option<Group>,
    options: CommunicationOptions,
    resolver: Option<Box<dyn ClusterResolver>>,
    stragglers: StragglerPolicy,
    /// The settings for another rendezvous; `None` if this process cannot join again.
    joining: Option<JoinSettings>,
    check_drift_every: u64,
    compression: Compression,
    /// The steps that each worker trains alone; `None` in lock step.
    local_steps: Option<LocalSteps>,
    /// The tables that the workers store together; `None` if each worker has a copy of each table.
    tables: Option<SharedTables>,
    table_options: TableOptions,
}

impl MultiWorker {
    /// Creates a worker with a replica on each device. It has no resolver and cannot join the group again.
    fn new(devices: Vec<DeviceName>, group: Option<Group>, options: CommunicationOptions) -> Result<Self> {
        options.check("MultiWorkerMirroredStrategy")?;
        let sharing = group.clone().filter(|group| group.world().logical_replicas().is_some());
        Ok(Self {
            devices,
            sharing,
            group,
            options,
            resolver: None,
            stragglers: StragglerPolicy::Warn,
            joining: None,
            check_drift_every: CHECK_DRIFT_EVERY,
            compression: Compression::None,
            local_steps: None,
            tables: None,
            table_options: TableOptions::default(),
        })
    }
}

/// Returns `replicas` logical CPU devices.
fn cpus(replicas: usize) -> Result<Vec<DeviceName>> {
    match replicas {
        0 => Err(distribute_base::Error::invalid(
            "MultiWorkerMirroredStrategy",
            "no replicas: a worker needs at least one",
        )),
        _ => Ok((0..replicas).map(DeviceName::cpu).collect()),
    }
}

impl StrategyExtended for MultiWorker {
    fn kind(&self) -> &'static str {
        "MultiWorkerMirroredStrategy"
    }
    fn worker_devices(&self) -> &[DeviceName] {
        match &self.sharing {
            None => &self.devices,
            Some(group) => self.devices.get(..group.world().replicas()).unwrap_or(&self.devices),
        }
    }
    fn max_replicas(&self) -> usize {
        self.devices.len()
    }
    fn variable_placement(&self) -> VariablePlacement {
        VariablePlacement::Mirrored
    }
    fn group(&self) -> Option<&Group> {
        self.group.as_ref()
    }
    fn elastic(&self) -> Option<RangeInclusive<usize>> {
        self.joining.as_ref()?.elastic()
    }
    fn spares(&self) -> usize {
        self.joining.as_ref().map_or(0, JoinSettings::spares)
    }
    fn straggler_policy(&self) -> StragglerPolicy {
        self.stragglers
    }
    fn rejoin(&self, patience: Duration, leaving: &[usize], once_more: bool) -> Option<Result<()>> {
        if self.tables.is_some() {
            // The rows of a lost worker are lost, so the group is not re-formed.
            return None;
        }
        Some(self.joining.as_ref()?.rejoin(self.group.as_ref()?, patience, leaving, once_more))
    }
    fn parameter_servers(&self) -> Option<&Arc<ParameterServers>> {
        self.tables.as_ref().map(|tables| &tables.servers)
    }
    fn row_format(&self, bytes: usize) -> RowFormat {
        self.table_options.format_of(bytes)
    }
    fn communication_options(&self) -> CommunicationOptions {
        self.options
    }
    fn check_drift_every(&self) -> u64 {
        self.check_drift_every
    }
    fn compression(&self) -> Compression {
        self.compression
    }
    fn local_steps(&self) -> Option<LocalSteps> {
        self.local_steps
    }
    fn threads(&self) -> Option<&Threads> {
        None
    }
    fn cluster_resolver(&self) -> Option<&dyn ClusterResolver> {
        self.resolver.as_deref()
    }
}

impl fmt::Debug for MultiWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.group {
            Some(group) => write!(f, "MultiWorker({})", group.world()),
            None => write!(f, "MultiWorker(alone, {} replicas)", self.devices.len()),
        }
    }
}

/// Constructors of a [`Strategy`] that trains synchronously on several workers: a
/// [`MirroredStrategy`](super::MirroredStrategy) across processes. Every worker runs the same program on its share of
/// each batch and has a copy of all variables. All copies are equal after each step.
///
/// Workers are processes on one or several machines. [`new`](Self::new) reads from the environment which worker this
/// process is and how to reach the others. `distribute launch --workers 4 -- program` starts four processes on this
/// machine; schedulers start them on several machines. For tests and experiments, [`on_threads`](Self::on_threads) runs
/// the workers as threads of one process. [`world`](Strategy::world) returns the index of this worker.
///
/// Code that takes a `&Strategy` needs no change. Its results are bit-identical to those of one process with the
/// same total number of replicas:
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{Device, Tensor};
/// use candle_nn::{Module, linear};
///
/// fn train(strategy: &Strategy) -> distribute::Result<String> {
///     let model = strategy.replicate(|vb| linear(2, 1, vb.pp("fc")))?;
///     let optimizer = Sgd::new(&model.variables, 0.1)?;
///     let points = Tensor::arange(0f32, 32., &Device::Cpu)?.sin()?.reshape((16, 2))?;
///     for batch in &strategy.distribute_dataset(Dataset::from_slices(points)?.batch(6))? {
///         strategy.run((&model, batch?), |ctx, (linear, points)| {
///             let loss = linear.forward(&points)?.sqr()?.mean_all()?;
///             optimizer.minimize(ctx, loss, points.dim(0)?)
///         })?;
///     }
///     model.variables.sha256()
/// }
///
/// let workers = MultiWorkerMirroredStrategy::on_threads(2, 2, train)?;
/// let one_process = MirroredStrategy::cpus(4)?;
/// let alone = train(&one_process)?;
/// assert!(workers.iter().all(|weights| *weights == alone));
/// # Ok::<(), distribute::Error>(())
/// ```
///
/// # What workers do together
///
/// All workers make the following calls together, in the same order: [`run`](Strategy::run) and the collectives in its
/// closures; [`reduce`](Strategy::reduce), [`reduce_to`](Strategy::reduce_to) and [`gather`](Strategy::gather);
/// creating models and variables; distributing datasets and taking their batches; saving and restoring checkpoints. A
/// merge function runs once on each worker, and its reductions include all workers. Only one step can run at a time: a
/// second concurrent `run` returns an error.
///
/// Some work, such as writing summaries, is done only by the [chief](Strategy::is_chief). Checkpoints do this
/// automatically. Outside `run`, each worker writes variables itself, and all workers must write the same values.
///
/// # Errors of workers
///
/// If a worker fails, exits, makes a different call or times out, all workers get the same
/// [`Error::Collective`](distribute_base::Error::Collective). It names that worker's replicas by their global ids. If a
/// worker cannot read its data or its component of a checkpoint, all workers get
/// [`Error::Worker`](distribute_base::Error::Worker). The next step succeeds again, unless the worker has exited.
///
/// # Variables that drift apart
///
/// Variables have the same values on all workers, unless a program writes them on only some workers or a machine
/// computes a wrong result. In each step, workers compare a checksum of some of the variables, so that all
/// variables are compared within 100 steps
/// ([`check_drift_every`](MultiWorkerMirroredStrategyBuilder::check_drift_every)). If a checksum differs, no
/// further step begins, and all workers get [`Error::Drift`](distribute_base::Error::Drift), which names the
/// variable and the workers.
#[doc(alias = "tf.distribute.MultiWorkerMirroredStrategy")]
#[doc(alias = "tf.distribute.experimental.MultiWorkerMirroredStrategy")]
#[doc(alias = "CollectiveAllReduceStrategy")]
#[derive(Debug)]
pub enum MultiWorkerMirroredStrategy {}

impl MultiWorkerMirroredStrategy {
    /// Creates the strategy of this worker with one replica on each worker, and joins the other workers of the cluster.
    /// The environment describes it: `TF_CONFIG`, Slurm, MPI or SageMaker, as
    /// [`cluster_resolver`](MultiWorkerMirroredStrategyBuilder::cluster_resolver) lists in detail.
    /// [`builder`](Self::builder) has more settings.
    ///
    /// ```no_run
    /// # use distribute::prelude::*;
    /// let strategy = MultiWorkerMirroredStrategy::new()?; // distribute: worker 1 of 4, 1 replica each
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`MultiWorkerMirroredStrategyBuilder::build`].
    #[track_caller]
    #[expect(clippy::new_ret_no_self, reason = "the type is a namespace of constructors")]
    pub fn new() -> Result<Strategy> {
        Self::builder().build()
    }

    /// Returns a builder, for example for a cluster that is not in the environment, several replicas on each
    /// worker, or certificates.
    pub fn builder() -> MultiWorkerMirroredStrategyBuilder {
        MultiWorkerMirroredStrategyBuilder::default()
    }
}
