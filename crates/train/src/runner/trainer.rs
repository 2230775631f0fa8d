//! [`Trainer`]: the settings of a training.

use super::Epoch;
use distribute_base::Result;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

type OnEpoch<'a> = Box<dyn Fn(&Epoch) -> Result<ControlFlow<()>> + 'a>;
type OnStep<'a> = Box<dyn Fn(&Step) -> Result<()> + 'a>;

/// A completed step of a training.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Step {
    /// The number of the epoch, from 0.
    pub epoch: usize,
    /// The number of the step in the epoch, from 0.
    pub step: usize,
    /// The mean loss over the global batch.
    pub loss: f64,
}

/// The settings of a training: its length, its batches, and the location of its backups.
#[doc(alias = "tfgnn.runner.Trainer")]
#[doc(alias = "tfgnn.runner.KerasTrainer")]
#[doc(alias = "KerasTrainer")]
pub struct Trainer<'a> {
    pub(super) global_batch: usize,
    pub(super) epochs: usize,
    pub(super) steps_per_epoch: Option<usize>,
    pub(super) validation_steps: Option<usize>,
    pub(super) validate_every: Option<usize>,
    pub(super) validate_per_epoch: Option<usize>,
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
    pub(super) on_epoch: Vec<OnEpoch<'a>>,
    pub(super) on_step: Vec<OnStep<'a>>,
}

impl<'a> Trainer<'a> {
    /// Creates the settings for one epoch, in global batches of this size (over all replicas).
    #[doc(alias = "global_batch_size")]
    pub fn new(global_batch: usize) -> Self {
        Self {
            global_batch,
            epochs: 1,
            steps_per_epoch: None,
            validation_steps: None,
            validate_every: None,
            validate_per_epoch: None,
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
            on_epoch: Vec::new(),
            on_step: Vec::new(),
        }
    }

    /// Sets the number of epochs; 1 by default.
    pub fn epochs(mut self, epochs: usize) -> Self {
        self.epochs = epochs;
        self
    }

    /// Sets the number of steps of an epoch, over a repeated dataset. By default, an epoch is a pass over the
    /// dataset.
    pub fn steps_per_epoch(mut self, steps: usize) -> Self {
        self.steps_per_epoch = Some(steps);
        self
    }

    /// Sets the number of steps of a validation. Each validation starts at the first example; a shorter
    /// dataset is repeated. By default, a validation is a pass over the dataset.
    pub fn validation_steps(mut self, steps: usize) -> Self {
        self.validation_steps = Some(steps);
        self
    }

    /// Sets the number of epochs between validations; 1 by default.
    #[doc(alias = "validation_freq")]
    pub fn validate_every(mut self, epochs: usize) -> Self {
        self.validate_every = Some(epochs);
        self
    }

    /// Validates `times` times in each epoch, at equal distances, the last time at its end.
    ///
    /// Each epoch is divided into this number of parts, which the [`History`](super::History) and callbacks
    /// treat as epochs. This requires [`steps_per_epoch`](Self::steps_per_epoch), which has to be a multiple
    /// of `times`.
    #[doc(alias = "validation_per_epoch")]
    pub fn validate_per_epoch(mut self, times: usize) -> Self {
        self.validate_per_epoch = Some(times);
        self
    }

    /// Drops the last batch of a dataset if it has fewer examples than the others.
    pub fn drop_remainder(mut self) -> Self {
        self.drop_remainder = true;
        self
    }

    /// Ends the training after this number of consecutive validations without improvement by more than
    /// [`min_delta`](Self::min_delta).
    ///
    /// A training that resumes from a backup continues the count.
    #[doc(alias = "tf.keras.callbacks.EarlyStopping")]
    #[doc(alias = "EarlyStopping")]
    pub fn patience(mut self, validations: usize) -> Self {
        self.patience = Some(validations);
        self
    }

    /// Sets the minimum decrease of the validation loss, from the last improvement, that counts as an
    /// improvement; 0 by default.
    pub fn min_delta(mut self, loss: f64) -> Self {
        self.min_delta = loss;
        self
    }

    /// Saves the weights into this folder after each validation that is the best so far.
    ///
    /// The checkpoint has the component `model` and the metadata `epoch` and `validation_loss`. The last two
    /// checkpoints are kept. All workers pass the same folder.
    #[doc(alias = "tf.keras.callbacks.ModelCheckpoint")]
    #[doc(alias = "ModelCheckpoint")]
    #[doc(alias = "tfgnn.runner.KerasTrainerCheckpointOptions")]
    #[doc(alias = "KerasTrainerCheckpointOptions")]
    pub fn save_best(mut self, folder: impl AsRef<Path>) -> Self {
        self.best = Some(folder.as_ref().to_path_buf());
        self
    }

    /// Restores the weights [saved as the best](Self::save_best) at the end of the training. This requires
    /// `save_best`.
    #[doc(alias = "restore_best_weights")]
    pub fn restore_best(mut self) -> Self {
        self.restores_best = true;
        self
    }

    /// Saves the training into this folder after each epoch, and resumes an interrupted training from it. All
    /// workers pass the same folder.
    #[doc(alias = "tf.keras.callbacks.BackupAndRestore")]
    #[doc(alias = "BackupAndRestore")]
    #[doc(alias = "backup_dir")]
    pub fn backup(mut self, folder: impl AsRef<Path>) -> Self {
        self.backup = Some(folder.as_ref().to_path_buf());
        self
    }

    /// Sets the number of steps between additional backups within epochs.
    #[doc(alias = "save_freq")]
    pub fn backup_every(mut self, steps: usize) -> Self {
        self.backup_every = Some(steps);
        self
    }

    /// Sets the number of backups that are kept; 2 by default. An [`Evaluator`](super::Evaluator) that is
    /// slower than the training needs more.
    #[doc(alias = "max_to_keep")]
    pub fn keep_backups(mut self, count: usize) -> Self {
        self.keep = count;
        self
    }

    /// Saves a backup after the current step and returns [`End::Notice`](super::End::Notice) on all workers,
    /// at SIGTERM or another notice by a [`Preemption`](crate::Preemption) of the same strategy.
    ///
    /// `grace` is the time that the scheduler waits before it kills the process.
    #[doc(alias = "save_before_preemption")]
    #[doc(alias = "tf.distribute.experimental.PreemptionCheckpointHandler")]
    #[doc(alias = "PreemptionCheckpointHandler")]
    pub fn save_on_notice(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// Resumes after another worker fails, like [`Training`](crate::Training). The others wait up to
    /// `patience` for a replacement.
    pub fn recover(mut self, patience: Duration) -> Self {
        self.recovers = Some(patience);
        self
    }

    /// Adds a callback after each epoch, before the backup.
    ///
    /// If it returns [`ControlFlow::Break`], the training ends. It receives the same epoch on all workers, and
    /// has to return the same value on all. All callbacks are called, even after one of them breaks.
    #[doc(alias = "callbacks")]
    #[doc(alias = "tf.keras.callbacks.Callback.on_epoch_end")]
    pub fn on_epoch(mut self, call: impl Fn(&Epoch) -> Result<ControlFlow<()>> + 'a) -> Self {
        self.on_epoch.push(Box::new(call));
        self
    }

    /// Adds a callback after each step of the training.
    #[doc(alias = "tf.keras.callbacks.Callback.on_train_batch_end")]
    pub fn on_step(mut self, call: impl Fn(&Step) -> Result<()> + 'a) -> Self {
        self.on_step.push(Box::new(call));
        self
    }
}
