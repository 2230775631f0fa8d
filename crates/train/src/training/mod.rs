//! A training that goes on when a worker is lost.
//!
//! After which losses, in which rounds and from whose state is decided by `distribute_collective::recovery`, which is pure.
//!
//! | module | what it is |
//! |---|---|
//! | [`loss`] | after which errors a training can go on |
//! | [`handover`] | how the workers agree on where it stands, and how a state is handed over |

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

/// How long to wait for the others, unless that is said.
const PATIENCE: Duration = Duration::from_secs(300);

/// A training over several workers that goes on when one of them is lost.
///
/// When a worker dies, the others get an error that names it. In [`run`](Self::run) they then meet again, together with the
/// process that is started in its place, by `distribute launch --max-restarts`, Slurm or Kubernetes. It builds its model, makes a
/// `Training` of it, and takes over the state of the worker that is furthest; all go on behind the last update of the weights
/// that this one has made. No example is lost or used twice, and the weights become those of a training without interruption,
/// bit for bit.
///
/// Workers that come to a training of fewer than there may be (`MultiWorkerBuilder::min_workers`) are let in in the
/// same way: all meet again between two steps, and those that have come take over the state. A training goes on with fewer where
/// nobody takes the place of one that was lost.
///
/// The state is that of the parts of a [`Checkpoint`]: the strategy, the variables, optimizers and datasets, and whatever else a
/// program goes by.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{Device, Tensor};
/// use candle_nn::{Module, linear};
/// use distribute::{Checkpoint, Training};
///
/// # fn main() -> distribute::Result<()> {
/// let strategy = MultiWorkerMirroredStrategy::builder().replicas(2).build()?; // alone, here
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
///     // By the state, and not by variables of its own: this is where a worker begins that takes another's place.
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
/// # What a program does
///
/// - Between `Training::new` and the strategy, it makes models, optimizers and datasets, and no steps: a process that takes
///   another's place does that alone, while the others wait. A restore from disk is done before `Training::new`, too; what is
///   taken over from the others counts more.
/// - The closure of [`run`](Self::run) goes by the state alone: how many steps the optimizer has made, in which epoch the dataset
///   is. After a loss it is called again, on all workers, and goes on from there. Whatever it did since the last update, such as
///   an evaluation between two epochs, it does again.
/// - Who has a loop of their own calls [`recover`](Self::recover) with the error of their steps.
///
/// # What is not as without an interruption
///
/// Running statistics of batch-norm on the replicas of a worker that was lost begin with the mean of those of the worker that gives
/// its state, and on others the step that was interrupted has counted twice: weights don't depend on them. Metrics that have
/// counted a step which is made again have counted it twice; [`generation`](Self::generation) tells that it has happened.
pub struct Training<'a> {
    strategy: Strategy,
    parts: Checkpoint<'a>,
    patience: Duration,
    /// Whether this process has been part of the training.
    begun: AtomicBool,
    /// The generation in which it has agreed with the others last.
    agreed: AtomicU64,
    losses: Mutex<Losses>,
}

impl<'a> Training<'a> {
    /// The training with these parts. All workers make this call together; in a training that goes on, this process takes over
    /// the state of the others.
    ///
    /// # Errors
    /// As [`recover`](Self::recover).
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

    /// How long to wait, when a worker is lost, until another takes its place and has taken over the state; five minutes by
    /// default.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// How often the workers have met: 1 at first, and one more each time they have met again after one was lost.
    pub fn generation(&self) -> u64 {
        self.strategy.generation()
    }

    /// Calls `train` until it succeeds on all workers, again each time that another worker was lost or has come.
    ///
    /// A worker that [was told to end](crate::Preemption) while the others go on returns as soon as its closure does.
    ///
    /// When it has, nobody is waited for any more: a process that is started in the place of a worker which was lost behind that is told
    /// so by those that are left ([`Error::Join`]).
    ///
    /// # Errors
    /// Its error, where that is no loss of another worker; those of [`recover`](Self::recover).
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

    /// From now on this process goes on where a worker is lost.
    pub(crate) fn begin(&self) {
        self.strategy.set_over(false);
        self.strategy.set_survives(true);
    }

    /// What an attempt has come to: its result, if all workers are through, or nothing where it is to be made again.
    ///
    /// # Errors
    /// Those of [`recover`](Self::recover).
    pub(crate) fn attempted<R>(&self, made: Result<R>, at: &'static Location<'static>) -> Result<Option<R>> {
        let (result, error) = match made {
            Ok(result) => match self.end_at(at) {
                Ok(()) => return Ok(Some(result)),
                Err(error) => (Some(result), error),
            },
            Err(error) => (None, error),
        };
        match (self.recover(error), result) {
            // The others are through, as this worker is, but it has not heard it of one that was lost after that.
            (Err(error), Some(result)) if loss::is_end_of_all(&error) => Ok(Some(result)),
            (recovered, _) => recovered.map(|()| None),
        }
    }

    /// Waits until all workers are through, so that nobody is waited for that is. [`run`](Self::run) does it; in a loop of one's own it
    /// is the last of what is done again after a loss.
    ///
    /// # Errors
    /// [`Error::Collective`] if another worker is lost, late or makes another call.
    #[track_caller]
    pub fn end(&self) -> Result<()> {
        self.end_at(Location::caller())
    }

    fn end_at(&self, at: &'static Location<'static>) -> Result<()> {
        // The others go on.
        if self.strategy.has_left() {
            return Ok(());
        }
        let call = || Fingerprint::new(Operation::Barrier, "the end of the training", at);
        self.strategy.among_workers("Training::end", call, |mut calling| calling.barrier("the end"))?;
        self.strategy.set_over(true);
        self.strategy.set_survives(false);
        Ok(())
    }

    /// If an error tells that another worker was lost, is late, has failed or waits to take part, meets all others again, and who has
    /// come since. When this returns, all workers have one state: that after the last finished update of the furthest worker.
    /// Passes over datasets that are under way have to be begun anew: the next ones go on where the training stands.
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
    /// The error itself, if it is another one, as of this worker's own data, or if somebody is late a second time with no update
    /// in between. [`Error::Join`] if a worker has not come within the [patience](Self::patience); [`Error::InvalidArgument`] where no worker has a whole state, since a step makes several
    /// updates and not all of them were made; that of a part whose state cannot be given or taken. The error itself, too, where the
    /// program has linked its workers, which only it can do again (`MultiWorkerBuilder::group`,
    /// `on_threads`).
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
                // Another was lost while they met.
                Err(error) => lost = error,
            }
            once_more = true;
            if self.strategy.extended().elastic().is_some() {
                // Those that have come may have been why: the others go on without them.
                deadline = Deadline::after(self.patience);
            }
        }
        let seconds = watch.seconds();
        told(|| {
            tracing::info!("the training goes on after step {}, {seconds:.1} s later", self.strategy.steps())
        });
        Ok(())
    }

    /// Whether an error tells of nothing but that workers have left which were told to end.
    fn has_left(&self, error: &Error) -> bool {
        let (world, leaving) = (self.strategy.world(), self.strategy.notice().leaving());
        let of_leaving =
            |replica: &usize| leaving.iter().any(|worker| world.replicas_of(*worker).contains(replica));
        error.blame().is_some_and(|blame| blame.culprits.iter().all(of_leaving))
    }

    fn goes_on(&self, error: &Error) -> bool {
        loss::goes_on(error, self.strategy.world(), &mut lock(&self.losses), self.strategy.updates())
    }

    /// Agrees with those that have met on where the training stands.
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
            // It is the only one that is there, and goes by its own state.
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
