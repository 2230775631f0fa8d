//! A strategy's communication with the other workers: at the beginning of a step, and in calls that are made
//! once for all local replicas.

use super::remedies::StragglerRemedies;
use super::{Strategy, VariablePlacement};
use bytes::Bytes;
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_cluster::resolver::ClusterResolver;
use distribute_cluster::{Fingerprint, Job, Operation, World};
use distribute_collective::group::{Group, Session};
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// The state of a strategy's communication with the other workers.
#[derive(Debug, Default)]
pub(super) struct Workers {
    /// A lock that is held during a step, because concurrent steps could run in a different order on each worker.
    step: Mutex<()>,
    /// The session for calls between steps; `None` before the first such call, and after such calls have been stopped.
    between: Mutex<Option<Arc<Session>>>,
    /// Whether this process does not yet make calls with the other workers. This is the case after a rendezvous in
    /// which it joined, or may have joined, a training run in progress.
    catching_up: AtomicBool,
    /// Whether this process has left a training run that the others continue.
    left: AtomicBool,
    /// Whether training continues if a worker fails.
    survives: AtomicBool,
    /// Whether the program has created a `Training`.
    has_training: AtomicBool,
    /// The remedies for stragglers.
    pub(super) remedies: Mutex<StragglerRemedies>,
}

impl Workers {
    pub(super) fn is_catching_up(&self) -> bool {
        self.catching_up.load(Ordering::Relaxed)
    }

    /// Stops calls with the other workers, and closes the session for calls between steps.
    pub(super) fn begin_catching_up(&self) {
        self.catching_up.store(true, Ordering::Relaxed);
        *lock(&self.between) = None;
    }

    /// Allows calls with the other workers again.
    pub(super) fn finish_catching_up(&self) {
        self.catching_up.store(false, Ordering::Relaxed);
    }

    pub(super) fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// Permanently stops calls with the other workers.
    pub(super) fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
        *lock(&self.between) = None;
    }

    pub(super) fn survives(&self) -> bool {
        self.survives.load(Ordering::Relaxed)
    }

    pub(super) fn set_survives(&self, survives: bool) {
        self.survives.store(survives, Ordering::Relaxed);
        self.has_training.fetch_or(survives, Ordering::Relaxed);
    }

    pub(super) fn has_training(&self) -> bool {
        self.has_training.load(Ordering::Relaxed)
    }
}

impl Strategy {
    /// Returns the workers that train together, the rank of this process among them, and the ids of all replicas. In
    /// elastic training, a rendezvous may change the world.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let world = MirroredStrategy::cpus(2)?.world();
    /// assert_eq!((world.workers(), world.local_replicas()), (1, 0..2));
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[inline]
    pub fn world(&self) -> World {
        if self.0.has_group { self.world_of_group() } else { self.0.alone }
    }

    /// Returns the resolver of the cluster, which also returns the task of this process; `None` for strategies of a
    /// single process.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use distribute::cluster::Job;
    /// fn is_evaluator(strategy: &Strategy) -> bool {
    ///     strategy.cluster_resolver().and_then(|resolver| resolver.task_type()) == Some(Job::Evaluator)
    /// }
    /// let strategy = MirroredStrategy::cpus(2)?;
    /// assert!(!is_evaluator(&strategy));
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "tf.distribute.Strategy.cluster_resolver")]
    pub fn cluster_resolver(&self) -> Option<&dyn ClusterResolver> {
        self.extended().cluster_resolver()
    }

    /// Returns `true` if this process does the work that only one process of the job does, such as writing
    /// checkpoints and summaries. With several workers this is the chief, or the first worker if there is no
    /// chief.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// assert!(MirroredStrategy::cpus(2)?.is_chief());
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "experimental_should_init")]
    #[doc(alias = "tf.distribute.StrategyExtended.should_checkpoint")]
    #[doc(alias = "should_checkpoint")]
    #[doc(alias = "tf.distribute.StrategyExtended.should_save_summary")]
    #[doc(alias = "should_save_summary")]
    pub fn is_chief(&self) -> bool {
        self.extended().independent().map_or_else(|| self.world().is_chief(), |of| of.worker == 0)
    }

    /// Stops the parameter servers in other processes, and the workers that
    /// [serve](https://docs.rs/distribute/latest/distribute/fn.serve.html) a coordinator. Call this at the end of
    /// training. First waits until all updates in flight have been applied. In the stopped processes, `serve` returns.
    /// A server that cannot be reached is considered stopped. Does nothing if there are no servers in other processes.
    ///
    /// Under a [`ParameterServerStrategy`](https://docs.rs/distribute/latest/distribute/struct.ParameterServerStrategy.html),
    /// the chief makes this call or, in a cluster without a chief, worker 0. Workers that train in lock step make it
    /// together, and the chief stops the servers when all have arrived.
    ///
    /// # Errors
    /// - The error of an update that was not applied.
    /// - After all servers have been asked to stop, the error of the first reachable server that did not stop.
    /// - With several workers, [`Error::Collective`] if a worker does not make this call.
    #[track_caller]
    pub fn end_servers(&self) -> Result<()> {
        const OPERATION: &str = "end_servers";
        let Some(servers) = self.extended().parameter_servers() else { return Ok(()) };
        let at = Location::caller();
        self.exchange_results(
            OPERATION,
            || Fingerprint::new(Operation::Barrier, OPERATION, at),
            Ok(()),
            |()| Bytes::new(),
        )?;
        if self.is_chief() { servers.end() } else { Ok(()) }
    }

    /// Returns the number of worker tasks in the cluster if variables are stored on parameter servers, as under a
    /// coordinator; 0 under other strategies.
    ///
    /// # Errors
    /// Returns the errors of the cluster resolver.
    #[doc(hidden)]
    pub fn scheduled_workers(&self) -> Result<usize> {
        let extended = self.extended();
        let Some(resolver) = extended.cluster_resolver() else { return Ok(0) };
        if extended.variable_placement() != VariablePlacement::Servers {
            return Ok(0);
        }
        Ok(resolver.cluster_spec()?.num_tasks(&Job::Worker).unwrap_or(0))
    }

    /// Returns the group, if there are other workers and this process makes calls with them.
    pub(crate) fn group(&self) -> Option<&Group> {
        self.all_workers().filter(|_| !self.0.workers.is_catching_up() && !self.0.workers.has_left())
    }

    /// Returns the group, if there are other workers.
    pub(super) fn all_workers(&self) -> Option<&Group> {
        self.possible_group().filter(|group| group.world().is_multi_worker())
    }

    fn world_of_group(&self) -> World {
        self.extended().group().map_or(self.0.alone, Group::world)
    }

    /// Returns the group, if the strategy has one, even if this process is its only worker.
    pub(crate) fn possible_group(&self) -> Option<&Group> {
        if self.0.has_group { self.extended().group() } else { None }
    }

    /// Locks and returns the session for calls between steps.
    pub(crate) fn session_between_steps(&self) -> MutexGuard<'_, Option<Arc<Session>>> {
        lock(&self.0.workers.between)
    }

    /// Prevents concurrent steps until the returned guard is dropped. Returns `None` if this worker makes no calls with
    /// others, because concurrent steps are then permitted.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: another step is running.
    pub(crate) fn one_step_at_a_time(&self) -> Result<Option<MutexGuard<'_, ()>>> {
        if self.group().is_none() {
            return Ok(None);
        }
        match self.0.workers.step.try_lock() {
            Ok(guard) => Ok(Some(guard)),
            Err(TryLockError::Poisoned(poisoned)) => Ok(Some(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => {
                let reason = "a run of this strategy is in progress, on another thread or around this merge function; \
                              with several workers, steps run one after another, because concurrent steps could run \
                              in a different order on each worker";
                Err(Error::invalid("run", reason))
            }
        }
    }
}
