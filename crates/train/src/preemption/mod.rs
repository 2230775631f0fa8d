//! Graceful shutdown on preemption: all workers save one checkpoint after the same step, within the grace period.
//!
//! `distribute-core` has the notice itself (`strategy/notice.rs`), and decides which workers exit after it
//! (`strategy/departure.rs`). `sigterm.rs` makes SIGTERM such a notice.

mod sigterm;

pub(crate) use sigterm::Sigterm;

use distribute_base::{Error, Result};
use distribute_checkpoint::CheckpointManager;
use distribute_cluster::deadline::Stopwatch;
use distribute_core::internal::{Departure, Heard};
use distribute_core::{Checkpoint, Strategy};
use distribute_log::told;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The time between SIGTERM and SIGKILL on Kubernetes.
const GRACE: Duration = Duration::from_secs(30);

/// A watch for the notice that a process of the training will be killed soon.
///
/// The notice is SIGTERM, which schedulers send some time before SIGKILL. A notice to one worker counts for
/// all. The call at the start of the next step carries it, so all workers receive it in the same step. After
/// that step, they leave their loops and save one checkpoint. A training that is restarted from this
/// checkpoint resumes as if it had never stopped. A worker that exits in this way does not count as failed.
///
/// If fewer workers are enough (`MultiWorkerBuilder::min_workers`) and there is a
/// [`Training`](crate::Training), only the workers that received the notice leave:
/// [`requested`](Self::requested) is true on these alone. The others have the complete state, re-form the
/// group immediately and continue. All workers save and exit if too few would remain, or if the first worker
/// leaves, whose address is used for the rendezvous.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_nn::Init;
/// use distribute::{Checkpoint, CheckpointManager, Preemption};
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
/// SIGTERM does not kill the process while a `Preemption` or one of its clones exists. Afterwards it does again.
///
/// # Failures
///
/// If a worker fails before all have received the notice, the step of the others fails as usual, and they
/// resume from the previous checkpoint. The same happens if a worker is killed while the chief writes; the
/// others wait for the chief up to the strategy's timeout. A step that takes longer than the grace period is
/// ended by SIGKILL.
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
    /// Starts watching for SIGTERM to this process. All workers have to call this.
    ///
    /// # Errors
    /// - [`Error::Io`]: the system refuses the handler or the thread.
    #[doc(alias = "termination_watcher_fn")]
    pub fn watch(strategy: &Strategy) -> Result<Self> {
        let then = "this worker ends after this step or the next; all save a checkpoint and end, unless the others can go on";
        let sigterm = Arc::new(Sigterm::watch(strategy.notice().clone(), then)?);
        Ok(Self { strategy: strategy.clone(), grace: GRACE, _sigterm: sigterm })
    }

    /// Sets the time that the scheduler waits between the notice and SIGKILL: by default 30 s, as on Kubernetes.
    ///
    /// On Slurm it is `KillWait`. For [`distribute launch`](https://docs.rs/distribute-launch) it is
    /// `--grace`, 10 s by default.
    pub fn grace_period(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Triggers the notice, like SIGTERM. Use this if the notice arrives in another way, such as from the
    /// metadata service of a cloud. Any thread on any worker may call it.
    pub fn notify(&self) {
        self.strategy.notice().give();
    }

    /// Whether the training has to stop here.
    ///
    /// The result is the same on all workers if all ask after the same step. With several workers, a notice
    /// takes effect once a step has begun after it.
    ///
    /// If only the workers that received the notice leave, the result is true on these. From then on such a
    /// worker makes no calls with the others, and its steps are refused. It has to return from the closure of
    /// [`Training::run`](crate::Training::run), and exit.
    pub fn requested(&self) -> bool {
        let Some(heard) = self.heard() else { return false };
        let strategy = &self.strategy;
        if strategy.has_left() || heard.departure == Departure::All {
            return true;
        }
        let world = strategy.world();
        let leaves = heard.workers.contains(&world.worker());
        if leaves {
            strategy.leave();
            let (step, others) = (strategy.steps(), world.workers() - heard.workers.len());
            let others =
                if others == 1 { "the other one goes".into() } else { format!("the other {others} go") };
            told(|| tracing::info!("this worker leaves after step {step}, as it was told to; {others} on"));
        }
        leaves
    }

    /// Saves the checkpoint from which the training resumes, as the next one in the manager's folder, and logs it.
    ///
    /// All workers make this call after [`requested`](Self::requested); the chief writes. Returns the
    /// checkpoint's path, or `None` on a worker that leaves while the others continue: they have its complete
    /// state.
    ///
    /// # Errors
    /// - [`Error::GracePeriod`]: the checkpoint is complete, but took longer than the grace period. This
    ///   checkpoint is valid, but the scheduler may kill the process during the next one.
    /// - The errors of [`Checkpoint::save_to`].
    #[track_caller]
    pub fn save(&self, training: &Checkpoint<'_>, manager: &CheckpointManager) -> Result<Option<PathBuf>> {
        if self.strategy.has_left() {
            return Ok(None);
        }
        let heard = self.heard();
        let since = heard.as_ref().map_or_else(Stopwatch::start, |heard| heard.since);
        let path = training.save_to(manager)?;
        let (took, step) = (since.elapsed(), self.strategy.steps());
        if took > self.grace {
            return Err(Error::GracePeriod { step, saved: path, took, grace: self.grace });
        }
        if self.strategy.should_save_summary() {
            let to = heard.map(|heard| self.to(&heard.workers)).unwrap_or_default();
            told(|| {
                let (path, took, grace) = (path.display(), took.as_secs_f64(), self.grace.as_secs_f64());
                tracing::info!(
                    "saved {path} after step {step}, {took:.1} s of {grace:.0} s after the notice{to}"
                );
            });
        }
        Ok(Some(path))
    }

    fn heard(&self) -> Option<Heard> {
        let notice = self.strategy.notice();
        // A single worker has no others to notify.
        if !self.strategy.world().is_multi_worker() {
            notice.hear(std::iter::once(notice.is_given()), None);
        }
        notice.heard()
    }

    /// Returns the workers that received a notice, as text.
    fn to(&self, workers: &[usize]) -> String {
        let each: Vec<_> = workers.iter().map(|worker| self.strategy.named(*worker)).collect();
        format!(" to {}", each.join(", "))
    }
}
