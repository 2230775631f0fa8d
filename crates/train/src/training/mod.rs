//! Training that resumes after a worker fails.
//!
//! `distribute_collective::recovery`, which is pure, decides after which failures to resume, in which rounds,
//! and from which worker's state.
//!
//! | module | contents |
//! |---|---|
//! | [`loss`] | the errors after which a training can resume |
//! | [`handover`] | the agreement on the position of the training, and the transfer of its state |

mod handover;
mod loss;

use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_cluster::{Deadline, Fingerprint, Operation, Stopwatch};
use distribute_collective::recovery::{Losses, Report};
use distribute_core::{Checkpoint, Strategy};
use distribute_log::told;
use handover::Handover;
use std::panic::Location;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The default time to wait for other workers.
const PATIENCE: Duration = Duration::from_secs(300);

/// A training over several workers that resumes after one of them fails.
///
/// When a worker fails, the others get an error that names it. In [`run`](Self::run) they then re-form the
/// group, together with the replacement that `distribute launch --max-restarts`, Slurm or Kubernetes starts.
/// The replacement builds its model, creates a `Training`, and receives the state of the most advanced worker.
/// All workers resume after the last update of the weights that this worker has completed. No example is
/// skipped or used twice, and the weights are bit-identical to those of a training without interruption.
///
/// Workers that join a training with fewer than the maximum (`MultiWorkerBuilder::min_workers`) are admitted
/// in the same way: the group is re-formed between two steps, and new workers receive the state. If a failed
/// worker is not replaced, such a training continues with fewer.
///
/// The state is that of the components of a [`Checkpoint`]: the strategy, the variables, optimizers and
/// datasets, and any other state that the program depends on.
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
///     .part("strategy", &*strategy)
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
/// - Between creating the strategy and `Training::new`, create models, optimizers and datasets, but make no
///   steps: a replacement does this alone, while the others wait. Restore from disk before `Training::new`,
///   because the state received from other workers takes precedence.
/// - The closure of [`run`](Self::run) depends on the state only: on the number of steps of the optimizer, and
///   on the epoch of the dataset. After a failure it is called again on all workers, and resumes from the
///   state. Everything since the last update, such as an evaluation between two epochs, is repeated.
/// - A custom loop calls [`recover`](Self::recover) with the error of a step.
///
/// # Differences from a training without interruption
///
/// Running statistics of batch-norm on the replicas of a replaced worker start from the mean of those of the
/// worker that sends its state. On the other workers, the interrupted step counts twice. Weights do not depend
/// on them. Metrics count an interrupted step twice if they were updated before the failure;
/// [`generation`](Self::generation) shows that this has happened.
pub struct Training<'a> {
    strategy: Strategy,
    parts: Checkpoint<'a>,
    patience: Duration,
    /// Whether this process has participated in the training.
    begun: AtomicBool,
    /// The generation in which this process last agreed with the others.
    agreed: AtomicU64,
    losses: Mutex<Losses>,
}

impl<'a> Training<'a> {
    /// Creates the training of these components.
    ///
    /// All workers make this call together. If the training is already running, this process receives the
    /// state of the others.
    ///
    /// # Errors
    /// Returns the errors of [`recover`](Self::recover).
    #[track_caller]
    pub fn new(parts: Checkpoint<'a>) -> Result<Self> {
        let strategy = parts.together("Training::new")?;
        let (begun, agreed, losses) = Default::default();
        let training = Self { strategy, parts, patience: PATIENCE, begun, agreed, losses };
        training.strategy.set_survives(true);
        match training.meet(PATIENCE, Location::caller()) {
            Ok(()) => {}
            Err(error) => training.recover(error)?,
        }
        Ok(training)
    }

    /// Sets the time to wait, after a worker fails, until a replacement has received the state; five minutes
    /// by default.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Returns the number of rendezvous: 1 at first, and one more each time the group was re-formed.
    pub fn generation(&self) -> u64 {
        self.strategy.generation()
    }

    /// Calls `train` until it succeeds on all workers. Calls it again each time another worker has failed or joined.
    ///
    /// A worker that [received a notice](crate::Preemption) while the others continue returns as soon as its
    /// closure does.
    ///
    /// Once `run` has succeeded, replacements are no longer admitted; a process started later gets [`Error::Join`].
    ///
    /// # Errors
    /// - `train` returns an error that is not the failure of another worker.
    /// - [`recover`](Self::recover) returns an error.
    #[track_caller]
    pub fn run<R>(&self, mut train: impl FnMut() -> Result<R>) -> Result<R> {
        let at = Location::caller();
        self.begin();
        loop {
            if let Some(result) = self.attempted(train(), at)? {
                return Ok(result);
            }
        }
    }

    /// Lets this process resume after failures of other workers from now on.
    pub(crate) fn begin(&self) {
        self.strategy.set_over(false);
        self.strategy.set_survives(true);
    }

    /// Returns the result of an attempt if all workers have finished, and `None` if the attempt has to be repeated.
    ///
    /// # Errors
    /// Returns the errors of [`recover`](Self::recover).
    pub(crate) fn attempted<R>(&self, made: Result<R>, at: &'static Location<'static>) -> Result<Option<R>> {
        let (result, error) = match made {
            Ok(result) => match self.end_at(at) {
                Ok(()) => return Ok(Some(result)),
                Err(error) => (Some(result), error),
            },
            Err(error) => (None, error),
        };
        match (self.recover(error), result) {
            // All workers have finished, but this worker missed it because of one that failed afterwards.
            (Err(error), Some(result)) if loss::is_end_of_all(&error) => Ok(Some(result)),
            (recovered, _) => recovered.map(|()| None),
        }
    }

    /// Waits until all workers have finished, so that none waits for one that has.
    ///
    /// [`run`](Self::run) calls this. A custom loop calls it as the last operation that is repeated after a failure.
    ///
    /// # Errors
    /// - [`Error::Collective`]: another worker fails, times out or makes another call.
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
        self.strategy.among_workers("Training::end", call, |mut calling| calling.barrier("the end"))?;
        self.strategy.set_over(true);
        self.strategy.set_survives(false);
        Ok(())
    }

    /// Re-forms the group, including new workers, if an error means that another worker failed, timed out or
    /// waits to participate.
    ///
    /// When this returns, all workers have the same state: that after the last update completed by the most
    /// advanced worker. Start new passes over datasets that were being iterated; they resume at the position
    /// of the training.
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
    /// - The same error: it is not a failure of another worker, for example an error in this worker's own data.
    /// - The same error: a worker has timed out a second time without an update in between.
    /// - The same error: the program has connected its workers (`MultiWorkerBuilder::group`, `on_threads`), so
    ///   only the program can do that again.
    /// - [`Error::Join`]: a worker does not join within the [patience](Self::patience).
    /// - [`Error::InvalidArgument`]: no worker has a complete state, because a step makes several updates and
    ///   only some of them were made.
    /// - The error of a component whose state cannot be saved or restored.
    #[track_caller]
    pub fn recover(&self, error: Error) -> Result<()> {
        let (at, watch) = (Location::caller(), Stopwatch::start());
        let mut deadline = Deadline::after(self.patience);
        let (mut lost, mut once_more) = (error, false);
        loop {
            if deadline.has_passed() || !self.goes_on(&lost) {
                return Err(lost);
            }
            let steps = self.strategy.steps();
            told(|| {
                if lost.is_waiting() {
                    tracing::info!("all workers meet again after step {steps}: others wait to take part");
                } else if self.has_left(&lost) {
                    tracing::info!("the others meet again after step {steps}: {lost}");
                } else {
                    tracing::warn!("the training stops after step {steps}: {lost}");
                }
            });
            match self.strategy.rejoin(deadline.remaining(), once_more) {
                Some(met) => met?,
                None => return Err(lost),
            }
            match self.meet(deadline.remaining(), at) {
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
        told(|| {
            tracing::info!("the training goes on after step {}, {seconds:.1} s later", self.strategy.steps())
        });
        Ok(())
    }

    /// Whether an error only means that workers have left after a notice.
    fn has_left(&self, error: &Error) -> bool {
        let (world, leaving) = (self.strategy.world(), self.strategy.notice().leaving());
        let of_leaving =
            |replica: &usize| leaving.iter().any(|worker| world.replicas_of(*worker).contains(replica));
        error.blame().is_some_and(|blame| blame.culprits.iter().all(of_leaving))
    }

    fn goes_on(&self, error: &Error) -> bool {
        loss::goes_on(error, self.strategy.world(), &mut lock(&self.losses), self.strategy.updates())
    }

    /// Agrees with the other workers of the rendezvous on the position of the training.
    fn meet(&self, patience: Duration, at: &'static Location<'static>) -> Result<()> {
        let was_begun = self.begun.load(Ordering::Relaxed);
        let rewind = || self.strategy.rewind_steps().and_then(|()| self.parts.rewind());
        let torn = if was_begun { rewind() } else { Ok(()) };
        match self.strategy.recovery() {
            Some(session) => {
                let torn = torn.err().map(|error| error.to_string());
                let agreed = self.agreed.load(Ordering::Relaxed);
                let Self { strategy, parts, begun, .. } = self;
                let handover = Handover { strategy, parts, begun, session, patience, at };
                let source = handover.make(Report {
                    begun: was_begun,
                    agreed,
                    numbers: self.strategy.numbers(),
                    torn,
                })?;
                if let Some(source) = source {
                    tracing::debug!(source, "the state is that of this worker");
                }
            }
            // This is the only worker, and uses its own state.
            None => {
                torn?;
                self.strategy.set_numbers(self.strategy.numbers());
            }
        }
        self.begun.store(true, Ordering::Relaxed);
        self.agreed.store(self.strategy.generation(), Ordering::Relaxed);
        self.strategy.settle();
        Ok(())
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
