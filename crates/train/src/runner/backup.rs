//! Checkpoints of a training run: its complete state, from which a restart resumes, and its best weights.

use super::{Epoch, Trainer};
use distribute_base::Result;
use distribute_checkpoint::CheckpointManager;
use distribute_core::{Checkpoint, Replicated};
use std::path::{Path, PathBuf};

/// The metadata key that is `true` in the last checkpoint of a training run. An [`Evaluator`](super::Evaluator) exits
/// after this checkpoint.
///
/// [`run`](super::run) sets it. A custom loop sets it with [`metadata(runner::LAST, true)`](Checkpoint::metadata).
pub const LAST: &str = "training:last";

/// The metadata key for the number of steps that were made before a checkpoint. An [`Evaluator`](super::Evaluator)
/// writes this number with its results.
///
/// [`run`](super::run) sets it. A custom loop sets it with [`metadata(runner::STEP, step)`](Checkpoint::metadata).
pub const STEP: &str = "training:step";

/// The folder and the components of backups.
pub(super) struct Backup<'a> {
    pub manager: CheckpointManager,
    pub parts: Checkpoint<'a>,
}

impl<'a> Backup<'a> {
    pub fn new(trainer: &Trainer<'_>, parts: &Checkpoint<'a>) -> Result<Option<Self>> {
        let Some(folder) = &trainer.backup else { return Ok(None) };
        let manager = CheckpointManager::new(folder)?.keep(trainer.keep);
        Ok(Some(Self { manager, parts: parts.clone() }))
    }

    /// Restores the latest backup, if the folder has one.
    #[track_caller]
    pub fn restore(&self) -> Result<()> {
        self.parts.restore_latest(&self.manager).map(drop)
    }

    /// Saves a backup. The `last` one of a training run is complete when this returns; the others are written in the
    /// background. Saving waits for the previous backup and returns its error.
    #[track_caller]
    pub fn save(&self, last: bool) -> Result<()> {
        let parts = self.parts.clone().metadata(LAST, last);
        if last { parts.save_to(&self.manager).map(drop) } else { parts.save_async(&self.manager).map(drop) }
    }
}

/// The checkpoints of the best weights so far.
pub(super) struct Best<'a> {
    folder: &'a Path,
    /// The manager of the folder. It keeps the latest checkpoint and two earlier ones: an interrupted run resumes from
    /// a backup, which names an earlier one if the next backup was still in progress.
    manager: CheckpointManager,
    weights: Checkpoint<'a>,
}

impl<'a> Best<'a> {
    pub fn new<M>(trainer: &'a Trainer<'_>, model: &'a Replicated<M>) -> Result<Option<Self>> {
        let Some(folder) = &trainer.best else { return Ok(None) };
        let manager = CheckpointManager::new(folder)?.keep(3);
        Ok(Some(Self { folder, manager, weights: Checkpoint::new().part("model", &model.variables) }))
    }

    /// Saves the weights after the given epoch, and returns the name of the checkpoint. The checkpoint is complete when
    /// this returns, because the next backup contains its name.
    #[track_caller]
    pub fn save(&self, epoch: &Epoch) -> Result<String> {
        let weights = self.weights.clone().metadata("epoch", epoch.epoch);
        let saved: PathBuf =
            weights.metadata("validation_loss", epoch.validation_loss).save_to(&self.manager)?;
        Ok(saved.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default())
    }

    /// Restores the model's weights from the checkpoint named `name`.
    #[track_caller]
    pub fn restore(&self, name: &str) -> Result<()> {
        self.weights.restore(self.folder.join(name)).map(drop)
    }
}
