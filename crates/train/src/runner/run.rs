//! [`run`]: the loop over epochs and steps.

use super::backup::{Backup, Best};
use super::evaluate::{evaluate, scalar};
use super::progress::Progress;
use super::{Datasets, End, Epoch, History, Step, Trainer};
use crate::preemption::Preemption;
use crate::training::Training;
use candle_core::Tensor;
use distribute_base::{Error, Result};
use distribute_core::{
    Checkpoint, DistributedDataset, DistributedIterator, PerReplica, Replicated, Strategy,
};
use distribute_optim::Rule;
use distribute_optimizer::Optimizer;
use distribute_tensor::Nest;
use std::ops::ControlFlow;
use std::panic::Location;

/// The purpose of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The weights are updated with the batch.
    Training,
    /// Only the loss of the batch is computed.
    Validation,
}

impl Phase {
    /// Whether this is the training phase, for `forward_t`.
    pub fn is_training(self) -> bool {
        self == Phase::Training
    }
}

/// Trains a model, and returns the results of each epoch.
///
/// `loss` is called on each replica with its model and its per-replica batch, and returns the mean loss and
/// its number of examples. The trainer's global batch is divided equally over the replicas. Examples are
/// batched here, and [`Datasets`] defines which of them a worker reads. Losses and weights are bit-identical
/// to those of a custom loop with
/// [`distribute_datasets_from_function`](Strategy::distribute_datasets_from_function), [`run`](Strategy::run)
/// and [`minimize`](Optimizer::minimize).
///
/// With [`Trainer::backup`], calling this again resumes an interrupted training after the last backup, with
/// the same history as without the interruption. A complete training is not repeated. All workers make this
/// call together.
///
/// Independent workers (`between_graph::ParameterServerStrategy`) each make it at their own pace, with
/// separate global batches, histories and early stopping.
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
///   [`ParameterServerStrategy`](distribute_parameter_server::ParameterServerStrategy) of several workers,
///   which would stay idle.
/// - [`Error::InvalidArgument`]: the settings of the trainer contradict each other.
/// - [`Error::InvalidArgument`]: a dataset is infinite and needs an end, or an epoch or a validation has no
///   examples.
/// - [`Error::InvalidArgument`]: the folder contains checkpoints of another program, or a backup with another
///   global batch.
/// - [`Error::InvalidArgument`]: several independent workers would save backups.
/// - [`Error::Data`]: the global batch cannot be divided equally over the replicas.
/// - [`Error::GracePeriod`]: as for [`Preemption::save`].
/// - The errors of the datasets, of `loss` and of the callbacks.
///
/// If a worker fails, the others get the error of the step, which names the failed worker, unless
/// [`Trainer::recover`] is set. To resume, call this again on all workers, with a backup.
#[doc(alias = "tfgnn.runner.run")]
#[doc(alias = "tf.keras.Model.fit")]
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
    trainer.check(strategy, datasets.has_validation())?;
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
    let epochs = Epochs {
        trainer,
        strategy,
        model,
        optimizer,
        batches,
        validation,
        progress,
        backup,
        best,
        notice,
        loss,
        at: Location::caller(),
    };
    let Some(patience) = trainer.recovers else { return Ok(progress.history(epochs.all()?)) };
    let training = Training::new(parts)?.patience(patience);
    training.begin();
    loop {
        if let Some(end) = training.attempted(epochs.all(), epochs.at)? {
            return Ok(progress.history(end));
        }
    }
}

/// The objects that epochs use. Only `progress` and the datasets have the position: after a failure, all
/// workers restart from it.
struct Epochs<'a, M, R: Rule, B, L> {
    trainer: &'a Trainer<'a>,
    strategy: &'a Strategy,
    model: &'a Replicated<M>,
    optimizer: &'a Optimizer<R>,
    batches: &'a DistributedDataset<B>,
    validation: Option<&'a DistributedDataset<B>>,
    progress: &'a Progress,
    backup: Option<Backup<'a>>,
    best: Option<Best<'a>>,
    notice: Option<Preemption>,
    loss: &'a L,
    /// The location of the call to `run`, which errors of its steps name.
    at: &'static Location<'static>,
}

impl<M, R, B, L> Epochs<'_, M, R, B, L>
where
    M: Send + Sync,
    R: Rule,
    B: Nest + Send,
    L: Fn(&M, B, Phase) -> Result<(Tensor, usize)> + Sync,
{
    /// Runs the remaining epochs.
    #[track_caller]
    fn all(&self) -> Result<End> {
        let (epochs, steps) = self.trainer.parts();
        // With a set number of steps, one pass spans all epochs.
        let mut pass = None;
        let end = loop {
            let (epoch, _) = self.progress.place();
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

    /// Makes the remaining steps of an epoch. Breaks if the process has to exit.
    #[track_caller]
    fn train(
        &self,
        pass: &mut Option<DistributedIterator<B>>,
        steps: Option<usize>,
    ) -> Result<ControlFlow<()>> {
        loop {
            let (epoch, step) = self.progress.place();
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
            self.trainer.on_step.iter().try_for_each(|call| call(&made))?;
            let steps = self.progress.steps();
            if let Some(backup) = &self.backup
                && self.trainer.backup_every.is_some_and(|every| steps.is_multiple_of(every))
            {
                backup.save(false)?;
            }
            if self.told()? {
                return Ok(ControlFlow::Break(()));
            }
        }
        match self.progress.place() {
            (_, 0) => Err(Error::invalid("runner::run", "an epoch without a batch; is the dataset empty?")),
            _ => Ok(ControlFlow::Continue(())),
        }
    }

    /// Makes a step, and returns the loss of its global batch.
    #[track_caller]
    fn step(&self, batch: PerReplica<B>) -> Result<f64> {
        let Self { strategy, model, optimizer, progress, loss, at, .. } = *self;
        let first = strategy.world().local_replicas().next();
        let losses = strategy.run((model, batch), |ctx, (model, batch)| {
            let (loss, examples) = loss(model, batch, Phase::Training)?;
            let loss = scalar(&optimizer.minimize_at(ctx, loss, examples, at)?)?;
            // Counted with the update, not after the step: if a worker fails between the two, both were made.
            if Some(ctx.replica_id_in_sync_group()) == first {
                progress.stepped(loss);
            }
            Ok(loss)
        })?;
        // The loss is the same on all replicas.
        Ok(losses.values().first().copied().unwrap_or(f64::NAN))
    }

    /// Validates, calls the callbacks, and saves the results of the epoch. Breaks if the process has to exit.
    #[track_caller]
    fn finish(&self, epoch: usize, epochs: usize) -> Result<ControlFlow<()>> {
        let validates = (epoch + 1).is_multiple_of(self.trainer.validate_every.unwrap_or(1));
        let validation = self.validation.filter(|_| validates);
        let (_, steps) = self.progress.place();
        let loss = self.progress.loss();
        let of_all = self.loss;
        let of_validation = |model: &M, batch| of_all(model, batch, Phase::Validation);
        let validation_loss = match validation {
            Some(batches) => Some(evaluate(self.model, batches, of_validation)?),
            None => None,
        };
        let epoch = Epoch { epoch, steps, loss, validation_loss };
        let mut ended = None;
        for call in &self.trainer.on_epoch {
            if call(&epoch)?.is_break() {
                ended = Some(End::Callback);
            }
        }
        let mut so_far = self.progress.history(End::default());
        so_far.epochs.push(epoch);
        if let Some(best) = self.best.as_ref().filter(|_| so_far.best() == Some(&epoch)) {
            self.progress.set_best(best.save(&epoch)?);
        }
        let since = so_far.validations_since_better(self.trainer.min_delta);
        if validation.is_some() && self.trainer.patience.is_some_and(|patience| since >= patience) {
            ended = ended.or(Some(End::Patience));
        }
        self.progress.push(epoch, ended);
        let last = ended.is_some() || so_far.epochs.len() >= epochs;
        if let Some(backup) = &self.backup {
            backup.save(last)?;
        }
        Ok(if !last && self.told()? { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    /// Whether this process received a notice. If so, saves the training.
    #[track_caller]
    fn told(&self) -> Result<bool> {
        let (Some(notice), Some(backup)) = (&self.notice, &self.backup) else { return Ok(false) };
        if !notice.requested() {
            return Ok(false);
        }
        notice.save(&backup.parts, &backup.manager)?;
        Ok(true)
    }
}
