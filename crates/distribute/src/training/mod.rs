//! A training that goes on when a worker is lost.
//!
//! | module | what it is |
//! |---|---|
//! | [`report`] | where each worker stands, and whose state the others take over: pure |
//! | [`loss`] | after which errors a training can go on: pure |
//! | [`handover`] | how that is agreed on, and how a state is handed over |

mod handover;
mod loss;
mod report;

use crate::checkpoint::Checkpoint;
use crate::{Error, Result, Strategy};
use distribute_cluster::{Deadline, Fingerprint, Operation, Stopwatch};
use distribute_log::told;
use handover::Handover;
use report::Report;
use std::panic::Location;
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
    /// How many updates there were when somebody was late last, as one more.
    stood: AtomicU64,
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
        let (begun, stood) = Default::default();
        let training = Self { strategy, parts, patience: PATIENCE, begun, stood };
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

    /// Calls `train` until it succeeds on all workers, again each time that another worker was lost.
    ///
    /// # Errors
    /// Its error, where that is no loss of another worker; those of [`recover`](Self::recover).
    #[track_caller]
    pub fn run<R>(&self, mut train: impl FnMut() -> Result<R>) -> Result<R> {
        let at = Location::caller();
        loop {
            let made = train().and_then(|result| self.end(at).map(|()| result));
            match made {
                Ok(result) => return Ok(result),
                Err(error) => self.recover(error)?,
            }
        }
    }

    /// Waits until all have ended, so that nobody is waited for that has.
    fn end(&self, at: &'static Location<'static>) -> Result<()> {
        let call = || Fingerprint::new(Operation::Barrier, "the end of the training", at);
        self.strategy
            .among_workers("Training::run", call, |mut calling| calling.records(Default::default()))?;
        Ok(())
    }

    /// If an error tells that another worker was lost, is late or has failed, meets all others again, and the process that takes
    /// its place. When this returns, all workers have one state: that after the last finished update of the furthest worker.
    /// Passes over datasets that are under way have to be begun anew: the next ones go on where the training stands.
    ///
    /// ```no_run
    /// # use distribute::prelude::*;
    /// # use distribute::Training;
    /// # fn program(training: &Training<'_>, epoch: impl Fn() -> distribute::Result<()>) -> distribute::Result<()> {
    /// loop {
    ///     match epoch() {
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
    /// program has linked its workers, which only it can do again ([`MultiWorkerBuilder::group`](crate::strategy::MultiWorkerBuilder::group),
    /// [`on_threads`](crate::MultiWorkerMirroredStrategy::on_threads)).
    #[track_caller]
    pub fn recover(&self, error: Error) -> Result<()> {
        let (at, watch, world) = (Location::caller(), Stopwatch::start(), self.strategy.world());
        let deadline = Deadline::after(self.patience);
        let mut lost = error;
        loop {
            if !world.is_multi_worker() || !loss::is_of_another(&lost, world) || deadline.has_passed() {
                return Err(lost);
            }
            let updates = self.strategy.updates().saturating_add(1);
            if loss::is_late(&lost) && self.stood.swap(updates, Ordering::Relaxed) == updates {
                // It is late again in what is made again: nobody is lost.
                return Err(lost);
            }
            told(|| tracing::warn!("the training stops after step {}: {lost}", self.strategy.steps()));
            match self.strategy.rejoin(deadline.remaining()) {
                Some(met) => met?,
                None => return Err(lost),
            }
            match self.meet(deadline.remaining(), at) {
                Ok(()) => break,
                // Another was lost while they met.
                Err(error) => lost = error,
            }
        }
        let seconds = watch.seconds();
        told(|| {
            tracing::info!("the training goes on after step {}, {seconds:.1} s later", self.strategy.steps())
        });
        Ok(())
    }

    /// Agrees with those that have met on where the training stands.
    fn meet(&self, patience: Duration, at: &'static Location<'static>) -> Result<()> {
        let Some(session) = self.strategy.recovery() else { return Ok(()) };
        let begun = self.begun.load(Ordering::Relaxed);
        let rewind = || self.strategy.rewind_steps().and_then(|()| self.parts.rewind());
        let torn = if begun { rewind().err().map(|error| error.to_string()) } else { None };
        let handover = Handover { strategy: &self.strategy, parts: &self.parts, session, patience, at };
        let source = handover.make(Report { begun, numbers: self.strategy.numbers(), torn })?;
        self.begun.store(true, Ordering::Relaxed);
        self.strategy.settle();
        if let Some(source) = source {
            tracing::debug!(source, "the state is that of this worker");
        }
        Ok(())
    }
}

impl std::fmt::Debug for Training<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Training({:?})", self.parts)
    }
}
