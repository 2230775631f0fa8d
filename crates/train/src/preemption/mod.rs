//! Graceful shutdown on preemption: all workers save a checkpoint after the same step, within the grace period.
//!
//! `distribute-core` stores the notice itself, and `distribute-decisions` decides which workers exit after it. The
//! module `sigterm` triggers the notice on SIGTERM.

mod sigterm;

pub(crate) use sigterm::Sigterm;

use distribute_base::{Error, Result};
use distribute_checkpoint::CheckpointManager;
use distribute_cluster::deadline::Stopwatch;
use distribute_core::{Checkpoint, Strategy};
use distribute_decisions::internal::{Departure, NoticeDecision};
use distribute_log::info_or_stderr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The default grace period: the time between SIGTERM and SIGKILL on Kubernetes.
const GRACE: Duration = Duration::from_secs(30);

/// A watch for a notice that a process of the training run will be killed soon.
///
/// The notice is SIGTERM, which schedulers send some time before SIGKILL. A notice to one worker applies to all
/// workers. It is sent with the call at the start of the next step, so all workers receive it in the same step. After
/// that step, they leave their loops and save a single checkpoint. A training run that is restarted from this
/// checkpoint continues as if it had not been interrupted. A worker that exits in this way is not considered failed.
///
/// In elastic training (`MultiWorkerMirroredStrategyBuilder::min_workers`) with a [`Training`](crate::Training), only
/// the workers that received the notice leave: [`requested`](Self::requested) returns `true` only on these. The others
/// have the complete state, so they re-form the group immediately and continue. All workers save and exit if too few
/// would remain. They also do so if the first worker received the notice, because the rendezvous takes place at its
/// address.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_nn::Init;
/// use distribute::{Checkpoint, checkpoint::CheckpointManager, training::Preemption};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let folder = folder.path();
/// let strategy = MirroredStrategy::cpus(2)?;
/// let model = strategy.replicate(|vb| vb.get_with_hints(2, "w", Init::Const(1.)))?;
/// let optimizer = Sgd::new(&model.variables, 0.1)?;
/// let training = Checkpoint::new()
///     .part("model", &model.variables)
///     .part("optimizer", &optimizer)
///     .part("steps", &strategy);
///
/// let manager = CheckpointManager::new(folder)?;
/// training.restore_latest(&manager)?;
/// let preemption = Preemption::watch(&strategy)?;
/// while strategy.steps() < 1000 {
///     strategy.run(&model, |ctx, w| optimizer.minimize(ctx, w.sqr()?.sum_all()?, 1))?;
/// #   if strategy.steps() == 7 { preemption.notify(); }
///     if preemption.requested() {
///         preemption.save(&training, &manager)?;
///         break;
///     }
/// }
/// # assert_eq!(strategy.steps(), 7);
/// # assert!(manager.latest()?.is_some());
/// # Ok::<(), distribute::Error>(())
/// ```
///
/// While a `Preemption` or one of its clones exists, SIGTERM does not kill the process. After the last one is dropped,
/// SIGTERM kills the process again.
///
/// # Failures
///
/// If a worker fails before all workers have received the notice, the step fails on the others as usual, and they
/// resume from the previous checkpoint. If the chief is killed while it writes the checkpoint, they also resume from
/// the previous one. If another worker is killed then, [`save`](Self::save) returns an error, but the chief usually
/// completes the checkpoint. If a step takes longer than the grace period, SIGKILL interrupts it.
#[doc(alias = "tf.distribute.experimental.PreemptionCheckpointHandler")]
#[doc(alias = "PreemptionCheckpointHandler")]
#[doc(alias = "tf.distribute.experimental.TerminationConfig")]
#[doc(alias = "TerminationConfig")]
#[doc(alias = "tf.distribute.experimental.PreemptionWatcher")]
#[doc(alias = "PreemptionWatcher")]
#[derive(Clone, Debug)]
pub struct Preemption {
    strategy: Strategy,
    grace: Duration,
    _sigterm: Arc<Sigterm>,
}

impl Preemption {
    /// Starts watching for SIGTERM in this process. All workers must call this.
    ///
    /// # Errors
    /// - [`Error::Io`]: the operating system cannot install the handler or start the thread.
    #[doc(alias = "termination_watcher_fn")]
    pub fn watch(strategy: &Strategy) -> Result<Self> {
        let then = "this worker exits after this step or the next; all workers save a checkpoint and exit, unless the \
                    others can continue";
        let sigterm = Arc::new(Sigterm::watch(strategy.notice().clone(), then)?);
        Ok(Self { strategy: strategy.clone(), grace: GRACE, _sigterm: sigterm })
    }

    /// Sets the grace period, which is the time between the notice and SIGKILL. It is 30 s by default, as on
    /// Kubernetes.
    ///
    /// On Slurm this is `KillWait`. With [`distribute launch`](https://docs.rs/distribute-launch) it is the value
    /// of `--grace`, 10 s by default.
    pub fn grace_period(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Triggers the notice, as SIGTERM does. Use this if the notice arrives in a different way, for example from the
    /// metadata service of a cloud. It may be called from any thread on any worker.
    pub fn notify(&self) {
        self.strategy.notice().receive();
    }

    /// Returns `true` if this worker must stop training now. With several workers, a notice takes effect only after the
    /// next step has begun.
    ///
    /// All workers must call this after the same step. If all of them exit, the result is the same on all. If only the
    /// workers that received the notice leave, the result is `true` only on these. Such a worker takes part in no
    /// further calls, and its further steps return an error. It must return from the closure of
    /// [`Training::run`](crate::Training::run) and exit.
    pub fn requested(&self) -> bool {
        let Some(decision) = self.decision() else { return false };
        let strategy = &self.strategy;
        if strategy.has_left() || decision.departure == Departure::All {
            return true;
        }
        let world = strategy.world();
        let leaves = decision.workers.contains(&world.worker());
        if leaves {
            strategy.leave();
            let (step, others) = (strategy.steps(), world.workers() - decision.workers.len());
            let others = if others == 1 {
                "the other one continues".into()
            } else {
                format!("the other {others} continue")
            };
            info_or_stderr(|| {
                tracing::info!("this worker leaves after step {step}, because of its notice; {others}")
            });
        }
        leaves
    }

    /// Saves a checkpoint from which training can resume, in the manager's folder.
    ///
    /// All workers on which [`requested`](Self::requested) has returned `true` must make this call. Only the chief
    /// writes the checkpoint, and logs its path. Returns the path of the checkpoint. On a worker that leaves while the
    /// others continue, saves nothing and returns `None`, because the others have its complete state.
    ///
    /// # Errors
    /// - [`Error::GracePeriod`]: the checkpoint was complete only after the grace period, which begins with the notice.
    ///   The checkpoint is valid, but the scheduler may kill the process before another one is written.
    /// - The errors of [`Checkpoint::save_to`].
    #[track_caller]
    pub fn save(&self, training: &Checkpoint<'_>, manager: &CheckpointManager) -> Result<Option<PathBuf>> {
        if self.strategy.has_left() {
            return Ok(None);
        }
        let decision = self.decision();
        let since = decision.as_ref().map_or_else(Stopwatch::start, |decision| decision.since);
        let path = training.save_to(manager)?;
        let (took, step) = (since.elapsed(), self.strategy.steps());
        if took > self.grace {
            return Err(Error::GracePeriod { step, saved: path, took, grace: self.grace });
        }
        if self.strategy.is_chief() {
            let to = decision.map(|decision| self.describe_workers(&decision.workers)).unwrap_or_default();
            info_or_stderr(|| {
                let (path, took, grace) = (path.display(), took.as_secs_f64(), self.grace.as_secs_f64());
                tracing::info!(
                    "saved {path} after step {step}, {took:.1} s of {grace:.0} s after the notice{to}"
                );
            });
        }
        Ok(Some(path))
    }

    fn decision(&self) -> Option<NoticeDecision> {
        let notice = self.strategy.notice();
        // A single worker has no others to notify.
        if !self.strategy.world().is_multi_worker() {
            notice.record_decision(std::iter::once(notice.is_received()), None);
        }
        notice.decision()
    }

    /// Returns the end of a log message, which names the given workers.
    fn describe_workers(&self, workers: &[usize]) -> String {
        let each: Vec<_> = workers.iter().map(|worker| self.strategy.describe_worker(*worker)).collect();
        format!(" to {}", each.join(", "))
    }
}
