//! A strategy's traffic with the other workers: at the beginning of a step, and in calls that are made once for
//! all local replicas.

use super::Strategy;
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_cluster::World;
use distribute_cluster::resolver::ClusterResolver;
use distribute_collective::group::{Group, Session};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// The traffic of one strategy with the other workers.
#[derive(Debug, Default)]
pub(super) struct Workers {
    /// Held during a step, because concurrent steps could run in a different order on each worker.
    step: Mutex<()>,
    /// The session of calls made between steps.
    between: Mutex<Option<Arc<Session>>>,
    /// Whether this process replaces, or may replace, another in a running training, and does not yet make
    /// calls with the others.
    settling: AtomicBool,
    /// Whether this process has left a training that the others continue.
    left: AtomicBool,
    /// Whether the training continues if a worker fails.
    survives: AtomicBool,
}

impl Workers {
    pub(super) fn is_settling(&self) -> bool {
        self.settling.load(Ordering::Relaxed)
    }

    /// Stops calls with the others. The previous session ends.
    pub(super) fn unsettle(&self) {
        self.settling.store(true, Ordering::Relaxed);
        *lock(&self.between) = None;
    }

    /// Allows calls with the others again.
    pub(super) fn settle(&self) {
        self.settling.store(false, Ordering::Relaxed);
    }

    pub(super) fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// Stops calls with the others for good.
    pub(super) fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
        *lock(&self.between) = None;
    }

    pub(super) fn survives(&self) -> bool {
        self.survives.load(Ordering::Relaxed)
    }

    pub(super) fn set_survives(&self, survives: bool) {
        self.survives.store(survives, Ordering::Relaxed);
    }
}

impl Strategy {
    /// Returns the world: the workers that train together, the rank of this process among them, and the ids of
    /// all replicas. In an elastic training, a rendezvous may change it.
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

    /// Returns the resolver of the cluster, which also has the task of this process; `None` for strategies of
    /// one process.
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

    /// Whether this process does the work that one process of the job does for all. With several workers this
    /// is the chief, or the first worker if there is no chief.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// assert!(MirroredStrategy::cpus(2)?.is_chief());
    /// # Ok::<(), distribute::Error>(())
    /// ```
    #[doc(alias = "experimental_should_init")]
    pub fn is_chief(&self) -> bool {
        self.extended().independent().map_or_else(|| self.world().is_chief(), |of| of.worker == 0)
    }

    /// Whether this process writes checkpoints. With several workers, only the chief does.
    #[doc(alias = "tf.distribute.StrategyExtended.should_checkpoint")]
    pub fn should_checkpoint(&self) -> bool {
        self.is_chief()
    }

    /// Whether this process writes logs and figures of the training. With several workers, only the chief does.
    #[doc(alias = "tf.distribute.StrategyExtended.should_save_summary")]
    pub fn should_save_summary(&self) -> bool {
        self.is_chief()
    }

    /// Returns the group, if there are other workers and calls are made with them.
    pub(crate) fn group(&self) -> Option<&Group> {
        self.all_workers().filter(|_| !self.0.workers.is_settling() && !self.0.workers.has_left())
    }

    /// Returns the group, if there are other workers.
    pub(super) fn all_workers(&self) -> Option<&Group> {
        self.possible_group().filter(|group| group.world().is_multi_worker())
    }

    fn world_of_group(&self) -> World {
        self.extended().group().map_or(self.0.alone, Group::world)
    }

    /// Returns the group, if there are other workers or some may join.
    pub(crate) fn possible_group(&self) -> Option<&Group> {
        if self.0.has_group { self.extended().group() } else { None }
    }

    /// Returns the session of calls between steps.
    pub(crate) fn session_between_steps(&self) -> MutexGuard<'_, Option<Arc<Session>>> {
        lock(&self.0.workers.between)
    }

    /// Returns an error for a second concurrent step if there are several workers.
    pub(crate) fn one_step_at_a_time(&self) -> Result<Option<MutexGuard<'_, ()>>> {
        if self.group().is_none() {
            return Ok(None);
        }
        match self.0.workers.step.try_lock() {
            Ok(guard) => Ok(Some(guard)),
            Err(TryLockError::Poisoned(poisoned)) => Ok(Some(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => {
                let reason = "a run of this strategy is in progress, on another thread or around this merge function; over several \
                              workers one step goes after another, because each worker could take them in an order of its \
                              own";
                Err(Error::invalid("run", reason))
            }
        }
    }
}
