//! [`Strategy`], the handle that programs use, and [`StrategyExtended`], the trait that authors of strategies
//! implement.
//!
//! | module | contents |
//! |---|---|
//! | `extended` | [`StrategyExtended`]: what an author decides: devices, placement of variables, running of replicas |
//! | `validate`, `default` | checks of an author's decisions; the strategy that is current if none has been entered |
//! | `devices`, `threads` | devices by name; the cores of replicas |
//! | `workers`, `cross_worker`, `agreement` | communication with other workers; combining values; sharing results and errors |
//! | `wire` | records that workers exchange |
//! | `rejoin` | re-forming the group |
//! | `remedies` | the remedies for slow workers |
//! | `steps` | the counters of steps, updates and steps trained alone; statistics of steps, for monitoring |
//! | `step_meter` | the times of each worker's steps |
//! | `warn_single` | the warning that a process trains alone although it was started as one of several |
//!
//! Operations such as `reduce_to` are methods of [`Strategy`], not of the trait, because they are generic
//! over values and the trait must be object-safe. They are in the module `ops`.

mod agreement;
mod cross_worker;
mod default;
mod devices;
mod extended;
mod rejoin;
mod remedies;
mod step_meter;
mod step_stats;
mod steps;
mod threads;
mod validate;
pub(crate) mod warn_single;
pub(crate) mod wire;
mod workers;
pub(crate) use agreement::Report;
pub use agreement::exchange_in_call;
pub use devices::{check_count, resolve};

pub use distribute_base::DeviceKind;
#[doc(alias = "tf.DeviceSpec")]
#[doc(alias = "DeviceSpec")]
pub use distribute_base::DeviceName;
#[doc(inline)]
pub use distribute_collective::group::{Checksums, Group, Links};
pub(crate) use distribute_cross_device::internal::{DEFAULT, reduce_by};
#[doc(inline)]
pub use distribute_cross_device::{
    CommunicationImplementation, CommunicationOptions, CrossDeviceOps, HierarchicalCopyAllReduce,
    NcclAllReduce, Reduction, ReductionToOneDevice,
};
#[doc(inline)]
pub use distribute_decisions::{
    LocalSteps, Outer, Straggler, StragglerCause, StragglerPolicy, VariablePlacement, WorkerTimes,
};
pub use distribute_tensor::{Compression, Wire};
pub use extended::CHECK_DRIFT_EVERY;
#[doc(alias = "tf.distribute.StrategyExtended")]
pub use extended::StrategyExtended;
pub use extended::{IndependentWorker, Replicas};
pub use threads::Threads;

use self::step_stats::StepStats;
use self::workers::Workers;
use distribute_base::internal::{DeviceCopies, lock};
use distribute_base::{MixedPrecision, Result};
use distribute_cluster::World;
use distribute_collective::recovery::Updates;
use distribute_decisions::internal::{Notice, StepMeter};
use distribute_ps_client::internal::Session;
use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// A handle to a strategy, which runs training steps. It is cheap to clone, and has the same type for every
/// strategy.
///
/// Functions that train take a `&Strategy`. The constructors of types such as `MirroredStrategy` return one;
/// `ParameterServerStrategy` and `AsyncWorkerStrategy` deref to it. A new kind of strategy only has to implement
/// [`StrategyExtended`].
#[doc(alias = "tf.distribute.Strategy")]
#[derive(Clone)]
pub struct Strategy(Arc<Inner>);

/// A handle that does not keep the strategy alive.
#[derive(Clone, Debug)]
pub struct WeakStrategy(Weak<Inner>);

impl WeakStrategy {
    /// Returns the strategy, or `None` if it has been dropped.
    pub fn upgrade(&self) -> Option<Strategy> {
        self.0.upgrade().map(Strategy)
    }
}

struct Inner {
    extended: Box<dyn StrategyExtended>,
    /// The index of the strategy in this process, from 0. Together with `created_at`, it distinguishes
    /// strategies of the same kind.
    number: u64,
    created_at: &'static Location<'static>,
    steps: AtomicU64,
    /// Statistics of optimizers' steps, for monitoring.
    step_stats: StepStats,
    /// The times of each worker's steps, if there are several workers.
    step_meter: StepMeter,
    updates: Mutex<Updates>,
    /// The steps that each worker trains alone; `None` in lock step.
    local_steps: Option<LocalSteps>,
    /// The number of local steps since the workers last agreed on their weights, of all optimizers together.
    apart: AtomicU64,
    /// The number of outer steps since the state of optimizers was last restored, or was transferred after a
    /// rendezvous. It includes all optimizers, also dropped ones.
    outer_steps: AtomicU64,
    optimizers: AtomicU64,
    precision: Mutex<MixedPrecision>,
    /// The number of variables that have been created so far.
    created: AtomicU64,
    /// The world that consists only of this process, for a strategy without a group.
    alone: World,
    /// Whether the strategy has a group. This flag and the next are cached because every step reads them.
    has_group: bool,
    has_servers: bool,
    /// The copies of variables on devices with separate memory; `None` if no replica uses such a device.
    device_copies: Option<Mutex<Vec<Weak<DeviceCopies>>>>,
    workers: Workers,
    /// The record of a notice to shut down gracefully.
    notice: Arc<Notice>,
    extensions: Extensions,
}

/// State that modules above this one store with a strategy: one value per requested type.
#[derive(Default)]
struct Extensions(Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>);

impl Extensions {
    /// Returns the value of type `T`. Creates it on the first call.
    fn get<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let value = lock(&self.0).entry(TypeId::of::<T>()).or_insert_with(|| Arc::<T>::default()).clone();
        // The key is the type, so the downcast succeeds.
        value.downcast().unwrap_or_default()
    }
}

impl Strategy {
    /// Creates a handle to the strategy that `extended` describes. If there are several replicas, this limits candle to
    /// one thread per replica, as `distribute::init` does.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): the methods of `extended` contradict each
    ///   other, for example because a device is named twice, or return an unsupported value, such as a timeout of zero.
    /// - The errors of the [`check`](CrossDeviceOps::check) of the
    ///   [`cross_device_ops`](StrategyExtended::cross_device_ops).
    #[track_caller]
    pub fn new(extended: impl StrategyExtended) -> Result<Self> {
        validate::check(&extended)?;
        Ok(Self::unchecked(extended))
    }

    /// Creates a handle without checking the methods of `extended`.
    #[track_caller]
    fn unchecked(extended: impl StrategyExtended) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let replicas = extended.worker_devices().len();
        let alone = World::alone(replicas).unwrap_or_default();
        let (has_group, has_servers) = (extended.group().is_some(), extended.parameter_servers().is_some());
        let has_devices = extended.worker_devices().iter().any(|device| device.has_separate_memory());
        crate::init::prepare(replicas);
        let (steps, step_stats, optimizers, precision, created, extensions) = Default::default();
        let local_steps = extended.local_steps().filter(|local| !local.is_lock_step());
        let may_continue = extended.group().is_some_and(|group| group.generation() > 1 || group.is_spare());
        let strategy = Self(Arc::new(Inner {
            extended: Box::new(extended),
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            created_at: Location::caller(),
            steps,
            step_stats,
            step_meter: StepMeter::default(),
            updates: Mutex::default(),
            local_steps,
            apart: AtomicU64::new(0),
            outer_steps: AtomicU64::new(0),
            optimizers,
            precision,
            created,
            alone,
            has_group,
            has_servers,
            device_copies: has_devices.then(Mutex::default),
            workers: Workers::default(),
            notice: Arc::default(),
            extensions,
        }));
        if may_continue {
            strategy.begin_catching_up();
        }
        strategy
    }

    /// Returns the strategy's implementation.
    #[doc(alias = "tf.distribute.Strategy.extended")]
    pub fn extended(&self) -> &dyn StrategyExtended {
        &*self.0.extended
    }

    /// Returns the number of replicas over which gradients are aggregated, on all workers together.
    #[doc(alias = "tf.distribute.Strategy.num_replicas_in_sync")]
    pub fn num_replicas_in_sync(&self) -> usize {
        self.world().num_replicas_in_sync()
    }

    /// Sets the precision in which layers of `nn` compute inside [`run`](Self::run). It applies to all handles of this
    /// strategy. Set it when the strategy is created: an optimizer that was created before has no loss scale for
    /// [`F16`](MixedPrecision::F16). With several workers, all must set the same precision; the first step of an
    /// optimizer compares it.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use candle_core::{DType, Device, Module, Tensor};
    /// use distribute::nn::{MixedPrecision, linear, loss};
    ///
    /// let strategy = MirroredStrategy::cpus(2)?;
    /// strategy.set_mixed_precision(MixedPrecision::Bf16);
    /// let model = strategy.replicate(|vb| linear(4, 3, vb))?;
    /// let optimizer = Sgd::new(&model.variables, 0.1)?;
    /// let (x, labels) = (Tensor::ones((2, 4), DType::F32, &Device::Cpu)?, Tensor::new(&[0u32, 2], &Device::Cpu)?);
    /// strategy.run(&model, |ctx, model| {
    ///     let logits = model.forward(&x)?;
    ///     assert_eq!(logits.dtype(), DType::BF16);
    ///     optimizer.minimize(ctx, loss::cross_entropy(&logits, &labels)?, 2)
    /// })?;
    /// assert_eq!(model.variables.get("weight")?.dtype(), DType::F32);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.keras.mixed_precision.set_global_policy")]
    pub fn set_mixed_precision(&self, precision: MixedPrecision) {
        *lock(&self.0.precision) = precision;
    }

    /// Returns the precision in which layers of `nn` compute inside [`run`](Self::run).
    pub fn mixed_precision(&self) -> MixedPrecision {
        *lock(&self.0.precision)
    }

    /// Returns this process's record of notices to shut down gracefully.
    #[doc(hidden)]
    pub fn notice(&self) -> &Arc<Notice> {
        &self.0.notice
    }

    #[doc(hidden)]
    pub fn is_default(&self) -> bool {
        self == Self::default_strategy()
    }

    /// Returns the sequence number of the next variable, from 1, and increments the counter. The number is equal on all
    /// workers, because they create variables in the same order.
    pub(crate) fn next_variable(&self) -> u64 {
        self.0.created.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Creates copies of the new variable `of` for the replicas whose devices have separate memory.
    /// [`refresh_copies`](Self::refresh_copies) includes them from then on. Returns `None` if there are no such
    /// devices.
    ///
    /// # Errors
    /// - [`Error::Device`](distribute_base::Error::Device): a device cannot be opened.
    pub(crate) fn device_copies(&self, of: &candle_core::Var) -> Result<Option<Arc<DeviceCopies>>> {
        let Some(all) = &self.0.device_copies else { return Ok(None) };
        let open = |device: DeviceName| device.has_separate_memory().then(|| device.to_candle()).transpose();
        let devices = self.devices().into_iter().map(open).collect::<Result<_>>()?;
        let copies = Arc::new(DeviceCopies::new(of.clone(), devices));
        let mut all = lock(all);
        if all.len() == all.capacity() {
            all.retain(|copies| copies.strong_count() > 0);
        }
        all.push(Arc::downgrade(&copies));
        Ok(Some(copies))
    }

    /// Returns `true` if any replica's device has separate memory.
    #[doc(hidden)]
    pub fn has_device_copies(&self) -> bool {
        self.0.device_copies.is_some()
    }

    /// Returns `true` if tables whose rows are looked up are stored on the replicas' devices. This requires that
    /// optimizers can update variables on every replica's device, and that neither servers nor other workers
    /// participate in updates.
    pub(crate) fn keeps_tables_on_devices(&self) -> bool {
        self.has_device_copies()
            && !self.world().is_multi_worker()
            && self.extended().parameter_servers().is_none()
            && self.devices().into_iter().all(DeviceName::can_update)
    }

    /// Refreshes the copies of all variables on the device of local replica `replica`. Call this on the replica's
    /// thread.
    ///
    /// # Errors
    /// Returns candle's error if a value cannot be copied.
    #[doc(hidden)]
    pub fn refresh_copies(&self, replica: usize) -> Result<()> {
        let Some(all) = &self.0.device_copies else { return Ok(()) };
        let alive: Vec<_> = lock(all).iter().filter_map(Weak::upgrade).collect();
        alive.iter().try_for_each(|copies| copies.refresh(replica))
    }

    /// Returns the devices of the local replicas, one per replica.
    #[doc(hidden)]
    pub fn devices(&self) -> Vec<DeviceName> {
        self.extended().worker_devices().to_vec()
    }

    /// Returns the devices of the [largest number](StrategyExtended::max_replicas) of local replicas. Devices that are
    /// not in use yet are CPUs.
    pub(crate) fn possible_devices(&self) -> Vec<DeviceName> {
        let mut devices = self.devices();
        devices.extend((devices.len()..self.extended().max_replicas()).map(DeviceName::cpu));
        devices
    }

    /// Returns `true` if the strategy has a group of workers, even if it has only one worker.
    pub(crate) fn has_group(&self) -> bool {
        self.0.has_group
    }

    /// Returns the session with the parameter servers, or with the workers that store tables together. Returns `None`
    /// if there are neither.
    #[doc(hidden)]
    pub fn session(&self) -> Option<&Session> {
        let servers = self.0.has_servers.then(|| self.extended().parameter_servers());
        servers.flatten().map(|servers| servers.session())
    }

    /// Returns `true` if the workers store tables together, so that all workers must take part in each change of a
    /// table.
    pub(crate) fn shares_tables(&self) -> bool {
        self.session().is_some_and(|session| session.lock_step().is_some())
    }

    /// Waits until the servers have acknowledged all gradients. Returns immediately while a step is running, or if
    /// there are no servers.
    ///
    /// # Errors
    /// Returns the error of the first update that failed.
    #[doc(hidden)]
    pub fn await_updates(&self) -> Result<()> {
        self.session().map_or(Ok(()), Session::flush)
    }

    /// Returns the sequence number of the next optimizer, from 1, and increments the counter.
    #[doc(hidden)]
    pub fn next_optimizer(&self) -> u64 {
        self.0.optimizers.fetch_add(1, Ordering::Relaxed) + 1
    }

    #[doc(hidden)]
    pub fn downgrade(&self) -> WeakStrategy {
        WeakStrategy(Arc::downgrade(&self.0))
    }

    /// Returns the index of the strategy in this process, which appears in timelines.
    #[doc(hidden)]
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Returns statistics of optimizers' steps, for monitoring.
    #[doc(hidden)]
    pub fn step_stats(&self) -> &StepStats {
        &self.0.step_stats
    }

    fn step_meter(&self) -> &StepMeter {
        &self.0.step_meter
    }

    /// Returns the value of type `T` that another module stores with the strategy. Creates it on the first call.
    pub(crate) fn extension<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        self.0.extensions.get()
    }
}

/// Two handles are equal if they refer to the same strategy object.
impl PartialEq for Strategy {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Strategy {}

/// Displays the kind, the number of replicas, the index in this process, and the source location at which the strategy
/// was created. For the default strategy, displays only the kind.
impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, replicas) = (self.extended().kind(), self.num_replicas_in_sync());
        if self.is_default() {
            return f.write_str(kind);
        }
        let plural = if replicas == 1 { "" } else { "s" };
        let Inner { number, created_at, .. } = &*self.0;
        write!(f, "{kind} ({replicas} replica{plural}, #{number}, made at {created_at})")
    }
}

impl fmt::Debug for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.extended(), f)
    }
}
