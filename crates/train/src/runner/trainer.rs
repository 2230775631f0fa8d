//! [`Trainer`]: the settings of a training run.

use super::Epoch;
use super::callbacks::{Callback, OnEpoch, OnStep};
use distribute_base::Result;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A completed step of a training run, as passed to callbacks.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Step {
    /// The index of the epoch, counted from 0.
    pub epoch: usize,
    /// The index of the step in its epoch, counted from 0.
    pub step: usize,
    /// The loss of the step: the mean over the global batch.
    pub loss: f64,
}

/// The settings of a training run: its length, its batches, and the location of its backups.
#[doc(alias = "tfgnn.runner.Trainer")]
#[doc(alias = "tfgnn.runner.KerasTrainer")]
#[doc(alias = "KerasTrainer")]
#[must_use]
pub struct Trainer<'a> {
    pub(super) global_batch: usize,
    pub(super) epochs: usize,
    pub(super) steps_per_epoch: Option<usize>,
    pub(super) validation_steps: Option<usize>,
    pub(super) validate_every: Option<usize>,
    pub(super) validate_per_epoch: Option<usize>,
    pub(super) validates_ema: bool,
    pub(super) drop_remainder: bool,
    pub(super) patience: Option<usize>,
    pub(super) min_delta: f64,
    pub(super) best: Option<PathBuf>,
    pub(super) restores_best: bool,
    pub(super) backup: Option<PathBuf>,
    pub(super) backup_every: Option<usize>,
    pub(super) keep: usize,
    pub(super) grace: Option<Duration>,
    pub(super) recovers: Option<Duration>,
    pub(super) callbacks: Vec<Box<dyn Callback + 'a>>,
    pub(super) shows_progress: bool,
}

impl std::fmt::Debug for Trainer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trainer")
            .field("global_batch", &self.global_batch)
            .field("epochs", &self.epochs)
            .field("backup", &self.backup)
            .finish_non_exhaustive()
    }
}

impl<'a> Trainer<'a> {
    /// Creates settings for a single epoch. `global_batch` is the number of examples in a step on all replicas
    /// together.
    #[doc(alias = "global_batch_size")]
    pub fn new(global_batch: usize) -> Self {
        Self {
            global_batch,
            epochs: 1,
            steps_per_epoch: None,
            validation_steps: None,
            validate_every: None,
            validate_per_epoch: None,
            validates_ema: false,
            drop_remainder: false,
            patience: None,
            min_delta: 0.,
            best: None,
            restores_best: false,
            backup: None,
            backup_every: None,
            keep: 2,
            grace: None,
            recovers: None,
            callbacks: Vec::new(),
            shows_progress: true,
        }
    }

    /// Sets the number of epochs; 1 by default.
    pub fn epochs(mut self, epochs: usize) -> Self {
        self.epochs = epochs;
        self
    }

    /// Sets the number of steps in an epoch. The dataset is then repeated as often as needed. By default, an epoch
    /// is one pass over the dataset.
    pub fn steps_per_epoch(mut self, steps: usize) -> Self {
        self.steps_per_epoch = Some(steps);
        self
    }

    /// Sets the number of steps in a validation. Each validation starts at the first example, and a shorter dataset
    /// is repeated. By default, a validation is one pass over the dataset.
    pub fn validation_steps(mut self, steps: usize) -> Self {
        self.validation_steps = Some(steps);
        self
    }

    /// Sets the interval between validations, in epochs; 1 by default.
    #[doc(alias = "validation_freq")]
    pub fn validate_every(mut self, epochs: usize) -> Self {
        self.validate_every = Some(epochs);
        self
    }

    /// Sets the number of validations per epoch. They are made at equal intervals, the last one at the end of the
    /// epoch.
    ///
    /// Each epoch is divided into `times` parts, which the [`History`](super::History) and the callbacks treat as
    /// epochs. This requires [`steps_per_epoch`](Self::steps_per_epoch), which must be a multiple of `times`, and
    /// conflicts with [`validate_every`](Self::validate_every).
    #[doc(alias = "validation_per_epoch")]
    pub fn validate_per_epoch(mut self, times: usize) -> Self {
        self.validate_per_epoch = Some(times);
        self
    }

    /// Validates with the averages of the weights. [`save_best`](Self::save_best) then saves these averages. Training
    /// continues with the weights themselves.
    ///
    /// Requires an optimizer with [`Optimizer::with_ema`], and [validation examples](super::Datasets::validation).
    /// Otherwise [`run`](super::run()) returns an error.
    ///
    /// [`Optimizer::with_ema`]: distribute_optimizer::Optimizer::with_ema
    #[doc(alias = "tf.keras.callbacks.SwapEMAWeights")]
    #[doc(alias = "SwapEMAWeights")]
    pub fn validate_ema(mut self) -> Self {
        self.validates_ema = true;
        self
    }

    /// Drops the last batch of a dataset if it has fewer examples than the others.
    pub fn drop_remainder(mut self) -> Self {
        self.drop_remainder = true;
        self
    }

    /// Ends training if the validation loss has not improved by more than [`min_delta`](Self::min_delta) in the given
    /// number of consecutive validations.
    ///
    /// A run that resumes from a backup continues this count.
    #[doc(alias = "tf.keras.callbacks.EarlyStopping")]
    #[doc(alias = "EarlyStopping")]
    pub fn patience(mut self, validations: usize) -> Self {
        self.patience = Some(validations);
        self
    }

    /// Sets the amount by which the validation loss must fall below its previous minimum to be considered an
    /// improvement; 0 by default.
    pub fn min_delta(mut self, loss: f64) -> Self {
        self.min_delta = loss;
        self
    }

    /// Saves the weights to `folder` after each validation whose loss is the lowest so far.
    ///
    /// The checkpoint contains the component `model` and the metadata `epoch` and `validation_loss`. The last three
    /// checkpoints are kept. All workers must pass the same folder.
    #[doc(alias = "tf.keras.callbacks.ModelCheckpoint")]
    #[doc(alias = "ModelCheckpoint")]
    #[doc(alias = "tfgnn.runner.KerasTrainerCheckpointOptions")]
    #[doc(alias = "KerasTrainerCheckpointOptions")]
    pub fn save_best(mut self, folder: impl AsRef<Path>) -> Self {
        self.best = Some(folder.as_ref().to_path_buf());
        self
    }

    /// Restores the best weights at the end of training. Requires [`save_best`](Self::save_best), which saves them.
    #[doc(alias = "restore_best_weights")]
    pub fn restore_best(mut self) -> Self {
        self.restores_best = true;
        self
    }

    /// Saves a backup to `folder` after each epoch. If the folder already contains a backup, the run resumes from it.
    ///
    /// The chief writes backups [in the background](distribute_core::Checkpoint::save_async). The last backup of a run
    /// is complete when the run returns. If a backup fails, a warning is logged at once, and the next backup returns
    /// the error and ends the run.
    ///
    /// All workers must pass the same folder.
    #[doc(alias = "tf.keras.callbacks.BackupAndRestore")]
    #[doc(alias = "BackupAndRestore")]
    #[doc(alias = "backup_dir")]
    pub fn backup(mut self, folder: impl AsRef<Path>) -> Self {
        self.backup = Some(folder.as_ref().to_path_buf());
        self
    }

    /// Saves a backup every `steps` steps, in addition to the backup after each epoch. Requires
    /// [`backup`](Self::backup).
    #[doc(alias = "save_freq")]
    pub fn backup_every(mut self, steps: usize) -> Self {
        self.backup_every = Some(steps);
        self
    }

    /// Sets the number of backups to keep; 2 by default. Keep more if an [`Evaluator`](super::Evaluator) is slower
    /// than training.
    #[doc(alias = "max_to_keep")]
    pub fn keep_backups(mut self, count: usize) -> Self {
        self.keep = count;
        self
    }

    /// Ends training after a notice that a process will be killed soon. The notice is SIGTERM, or a call of
    /// [`Preemption::notify`](crate::Preemption::notify) for the same strategy. Requires [`backup`](Self::backup).
    ///
    /// All workers finish the current step or, if there are several workers, possibly the next one. They save a backup
    /// and return [`End::Notice`](super::End::Notice). In elastic training with [`recover`](Self::recover), only the
    /// workers that received the notice return, without a backup, and the others continue. All workers save a backup
    /// and return if the first worker received the notice, or if too few would remain.
    ///
    /// `grace` is the time from the notice until the scheduler kills the process. It is only used to report a late
    /// backup: if the backup is complete only after that time, the run returns
    /// [`Error::GracePeriod`](distribute_base::Error::GracePeriod).
    #[doc(alias = "save_before_preemption")]
    #[doc(alias = "tf.distribute.experimental.PreemptionCheckpointHandler")]
    #[doc(alias = "PreemptionCheckpointHandler")]
    pub fn save_on_notice(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// Resumes training after another worker fails, as [`Training`](crate::Training) does. The remaining workers wait
    /// for a replacement for at most `patience`. In elastic training they may continue without a replacement before
    /// that.
    pub fn recover(mut self, patience: Duration) -> Self {
        self.recovers = Some(patience);
        self
    }

    /// Adds a callback. Callbacks are called in the order in which they were added.
    ///
    /// If one of them ends training after an epoch, the others are still called for that epoch.
    #[doc(alias = "callbacks")]
    pub fn callback(mut self, callback: impl Callback + 'a) -> Self {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// Adds a closure as a [callback](Callback::on_epoch) that is called after each epoch, before its backup is saved.
    ///
    /// The closure receives the same epoch on all workers and must return the same value on all of them. If it
    /// returns [`ControlFlow::Break`], training ends.
    #[doc(alias = "tf.keras.callbacks.Callback.on_epoch_end")]
    #[doc(alias = "tf.keras.callbacks.LambdaCallback")]
    #[doc(alias = "LambdaCallback")]
    pub fn on_epoch(self, call: impl Fn(&Epoch) -> Result<ControlFlow<()>> + 'a) -> Self {
        self.callback(OnEpoch(call))
    }

    /// Adds a closure as a [callback](Callback::on_step) that is called after each training step.
    #[doc(alias = "tf.keras.callbacks.Callback.on_train_batch_end")]
    pub fn on_step(self, call: impl Fn(&Step) -> Result<()> + 'a) -> Self {
        self.callback(OnStep(call))
    }

    /// Disables the display of the progress.
    ///
    /// By default, the chief shows a bar on a terminal, and writes a line for each epoch: as an event of level INFO
    /// to the program's `tracing` subscriber, or to standard error if there is none. The bar is removed before the
    /// callbacks of an epoch, so that they can print. Warnings of this library appear above it. For a subscriber that
    /// writes to the terminal, use [`runner::stderr`](super::stderr) as its writer.
    #[doc(alias = "tf.keras.callbacks.ProgbarLogger")]
    #[doc(alias = "ProgbarLogger")]
    #[doc(alias = "verbose")]
    pub fn without_progress(mut self) -> Self {
        self.shows_progress = false;
        self
    }
}
