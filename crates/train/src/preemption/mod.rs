//! Ending in order before the machine is taken away: a checkpoint within the grace period, by all workers after the same step.
//!
//! | file | what it is |
//! |---|---|
//! | `notice` | whether this process was told to end, and whether all workers know |
//! | `departure` | who ends then: pure |
//! | `sigterm` | SIGTERM as such a notice |

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

/// What Kubernetes waits between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(30);

/// Watches for the notice that a process of the training is about to end: SIGTERM, as schedulers send it some time before
/// SIGKILL.
///
/// A notice to one worker is one to all. It goes with the call by which the next step begins, so that all workers hear of it in
/// the same step, end their loops after that, and save one checkpoint. A training that is started again from it goes on as
/// if it had never ended. A worker that leaves in this way is no failed one.
///
/// Where not all workers are needed (`MultiWorkerBuilder::min_workers`), and there is a
/// [`Training`](crate::Training), only those leave that have got the notice: [`requested`](Self::requested) is true on them alone.
/// The others have the whole state, meet again at once and go on. But where too few would be left, or the first worker is told to
/// end, at whose address the others meet, all save and end.
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
/// As long as there is one, and its clones, SIGTERM does not end the process. Behind that it does again.
///
/// # When it breaks
///
/// A worker that is lost before all have heard fails the step of the others, as at any other time: they go on from the checkpoint of
/// before. The same is true where a worker is killed while the chief writes, for which the others wait as long as the strategy's
/// timeout. A step that takes longer than the grace period ends by SIGKILL.
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
    /// Watches for SIGTERM to this process from now on. All workers do.
    ///
    /// # Errors
    /// [`Error::Io`] where the system refuses the handler or the thread.
    #[doc(alias = "termination_watcher_fn")]
    pub fn watch(strategy: &Strategy) -> Result<Self> {
        let then = "this worker ends after this step or the next; all save a checkpoint and end, unless the others can go on";
        let sigterm = Arc::new(Sigterm::watch(strategy.notice().clone(), then)?);
        Ok(Self { strategy: strategy.clone(), grace: GRACE, _sigterm: sigterm })
    }

    /// How long the scheduler waits between the notice and the end of the process: 30 s by default, as Kubernetes does. Slurm's
    /// is `KillWait`, [`distribute launch`](https://docs.rs/distribute-launch)'s is `--grace`, which is 10 s by default.
    pub fn grace_period(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Gives the notice, as SIGTERM does: for one that comes in another way, such as from the metadata of a cloud's machine. Any
    /// thread may do it, on any worker.
    pub fn notify(&self) {
        self.strategy.notice().give();
    }

    /// Whether the training is to end here. The same on all workers, if all ask after the same step; of several, a notice counts
    /// once a step has begun after it.
    ///
    /// Where only those leave that have got the notice, it is true on these. From then on such a worker makes no calls with the others,
    /// and its steps are refused: it returns from the closure of [`Training::run`](crate::Training::run), and ends.
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

    /// Saves the checkpoint by which the training goes on later, as the next of a manager's folder, and says so. All workers
    /// make this call, behind [`requested`](Self::requested); the chief writes. Returns its path.
    ///
    /// `None` on a worker that leaves while the others go on: nothing is to be saved, since they have its whole state.
    ///
    /// # Errors
    /// Those of [`Checkpoint::save_to`]. [`Error::GracePeriod`] where the checkpoint is whole, but later than the grace period, so that
    /// a scheduler might have killed the process: nothing is to be done about this one, but for the next.
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
        // A process that is alone has nobody to tell.
        if !self.strategy.world().is_multi_worker() {
            notice.hear(std::iter::once(notice.is_given()), None);
        }
        notice.heard()
    }

    /// Who got a notice, in words.
    fn to(&self, workers: &[usize]) -> String {
        let each: Vec<_> = workers.iter().map(|worker| self.strategy.named(*worker)).collect();
        format!(" to {}", each.join(", "))
    }
}
