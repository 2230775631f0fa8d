//! [`Trainer`]: how a training is done.

use super::Epoch;
use distribute_base::Result;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

type OnEpoch<'a> = Box<dyn Fn(&Epoch) -> Result<ControlFlow<()>> + 'a>;
type OnStep<'a> = Box<dyn Fn(&Step) -> Result<()> + 'a>;

/// A step that was made.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Step {
    /// Of which epoch, from 0.
    pub epoch: usize,
    /// Which one of the epoch, from 0.
    pub step: usize,
    /// The mean over the global batch.
    pub loss: f64,
}

/// How long a training is, in which batches, and where its backups go.
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
    /// One epoch in batches of this size, which is that of all replicas together.
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

    /// How many epochs there are; 1 by default.
    pub fn epochs(mut self, epochs: usize) -> Self {
        self.epochs = epochs;
        self
    }

    /// Epochs of this many steps, over a dataset that is repeated. By default, an epoch is a pass over the dataset.
    pub fn steps_per_epoch(mut self, steps: usize) -> Self {
        self.steps_per_epoch = Some(steps);
        self
    }

    /// Validations of this many steps, each from the front of the dataset, which is repeated where it is shorter. By default, a
    /// validation is a pass over the dataset.
    pub fn validation_steps(mut self, steps: usize) -> Self {
        self.validation_steps = Some(steps);
        self
    }

    /// Validates after each so many epochs; by default after each.
    #[doc(alias = "validation_freq")]
    pub fn validate_every(mut self, epochs: usize) -> Self {
        self.validate_every = Some(epochs);
        self
    }

    /// Validates so many times in each epoch, at equal distances, the last time at its end. Each epoch is made in so many parts for that,
    /// which the [`History`](super::History) and callbacks know as epochs. It needs [`steps_per_epoch`](Self::steps_per_epoch),
    /// which the parts have to divide.
    #[doc(alias = "validation_per_epoch")]
    pub fn validate_per_epoch(mut self, times: usize) -> Self {
        self.validate_per_epoch = Some(times);
        self
    }

    /// Leaves out the batch at the end of a dataset that has fewer examples than others.
    pub fn drop_remainder(mut self) -> Self {
        self.drop_remainder = true;
        self
    }

    /// Ends the training when so many validations in a row have not been better than the best before: by more than
    /// [`min_delta`](Self::min_delta). That holds for later starts, too.
    #[doc(alias = "tf.keras.callbacks.EarlyStopping")]
    #[doc(alias = "EarlyStopping")]
    pub fn patience(mut self, validations: usize) -> Self {
        self.patience = Some(validations);
        self
    }

    /// By how much a validation loss has to be lower than the one that counted last as better, for the training to go on; 0 by default.
    pub fn min_delta(mut self, loss: f64) -> Self {
        self.min_delta = loss;
        self
    }

    /// Saves the weights into this folder whenever a validation has been the best so far: as a checkpoint with the part `model` and
    /// metadata `epoch` and `validation_loss`. The last two are kept. All workers name the same folder.
    #[doc(alias = "tf.keras.callbacks.ModelCheckpoint")]
    #[doc(alias = "ModelCheckpoint")]
    #[doc(alias = "tfgnn.runner.KerasTrainerCheckpointOptions")]
    #[doc(alias = "KerasTrainerCheckpointOptions")]
    pub fn save_best(mut self, folder: impl AsRef<Path>) -> Self {
        self.best = Some(folder.as_ref().to_path_buf());
        self
    }

    /// When the training has ended, the model has the weights that were [saved as the best](Self::save_best), which this needs.
    #[doc(alias = "restore_best_weights")]
    pub fn restore_best(mut self) -> Self {
        self.restores_best = true;
        self
    }

    /// Saves the training after each epoch into this folder, and goes on from there if it has been interrupted. All workers name the
    /// same folder.
    #[doc(alias = "tf.keras.callbacks.BackupAndRestore")]
    #[doc(alias = "BackupAndRestore")]
    #[doc(alias = "backup_dir")]
    pub fn backup(mut self, folder: impl AsRef<Path>) -> Self {
        self.backup = Some(folder.as_ref().to_path_buf());
        self
    }

    /// A backup also behind each so many steps of the training, within epochs.
    #[doc(alias = "save_freq")]
    pub fn backup_every(mut self, steps: usize) -> Self {
        self.backup_every = Some(steps);
        self
    }

    /// How many backups are kept; 2 by default. An [`Evaluator`](super::Evaluator) that is slower than the training wants more.
    #[doc(alias = "max_to_keep")]
    pub fn keep_backups(mut self, count: usize) -> Self {
        self.keep = count;
        self
    }

    /// At SIGTERM, or another notice by a [`Preemption`](crate::Preemption) of the same strategy, makes a backup behind the step and returns, with
    /// [`End::Notice`](super::End::Notice), on all workers. `grace` is how long the scheduler waits before it kills the process.
    #[doc(alias = "save_before_preemption")]
    #[doc(alias = "tf.distribute.experimental.PreemptionCheckpointHandler")]
    #[doc(alias = "PreemptionCheckpointHandler")]
    pub fn save_on_notice(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// Goes on when another worker is lost, as a [`Training`](crate::Training) does: the others wait so long for one that takes its
    /// place.
    pub fn recover(mut self, patience: Duration) -> Self {
        self.recovers = Some(patience);
        self
    }

    /// Calls this after each epoch, before the backup; where it gives [`ControlFlow::Break`], the training ends there. It has to give the same on all workers:
    /// what it is told is the same on all. Of several, all are called.
    #[doc(alias = "callbacks")]
    #[doc(alias = "tf.keras.callbacks.Callback.on_epoch_end")]
    pub fn on_epoch(mut self, call: impl Fn(&Epoch) -> Result<ControlFlow<()>> + 'a) -> Self {
        self.on_epoch.push(Box::new(call));
        self
    }

    /// Calls this after each step of the training.
    #[doc(alias = "tf.keras.callbacks.Callback.on_train_batch_end")]
    pub fn on_step(mut self, call: impl Fn(&Step) -> Result<()> + 'a) -> Self {
        self.on_step.push(Box::new(call));
        self
    }
}
