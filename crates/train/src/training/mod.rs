//! Training that resumes after a worker fails.
//!
//! `distribute_collective::recovery` makes the decisions, as pure functions: after which failures to resume, in which
//! rounds, and from which worker's state.
//!
//! | module | contents |
//! |---|---|
//! | [`drift`] | variables that have drifted, which are healed on request |
//! | [`failures`] | the errors after which training can resume |
//! | [`state_transfer`] | the agreement on the position of the training run, and the transfer of its state |

mod drift;
mod failures;
mod state_transfer;

use distribute_base::internal::lock;
use distribute_base::{Error, ErrorKind, Result};
use distribute_cluster::{Deadline, Fingerprint, Operation, Stopwatch};
use distribute_collective::recovery::{RecoveryLimit, Report};
use distribute_core::{Checkpoint, Strategy};
use distribute_decisions::internal::Departure;
use distribute_log::info_or_stderr;
use drift::{Healable, Healing};
use state_transfer::StateTransfer;
use std::panic::Location;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The default time to wait for other workers.
const PATIENCE: Duration = Duration::from_secs(300);

/// A training run on several workers that resumes after a worker fails.
///
/// When a worker fails, the others get an error that names it. In [`run`](Self::run) they then re-form the group,
/// together with the replacement that `distribute launch --max-restarts`, Slurm or Kubernetes starts. The replacement
/// builds its model, creates a `Training`, and receives the state of the worker that has made the most progress. All
/// workers resume after the last update of the weights that this worker has completed. No example is skipped or used
/// twice, and the weights are bit-identical to those of an uninterrupted run.
///
/// In elastic training (`MultiWorkerMirroredStrategyBuilder::min_workers`), there may be fewer workers than the
/// maximum. Workers that join later are admitted in the same way: the group is re-formed between two steps, and the
/// new workers receive the state. If a failed worker is not replaced, the others continue without it.
///
/// The state consists of the components of a [`Checkpoint`]: the strategy, the variables, optimizers and datasets,
/// and any other state that the program depends on.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{Device, Tensor};
/// use candle_nn::{Module, linear};
/// use distribute::{Checkpoint, Training};
///
/// # fn main() -> distribute::Result<()> {
/// let strategy = MultiWorkerMirroredStrategy::builder().replicas(2).build()?; // a single worker, here
/// let model = strategy.replicate(|vb| linear(2, 1, vb.pp("fc")))?;
/// let optimizer = Sgd::new(&model.variables, 0.1)?;
/// let points = Tensor::arange(0f32, 32., &Device::Cpu)?.sin()?.reshape((16, 2))?;
/// let batches = strategy.distribute_dataset(Dataset::from_slices(points)?.shuffle(16, 7).batch(4))?;
///
/// let parts = Checkpoint::new()
///     .part("strategy", &strategy)
///     .part("model", &model.variables)
///     .part("optimizer", &optimizer)
///     .part("batches", &batches);
/// let training = Training::new(parts)?;
/// training.run(|| {
///     // Use the position in the state, not local variables: a replacement starts here.
///     while batches.position().epoch < 3 {
///         for batch in &batches {
///             strategy.run((&model, batch?), |ctx, (linear, points)| {
///                 let loss = linear.forward(&points)?.sqr()?.mean_all()?;
///                 optimizer.minimize(ctx, loss, points.dim(0)?)
///             })?;
///         }
///     }
///     Ok(())
/// })?;
/// assert_eq!(optimizer.finished_steps(), 12);
/// # Ok(())
/// # }
/// ```
///
/// # Rules for programs
///
/// - After creating the strategy, create models, optimizers and datasets before calling `Training::new`, but do not run
///   any steps: a replacement does this alone while the others wait. Also restore from disk before `Training::new`,
///   because the state received from other workers takes precedence.
/// - The closure of [`run`](Self::run) must depend only on the state, such as the optimizer's number of steps and the
///   dataset's epoch. After a failure it is called again on all workers, and resumes from the state. Everything since
///   the last update is repeated, for example an evaluation between two epochs.
/// - A custom loop must call [`recover`](Self::recover) with the error of a failed step.
///
/// # Differences from a run without interruption
///
/// On the replicas of a replaced worker, the running statistics of batch norm start from the mean of those on the
/// worker that sent its state. On the other workers, the interrupted step counts twice in these statistics. Weights do
/// not depend on them. Metrics count an interrupted step twice if they were updated before the failure. A change of
/// [`generation`](Self::generation) indicates that a step was interrupted.
pub struct Training<'a> {
    strategy: Strategy,
    parts: Checkpoint<'a>,
    patience: Duration,
    /// Whether this process has already taken part in the training run.
    begun: AtomicBool,
    /// Whether this process was a spare, which has built its components later or earlier than the others.
    spare: bool,
    /// The last generation in which this process agreed with the other workers on the position.
    agreed: AtomicU64,
    failures: Mutex<RecoveryLimit>,
    healing: Mutex<Healing>,
    /// Whether variables of this process have drifted and it has not received the state of another worker since.
    /// Re-forming the group does not reset this.
    unsound: AtomicBool,
}

impl<'a> Training<'a> {
    /// Creates a training run with the given components. This call waits for other workers for at most five minutes.
    /// Use [`builder`](Self::builder) to change this time.
    ///
    /// All workers must make this call together. If training is already in progress, this process receives the state of
    /// the other workers. A spare waits in this call as long as it is not needed.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: two components belong to different strategies with several workers.
    /// - [`Error::UnusedSpare`]: the training has ended on all workers, and this process is a spare.
    /// - The errors of [`recover`](Self::recover).
    #[track_caller]
    pub fn new(parts: Checkpoint<'a>) -> Result<Self> {
        Self::builder(parts).build()
    }

    /// Returns a builder of a training run with the given components.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use std::time::Duration;
    /// let strategy = MirroredStrategy::cpus(2)?;
    /// let state = Checkpoint::new().part("strategy", &strategy);
    /// let training = Training::builder(state).patience(Duration::from_secs(30)).build()?;
    /// assert_eq!(training.generation(), 1);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    pub fn builder(parts: Checkpoint<'a>) -> TrainingBuilder<'a> {
        TrainingBuilder { parts, patience: PATIENCE, heals_drift: false }
    }

    /// Returns the number of times that the group has formed: 1 at first, and one more each time it re-forms.
    pub fn generation(&self) -> u64 {
        self.strategy.generation()
    }

    /// Calls `train` until it has succeeded on all workers, and returns the last result. Calls `train` again each time
    /// another worker has failed or joined.
    ///
    /// If this worker [received a notice](crate::Preemption) and the others continue, this returns as soon as `train`
    /// returns.
    ///
    /// After `run` has succeeded, no more replacements are admitted. A process that is started later gets
    /// [`Error::Join`].
    ///
    /// # Errors
    /// - `train` returns an error that is not the failure of another worker.
    /// - [`recover`](Self::recover) returns an error.
    #[track_caller]
    pub fn run<R>(&self, mut train: impl FnMut() -> Result<R>) -> Result<R> {
        let at = Location::caller();
        self.begin();
        loop {
            if let Some(result) = self.finish_attempt(train(), at)? {
                return Ok(result);
            }
        }
    }

    /// Makes failures of other workers no longer end this process, so that it can resume.
    pub(crate) fn begin(&self) {
        self.strategy.set_finished(false);
        self.strategy.set_survives(true);
    }

    /// Returns the result of an attempt if all workers have finished, or if this worker leaves after a notice.
    /// Otherwise recovers from the failure, and returns `None`: the attempt must be repeated.
    ///
    /// # Errors
    /// Returns the errors of [`recover`](Self::recover).
    pub(crate) fn finish_attempt<R>(
        &self,
        made: Result<R>,
        at: &'static Location<'static>,
    ) -> Result<Option<R>> {
        let (result, error) = match made {
            Ok(result) => match self.end_at(at) {
                Ok(()) => return Ok(Some(result)),
                Err(error) => (Some(result), error),
            },
            Err(error) => (None, error),
        };
        match (self.recover(error), result) {
            // All workers have finished, but this worker missed it because of one that failed afterwards.
            (Err(error), Some(result)) if error.has_training_ended() => Ok(Some(result)),
            (recovered, _) => recovered.map(|()| None),
        }
    }

    /// Waits until all workers have finished, so that no worker waits for one that has already exited. A worker that
    /// leaves after a notice, while the others continue, does not wait.
    ///
    /// [`run`](Self::run) calls this method. A custom loop must call it last, inside the part that is repeated after a
    /// failure.
    ///
    /// # Errors
    /// - [`Error::Collective`]: another worker fails, times out or makes a different call.
    #[track_caller]
    pub fn end(&self) -> Result<()> {
        self.end_at(Location::caller())
    }

    fn end_at(&self, at: &'static Location<'static>) -> Result<()> {
        // The others continue.
        if self.strategy.has_left() {
            return Ok(());
        }
        let call = || Fingerprint::new(Operation::Barrier, "the end of the training", at);
        self.strategy.worker_call("Training::end", call, |mut calling| calling.barrier("the end"))?;
        // If all exit because of a notice, the training has not ended. Spares wait for its next start.
        let is_interrupted =
            self.strategy.notice().decision().is_some_and(|decision| decision.departure == Departure::All);
        self.strategy.set_finished(!is_interrupted || self.strategy.extended().spares() == 0);
        self.strategy.set_survives(false);
        Ok(())
    }

    /// Re-forms the group if `error` means that another worker failed or timed out, that data was corrupted in
    /// transfer, or that workers are waiting to join. New workers are included. If `error` is [`Error::Drift`], the
    /// group stays, and drift is [healed](TrainingBuilder::heal_drift) on request.
    ///
    /// After this has returned, all workers have the same state: the state after the last update that the most advanced
    /// worker has completed. Call `iter` again on datasets that were being iterated over. The new iterators continue at
    /// the position of the training run.
    ///
    /// ```no_run
    /// # use distribute::prelude::*;
    /// # use distribute::Training;
    /// # fn program(training: &Training<'_>, epoch: impl Fn() -> distribute::Result<()>) -> distribute::Result<()> {
    /// loop {
    ///     match epoch().and_then(|()| training.end()) {
    ///         Ok(()) => break Ok(()),
    ///         Err(error) => training.recover(error)?,
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// - `error` itself: it was not caused by the failure of another worker but, for example, by this worker's own
    ///   data.
    /// - `error` itself: a worker timed out a second time, with no update in between, or data was corrupted a second
    ///   time in the same step.
    /// - `error` itself: variables have drifted, and healing is not enabled, each worker differs in some variable, or
    ///   they drifted a second time before the same step or an earlier one.
    /// - `error` itself: the program connected the workers (with `on_threads`, or with
    ///   `MultiWorkerMirroredStrategyBuilder::group`), so only the program can connect them again.
    /// - [`Error::UnusedSpare`]: a spare has replaced this process, and the training has ended.
    /// - [`Error::Join`]: a worker does not join within the [patience](TrainingBuilder::patience).
    /// - [`Error::Failed`] of the kind `RestoreNeeded`: no worker has a complete state, because a step makes several
    ///   updates and only some of them were applied, or because the variables of all remaining workers have drifted. Or
    ///   a shard of an optimizer's state was lost together with its copy.
    /// - The error of a component whose state cannot be saved or restored.
    #[track_caller]
    pub fn recover(&self, error: Error) -> Result<()> {
        let (at, watch) = (Location::caller(), Stopwatch::start());
        let mut deadline = Deadline::after(self.patience);
        let (mut lost, mut once_more) = (error, false);
        let spares = self.strategy.extended().spares();
        loop {
            if deadline.has_passed() {
                return Err(lost);
            }
            let healable = lock(&self.healing).accept(&lost, self.strategy.world());
            if let Some(healable) = healable {
                match self.heal(&healable, deadline.remaining(), at) {
                    Ok(()) => break,
                    // A state that is spread over the workers cannot be received from one of them.
                    Err(error) if error.kind() == ErrorKind::RestoreNeeded && error.drift().is_none() => {
                        return Err(lost);
                    }
                    Err(error) => {
                        lost = error;
                        continue;
                    }
                }
            }
            if !self.can_continue(&lost) {
                return Err(lost);
            }
            let steps = self.strategy.steps();
            info_or_stderr(|| {
                if let Some(remedy) = self.strategy.straggler_remedy() {
                    tracing::info!("after step {steps}, {remedy}");
                } else if lost.is_waiting() {
                    tracing::info!("the group re-forms after step {steps}: new workers wait to join");
                } else if self.has_left(&lost) {
                    tracing::info!("the others re-form the group after step {steps}: {lost}");
                } else {
                    tracing::warn!("the training stops after step {steps}: {lost}");
                }
            });
            let lost_workers = failures::lost_workers(&lost, self.strategy.world());
            match self.strategy.rejoin(deadline.remaining(), &lost_workers, once_more) {
                Some(met) => met.map_err(|error| error.with_spares(spares, "Training::recover"))?,
                None => return Err(lost),
            }
            lock(&self.healing).forget();
            if spares > 0 {
                // The others may have replaced this worker by a spare, and it has waited as a spare since then.
                deadline = Deadline::after(self.patience);
            }
            match self.synchronize(deadline.remaining(), at) {
                Ok(()) => break,
                // Another worker failed during the rendezvous.
                Err(error) => lost = error,
            }
            once_more = true;
            if self.strategy.extended().elastic().is_some() {
                // The new workers may have caused the failure: the others continue without them.
                deadline = Deadline::after(self.patience);
            }
        }
        let seconds = watch.seconds();
        info_or_stderr(|| {
            tracing::info!("the training resumes after step {}, {seconds:.1} s later", self.strategy.steps())
        });
        Ok(())
    }

    /// Waits until a worker is lost, in whose place this spare takes part. Waits for at most the patience while the
    /// first worker cannot be reached. Returns [`Error::UnusedSpare`] if the training ends first.
    fn wait_as_spare(&self) -> Result<()> {
        let met = self.strategy.rejoin(self.patience, &[], false).unwrap_or(Ok(()));
        met.map_err(|error| error.with_spares(self.strategy.extended().spares(), "Training::new"))
    }

    /// Transfers the state of a worker without drift to the workers with drifted variables. The group stays the same.
    fn heal(&self, drift: &Healable, patience: Duration, at: &'static Location<'static>) -> Result<()> {
        drift.warn(&self.strategy);
        if drift.workers.contains(&self.strategy.world().worker()) {
            self.unsound.store(true, Ordering::Relaxed);
        }
        // As after a rendezvous: a state is saved and restored without calls of all workers.
        self.strategy.begin_catching_up();
        let transferred = self.synchronize(patience, at);
        // Also after an error: no rendezvous may follow.
        self.strategy.finish_catching_up();
        transferred?;
        self.strategy.compare_variables(at)
    }

    /// Returns `true` if only workers that have left after a notice caused the error.
    fn has_left(&self, error: &Error) -> bool {
        let (world, leaving) = (self.strategy.world(), self.strategy.notice().leaving());
        let of_leaving =
            |replica: &usize| leaving.iter().any(|worker| world.replicas_of(*worker).contains(replica));
        error.blame().is_some_and(|blame| blame.culprits.iter().all(of_leaving))
    }

    fn can_continue(&self, error: &Error) -> bool {
        failures::can_continue(
            error,
            self.strategy.world(),
            &mut lock(&self.failures),
            self.strategy.updates(),
        )
    }

    /// Agrees with the other workers of the rendezvous on the position of the training run, and receives the state if
    /// necessary. If this process has taken part in training, its state is first rewound to the last update.
    fn synchronize(&self, patience: Duration, at: &'static Location<'static>) -> Result<()> {
        let was_begun = self.begun.load(Ordering::Relaxed);
        let rewind = || self.strategy.rewind_steps().and_then(|()| self.parts.rewind());
        let torn =
            if was_begun { rewind().and_then(|()| drift::require_sound(&self.unsound)) } else { Ok(()) };
        match self.strategy.recovery() {
            Some(session) => {
                let torn = torn.err().map(|error| error.to_string());
                let agreed = self.agreed.load(Ordering::Relaxed);
                let heals_drift = lock(&self.healing).is_enabled;
                let Self { strategy, parts, begun, unsound, .. } = self;
                let transfer =
                    StateTransfer { strategy, parts, begun, unsound, heals_drift, session, patience, at };
                let share = self.strategy.take_share();
                let source = transfer.run(Report {
                    share,
                    begun: was_begun,
                    spare: self.spare && !was_begun,
                    agreed,
                    counters: self.strategy.counters(),
                    torn,
                })?;
                if let Some(source) = source {
                    tracing::debug!(source, "the state is that of this worker");
                }
            }
            // This is the only worker, and uses its own state.
            None => {
                torn?;
                self.strategy.set_counters(self.strategy.counters());
            }
        }
        self.begun.store(true, Ordering::Relaxed);
        self.agreed.store(self.strategy.generation(), Ordering::Relaxed);
        self.strategy.finish_catching_up();
        Ok(())
    }
}

/// A builder of a [`Training`]. See [`Training::builder`].
#[must_use = "a builder does nothing until `build` is called"]
#[derive(Debug)]
pub struct TrainingBuilder<'a> {
    parts: Checkpoint<'a>,
    patience: Duration,
    heals_drift: bool,
}

impl<'a> TrainingBuilder<'a> {
    /// Sets the maximum time to wait for other workers; five minutes by default. This limits [`build`](Self::build)
    /// and, after a failure, the time until a replacement has received the state.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Heals variables that have [drifted apart](Error::Drift) instead of returning the error. If each of them has the
    /// same value on a majority of the workers, the other workers receive the complete state of a worker that differs
    /// in none, a warning names variables and workers, and the training continues. This needs three workers. The
    /// setting must be the same on all workers; otherwise [`build`](Self::build) returns an error that names a worker
    /// with a different one.
    ///
    /// A worker may have computed gradients with a wrong value before the drift was detected. With
    /// `check_drift_every(1)` and without local steps there is no such step, and the weights are bit-identical to those
    /// of an undisturbed run. State that is spread over the workers without copies, such as that of
    /// `Optimizer::shard_state`, cannot be received from other workers, so the error is returned.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// let strategy = MirroredStrategy::cpus(2)?;
    /// let state = Checkpoint::new().part("strategy", &strategy);
    /// let training = Training::builder(state).heal_drift().build()?;
    /// # Ok::<(), distribute::Error>(())
    /// ```
    pub fn heal_drift(mut self) -> Self {
        self.heals_drift = true;
        self
    }

    /// Creates the training run, together with all other workers. See [`Training::new`].
    ///
    /// # Errors
    /// Returns the errors of [`Training::new`].
    #[track_caller]
    pub fn build(self) -> Result<Training<'a>> {
        let Self { parts, patience, heals_drift } = self;
        let strategy = parts.joint_strategy("Training::new")?;
        let (begun, agreed, failures, unsound) = Default::default();
        let spare = strategy.is_spare();
        let healing = Mutex::new(Healing::new(heals_drift));
        let training =
            Training { strategy, parts, patience, begun, spare, agreed, failures, healing, unsound };
        training.strategy.set_survives(true);
        if spare {
            training.wait_as_spare()?;
        }
        match training.synchronize(patience, Location::caller()) {
            Ok(()) => {}
            Err(error) => training.recover(error)?,
        }
        Ok(training)
    }
}

impl Drop for Training<'_> {
    fn drop(&mut self) {
        self.strategy.set_survives(false);
    }
}

impl std::fmt::Debug for Training<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Training({:?})", self.parts)
    }
}
