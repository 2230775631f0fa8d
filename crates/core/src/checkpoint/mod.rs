//! Checkpoints: the components of a training run are saved together and restored together.
//!
//! | module | contents |
//! |---|---|
//! | `read` | checked reads of a component's tensors |
//! | `background` | saves that no worker waits for |
//! | `workers` | saving and restoring on several workers: the chief writes, all read, and all get the same result |
//! | `target` | the destination of a save |
//! | `parts` | saving on several workers that store tables together: each writes its own rows |
//! | `strategy_steps` | the step counter of a strategy, as a component |
//! | `shards` | state that is sharded over the workers, with copies |

// - **INV-23** Restoring changes all components or none: each is read and checked before the first is changed. The
//   same holds over workers: none is saved or restored if one of them cannot read its part; and for a selection of
//   a checkpoint or file. Tests: `computing/resume/mod.rs`, `computing/resume/partial.rs`,
//   `clusters/multi_worker/checkpoint.rs`.

mod background;
mod parts;
mod read;
mod shards;
mod state;
mod strategy_steps;
mod target;
mod workers;

pub use background::PendingSave;
pub use read::read_as;
pub use read::read_elements;
pub use read::require_names;
pub use read::verify_as;
pub use shards::ShardedState;
pub(crate) use state::{read_state, write_state};
pub(crate) use {read::decide, read::read_cast};

use crate::context::current_kind;
use crate::strategy::Strategy;
use distribute_base::{ContextKind, Error, Result};
pub use distribute_checkpoint::{
    CheckpointManager, Description, Error as CheckpointError, HeldTensors, LiveTensors, Metadata, Reader,
    RowPosition, SaveHandle, SourceError, Value, Writer,
};
#[doc(inline)]
pub use distribute_decisions::{RestoreFilter, RestoreReport, Unrestored};
use distribute_log::warn_or_stderr;
use std::panic::Location;
use std::path::{Path, PathBuf};
use target::Target;
use workers::Saved;

/// A component of a checkpoint: [`Variables`](crate::Variables), a [`Variable`](crate::Variable), an
/// `Optimizer`, or a custom type.
pub trait Checkpointed {
    /// Adds to `writer` all state that is needed to resume. The name of each tensor is `prefix` or begins with
    /// `prefix/`.
    ///
    /// # Errors
    /// Returns an error if state cannot be read, or if two tensors have the same name.
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()>;

    /// Reads and checks the state that [`save`](Checkpointed::save) added, without changing anything. The
    /// returned closure applies the state; it is called after all components have been checked.
    ///
    /// # Errors
    /// Returns an error if state is missing or does not match. The error names the state and the file.
    fn restore<'a>(&'a self, prefix: &str, from: &Reader) -> Result<Restore<'a>>;

    /// Acts like [`restore`](Checkpointed::restore), but only for the names that begin with `prefix` and that
    /// `select` selects. Also returns a report of the selection. The default implementation returns an error,
    /// for components that can only be restored completely.
    ///
    /// # Errors
    /// Returns an error if selected state is missing or does not match, or if this component cannot be restored in
    /// part.
    fn restore_some<'a>(
        &'a self,
        prefix: &str,
        from: &Reader,
        select: &RestoreFilter<'_>,
    ) -> Result<(Restore<'a>, RestoreReport)> {
        let _ = (from, select);
        Err(Error::invalid(
            SOME,
            format!(
                "part {prefix:?} can only be restored completely; leave it out of the checkpoint, and it starts over"
            ),
        ))
    }

    /// Rolls back to the state right after the last completed update of the weights. `Training` calls this on every
    /// component after a worker has failed in the middle of a step, before the step is repeated. The default
    /// implementation does nothing, which is correct for state that changes only together with the weights.
    ///
    /// # Errors
    /// Returns an error if the state cannot be rolled back. The state is then received from another worker.
    fn rewind(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the strategy whose workers save and restore this component together. With `None` (the default), these
    /// are the workers of another component's strategy or, if there is none with a group, of the current strategy.
    fn strategy(&self) -> Option<&Strategy> {
        None
    }

    /// Returns the state of this component that is sharded over the workers with copies, so that `Training` sends the
    /// shards of a lost worker from their copies. Such state is in checkpoints, but not in the state that one worker
    /// sends to another.
    #[doc(hidden)]
    fn sharded_state(&self) -> Option<&dyn ShardedState> {
        None
    }
}

const SAVE: &str = "Checkpoint::save";
const RESTORE: &str = "Checkpoint::restore";
/// The operation name in the errors of a partial restore.
pub(crate) const SOME: &str = "Checkpoint::restore_some";

/// A closure that applies the saved state to one component.
pub type Restore<'a> = Box<dyn FnOnce() -> Result<()> + 'a>;

/// The state of a training run that can be saved and restored: named components, and metadata.
///
/// Everything is saved atomically, in one folder of safetensors files with an index. A mirrored variable is
/// saved once. Running statistics are saved both as the mean over the replicas and per replica. With the same
/// number of replicas, a resumed training run continues bit-identically; with a different number, each
/// replica continues from the mean. Slots of an optimizer are saved by variable name, such as
/// `optimizer/m/fc.weight`, with the number of finished steps and the learning rate. The seed of the model is
/// in the metadata, for programs that rebuild the model.
///
/// Save and restore between runs, not inside them. To write a single file of weights for other programs, use
/// [`Variables::save`](crate::Variables::save).
///
/// ```
/// # use distribute::prelude::*;
/// use candle_nn::linear;
/// use distribute::{Checkpoint, checkpoint::CheckpointManager};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let strategy = MirroredStrategy::new(["cpu:0", "cpu:1"])?;
/// let model = strategy.replicate(|vb| linear(4, 2, vb.pp("fc")))?;
/// let optimizer = Adam::new(&model.variables, 1e-3)?;
/// let training = Checkpoint::new().part("model", &model.variables).part("optimizer", &optimizer);
///
/// let manager = CheckpointManager::new(folder.path())?.keep(3);
/// let first_epoch = match training.restore_latest(&manager)? {
///     None => 0,                                                              // the first start
///     Some(saved) => 1 + saved.metadata("epoch").and_then(|epoch| epoch.as_u64()).unwrap_or(0),
/// };
/// for epoch in first_epoch..3 {
///     // … train …
///     training.clone().metadata("epoch", epoch).save_to(&manager)?;
/// }
/// # assert_eq!(manager.latest()?.unwrap().tensor("optimizer/m/fc.weight")?.dims(), [2, 4]);
/// # Ok::<(), distribute::Error>(())
/// ```
///
/// # Several workers
///
/// All workers make the same calls. Each worker reads its components, only the chief writes, and all workers
/// get the chief's result, even if it is an error. The exceptions are tables that the workers store together, and
/// sharded states of optimizers: if all workers can write to the folder, each writes its own rows to a file of the
/// checkpoint; otherwise the chief logs a warning, and reads and writes all of them. If a worker doesn't arrive, the
/// others get an error that names it. The others wait while the chief writes, for as long as it makes progress: it may
/// take no longer than the strategy's timeout for 8 MiB, or for syncing 512 MiB to the disk.
///
/// Every worker restores from a folder that contains the chief's checkpoint: on a shared file system, or as a
/// copy. Before anything is changed, the workers check that they all read the same checkpoint. If each worker
/// has its own disk, only the chief has the checkpoint. Restoring then fails on all workers, with an error
/// that names the first worker without a checkpoint.
#[doc(alias = "tf.train.Checkpoint")]
#[derive(Clone, Default)]
pub struct Checkpoint<'a> {
    parts: Vec<(String, &'a dyn Checkpointed)>,
    metadata: Vec<(String, Value)>,
}

impl<'a> Checkpoint<'a> {
    /// Creates a checkpoint without components.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a component. Names must be unique.
    pub fn part(mut self, name: impl Into<String>, part: &'a dyn Checkpointed) -> Self {
        self.parts.push((name.into(), part));
        self
    }

    /// Adds metadata, such as an epoch, a position or hyper-parameters. Read it with [`Reader::metadata`].
    /// Numbers that may be NaN or infinite, which JSON cannot represent, are read with [`Reader::number`].
    pub fn metadata(mut self, key: impl Into<String>, value: impl Metadata) -> Self {
        self.metadata.push((key.into(), value.into_value()));
        self
    }

    /// Returns a copy of the current state, which can be saved later or more than once. Training may continue while the
    /// copy is being written.
    ///
    /// With several workers, all must make this call, because it collects the state of each worker. The chief then
    /// saves the copy (see [`is_chief`](Strategy::is_chief)). The copies of other workers may lack state that only the
    /// chief needs.
    ///
    /// # Errors
    /// - [`Error::WrongContext`]: called in an update, or inside `run` but outside `merge_call`.
    /// - [`Error::InvalidArgument`]: two components have the same name, or components belong to different strategies
    ///   with several workers.
    /// - [`Error::Failed`] of the kind `Usage`: the workers have trained alone since the last [outer
    ///   step](crate::strategy::LocalSteps).
    /// - [`Error::Checkpoint`]: a live tensor of a custom component cannot be copied.
    /// - The errors of the components.
    pub fn writer(&self) -> Result<Writer> {
        let mut writer = self.collect(Writer::new())?;
        // A component may add live tensors without asking whether the checkpoint is saved at once.
        writer.copy_now()?;
        Ok(writer)
    }

    /// Adds the state of all components to a writer.
    fn collect(&self, mut writer: Writer) -> Result<Writer> {
        self.require(SAVE)?;
        self.joint_strategy(SAVE)?.require_agreement(SAVE)?;
        self.parts.iter().try_for_each(|(name, part)| part.save(name, &mut writer))?;
        self.metadata.iter().for_each(|(key, value)| writer.metadata(key, value.clone()));
        Ok(writer)
    }

    /// Saves everything atomically as a new folder at `path`. With several workers, only the chief writes to its own
    /// `path`, except for rows of tables that the workers store together and of sharded states. A warning is logged on
    /// a worker that passes a different path, because nothing is written there.
    ///
    /// # Errors
    /// - The errors of [`writer`](Checkpoint::writer).
    /// - [`Error::Checkpoint`]: `path` already exists, or the files cannot be written.
    /// - [`Error::InvalidArgument`]: the workers run independently and this one is not the chief, this worker has not
    ///   caught up with the others or has left them, or components belong to different strategies with several workers.
    /// - [`Error::Worker`], [`Error::Collective`]: with several workers, one of them fails or does not make the call.
    #[doc(alias = "tf.train.Checkpoint.save")]
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if let Saved::ByChief(there) = self.save_by(Location::caller(), Target::Folder(path))?
            && *there != *path.to_string_lossy().as_bytes()
        {
            warn_or_stderr(|| {
                tracing::warn!(
                    "Checkpoint::save: nothing is at {}: the chief has saved for all workers, at {}",
                    path.display(),
                    String::from_utf8_lossy(&there)
                );
            });
        }
        Ok(())
    }

    /// Saves everything as the next checkpoint in the manager's folder. The manager may then remove old checkpoints.
    /// Returns the path of the new checkpoint, which is complete. On workers other than the chief, this is a path in
    /// the folder of their own manager, where the checkpoint need not exist. [`save_async`](Self::save_async) returns
    /// before the checkpoint is complete.
    ///
    /// # Errors
    /// - The errors of [`save`](Checkpoint::save), except that the path is always new.
    /// - [`Error::Checkpoint`]: the same as for [`CheckpointManager::save`].
    #[doc(alias = "tf.train.CheckpointManager.save")]
    #[track_caller]
    pub fn save_to(&self, manager: &CheckpointManager) -> Result<PathBuf> {
        Ok(match self.save_by(Location::caller(), Target::Next(manager))? {
            Saved::Here(begun) => begun.path().to_path_buf(),
            Saved::ByChief(name) => manager.folder().join(&*String::from_utf8_lossy(&name)),
        })
    }

    /// Restores all components from the folder at `path`. Returns the open checkpoint, so that its metadata
    /// can be read.
    ///
    /// # Errors
    /// - [`Error::Checkpoint`]: the checkpoint is damaged or does not exist.
    /// - The errors of [`restore_from`](Checkpoint::restore_from).
    #[doc(alias = "tf.train.Checkpoint.restore")]
    #[track_caller]
    pub fn restore(&self, path: impl AsRef<Path>) -> Result<Reader> {
        self.restore_by(RESTORE, Location::caller(), || Ok(Reader::open(path)?), |reader| self.all_of(reader))
            .map(|(reader, ())| reader)
    }

    /// Restores all components from the latest undamaged checkpoint in a manager's folder, and returns the checkpoint.
    /// Returns `None` if the folder has no checkpoint yet. Logs a warning if later checkpoints are damaged. With
    /// several workers, the chief chooses the checkpoint.
    ///
    /// # Errors
    /// - [`Error::Checkpoint`]: the same as for [`CheckpointManager::latest_undamaged`].
    /// - The errors of [`restore_from`](Checkpoint::restore_from).
    #[doc(alias = "tf.train.CheckpointManager.restore_or_initialize")]
    #[track_caller]
    pub fn restore_latest(&self, manager: &CheckpointManager) -> Result<Option<Reader>> {
        let at = Location::caller();
        self.require(RESTORE)?;
        let Some(open) = self.latest(manager, at)? else { return Ok(None) };
        self.restore_by(RESTORE, at, open, |reader| self.all_of(reader)).map(|(reader, ())| Some(reader))
    }

    /// Restores all components from an open checkpoint. Other contents of the checkpoint are ignored.
    ///
    /// # Errors
    /// Nothing has been changed if an error is returned, unless a device or a parameter server failed.
    /// - [`Error::InvalidArgument`]: state of a component is missing in the checkpoint, or has a different shape, dtype
    ///   or update rule there; two components have the same name; the workers read different checkpoints; or components
    ///   belong to different strategies with several workers.
    /// - [`Error::Checkpoint`]: the checkpoint is damaged.
    /// - [`Error::WrongContext`]: called in an update, or inside `run` but outside `merge_call`.
    /// - [`Error::Worker`], [`Error::Collective`]: with several workers, one of them fails or does not make the call.
    #[track_caller]
    pub fn restore_from(&self, reader: &Reader) -> Result<()> {
        self.restore_by(RESTORE, Location::caller(), || Ok(reader), |reader| self.all_of(reader)).map(drop)
    }

    /// Restores only the state that `select` selects, by the names of the components' tensors, such as
    /// `model/fc.weight`. Everything else is unchanged. The report lists the restored names, the names that were not
    /// restored, each with the reason, and the names in the checkpoint that were not used.
    ///
    /// Use this for a model that starts from another model's weights, with a new head or with different
    /// names. Only variables can be restored in part. Omit an optimizer, a dataset or a strategy from this
    /// checkpoint; they then start from the beginning.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use candle_nn::linear;
    /// use distribute::{Checkpoint, checkpoint::RestoreFilter};
    ///
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("saved");
    /// let strategy = MirroredStrategy::cpus(2)?;
    /// let model = |classes| {
    ///     strategy.replicate(move |vb| {
    ///         distribute::Ok((linear(4, 8, vb.pp("body"))?, linear(8, classes, vb.pp("head"))?))
    ///     })
    /// };
    /// let pretrained = model(1000)?;
    /// Checkpoint::new().part("model", &pretrained.variables).save(&path)?;
    ///
    /// let mine = model(3)?;
    /// let restored =
    ///     Checkpoint::new().part("model", &mine.variables).restore_some(&path, &RestoreFilter::all().lenient())?;
    /// assert!(restored.restored.keys().eq(["model/body.bias", "model/body.weight"]));
    /// assert!(restored.unrestored.keys().eq(["model/head.bias", "model/head.weight"]));
    /// assert_eq!(restored.unused, ["model/head.bias", "model/head.weight"]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// # Errors
    /// Nothing has been changed if an error is returned, unless a device or a parameter server failed.
    /// - [`Error::InvalidArgument`]: selected names are missing or do not match (the error lists them),
    ///   nothing would be restored, or a component can only be restored completely.
    /// - [`Error::Checkpoint`]: the checkpoint is damaged or does not exist.
    /// - The other errors of [`restore_from`](Checkpoint::restore_from).
    #[track_caller]
    pub fn restore_some(&self, path: impl AsRef<Path>, select: &RestoreFilter<'_>) -> Result<RestoreReport> {
        let some = |reader: &Reader| {
            let (mut ready, mut restored) = (Vec::new(), RestoreReport::default());
            for (name, part) in &self.parts {
                let (change, of_part) = part.restore_some(name, reader, select)?;
                ready.push(change);
                restored.append(of_part);
            }
            let from = reader.path().display().to_string();
            Ok((ready, restored.finish(SOME, &from, reader.names().map(String::from))?))
        };
        let open = || Ok(Reader::open(path)?);
        self.restore_by(SOME, Location::caller(), open, some).map(|(_, restored)| restored)
    }

    /// Rolls all components back to the state after the last completed update.
    ///
    /// # Errors
    /// Returns the error of the first component that cannot be rolled back.
    #[doc(hidden)]
    pub fn rewind(&self) -> Result<()> {
        self.parts.iter().try_for_each(|(_, part)| part.rewind())
    }

    /// Sets all components to the state in `reader`, on this worker only.
    ///
    /// # Errors
    /// Returns the first error of reading or applying a component's state.
    #[doc(hidden)]
    pub fn restore_image(&self, reader: &Reader) -> Result<()> {
        self.all_of(reader)?.0.into_iter().try_for_each(|change| change())
    }

    /// Reads and checks the state of all components. Returns one closure per component, which applies the state.
    fn all_of(&self, reader: &Reader) -> Result<(Vec<Restore<'a>>, ())> {
        let ready = self.parts.iter().map(|(name, part)| part.restore(name, reader));
        Ok((ready.collect::<Result<_>>()?, ()))
    }

    fn require(&self, operation: &'static str) -> Result<()> {
        let found = current_kind();
        if matches!(found, ContextKind::Update | ContextKind::Replica) {
            let (required, advice) = (ContextKind::CrossReplica, "save and restore between runs");
            return Err(Error::WrongContext { operation, required, found, advice });
        }
        let names = || self.parts.iter().map(|(name, _)| name);
        match names().enumerate().find(|(i, name)| names().take(*i).any(|other| other == *name)) {
            Some((_, name)) => Err(Error::invalid(
                operation,
                format!("two components are named {name:?}; give each a unique name"),
            )),
            None => Ok(()),
        }
    }
}

impl std::fmt::Debug for Checkpoint<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.parts.iter().map(|(name, _)| name).collect();
        write!(f, "Checkpoint(parts {names:?})")
    }
}
