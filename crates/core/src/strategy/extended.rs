//! [`StrategyExtended`], the trait that authors of strategies implement.

use super::threads::unpinned;
use super::{
    CommunicationOptions, CrossDeviceOps, LocalSteps, StragglerPolicy, Strategy, Threads, VariablePlacement,
};
use distribute_base::{DeviceName, Error, Result};
use distribute_cluster::deadline::DEFAULT_TIMEOUT;
use distribute_cluster::resolver::ClusterResolver;
use distribute_collective::group::{Group, Session};
use distribute_collective::threads::{Member, TeamPool};
use distribute_ps_client::{ParameterServers, RowFormat};
use distribute_tensor::Compression;
use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The default number of steps within which each variable is compared between the workers. While variables are being
/// created or dropped, a comparison may take up to twice as many steps.
pub const CHECK_DRIFT_EVERY: u64 = 100;

/// The methods that the author of a strategy implements. Programs use [`Strategy`], which builds all operations on
/// these methods.
///
/// Every method must return the same value in every call, except where noted. [`Strategy::new`] rejects
/// contradictory values.
///
/// Only [`kind`](Self::kind) and [`worker_devices`](Self::worker_devices) are required. A strategy with only
/// these has one replica per device; each replica runs on its own thread, in lock step with the others. This
/// example is a strategy with a shorter timeout that prints how long each run took:
///
/// ```
/// use distribute::{prelude::*, strategy::{DeviceName, Replicas, StrategyExtended}};
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
    /// Returns the name of the strategy for messages, such as `MirroredStrategy`.
    fn kind(&self) -> &'static str;

    /// Returns the devices of this process's replicas, one for each.
    #[doc(alias = "tf.distribute.StrategyExtended.worker_devices")]
    fn worker_devices(&self) -> &[DeviceName];

    /// Returns the maximum number of replicas of this process. It is larger than the number of
    /// [`worker_devices`](Self::worker_devices) if the process may have more replicas after the group has re-formed.
    /// Models and variables with a copy for each replica are created for this number.
    fn max_replicas(&self) -> usize {
        self.worker_devices().len()
    }

    /// Returns the location of variables. By default each worker device has a copy.
    fn variable_placement(&self) -> VariablePlacement {
        VariablePlacement::Mirrored
    }

    /// Returns the devices that variables are stored on.
    #[doc(alias = "tf.distribute.StrategyExtended.parameter_devices")]
    fn parameter_devices(&self) -> Vec<DeviceName> {
        let servers = || self.parameter_servers().map_or(0, |servers| servers.count());
        self.variable_placement().devices(self.worker_devices(), servers)
    }

    /// Returns the parameter servers that store [all variables](VariablePlacement::Servers), or the client of the
    /// tables that the workers of the [`group`](Self::group) store together. Returns `None` (the default) if there are
    /// neither.
    fn parameter_servers(&self) -> Option<&Arc<ParameterServers>> {
        None
    }

    /// Returns the form in which the values of a model's table are stored. `bytes` is the size of the table. All
    /// workers must return the same form. If the table is mirrored, its values are rounded in the same way, without
    /// saving memory.
    fn row_format(&self, _bytes: usize) -> RowFormat {
        RowFormat::Full
    }

    /// Returns the workers that train together, and the links between them. Returns `None` (the default) if this
    /// process trains alone.
    ///
    /// The number of this strategy's devices must be the number of replicas that this worker has in the group's world.
    fn group(&self) -> Option<&Group> {
        None
    }

    /// Returns the permitted range of the number of workers if the job is elastic; `None` (the default) if
    /// the number is fixed. The world of [`group`](Self::group) may then change in a rendezvous.
    fn elastic(&self) -> Option<RangeInclusive<usize>> {
        None
    }

    /// Returns the number of processes of the cluster that wait as spares until a worker is lost; 0 by default. The
    /// numbers of [`elastic`](Self::elastic) do not include them.
    fn spares(&self) -> usize {
        0
    }

    /// Returns the reaction to a worker that makes the others wait; [`StragglerPolicy::Warn`] by default. All workers
    /// must return the same one.
    fn straggler_policy(&self) -> StragglerPolicy {
        StragglerPolicy::Warn
    }

    /// Leaves the current world because a worker failed or timed out, or because new workers want to join.
    /// Waits until the [`group`](Self::group) has re-formed from the remaining workers and new processes.
    ///
    /// Does not wait for the workers whose ranks are in `leaving`. `once_more` is `true` if a worker failed during the
    /// previous rendezvous. The call then repeats that rendezvous without waiting for the failed worker. On a spare,
    /// waits until the group needs it, and for at most `patience` while no leader of the group can be reached. Returns
    /// `None` (the default) if the group cannot re-form.
    ///
    /// # Errors
    /// - [`Error::Join`]: a worker has not joined within `patience`.
    fn rejoin(&self, patience: Duration, leaving: &[usize], once_more: bool) -> Option<Result<()>> {
        let _ = (patience, leaving, once_more);
        None
    }

    /// Returns the resolver of the cluster that this strategy trains in. Returns `None` (the default) for strategies of
    /// a single process.
    fn cluster_resolver(&self) -> Option<&dyn ClusterResolver> {
        None
    }

    /// Returns the position of this process among workers that each run the whole program without waiting for
    /// each other. Returns `None` (the default) for all other strategies.
    #[doc(alias = "experimental_between_graph")]
    fn independent(&self) -> Option<IndependentWorker> {
        None
    }

    /// Returns `true` if each replica of this process can have its own input pipeline
    /// ([`InputReplicationMode::PerReplica`](crate::InputReplicationMode::PerReplica)).
    fn per_replica_input(&self) -> bool {
        self.variable_placement() == VariablePlacement::Mirrored && self.group().is_none()
    }

    /// Returns the options that the replicas' collectives use by default.
    fn communication_options(&self) -> CommunicationOptions {
        CommunicationOptions::default()
    }

    /// Returns the maximum time that a replica waits for the others in one call.
    fn timeout(&self) -> Duration {
        self.communication_options().timeout.unwrap_or(DEFAULT_TIMEOUT)
    }

    /// Returns the number of steps within which all variables that should be equal on all workers are compared once; 0
    /// disables the check. All workers must return the same number.
    fn check_drift_every(&self) -> u64 {
        CHECK_DRIFT_EVERY
    }

    /// Returns the form in which the gradients of `f32` variables are sent between the workers of
    /// [`group`](Self::group). All workers must return the same form. Except with [`Compression::None`], optimizers
    /// change the gradients of each replica as if they were sent, even if there is only one worker.
    fn compression(&self) -> Compression {
        Compression::None
    }

    /// Returns the steps that each worker of the [`group`](Self::group) trains alone before the workers agree on new
    /// weights. With `None` (the default), the workers train in lock step. All workers must return the same.
    fn local_steps(&self) -> Option<LocalSteps> {
        None
    }

    /// Returns the algorithm that combines values across devices. With `None` (the default), the replicas'
    /// threads share the work of collectives, and all other values are reduced on one device.
    fn cross_device_ops(&self) -> Option<&dyn CrossDeviceOps> {
        None
    }

    /// Returns the threads that the replicas use for computation. `None` (the default) means one thread per replica, on
    /// any core.
    fn threads(&self) -> Option<&Threads> {
        None
    }

    /// Returns `true` if step functions require static shapes. It is `false` for all strategies of `distribute`.
    #[doc(alias = "tf.distribute.StrategyExtended.experimental_require_static_shapes")]
    fn require_static_shapes(&self) -> bool {
        false
    }

    /// Runs a step on all local replicas at the same time, by calling [`Replicas::on_threads`] exactly once. Returns
    /// when all replicas have finished. The replicas' own errors are not returned here.
    ///
    /// # Errors
    /// Returns the errors of [`Replicas::on_threads`].
    #[doc(alias = "tf.distribute.StrategyExtended.call_for_each_replica")]
    fn call_for_each_replica(&self, replicas: &Replicas<'_>) -> Result<()> {
        replicas.on_threads()
    }
}

/// The position of a worker among workers that each run the whole program and do not wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndependentWorker {
    /// The number of workers, including the chief.
    pub workers: usize,
    /// The rank of this worker. The chief has rank 0.
    pub worker: usize,
}

/// The replicas of a step that is about to run.
pub struct Replicas<'a> {
    strategy: &'a Strategy,
    step: u64,
    /// The session with the other workers in this step; `None` if there are no other workers.
    session: Option<Arc<Session>>,
    body: &'a (dyn Fn(Member) -> bool + Sync),
    /// Whether [`on_threads`](Self::on_threads) has been called.
    ran: AtomicBool,
}

impl<'a> Replicas<'a> {
    /// Creates the replicas of a step. `body` runs one replica, and returns whether it succeeded.
    pub(crate) fn new(
        strategy: &'a Strategy,
        step: u64,
        session: Option<Arc<Session>>,
        body: &'a (dyn Fn(Member) -> bool + Sync),
    ) -> Self {
        Self { strategy, step, session, body, ran: AtomicBool::new(false) }
    }

    /// Returns the sequence number of this step on its strategy, from 1.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Returns the number of replicas to run.
    pub fn count(&self) -> usize {
        self.strategy.world().replicas()
    }

    /// Runs every replica on its own thread. Returns after all have finished, whether or not they succeeded.
    ///
    /// The first replica usually runs on the calling thread. It runs on a separate thread if [several threads per
    /// replica or pinned threads](Threads) are requested. The same holds if the calling thread belongs to a rayon pool,
    /// as in `rayon::spawn` or `par_iter`, because such a thread could execute other work of its pool in the middle of
    /// the step.
    ///
    /// # Errors
    /// - [`Error::Io`]: a thread cannot be started, or there is no memory for its stack.
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
        let teams = extended.threads().map_or(TeamPool::shared(), Threads::teams);
        let _unpinned = unpinned();
        let done = match (replicas, &self.session) {
            (1, None) => teams.run_single(|| {
                body(Member::alone(self.step));
            }),
            (_, session) => teams.with_team(replicas, |team| {
                team.run_with_session(self.step, extended.timeout(), session.clone(), body);
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
