//! The handle that users call, and the strategies that it refers to.

pub(crate) mod alone;
mod claims;
mod cross_worker;
mod default;
mod departure;
mod devices;
mod differences;
mod extended;
mod extensions;
mod notice;
mod outcome;
mod pulse;
pub(crate) mod record;
mod rejoin;
mod steps;
mod threads;
mod variable_placement;
mod workers;
pub use departure::Departure;
pub use devices::{check_count, resolve};
pub use differences::Settings;
pub use differences::differences;
pub use differences::digest;
pub use notice::{Heard, Notice};

pub use distribute_base::DeviceKind;
#[doc(alias = "tf.DeviceSpec")]
#[doc(alias = "DeviceSpec")]
pub use distribute_base::DeviceName;
#[doc(inline)]
pub use distribute_collective::group::{Group, Links};
pub(crate) use distribute_cross_device::internal::{DEFAULT, reduce_by};
#[doc(inline)]
pub use distribute_cross_device::{
    CommunicationImplementation, CommunicationOptions, CrossDeviceOps, HierarchicalCopyAllReduce,
    NcclAllReduce, Reduction, ReductionToOneDevice,
};
pub use extended::CHECK_DRIFT_EVERY;
#[doc(alias = "tf.distribute.StrategyExtended")]
pub use extended::StrategyExtended;
pub use extended::{IndependentWorker, Replicas};
pub use threads::Threads;
pub use variable_placement::VariablePlacement;

use self::extensions::Extensions;
use self::pulse::Pulse;
use self::workers::Workers;
use distribute_base::Result;
use distribute_base::internal::{DeviceCopies, lock};
use distribute_cluster::World;
use distribute_collective::recovery::Updates;
use distribute_ps_client::internal::Session;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// A handle of a strategy, which runs training steps: cheap to clone, and the same type for every strategy.
///
/// Functions that train take a `&Strategy`; `MirroredStrategy` and the others deref to it. A new kind of
/// strategy implements only [`StrategyExtended`].
#[doc(alias = "tf.distribute.Strategy")]
#[derive(Clone)]
pub struct Strategy(Arc<Inner>);

/// A handle that does not keep its strategy alive.
#[derive(Clone, Debug)]
pub struct WeakStrategy(Weak<Inner>);

impl WeakStrategy {
    /// Returns the strategy, if another handle still keeps it alive.
    pub fn upgrade(&self) -> Option<Strategy> {
        self.0.upgrade().map(Strategy)
    }
}

struct Inner {
    extended: Box<dyn StrategyExtended>,
    /// The number of the strategy in this process, from 0. With the location where it was created, it
    /// distinguishes strategies of one kind.
    number: u64,
    made_at: &'static Location<'static>,
    steps: AtomicU64,
    /// The results of optimizers' steps, for monitoring.
    pulse: Pulse,
    updates: Mutex<Updates>,
    optimizers: AtomicU64,
    /// The number of variables that have been created.
    created: AtomicU64,
    /// The world with only this process, for a strategy without a group.
    alone: World,
    /// Whether it has a group, and whether it has parameter servers. Most steps have neither, and asking
    /// `extended` takes a while.
    has_group: bool,
    has_servers: bool,
    /// The copies of variables on devices with separate memory; `None` if no replica has such a device.
    device_copies: Option<Mutex<Vec<Weak<DeviceCopies>>>>,
    workers: Workers,
    /// The notice to shut down gracefully.
    notice: Arc<Notice>,
    extensions: Extensions,
}

impl Strategy {
    /// Creates the handle of a strategy.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): the methods of `extended`
    ///   contradict each other, for example by naming a device twice; or its
    ///   [`communication_options`](StrategyExtended::communication_options) or cross-device ops (see
    ///   [`check`](CrossDeviceOps::check)) ask for something that is not supported.
    #[track_caller]
    pub fn new(extended: impl StrategyExtended) -> Result<Self> {
        claims::check(&extended)?;
        Ok(Self::unchecked(extended))
    }

    /// Creates the handle of a strategy that is known to be consistent.
    #[track_caller]
    fn unchecked(extended: impl StrategyExtended) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let replicas = extended.worker_devices().len();
        let alone = World::alone(replicas).unwrap_or_default();
        let (has_group, has_servers) = (extended.group().is_some(), extended.parameter_servers().is_some());
        let has_devices = extended.worker_devices().iter().any(|device| device.has_own_memory());
        crate::init::prepare(replicas);
        let (steps, pulse, optimizers, created, extensions) = Default::default();
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
            extensions,
        }));
        if goes_on {
            strategy.unsettle();
        }
        strategy
    }

    /// Returns the part that the strategy's author wrote.
    #[doc(alias = "tf.distribute.Strategy.extended")]
    pub fn extended(&self) -> &dyn StrategyExtended {
        &*self.0.extended
    }

    /// Returns the number of replicas over which gradients are aggregated.
    #[doc(alias = "tf.distribute.Strategy.num_replicas_in_sync")]
    pub fn num_replicas_in_sync(&self) -> usize {
        self.world().num_replicas_in_sync()
    }

    /// Returns the notice to shut down gracefully, with the state that this process knows.
    #[doc(hidden)]
    pub fn notice(&self) -> &Arc<Notice> {
        &self.0.notice
    }

    #[doc(hidden)]
    pub fn is_default(&self) -> bool {
        self == Self::of_default_context()
    }

    /// Returns the number of the next variable, from 1. It is the same on all workers, which create variables
    /// in the same order.
    pub(crate) fn next_variable(&self) -> u64 {
        self.0.created.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Creates copies of a new variable for the replicas whose devices have separate memory; `None` if there
    /// are no such devices.
    ///
    /// # Errors
    /// candle's error, if a device cannot be opened.
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

    /// Whether any replica's device has separate memory.
    #[doc(hidden)]
    pub fn has_device_copies(&self) -> bool {
        self.0.device_copies.is_some()
    }

    /// Whether tables whose rows are looked up are on the devices of replicas. That is so if each replica's
    /// device has separate memory, and neither servers nor other workers participate in updates.
    pub(crate) fn keeps_tables_on_devices(&self) -> bool {
        self.has_device_copies()
            && !self.world().is_multi_worker()
            && self.extended().parameter_servers().is_none()
            && self.devices().into_iter().all(DeviceName::can_update)
    }

    /// Refreshes the copies that a local replica computes with. The replica's thread calls this.
    ///
    /// # Errors
    /// candle's error, if a device fails.
    #[doc(hidden)]
    pub fn refresh_copies(&self, replica: usize) -> Result<()> {
        let Some(all) = &self.0.device_copies else { return Ok(()) };
        let alive: Vec<_> = lock(all).iter().filter_map(Weak::upgrade).collect();
        alive.iter().try_for_each(|copies| copies.refresh(replica))
    }

    /// Returns the device of each local replica.
    #[doc(hidden)]
    pub fn devices(&self) -> Vec<DeviceName> {
        self.extended().worker_devices().to_vec()
    }

    /// Whether it has a group of workers, even of a single one.
    pub(crate) fn has_group(&self) -> bool {
        self.0.has_group
    }

    /// Returns the session with its parameter servers, if it has any.
    #[doc(hidden)]
    pub fn session(&self) -> Option<&Session> {
        let servers = self.0.has_servers.then(|| self.extended().parameter_servers());
        servers.flatten().map(|servers| servers.session())
    }

    /// Waits until servers have acknowledged all gradients, unless a step is running.
    ///
    /// # Errors
    /// The error of a server that has not.
    #[doc(hidden)]
    pub fn await_updates(&self) -> Result<()> {
        self.session().map_or(Ok(()), Session::flush)
    }

    /// Returns the number of the next optimizer, from 1.
    #[doc(hidden)]
    pub fn next_optimizer(&self) -> u64 {
        self.0.optimizers.fetch_add(1, Ordering::Relaxed) + 1
    }

    #[doc(hidden)]
    pub fn downgrade(&self) -> WeakStrategy {
        WeakStrategy(Arc::downgrade(&self.0))
    }

    /// Returns its number in this process, which timelines show.
    #[doc(hidden)]
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Returns the results of optimizers' steps.
    #[doc(hidden)]
    pub fn pulse(&self) -> &Pulse {
        &self.0.pulse
    }

    /// Returns the state that a module above the handle keeps with this strategy. Creates it on the first call.
    pub(crate) fn extension<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        self.0.extensions.get()
    }

    /// Returns the number of the next step, from 1.
    pub(crate) fn next_step(&self) -> u64 {
        self.0.steps.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// Two handles are equal if they refer to the same strategy object.
impl PartialEq for Strategy {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Strategy {}

/// Its kind and number of replicas, and its number in this process and the location where it was created.
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
