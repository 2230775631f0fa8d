//! The handle that users call, and the strategies behind it.

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
    extensions: Extensions,
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

    /// The device of each local replica.
    #[doc(hidden)]
    pub fn devices(&self) -> Vec<DeviceName> {
        self.extended().worker_devices().to_vec()
    }

    /// Whether it has a group of workers, be it of one.
    pub(crate) fn has_group(&self) -> bool {
        self.0.has_group
    }

    /// The session with its parameter servers, if it has any.
    #[doc(hidden)]
    pub fn session(&self) -> Option<&Session> {
        let servers = self.0.has_servers.then(|| self.extended().parameter_servers());
        servers.flatten().map(|servers| servers.session())
    }

    /// Waits until servers have acknowledged all gradients, unless a step is running.
    ///
    /// # Errors
    /// That of a server which has not.
    #[doc(hidden)]
    pub fn await_updates(&self) -> Result<()> {
        self.session().map_or(Ok(()), Session::flush)
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

    /// The state that a module above the handle keeps with this strategy. It is made when it is first asked for.
    pub(crate) fn extension<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        self.0.extensions.get()
    }

    /// The number of the next step, from 1.
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
