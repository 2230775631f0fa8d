//! [`run`]: the loop over epochs and steps.

use super::backup::{Backup, Best};
use super::callbacks::{Callback, CallbackContext, ProgressBar};
use super::evaluate::{evaluate, scalar};
use super::progress::Progress;
use super::{Datasets, End, Epoch, History, Step, Trainer};
use crate::preemption::Preemption;
use crate::training::Training;
use candle_core::Tensor;
use distribute_base::{Error, Result};
use distribute_core::{
    Checkpoint, DistributedDataset, DistributedIterator, ReplicaContext, Replicated, Strategy,
};
use distribute_data::Cardinality;
use distribute_optim::Rule;
use distribute_optimizer::Optimizer;
use distribute_tensor::{Nest, ReduceOp};
use distribute_values::PerReplica;
use std::cell::Cell;
use std::ops::ControlFlow;
use std::panic::Location;

/// The purpose for which the loss function is called with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The weights are updated with the gradients for the batch.
    Training,
    /// Only the loss of the batch is computed.
    Validation,
}

impl Phase {
    /// Returns `true` in the training phase. This is the argument that `forward_t` takes.
    pub fn is_training(self) -> bool {
        self == Phase::Training
    }
}

/// Trains a model, and returns the results of each epoch.
///
/// `loss` is called on each replica with its model and its per-replica batch, and returns the mean loss and the number
/// of examples. The trainer's global batch is divided equally over the replicas. This function batches the examples,
/// and [`Datasets`] defines which examples a worker reads. Losses and weights are bit-identical to those of a custom
/// loop with [`distribute_datasets_from_function`](Strategy::distribute_datasets_from_function), [`run`](Strategy::run)
/// and [`minimize`](Optimizer::minimize).
///
/// With [`Trainer::backup`], another call resumes an interrupted run after its last backup, and returns the same
/// history as a run without interruption. A run that is already complete is not repeated. All workers must make
/// this call together.
///
/// With [local steps](distribute_core::strategy::LocalSteps), workers make an outer step at the end of each epoch, and
/// backups are saved after the next outer step. Losses of steps are those of all workers, which exchange them.
///
/// Independent workers (`between_graph::AsyncWorkerStrategy`) make this call at their own pace. Each has its own
/// global batches, history and early stopping.
///
/// ```
/// # use distribute::prelude::*;
/// use candle_core::{Device, Tensor};
/// use candle_nn::{Module, linear};
/// use distribute::runner::{self, Datasets, Trainer};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let strategy = MirroredStrategy::cpus(2)?;
/// let model = strategy.replicate(|vb| linear(2, 1, vb.pp("fc")))?;
/// let optimizer = Sgd::new(&model.variables, 0.1)?;
///
/// let points = Tensor::arange(0f32, 64., &Device::Cpu)?.sin()?.reshape((32, 2))?;
/// let points = Dataset::from_slices(points)?;
/// let datasets = Datasets::new(move |context| {
///     Ok(points.shard(context.num_input_pipelines, context.input_pipeline_id).shuffle(32, 7))
/// });
/// let trainer = Trainer::new(8).epochs(3).backup(folder.path());
/// let history = runner::run(&trainer, &model, &optimizer, &datasets, |linear, points, _phase| {
///     Ok((linear.forward(&points)?.sqr()?.mean_all()?, points.dim(0)?))
/// })?;
/// assert_eq!(history.epochs.len(), 3);
/// assert!(history.epochs[2].loss < history.epochs[0].loss);
/// # Ok::<(), distribute::Error>(())
/// ```
///
/// # Errors
/// - [`Error::NotSupported`]: the strategy is a
///   [`ParameterServerStrategy`](distribute_parameter_server::ParameterServerStrategy) with several workers, which
///   would remain idle.
/// - [`Error::InvalidArgument`]: a setting of the trainer is out of range, or settings contradict each other.
/// - [`Error::InvalidArgument`]: a dataset is infinite but must end, or there are no examples for an epoch or a
///   validation.
/// - [`Error::InvalidArgument`]: the folder contains checkpoints of a different program, or a backup with a
///   different global batch.
/// - [`Error::InvalidArgument`]: there are several independent workers, and backups, the best weights, recovery or
///   validations with averaged weights are enabled.
/// - [`Error::Data`]: the global batch cannot be divided equally over the replicas.
/// - [`Error::GracePeriod`]: see [`Preemption::save`].
/// - The errors of the datasets, of `loss`, of the callbacks, and of saving and restoring checkpoints.
///
/// If a worker fails and [`Trainer::recover`] is not set, the others get the error of the step, which names the
/// failed worker. To resume, call this again on all workers, with a backup.
#[doc(alias = "tfgnn.runner.run")]
#[doc(alias = "tf.keras.Model.fit")]
#[doc(alias = "Model.fit")]
#[doc(alias = "tf.keras.Model.compile")]
#[track_caller]
pub fn run<M, R, T, B>(
    trainer: &Trainer<'_>,
    model: &Replicated<M>,
    optimizer: &Optimizer<R>,
    datasets: &Datasets<T, B>,
    loss: impl Fn(&M, B, Phase) -> Result<(Tensor, usize)> + Sync,
) -> Result<History>
where
    M: Send + Sync,
    R: Rule,
    T: Nest + 'static,
    B: Nest + Send + 'static,
{
    let strategy = model.variables.strategy();
    trainer.check(strategy, datasets.has_validation(), optimizer.has_ema())?;
    let batches = datasets.to_train(strategy, trainer)?;
    let validation = datasets.to_validate(strategy, trainer)?;
    let progress = Progress::new(strategy, trainer.global_batch);
    let mut parts = Checkpoint::new()
        .part("strategy", strategy)
        .part("model", &model.variables)
        .part("optimizer", optimizer)
        .part("batches", &batches)
        .part("runner", &progress);
    if let Some(validation) = &validation {
        parts = parts.part("validation", validation);
    }
    let backup = Backup::new(trainer, &parts)?;
    // Calls in closures would report this file as their location, so collective calls are made without closures.
    if let Some(backup) = &backup {
        backup.restore()?;
    }
    let notice = trainer.grace.map(|grace| Preemption::watch(strategy).map(|it| it.grace_period(grace)));
    let best = Best::new(trainer, model)?;
    let (notice, validation, progress) = (notice.transpose()?, validation.as_ref(), &progress);
    let (batches, loss) = (&batches, &loss);
    let steps = match (trainer.parts().1, batches.cardinality()) {
        (None, Cardinality::Finite(steps)) => Some(steps),
        (steps, _) => steps,
    };
    let bar = if trainer.shows_progress { ProgressBar::new(strategy.is_chief()) } else { None };
    let epochs = Epochs {
        trainer,
        strategy,
        model,
        optimizer,
        batches,
        validation,
        progress,
        backup,
        backup_due: Cell::new(false),
        best,
        notice,
        steps,
        bar,
        loss,
        at: Location::caller(),
    };
    let Some(patience) = trainer.recovers else {
        epochs.begin()?;
        let end = epochs.all()?;
        return epochs.end(end);
    };
    let training = Training::builder(parts).patience(patience).build()?;
    training.begin();
    epochs.begin()?;
    loop {
        // The replacement of a lost worker does not know whether a backup was due.
        epochs.backup_due.set(false);
        if let Some(end) = training.finish_attempt(epochs.all(), epochs.at)? {
            return epochs.end(end);
        }
    }
}

/// The objects that the loop uses. Only `progress` and the datasets contain the position from which all workers resume
/// after a failure.
struct Epochs<'a, M, R: Rule, B, L> {
    trainer: &'a Trainer<'a>,
    strategy: &'a Strategy,
    model: &'a Replicated<M>,
    optimizer: &'a Optimizer<R>,
    batches: &'a DistributedDataset<B>,
    validation: Option<&'a DistributedDataset<B>>,
    progress: &'a Progress,
    backup: Option<Backup<'a>>,
    /// Whether a backup is due after the next outer step.
    backup_due: Cell<bool>,
    best: Option<Best<'a>>,
    notice: Option<Preemption>,
    /// The number of steps in an epoch, if it is known.
    steps: Option<usize>,
    bar: Option<ProgressBar>,
    loss: &'a L,
    /// The source location of the call to `run`, for the errors of its steps.
    at: &'static Location<'static>,
}

impl<M, R, B, L> Epochs<'_, M, R, B, L>
where
    M: Send + Sync,
    R: Rule,
    B: Nest + Send,
    L: Fn(&M, B, Phase) -> Result<(Tensor, usize)> + Sync,
{
    /// Calls `on_begin` of the callbacks, before the first step of this process.
    fn begin(&self) -> Result<()> {
        self.call(&self.progress.history(End::default()), |callback, context| callback.on_begin(context))
    }

    /// Calls `on_end` of the callbacks, and returns the history.
    fn end(&self, end: End) -> Result<History> {
        self.hide_progress();
        let history = self.progress.history(end);
        self.call(&history, |callback, context| callback.on_end(context))?;
        Ok(history)
    }

    /// Removes the progress bar before user code runs, because that code may print.
    fn hide_progress(&self) {
        if let Some(bar) = &self.bar {
            bar.hide();
        }
    }

    /// Calls `call` with each callback, beginning with the display of the progress.
    fn call(
        &self,
        history: &History,
        mut call: impl FnMut(&dyn Callback, &CallbackContext<'_>) -> Result<()>,
    ) -> Result<()> {
        let (epochs, _) = self.trainer.parts();
        let context = CallbackContext {
            history,
            variables: &self.model.variables,
            rate: self.optimizer,
            epochs,
            steps_per_epoch: self.steps.or_else(|| Some(history.epochs.last()?.steps)),
            has_validation: self.validation.is_some(),
        };
        if let Some(bar) = &self.bar {
            call(bar, &context)?;
        }
        self.trainer.callbacks.iter().try_for_each(|callback| call(&**callback, &context))
    }

    /// Runs the remaining epochs. Then restores the best weights if this was requested, unless the process must exit
    /// because of a notice. Returns the reason why training ended.
    #[track_caller]
    fn all(&self) -> Result<End> {
        let (epochs, steps) = self.trainer.parts();
        // With a set number of steps, one pass spans all epochs.
        let mut pass = None;
        let end = loop {
            let (epoch, _) = self.progress.position();
            match self.progress.ended() {
                Some(end) => break end,
                None if epoch >= epochs => break End::Epochs,
                None => {}
            }
            if self.train(&mut pass, steps)?.is_break() || self.finish(epoch, epochs)?.is_break() {
                return Ok(End::Notice);
            }
        };
        if let (true, Some(best), Some(name)) = (self.trainer.restores_best, &self.best, self.progress.best())
        {
            best.restore(&name)?;
        }
        Ok(end)
    }

    /// Runs the remaining steps of the current epoch. Returns `Break` if the process must exit because of a notice.
    ///
    /// `pass` is the current pass over the dataset. If `steps` is `Some`, the pass continues in the next epoch. Returns
    /// an error if the epoch has no batch.
    #[track_caller]
    fn train(
        &self,
        pass: &mut Option<DistributedIterator<B>>,
        steps: Option<usize>,
    ) -> Result<ControlFlow<()>> {
        // The epochs before this one.
        let history = self.progress.history(End::default());
        loop {
            let (epoch, step) = self.progress.position();
            self.progress.anchor();
            if steps.is_some_and(|steps| step >= steps) {
                break;
            }
            let Some(batch) = pass.get_or_insert_with(|| self.batches.iter()).next() else {
                *pass = None;
                break;
            };
            let loss = self.step(batch?)?;
            let made = Step { epoch, step, loss };
            self.call(&history, |callback, context| callback.on_step(context, &made))?;
            let steps = self.progress.steps();
            if self.trainer.backup_every.is_some_and(|every| steps.is_multiple_of(every)) {
                self.backup_due.set(true);
            }
            // During local steps, there is no state of all workers.
            if self.backup_due.get()
                && !self.strategy.is_apart()
                && let Some(backup) = &self.backup
            {
                backup.save(false)?;
                self.backup_due.set(false);
            }
            if self.save_on_notice()? {
                return Ok(ControlFlow::Break(()));
            }
        }
        match self.progress.position() {
            (_, 0) => Err(Error::invalid("runner::run", "the epoch had no batch; is the dataset empty?")),
            _ => Ok(ControlFlow::Continue(())),
        }
    }

    /// Runs one step. Returns the mean loss over the global batch, also if steps are local.
    #[track_caller]
    fn step(&self, batch: PerReplica<B>) -> Result<f64> {
        let Self { strategy, model, optimizer, progress, loss, at, .. } = *self;
        let first = strategy.world().local_replicas().next();
        let is_local = strategy.local_steps().is_some();
        let losses = strategy.run((model, batch), |ctx, (model, batch)| {
            let (loss, examples) = loss(model, batch, Phase::Training)?;
            // A local step returns only the loss of this worker.
            let of_all = if is_local { Some(loss_of_all(ctx, &loss, examples)?) } else { None };
            let loss = scalar(&optimizer.minimize_at(ctx, loss, examples, at)?)?;
            let loss = of_all.unwrap_or(loss);
            // Counted with the update, not after the step: if a worker fails between the two, both were made.
            if Some(ctx.replica_id_in_sync_group()) == first {
                progress.record_step(loss, optimizer.constant_learning_rate());
            }
            Ok(loss)
        })?;
        // The loss is the same on all replicas.
        Ok(losses.values().first().copied().unwrap_or(f64::NAN))
    }

    /// Validates, calls the callbacks and saves the results at the end of an epoch. Returns `Break` if the process
    /// must exit.
    #[track_caller]
    fn finish(&self, epoch: usize, epochs: usize) -> Result<ControlFlow<()>> {
        // What is validated and saved are the weights of all workers.
        self.optimizer.finish_local_steps()?;
        self.backup_due.set(false);
        let validates = (epoch + 1).is_multiple_of(self.trainer.validate_every.unwrap_or(1));
        let validation = self.validation.filter(|_| validates);
        let (_, steps) = self.progress.position();
        let loss = self.progress.loss();
        let of_all = self.loss;
        let of_validation = |model: &M, batch| of_all(model, batch, Phase::Validation);
        if let (Some(bar), true) = (&self.bar, validation.is_some()) {
            bar.show_validation(epoch, epochs);
        }
        let learning_rate = self.progress.rate().unwrap_or_else(|| self.optimizer.learning_rate());
        let mut so_far = self.progress.history(End::default());
        let mut epoch = Epoch { epoch, steps, loss, validation_loss: None, learning_rate };
        if let Some(batches) = validation {
            // The best weights are those that have been validated.
            self.with_validated(|| {
                epoch.validation_loss = Some(evaluate(self.model, batches, of_validation)?);
                so_far.epochs.push(epoch);
                if let Some(best) = self.best.as_ref().filter(|_| so_far.best() == Some(&epoch)) {
                    self.progress.set_best(best.save(&epoch)?);
                }
                Ok(())
            })?;
        } else {
            so_far.epochs.push(epoch);
        }
        let mut ended = None;
        self.hide_progress();
        self.call(&so_far, |callback, context| {
            if callback.on_epoch(context, &epoch)?.is_break() {
                ended = Some(End::Callback);
            }
            Ok(())
        })?;
        let since = so_far.validations_since_better(self.trainer.min_delta);
        if validation.is_some() && self.trainer.patience.is_some_and(|patience| since >= patience) {
            ended = ended.or(Some(End::Patience));
        }
        self.progress.push(epoch, ended);
        let last = ended.is_some() || so_far.epochs.len() >= epochs;
        if let Some(backup) = &self.backup {
            backup.save(last)?;
        }
        Ok(if !last && self.save_on_notice()? { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    /// Calls `body` while the model has the weights to validate: its own, or their averages if
    /// [`Trainer::validate_ema`] is set.
    #[track_caller]
    fn with_validated<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.trainer.validates_ema { self.optimizer.use_ema(body) } else { body() }
    }

    /// Returns `true` if this process must exit because of a notice. Saves the state of the training run first, unless
    /// this worker leaves while the others continue. Returns `false` if [`Trainer::save_on_notice`] is not set.
    #[track_caller]
    fn save_on_notice(&self) -> Result<bool> {
        let (Some(notice), Some(backup)) = (&self.notice, &self.backup) else { return Ok(false) };
        if !notice.requested() {
            return Ok(false);
        }
        self.optimizer.finish_local_steps()?;
        notice.save(&backup.parts, &backup.manager)?;
        Ok(true)
    }
}

/// Returns the mean loss over the examples of all workers.
fn loss_of_all(ctx: &ReplicaContext, loss: &Tensor, examples: usize) -> Result<f64> {
    // The mean over no examples may be NaN.
    let sum = if examples == 0 { 0. } else { scalar(&loss.detach())? * examples as f64 };
    let (sum, examples) = ctx.all_reduce(ReduceOp::Sum, (sum, examples as f64))?;
    Ok(sum / examples)
}
