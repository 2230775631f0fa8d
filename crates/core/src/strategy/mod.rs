//! The handle that users call, and the strategies behind it.

pub mod alone;
mod claims;
mod communication;
mod cross_device;
mod cross_worker;
mod default;
mod departure;
mod destinations;
pub(crate) mod differences;
mod drift;
pub mod extended;
mod fetching;
mod handle;
mod notice;
mod outcome;
mod pulse;
pub mod record;
mod reduce;
mod reduce_to;
mod rejoin;
mod run;
mod state;
mod threads;
mod update;
mod variable_placement;
mod workers;
pub use alone::warn;
pub use departure::Departure;
pub use differences::Settings;
pub use differences::differences;
pub use differences::digest;
pub use drift::CHECK_DRIFT_EVERY;
pub use notice::{Heard, Notice};

#[doc(alias = "tf.distribute.experimental.CommunicationImplementation")]
#[doc(alias = "tf.distribute.experimental.CollectiveCommunication")]
#[doc(alias = "CollectiveCommunication")]
pub use communication::CommunicationImplementation;
#[doc(alias = "tf.distribute.experimental.CommunicationOptions")]
#[doc(alias = "tf.distribute.experimental.CollectiveHints")]
#[doc(alias = "CollectiveHints")]
pub use communication::CommunicationOptions;
#[doc(alias = "tf.distribute.CrossDeviceOps")]
pub use cross_device::CrossDeviceOps;
#[doc(alias = "tf.distribute.HierarchicalCopyAllReduce")]
pub use cross_device::HierarchicalCopyAllReduce;
#[doc(alias = "tf.distribute.NcclAllReduce")]
pub use cross_device::NcclAllReduce;
pub use cross_device::Reduction;
#[doc(alias = "tf.distribute.ReductionToOneDevice")]
pub use cross_device::ReductionToOneDevice;
pub(crate) use cross_device::reduce_by;
pub use cross_device::sum_on_gpus;
pub use cross_device::uses_nccl;
pub use destinations::Destinations;
pub use distribute_base::DeviceKind;
#[doc(alias = "tf.DeviceSpec")]
#[doc(alias = "DeviceSpec")]
pub use distribute_base::DeviceName;
#[doc(inline)]
pub use distribute_collective::group::{Group, Links};
#[doc(alias = "tf.distribute.StrategyExtended")]
pub use extended::StrategyExtended;
pub use extended::{IndependentWorker, Replicas};
pub use threads::Threads;
pub use update::Contained;
pub use variable_placement::VariablePlacement;

use self::pulse::Pulse;
use self::workers::Workers;
use crate::context::enter_cross_replica;
use crate::replicated::Replicated;
use crate::{values::Distributed, values::PerReplica};
use crate::{variables::Variable, variables::WeakVariable};
use candle_core::TensorId;
use candle_nn::VarBuilder;
use distribute_base::Result;
use distribute_base::internal::DeviceCopies;
use distribute_base::internal::lock;
use distribute_cluster::World;
use distribute_collective::recovery::Updates;
use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// How training steps run: a handle that is cheap to clone and the same type for every strategy.
///
/// Functions that train take a `&Strategy`; `MirroredStrategy` and the others deref to it. A new kind of strategy
/// implements only [`StrategyExtended`].
#[doc(alias = "tf.distribute.Strategy")]
#[derive(Clone)]
pub struct Strategy(Arc<Inner>);

/// A strategy that this does not keep.
#[derive(Clone, Debug)]
pub struct WeakStrategy(Weak<Inner>);

impl WeakStrategy {
    /// The strategy, if something else still keeps it.
    pub fn upgrade(&self) -> Option<Strategy> {
        self.0.upgrade().map(Strategy)
    }
}

struct Inner {
    extended: Box<dyn StrategyExtended>,
    /// The number of the strategy in this process, from 0, which together with where it was made tells it from others of its
    /// kind.
    number: u64,
    made_at: &'static Location<'static>,
    steps: AtomicU64,
    /// What optimizers' steps came to, for who watches.
    pulse: Pulse,
    updates: Mutex<Updates>,
    optimizers: AtomicU64,
    /// How many variables have been created.
    created: AtomicU64,
    /// This process as a world of its own, for a strategy without a group.
    alone: World,
    /// Whether it has a group, or parameter servers, which a step of most has not: asking `extended` takes a while.
    has_group: bool,
    has_servers: bool,
    /// The copies of variables on devices with memory of their own; `None` where no replica has such a device.
    device_copies: Option<Mutex<Vec<Weak<DeviceCopies>>>>,
    workers: Workers,
    /// Whether the training is to end in order.
    notice: Arc<Notice>,
    /// The variables of this strategy, by the candle tensors of their copies.
    containers: Mutex<HashMap<TensorId, WeakVariable>>,
    /// The first variable of each name that is still there.
    names: Mutex<HashMap<String, WeakVariable>>,
}

impl Strategy {
    /// The handle of a strategy.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument) if its methods contradict each other, for example by
    /// naming a device twice, or if its [`communication_options`](StrategyExtended::communication_options) or cross-device
    /// ops (see [`check`](CrossDeviceOps::check)) ask for something that is not supported.
    #[track_caller]
    pub fn new(extended: impl StrategyExtended) -> Result<Self> {
        claims::check(&extended)?;
        Ok(Self::unchecked(extended))
    }

    /// The handle of a strategy that is known to be consistent.
    #[track_caller]
    fn unchecked(extended: impl StrategyExtended) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let replicas = extended.worker_devices().len();
        let alone = World::alone(replicas).unwrap_or_default();
        let (has_group, has_servers) = (extended.group().is_some(), extended.parameter_servers().is_some());
        let has_devices = extended.worker_devices().iter().any(|device| device.has_own_memory());
        crate::init::prepare(replicas);
        let (steps, pulse, optimizers, created, containers, names) = Default::default();
        let goes_on = extended.group().is_some_and(|group| group.generation() > 1);
        let strategy = Self(Arc::new(Inner {
            extended: Box::new(extended),
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            made_at: Location::caller(),
            steps,
            pulse,
            updates: Mutex::default(),
            optimizers,
            created,
            alone,
            has_group,
            has_servers,
            device_copies: has_devices.then(Mutex::default),
            workers: Workers::default(),
            notice: Arc::default(),
            containers,
            names,
        }));
        if goes_on {
            strategy.unsettle();
        }
        strategy
    }

    /// The part that the strategy's author wrote.
    #[doc(alias = "tf.distribute.Strategy.extended")]
    pub fn extended(&self) -> &dyn StrategyExtended {
        &*self.0.extended
    }

    /// The number of replicas over which gradients are aggregated.
    #[doc(alias = "tf.distribute.Strategy.num_replicas_in_sync")]
    pub fn num_replicas_in_sync(&self) -> usize {
        self.world().num_replicas_in_sync()
    }

    /// Makes this strategy current on this thread while `body` runs, in cross-replica context.
    ///
    /// `run`, `reduce`, `gather` and `replicate` enter the scope by themselves, so they work the same inside and outside of
    /// it.
    ///
    /// # Errors
    /// [`Error::MixedStrategies`](distribute_base::Error::MixedStrategies) inside of another strategy's scope,
    /// [`Error::WrongContext`](distribute_base::Error::WrongContext) inside of `run`; and the error of `body`.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// assert!(!distribute::has_strategy());
    /// strategy.scope(|| {
    ///     assert!(distribute::get_strategy() == *strategy && distribute::in_cross_replica_context());
    ///     Ok(())
    /// })?;
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// [`replicate`](Strategy::replicate) makes mirrored variables. A `Var` of candle is an ordinary tensor, even in a
    /// scope:
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use candle_nn::Init;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let model = strategy.scope(|| {
    ///     strategy.replicate(|vb| vb.get_with_hints((), "mirrored", Init::Const(1.)))
    /// })?;
    /// assert_eq!(model.models().to_string(), "\
    /// PerReplica:{
    ///   0: <Tensor: shape=(), dtype=float32, data=1.0>,
    ///   1: <Tensor: shape=(), dtype=float32, data=1.0>
    /// }");
    /// assert!(model.variables.strategy() == &*strategy);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.Strategy.scope")]
    pub fn scope<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        let _scope = if self.is_default() {
            crate::context::enter_default(self)?
        } else {
            enter_cross_replica(self, "scope", "use the replica context's merge_call to leave it")?
        };
        body()
    }

    /// Builds a model on every local replica. Variables are created once, mirrored: replicas of one memory share them.
    ///
    /// `build` is called once for each replica with a candle `VarBuilder`, so any model that takes one can be built. It
    /// returns candle's `Result` or this crate's; if it ends in a bare `Ok`, use [`distribute::Ok`](distribute_base::Ok) to say which.
    /// Initial values depend on the seed, here 0, and the variable's name.
    ///
    /// Two layers that ask for the same path share its variables, as with candle alone. This ties weights, perhaps by
    /// mistake; it is logged at level `debug`.
    ///
    /// With several workers, all of them make this call, and their models are compared.
    ///
    /// # Errors
    /// The error of `build`; [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument) if replicas ask for different
    /// variables, or two layers for the same path with different shapes, or if workers' variables or initial values differ, which
    /// it names; [`Error::Collective`](distribute_base::Error::Collective) if workers make other calls, or one is lost or late.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use candle_nn::linear;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let model = strategy.replicate(|vb| linear(4, 2, vb.pp("fc")))?;
    /// assert_eq!(model.variables.names(), ["fc.bias", "fc.weight"]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[track_caller]
    pub fn replicate<M, E>(
        &self,
        build: impl Fn(VarBuilder<'static>) -> Result<M, E> + Send + Sync + 'static,
    ) -> Result<Replicated<M>>
    where
        distribute_base::Error: From<E>,
    {
        self.replicate_seeded(0, build)
    }

    /// Like [`Strategy::replicate`], with initial values that depend on `seed` and the variable's name.
    ///
    /// # Errors
    /// Those of [`Strategy::replicate`].
    #[track_caller]
    pub fn replicate_seeded<M, E>(
        &self,
        seed: u64,
        build: impl Fn(VarBuilder<'static>) -> Result<M, E> + Send + Sync + 'static,
    ) -> Result<Replicated<M>>
    where
        distribute_base::Error: From<E>,
    {
        let _scope = self.enter("replicate", "build models before run")?;
        Replicated::build(self, seed, Box::new(move |vb| Ok(build(vb)?)))
    }

    /// This process's parts of a value: the components of a [`PerReplica`], in order; one structure for each replica for a
    /// nested structure; and the value itself for anything else.
    ///
    /// # Errors
    /// [`Error::Parts`](distribute_base::Error::Parts) for a value made for another number of replicas.
    #[doc(alias = "tf.distribute.Strategy.experimental_local_results")]
    pub fn local_results<D: Distributed>(&self, value: D) -> Result<Vec<D::Local>> {
        let replicas = self.world().replicas();
        let results = value.local_results(replicas);
        let mut parts = value.split(replicas).map_err(|error| error.of_argument("local_results", "value"))?;
        parts.truncate(results);
        Ok(parts)
    }

    /// Makes a value for each local replica by calling `value` for each, in order, on this thread.
    ///
    /// The same value for each; values from an array; values from the number of replicas:
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let ones = strategy.distribute_values_from_function(|_| Ok(1f32))?;
    /// assert_eq!(strategy.local_results(ones)?, [1., 1.]);
    /// let counts = strategy.distribute_values_from_function(|ctx| Ok(ctx.num_replicas_in_sync))?;
    /// assert_eq!(strategy.local_results(counts)?, [2, 2]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
    /// let array = [3f32, 2., 1.];
    /// let values = strategy.distribute_values_from_function(|ctx| Ok(array[ctx.replica_id_in_sync_group]))?;
    /// assert_eq!(strategy.local_results(values)?, [3., 2.]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.Strategy.experimental_distribute_values_from_function")]
    pub fn distribute_values_from_function<T>(
        &self,
        value: impl FnMut(ValueContext) -> Result<T>,
    ) -> Result<PerReplica<T>> {
        let context = |replica| ValueContext {
            replica_id_in_sync_group: replica,
            num_replicas_in_sync: self.num_replicas_in_sync(),
        };
        let values = self.world().local_replicas().map(context).map(value).collect::<Result<_>>()?;
        Ok(PerReplica::from_values(values))
    }

    /// Whether the training is to end in order, as far as this process knows.
    #[doc(hidden)]
    pub fn notice(&self) -> &Arc<Notice> {
        &self.0.notice
    }

    #[doc(hidden)]
    pub fn is_default(&self) -> bool {
        self == Self::of_default_context()
    }

    /// The number of the next variable, from 1. It is the same on all workers, which create variables in the same order.
    pub(crate) fn next_variable(&self) -> u64 {
        self.0.created.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Remembers which candle tensors are copies of `variable`.
    pub(crate) fn contains(&self, variable: &Variable) {
        let mut containers = lock(&self.0.containers);
        // Forgets dropped variables, at an amortized cost.
        if containers.len() + variable.copy_count() > containers.capacity() {
            containers.retain(|_, variable| variable.upgrade().is_some());
        }
        containers.extend(variable.vars().map(|copy| (copy.id(), variable.downgrade())));
        drop(containers);
        let mut names = lock(&self.0.names);
        if names.len() == names.capacity() {
            names.retain(|_, variable| variable.upgrade().is_some());
        }
        // A copy has the name of the first, which stays the one of that name.
        if names.get(variable.name()).is_none_or(|known| !known.is_alive()) {
            names.insert(variable.name().to_string(), variable.downgrade());
        }
        drop(names);
        if self.extended().group().is_some() && variable.is_mirrored() {
            self.0.workers.mirrored.add(variable);
        }
    }

    /// The variable that a candle tensor is a copy of.
    #[doc(hidden)]
    pub fn container(&self, id: TensorId) -> Option<Variable> {
        lock(&self.0.containers).get(&id)?.upgrade()
    }

    /// Copies of a new variable for the replicas whose devices have memory of their own; `None` where there are none.
    ///
    /// # Errors
    /// Where a device cannot be opened.
    pub(crate) fn device_copies(&self, of: &candle_core::Var) -> Result<Option<Arc<DeviceCopies>>> {
        let Some(all) = &self.0.device_copies else { return Ok(None) };
        let open = |device: DeviceName| device.has_own_memory().then(|| device.to_candle()).transpose();
        let devices = self.devices().into_iter().map(open).collect::<Result<_>>()?;
        let copies = Arc::new(DeviceCopies::new(of.clone(), devices));
        let mut all = lock(all);
        if all.len() == all.capacity() {
            all.retain(|copies| copies.strong_count() > 0);
        }
        all.push(Arc::downgrade(&copies));
        Ok(Some(copies))
    }

    /// Whether some replica's device has memory of its own.
    #[doc(hidden)]
    pub fn has_device_copies(&self) -> bool {
        self.0.device_copies.is_some()
    }

    /// Whether tables whose rows are looked up are on the devices of replicas: where each replica has a device with memory of its own, and neither
    /// servers nor other workers have a part in updates.
    pub(crate) fn keeps_tables_on_devices(&self) -> bool {
        self.has_device_copies()
            && !self.world().is_multi_worker()
            && self.extended().parameter_servers().is_none()
            && self.devices().into_iter().all(DeviceName::can_update)
    }

    /// Brings what a local replica computes with up to date, by its own thread.
    ///
    /// # Errors
    /// candle's, of a device.
    #[doc(hidden)]
    pub fn refresh_copies(&self, replica: usize) -> Result<()> {
        let Some(all) = &self.0.device_copies else { return Ok(()) };
        let alive: Vec<_> = lock(all).iter().filter_map(Weak::upgrade).collect();
        alive.iter().try_for_each(|copies| copies.refresh(replica))
    }

    /// The first variable of this name that somebody keeps.
    pub(crate) fn variable_named(&self, name: &str) -> Option<Variable> {
        lock(&self.0.names).get(name)?.upgrade()
    }

    /// The device of each local replica.
    #[doc(hidden)]
    pub fn devices(&self) -> Vec<DeviceName> {
        self.extended().worker_devices().to_vec()
    }

    /// The number of the next optimizer, from 1.
    #[doc(hidden)]
    pub fn next_optimizer(&self) -> u64 {
        self.0.optimizers.fetch_add(1, Ordering::Relaxed) + 1
    }

    #[doc(hidden)]
    pub fn downgrade(&self) -> WeakStrategy {
        WeakStrategy(Arc::downgrade(&self.0))
    }

    /// Its number in this process, which timelines tell.
    #[doc(hidden)]
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// What optimizers' steps came to.
    #[doc(hidden)]
    pub fn pulse(&self) -> &Pulse {
        &self.0.pulse
    }

    fn next_step(&self) -> u64 {
        self.0.steps.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn enter(&self, operation: &'static str, advice: &'static str) -> Result<crate::context::Entered> {
        enter_cross_replica(self, operation, advice)
    }
}

/// Two handles are equal if they refer to the same strategy object.
impl PartialEq for Strategy {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Strategy {}

/// Its kind and number of replicas, and what tells it from others: its number in this process, and where it was made.
impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, replicas) = (self.extended().kind(), self.num_replicas_in_sync());
        if self.is_default() {
            return f.write_str(kind);
        }
        let plural = if replicas == 1 { "" } else { "s" };
        let Inner { number, made_at, .. } = &*self.0;
        write!(f, "{kind} ({replicas} replica{plural}, #{number}, made at {made_at})")
    }
}

impl fmt::Debug for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.extended(), f)
    }
}

/// The replica for which a value is made.
#[doc(alias = "tf.distribute.experimental.ValueContext")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueContext {
    /// The global id of the replica.
    #[doc(alias = "tf.distribute.experimental.ValueContext.replica_id_in_sync_group")]
    pub replica_id_in_sync_group: usize,
    /// How many replicas are in sync.
    #[doc(alias = "tf.distribute.experimental.ValueContext.num_replicas_in_sync")]
    pub num_replicas_in_sync: usize,
}

/// One replica of one.
impl Default for ValueContext {
    fn default() -> Self {
        Self { replica_id_in_sync_group: 0, num_replicas_in_sync: 1 }
    }
}

impl fmt::Display for ValueContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica {} of {}", self.replica_id_in_sync_group, self.num_replicas_in_sync)
    }
}
