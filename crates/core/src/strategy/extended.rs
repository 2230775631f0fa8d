//! The trait that authors of strategies implement.

use super::threads::unpinned;
use super::{CommunicationOptions, CrossDeviceOps, Strategy, Threads, VariablePlacement};
use distribute_base::{DeviceName, Error, Result};
use distribute_cluster::deadline::DEFAULT_TIMEOUT;
use distribute_cluster::resolver::ClusterResolver;
use distribute_collective::group::{Group, Session};
use distribute_collective::threads::{Member, Teams};
use distribute_ps_client::ParameterServers;
use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Within how many steps every variable has been compared, unless something else is asked for. While variables come and go, it may be
/// twice as many.
pub const CHECK_DRIFT_EVERY: u64 = 100;

/// The part of a strategy that its author writes. Users call [`Strategy`], which builds everything else on it.
///
/// Methods have to return the same in every call; [`Strategy::new`] refuses contradictions.
///
/// Only [`kind`](Self::kind) and [`worker_devices`](Self::worker_devices) are required; they make one replica for each
/// device, on a thread each, in lock step. A strategy with a shorter timeout that prints how long each run took:
///
/// ```
/// use distribute::{DeviceName, Replicas, StrategyExtended, prelude::*};
/// use std::time::{Duration, Instant};
///
/// #[derive(Debug)]
/// struct Timed {
///     devices: Vec<DeviceName>,
/// }
///
/// impl StrategyExtended for Timed {
///     fn kind(&self) -> &'static str {
///         "Timed"
///     }
///     fn worker_devices(&self) -> &[DeviceName] {
///         &self.devices
///     }
///     fn timeout(&self) -> Duration {
///         Duration::from_secs(5)
///     }
///     fn call_for_each_replica(&self, replicas: &Replicas<'_>) -> distribute::Result<()> {
///         let start = Instant::now();
///         let result = replicas.on_threads();
///         println!("step {}: {:?}", replicas.step(), start.elapsed());
///         result
///     }
/// }
///
/// let strategy = Strategy::new(Timed { devices: vec![DeviceName::cpu(0), DeviceName::cpu(1)] })?;
/// let sums = strategy.run((), |ctx, ()| ctx.all_reduce(ReduceOp::Sum, 1f32))?;
/// assert_eq!(sums.values(), [2., 2.]);
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.distribute.StrategyExtended")]
pub trait StrategyExtended: Debug + Send + Sync + 'static {
    /// The name of the strategy, for messages: `MirroredStrategy`.
    fn kind(&self) -> &'static str;

    /// The devices of this process's replicas, one for each.
    #[doc(alias = "tf.distribute.StrategyExtended.worker_devices")]
    fn worker_devices(&self) -> &[DeviceName];

    /// Where variables are kept; by default there is a copy on each worker device.
    fn variable_placement(&self) -> VariablePlacement {
        VariablePlacement::Mirrored
    }

    /// The devices that variables are on.
    #[doc(alias = "tf.distribute.StrategyExtended.parameter_devices")]
    fn parameter_devices(&self) -> Vec<DeviceName> {
        match self.variable_placement() {
            VariablePlacement::Central(device) => vec![device],
            VariablePlacement::Mirrored | VariablePlacement::Ordinary => self.worker_devices().to_vec(),
            VariablePlacement::Servers => {
                let servers = self.parameter_servers().map_or(0, |servers| servers.count());
                (0..servers).map(DeviceName::of_server).collect()
            }
        }
    }

    /// The parameter servers, where [variables are kept there](VariablePlacement::Servers).
    fn parameter_servers(&self) -> Option<&Arc<ParameterServers>> {
        None
    }

    /// The workers that train together, and how they reach each other; `None` if this process trains alone.
    ///
    /// Each worker has as many replicas as this one has devices.
    fn group(&self) -> Option<&Group> {
        None
    }

    /// How many workers there are, where they come and go: the [`group`](Self::group) has another world when they have met again.
    /// `None`, as where this is not written, if their number is fixed.
    fn elastic(&self) -> Option<RangeInclusive<usize>> {
        None
    }

    /// Leaves the world, in which a worker was lost or late or to which others have come, and waits until all workers have met again:
    /// those that are left, and new processes. Nobody waits for the workers that are `leaving`, by their numbers in the world, and, where
    /// they meet `once_more` since one was lost meanwhile, for that one. The [`group`](Self::group) goes on with them. `None`, as where
    /// this is not written, if workers can't meet again.
    ///
    /// # Errors
    /// [`Error::Join`] if a worker has not come after `patience`.
    fn rejoin(&self, patience: Duration, leaving: &[usize], once_more: bool) -> Option<Result<()>> {
        let _ = (patience, leaving, once_more);
        None
    }

    /// Where the cluster that this strategy trains in was found out; `None` for strategies of one process.
    fn cluster_resolver(&self) -> Option<&dyn ClusterResolver> {
        None
    }

    /// The place of this process among workers that run the whole program each, and do not wait for each other; `None`, as where this is
    /// not written, for others.
    #[doc(alias = "experimental_between_graph")]
    fn independent(&self) -> Option<IndependentWorker> {
        None
    }

    /// Whether each replica of this process can have an input pipeline of its own
    /// ([`InputReplicationMode::PerReplica`](crate::InputReplicationMode::PerReplica)).
    fn per_replica_input(&self) -> bool {
        self.variable_placement() == VariablePlacement::Mirrored && self.group().is_none()
    }

    /// How the replicas' collectives communicate by default.
    fn communication_options(&self) -> CommunicationOptions {
        CommunicationOptions::default()
    }

    /// How long a replica waits for the others in one call.
    fn timeout(&self) -> Duration {
        self.communication_options().timeout.unwrap_or(DEFAULT_TIMEOUT)
    }

    /// Within how many steps each variable that is the same on all workers has been compared between them; 0 for never. The same
    /// on all workers.
    fn check_drift_every(&self) -> u64 {
        CHECK_DRIFT_EVERY
    }

    /// The algorithm that combines values across devices. With `None`, the replicas' threads share the work of collectives,
    /// and everything else is reduced to one device.
    fn cross_device_ops(&self) -> Option<&dyn CrossDeviceOps> {
        None
    }

    /// The threads that replicas compute with. `None` is one thread each, on any core.
    fn threads(&self) -> Option<&Threads> {
        None
    }

    /// Whether step functions require static shapes. False for all strategies of this crate.
    #[doc(alias = "tf.distribute.StrategyExtended.experimental_require_static_shapes")]
    fn require_static_shapes(&self) -> bool {
        false
    }

    /// Runs a step on all local replicas at the same time, and returns when all are done.
    ///
    /// # Errors
    /// If the system refuses a thread.
    #[doc(alias = "tf.distribute.StrategyExtended.call_for_each_replica")]
    fn call_for_each_replica(&self, replicas: &Replicas<'_>) -> Result<()> {
        replicas.on_threads()
    }
}

/// One of several workers that run the whole program each, and do not wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndependentWorker {
    /// How many there are, the chief among them.
    pub workers: usize,
    /// Which of them this is. The chief is the first.
    pub worker: usize,
}

/// The replicas of one step, about to run.
pub struct Replicas<'a> {
    strategy: &'a Strategy,
    step: u64,
    /// The same step on the other workers, if there are any.
    session: Option<Arc<Session>>,
    body: &'a (dyn Fn(Member) -> bool + Sync),
    /// Whether the replicas have run.
    ran: AtomicBool,
}

impl<'a> Replicas<'a> {
    /// `body` returns whether it succeeded.
    pub(crate) fn new(
        strategy: &'a Strategy,
        step: u64,
        session: Option<Arc<Session>>,
        body: &'a (dyn Fn(Member) -> bool + Sync),
    ) -> Self {
        Self { strategy, step, session, body, ran: AtomicBool::new(false) }
    }

    /// The number of this step on its strategy, from 1.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The number of replicas to run.
    pub fn count(&self) -> usize {
        self.strategy.world().replicas()
    }

    /// Runs every replica on a thread of its own. Returns when all have returned.
    ///
    /// The first replica runs on this thread. It gets a thread of its own if replicas have [several threads](Threads) each,
    /// or if this thread is a worker of a rayon pool, as in a closure of `rayon::spawn` or `par_iter`, where it would pick
    /// up other work of the pool in the middle of the step.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses a thread; [`Error::InvalidArgument`] if the replicas of this step have already
    /// run.
    pub fn on_threads(&self) -> Result<()> {
        if self.ran.swap(true, Ordering::Relaxed) {
            let reason = format!(
                "{} called it twice in step {}; call_for_each_replica runs each replica once",
                self.strategy, self.step
            );
            return Err(Error::invalid("Replicas::on_threads", reason));
        }
        let replicas = self.count();
        let extended = self.strategy.extended();
        let body = self.body;
        let teams = extended.threads().map_or(Teams::shared(), Threads::teams);
        let _unpinned = unpinned();
        let done = match (replicas, &self.session) {
            (1, None) => teams.alone(|| {
                body(Member::alone(self.step));
            }),
            (_, session) => teams.borrow(replicas, |team| {
                team.run_among(self.step, extended.timeout(), session.clone(), body);
            }),
        };
        done.map_err(|source| Error::Io { operation: format!("starting {replicas} replica threads"), source })
    }
}

impl Debug for Replicas<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Replicas({} of {}, step {})", self.count(), self.strategy, self.step)
    }
}
