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

/// The default number of steps within which every variable is compared between the workers. While variables are
/// created and dropped, it may take twice this number.
pub const CHECK_DRIFT_EVERY: u64 = 100;

/// The part of a strategy that its author writes. Users call [`Strategy`], which builds everything else on it.
///
/// Methods must return the same in every call; [`Strategy::new`] refuses contradictions.
///
/// Only [`kind`](Self::kind) and [`worker_devices`](Self::worker_devices) are required; with these, a strategy
/// has one replica for each device, on a thread each, in lock step. A strategy with a shorter timeout that
/// prints how long each run took:
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
    /// The name of the strategy, for messages, such as `MirroredStrategy`.
    fn kind(&self) -> &'static str;

    /// The devices of this process's replicas, one for each.
    #[doc(alias = "tf.distribute.StrategyExtended.worker_devices")]
    fn worker_devices(&self) -> &[DeviceName];

    /// The location of variables. By default each worker device has a copy.
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

    /// The parameter servers, if [variables are on them](VariablePlacement::Servers).
    fn parameter_servers(&self) -> Option<&Arc<ParameterServers>> {
        None
    }

    /// The workers that train together, and the links between them; `None` if this process trains alone.
    ///
    /// Each worker has the same number of replicas as this one has devices.
    fn group(&self) -> Option<&Group> {
        None
    }

    /// The allowed number of workers if the job is elastic; `None` (the default) if the number is fixed. After
    /// a rendezvous the world of [`group`](Self::group) may be another one.
    fn elastic(&self) -> Option<RangeInclusive<usize>> {
        None
    }

    /// Leaves the world because a worker failed or timed out, or because others join. Waits until the
    /// [`group`](Self::group) has re-formed with the remaining workers and new processes.
    ///
    /// Workers whose ranks are in `leaving` are not waited for. With `once_more`, this rendezvous repeats one
    /// in which a worker failed, which is then not waited for. Returns `None` (the default) if the group cannot
    /// re-form.
    ///
    /// # Errors
    /// - [`Error::Join`]: a worker has not come within `patience`.
    fn rejoin(&self, patience: Duration, leaving: &[usize], once_more: bool) -> Option<Result<()>> {
        let _ = (patience, leaving, once_more);
        None
    }

    /// The resolver of the cluster that this strategy trains in; `None` for strategies of one process.
    fn cluster_resolver(&self) -> Option<&dyn ClusterResolver> {
        None
    }

    /// The position of this process among workers that each run the whole program and do not wait for each
    /// other; `None` (the default) for other strategies.
    #[doc(alias = "experimental_between_graph")]
    fn independent(&self) -> Option<IndependentWorker> {
        None
    }

    /// Whether each replica of this process can have a separate input pipeline
    /// ([`InputReplicationMode::PerReplica`](crate::InputReplicationMode::PerReplica)).
    fn per_replica_input(&self) -> bool {
        self.variable_placement() == VariablePlacement::Mirrored && self.group().is_none()
    }

    /// The default options of the replicas' collectives.
    fn communication_options(&self) -> CommunicationOptions {
        CommunicationOptions::default()
    }

    /// The time that a replica waits for the others in one call.
    fn timeout(&self) -> Duration {
        self.communication_options().timeout.unwrap_or(DEFAULT_TIMEOUT)
    }

    /// The number of steps within which each variable that is the same on all workers is compared between them;
    /// 0 for never. It has to be the same on all workers.
    fn check_drift_every(&self) -> u64 {
        CHECK_DRIFT_EVERY
    }

    /// The algorithm that combines values across devices. With `None`, the replicas' threads divide the work of
    /// collectives, and everything else is reduced to one device.
    fn cross_device_ops(&self) -> Option<&dyn CrossDeviceOps> {
        None
    }

    /// The threads that replicas compute with. `None` means one thread each, on any core.
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
    /// An error if the system refuses a thread.
    #[doc(alias = "tf.distribute.StrategyExtended.call_for_each_replica")]
    fn call_for_each_replica(&self, replicas: &Replicas<'_>) -> Result<()> {
        replicas.on_threads()
    }
}

/// One of several workers that each run the whole program and do not wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndependentWorker {
    /// The number of workers, the chief included.
    pub workers: usize,
    /// The rank of this worker. The chief has rank 0.
    pub worker: usize,
}

/// The replicas of one step, about to run.
pub struct Replicas<'a> {
    strategy: &'a Strategy,
    step: u64,
    /// The session with the other workers in this step, if there are any.
    session: Option<Arc<Session>>,
    body: &'a (dyn Fn(Member) -> bool + Sync),
    /// Whether the replicas have run.
    ran: AtomicBool,
}

impl<'a> Replicas<'a> {
    /// Creates the replicas of a step. `body` returns whether it succeeded.
    pub(crate) fn new(
        strategy: &'a Strategy,
        step: u64,
        session: Option<Arc<Session>>,
        body: &'a (dyn Fn(Member) -> bool + Sync),
    ) -> Self {
        Self { strategy, step, session, body, ran: AtomicBool::new(false) }
    }

    /// Returns the number of this step on its strategy, from 1.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Returns the number of replicas to run.
    pub fn count(&self) -> usize {
        self.strategy.world().replicas()
    }

    /// Runs every replica on a separate thread. Returns when all have returned.
    ///
    /// The first replica usually runs on this thread. It gets another thread if each replica has [several
    /// threads](Threads), or if this thread is a worker of a rayon pool, as in `rayon::spawn` or `par_iter`.
    /// There it would run other work of the pool in the middle of the step.
    ///
    /// # Errors
    /// - [`Error::Io`]: the system refuses a thread.
    /// - [`Error::InvalidArgument`]: the replicas of this step have already run.
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
