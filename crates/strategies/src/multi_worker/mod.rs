//! Several workers that train one model in lock step.

mod builder;
mod elastic;
mod joining;
mod on_threads;

pub use builder::MultiWorkerBuilder;

use distribute_base::{DeviceName, Result};
use distribute_cluster::resolver::ClusterResolver;
use distribute_collective::group::Group;
use distribute_core::internal::CHECK_DRIFT_EVERY;
use distribute_core::{CommunicationOptions, Strategy, StrategyExtended, Threads, VariablePlacement, handle};
use joining::Joining;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The implementation, on one of the workers.
struct MultiWorker {
    devices: Vec<DeviceName>,
    /// The group, if there are several workers.
    group: Option<Group>,
    options: CommunicationOptions,
    resolver: Option<Box<dyn ClusterResolver>>,
    /// The rendezvous, if this process can join it again.
    joining: Option<Joining>,
    check_drift_every: u64,
}

impl MultiWorker {
    /// Creates a worker with a replica on each device, without a resolver, which joins the group once.
    fn new(devices: Vec<DeviceName>, group: Option<Group>, options: CommunicationOptions) -> Result<Self> {
        options.check("MultiWorkerMirroredStrategy")?;
        Ok(Self {
            devices,
            group,
            options,
            resolver: None,
            joining: None,
            check_drift_every: CHECK_DRIFT_EVERY,
        })
    }
}

/// Returns this number of logical CPU devices.
fn cpus(replicas: usize) -> Result<Vec<DeviceName>> {
    match replicas {
        0 => Err(distribute_base::Error::invalid(
            "MultiWorkerMirroredStrategy",
            "no replicas: a worker has one at least",
        )),
        _ => Ok((0..replicas).map(DeviceName::cpu).collect()),
    }
}

impl StrategyExtended for MultiWorker {
    fn kind(&self) -> &'static str {
        "MultiWorkerMirroredStrategy"
    }
    fn worker_devices(&self) -> &[DeviceName] {
        &self.devices
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
    fn rejoin(&self, patience: Duration, leaving: &[usize], once_more: bool) -> Option<Result<()>> {
        Some(self.joining.as_ref()?.rejoin(self.group.as_ref()?, patience, leaving, once_more))
    }
    fn communication_options(&self) -> CommunicationOptions {
        self.options
    }
    fn check_drift_every(&self) -> u64 {
        self.check_drift_every
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

/// Synchronous training over several workers with equally many replicas: [`MirroredStrategy`](super::MirroredStrategy)
/// beyond one process. Every worker runs the same program on its part of each batch and has a copy of all variables;
/// after each step all copies are equal.
///
/// Workers are processes, on one machine or several. [`new`](Self::new) finds out from the environment which of them
/// this process is, and where the others are: `distribute launch --workers 4 -- program` starts it four times on this
/// machine, schedulers start it on several. For tests, and to try out a program, [`on_threads`](Self::on_threads) makes
/// the workers threads of one process. [`world`](Strategy::world) tells a program which worker it is.
///
/// What takes a `&Strategy` needs no change, and trains to the bits of one process with as many replicas in all:
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
/// let workers = MultiWorkerMirroredStrategy::on_threads(2, 2, |strategy| train(strategy))?;
/// let one_process = MirroredStrategy::cpus(4)?;
/// let alone = train(&one_process)?;
/// assert!(workers.iter().all(|weights| *weights == alone));
/// # Ok::<(), distribute::Error>(())
/// ```
///
/// # What workers do together
///
/// Workers meet, in the same order on all, in [`run`](Strategy::run) and in what its closures do together; in
/// [`reduce`](Strategy::reduce), [`reduce_to`](Strategy::reduce_to) and [`gather`](Strategy::gather); where models and
/// variables are made, datasets distributed and their steps taken, checkpoints saved and restored. A merge function is
/// that of one worker, and what it reduces goes over all. Steps go one after another: a second `run` while one lasts is
/// refused.
///
/// Of what only one worker may do, such as writing summaries, [`should_save_summary`](Strategy::should_save_summary)
/// tells which one; checkpoints see to it themselves. Variables that are written outside of `run` are written by each
/// worker: by all in the same way.
///
/// # Errors of workers
///
/// Where a worker makes another call, fails, ends, or is later than the timeout, all workers get one
/// [`Error::Collective`](distribute_base::Error::Collective), which names its replicas by their global ids; where its
/// data or its part of a checkpoint fails, [`Error::Worker`](distribute_base::Error::Worker). The next step works,
/// unless the worker has ended.
///
/// # Variables that drift apart
///
/// Variables are the same on all workers, unless a program writes them on some of them only, or a machine errs. In each
/// step workers compare the checksum of a part of them, so that all are compared within 100 steps
/// ([`check_drift_every`](MultiWorkerBuilder::check_drift_every)): where one differs, no step begins any more, and all
/// workers get [`Error::Drift`](distribute_base::Error::Drift), which names the variable and the workers.
#[doc(alias = "tf.distribute.MultiWorkerMirroredStrategy")]
#[doc(alias = "tf.distribute.experimental.MultiWorkerMirroredStrategy")]
#[doc(alias = "CollectiveAllReduceStrategy")]
#[derive(Clone, Debug)]
pub struct MultiWorkerMirroredStrategy(Strategy);
handle!(MultiWorkerMirroredStrategy);

impl MultiWorkerMirroredStrategy {
    /// Joins the workers of the cluster that the environment names, with one replica on each:
    /// [`builder`](Self::builder) has settings, and tells where the cluster is looked for.
    ///
    /// ```no_run
    /// # use distribute::prelude::*;
    /// let strategy = MultiWorkerMirroredStrategy::new()?; // distribute: worker 1 of 4, 1 replica each
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`MultiWorkerBuilder::build`].
    #[track_caller]
    pub fn new() -> Result<Self> {
        Self::builder().build()
    }

    /// A builder, for another cluster than that of the environment, several replicas on each worker, and certificates.
    pub fn builder() -> MultiWorkerBuilder {
        MultiWorkerBuilder::default()
    }

    /// The strategy of this worker.
    #[track_caller]
    fn of(worker: MultiWorker) -> Result<Self> {
        Strategy::new(worker).map(Self)
    }
}
