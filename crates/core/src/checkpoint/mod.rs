//! Checkpoints of a training: several components, saved together and restored together.

mod names;
mod of_strategy;
mod read;
mod select;
mod workers;

pub use select::{Kept, Restored, Select};
pub(crate) use select::{names_there, some};

pub(crate) use names::{in_common, of_replicas};
pub use read::read_as;
pub use read::read_elements;
pub use read::require_names;
pub(crate) use {read::decide, read::read_cast};

use crate::context::current_kind;
use crate::strategy::Strategy;
use bytes::Bytes;
use distribute_base::{ContextKind, Error, Result};
pub use distribute_checkpoint::{
    CheckpointManager, Description, Error as CheckpointError, Metadata, Reader, Value, Writer,
};
use distribute_log::heard;
use std::panic::Location;
use std::path::{Path, PathBuf};
use workers::Saved;

/// A component of a checkpoint: [`Variables`](crate::Variables), a [`Variable`](crate::Variable), an
/// `Optimizer`, or a custom type.
pub trait Checkpointed {
    /// Adds all state that is needed to resume, under the name `prefix` or names that begin with it and `/`.
    ///
    /// # Errors
    /// An error if state cannot be read or two tensors have one name.
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()>;

    /// Reads and checks the state that [`save`](Checkpointed::save) added, without changing anything. The
    /// returned closure applies the state, once all components have been found to fit.
    ///
    /// # Errors
    /// An error if state is missing or does not fit. It names the state and the file.
    fn restore<'a>(&'a self, prefix: &str, from: &Reader) -> Result<Restore<'a>>;

    /// Acts like [`restore`](Checkpointed::restore), for the names beginning with `prefix` that `select`
    /// selects. Also returns the report of the selection. By default this is an error, for components that can
    /// only be restored completely.
    ///
    /// # Errors
    /// An error if selected state is missing or does not fit, or if nothing can be selected here.
    fn restore_some<'a>(
        &'a self,
        prefix: &str,
        from: &Reader,
        select: &Select<'_>,
    ) -> Result<(Restore<'a>, Restored)> {
        let _ = (from, select);
        Err(Error::invalid(
            SOME,
            format!("part {prefix:?} is restored as a whole or not at all; leave it out, and it begins anew"),
        ))
    }

    /// Rolls back to the state right after the last completed update of the weights. `Training` calls it on
    /// every component after a worker failed in the middle of a step, which is then repeated. The default does
    /// nothing, for state that changes only with the weights.
    ///
    /// # Errors
    /// An error if that is not possible. The state is then taken from another worker.
    fn rewind(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the strategy that it belongs to, whose workers save and restore it together. With `None` (the
    /// default), one process does that alone, or the checkpoint's other components decide.
    fn strategy(&self) -> Option<&Strategy> {
        None
    }
}

const SAVE: &str = "Checkpoint::save";
const RESTORE: &str = "Checkpoint::restore";
/// The name of a partial restore in errors.
pub(crate) const SOME: &str = "Checkpoint::restore_some";

/// A closure that applies the saved state to a component.
pub type Restore<'a> = Box<dyn FnOnce() -> Result<()> + 'a>;

/// The state of a training for saving and restoring: components by name, and metadata.
///
/// Everything is saved atomically, in one folder of safetensors files with an index. A mirrored variable is
/// saved once. Running statistics are saved as their mean over the replicas, and also for each replica. On the
/// same number of replicas, a training continues bit-identically; on another number, each replica continues
/// with the mean. Slots of an optimizer are saved by variable name, `optimizer/m/fc.weight`, with the finished
/// steps and the learning rate. The seed of the model is in the metadata, for programs that rebuild it.
///
/// Save and restore between runs. A single file of weights for other programs is
/// [`Variables::save`](crate::Variables::save).
///
/// ```
/// # use distribute::prelude::*;
/// use candle_nn::linear;
/// use distribute::{Checkpoint, CheckpointManager};
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
/// All workers make the same calls. Each reads its components, only the chief writes, and all get the chief's
/// result, even if it is an error. If a worker doesn't arrive, the others get an error that names it. They wait
/// while the chief writes, at most for the strategy's timeout; set a longer one
/// ([`CommunicationOptions::timeout`](crate::CommunicationOptions)) if a save takes longer.
///
/// Every worker restores from a folder that all of them see: on a shared file system, or a copy of the chief's.
/// Before anything is changed, the workers compare that they read the same checkpoint. If each worker has a
/// separate disk, only the chief has the checkpoint. A restore is then an error on all workers, which names the
/// first one without it.
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

    /// Adds a component, under a unique name.
    pub fn part(mut self, name: impl Into<String>, part: &'a dyn Checkpointed) -> Self {
        self.parts.push((name.into(), part));
        self
    }

    /// Adds metadata: an epoch, a position, hyper-parameters. It is read with [`Reader::metadata`]; numbers
    /// that may be NaN or infinite, which JSON doesn't have, with [`Reader::number`].
    pub fn metadata(mut self, key: impl Into<String>, value: impl Metadata) -> Self {
        self.metadata.push((key.into(), value.into_value()));
        self
    }

    /// Returns a copy of the current state, for saving it in several files or later. Training may continue
    /// while it is written.
    ///
    /// With several workers, all make this call, which collects the state of each, and the chief saves it
    /// ([`should_checkpoint`](Strategy::should_checkpoint)). The writers of the others may lack state that only
    /// the chief needs.
    ///
    /// # Errors
    /// - [`Error::WrongContext`]: called in a replica context.
    /// - [`Error::InvalidArgument`]: two components have the same name.
    /// - The errors of the components.
    pub fn writer(&self) -> Result<Writer> {
        self.require(SAVE)?;
        let mut writer = Writer::new();
        self.parts.iter().try_for_each(|(name, part)| part.save(name, &mut writer))?;
        self.metadata.iter().for_each(|(key, value)| writer.metadata(key, value.clone()));
        Ok(writer)
    }

    /// Saves everything atomically as a new folder at `path`. With several workers, only the chief writes, to
    /// its `path`; a worker that passes another path gets a warning, because nothing is written there.
    ///
    /// # Errors
    /// - The errors of [`writer`](Checkpoint::writer).
    /// - [`Error::Checkpoint`]: something exists at `path` or the system refuses.
    #[doc(alias = "tf.train.Checkpoint.save")]
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let tell = |(): &()| Bytes::from(path.to_string_lossy().into_owned());
        let write = |writer: Writer| Ok(writer.save(path, 1)?);
        if let Saved::ByTheChief(there) = self.save_by(Location::caller(), write, tell)?
            && *there != *path.to_string_lossy().as_bytes()
        {
            heard(|| {
                tracing::warn!(
                    "Checkpoint::save: nothing is at {}: the chief has saved for all workers, at {}",
                    path.display(),
                    String::from_utf8_lossy(&there)
                );
            });
        }
        Ok(())
    }

    /// Saves everything as the next checkpoint of a manager's folder, which may remove old ones. Returns its
    /// path.
    ///
    /// # Errors
    /// - The errors of [`writer`](Checkpoint::writer).
    /// - [`Error::Checkpoint`]: as for [`CheckpointManager::save`].
    #[doc(alias = "tf.train.CheckpointManager.save")]
    #[track_caller]
    pub fn save_to(&self, manager: &CheckpointManager) -> Result<PathBuf> {
        let write = |writer: Writer| Ok(manager.save(&writer, 1)?);
        Ok(match self.save_by(Location::caller(), write, |path| workers::name(path))? {
            Saved::Here(path) => path,
            Saved::ByTheChief(name) => manager.folder().join(&*String::from_utf8_lossy(&name)),
        })
    }

    /// Restores all components from the folder at `path`, and returns the open checkpoint, for its metadata.
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

    /// Restores all components from the latest complete checkpoint of a manager's folder, and returns it;
    /// `None` before the first. A later one that is damaged causes a warning. With several workers, the chief
    /// chooses the checkpoint.
    ///
    /// # Errors
    /// - [`Error::Checkpoint`]: as for [`CheckpointManager::latest_whole`].
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
    /// Nothing has changed after an error.
    /// - [`Error::InvalidArgument`]: state of a component is missing, or has another shape, dtype or rule in
    ///   the checkpoint.
    /// - [`Error::Checkpoint`]: the checkpoint is damaged.
    /// - [`Error::WrongContext`]: called in a replica context.
    #[track_caller]
    pub fn restore_from(&self, reader: &Reader) -> Result<()> {
        self.restore_by(RESTORE, Location::caller(), || Ok(reader), |reader| self.all_of(reader)).map(drop)
    }

    /// Restores the names that `select` selects among those of the components in a checkpoint, such as
    /// `model/fc.weight`. Everything else is unchanged. Returns the names that were restored, those that were
    /// not with the reason, and the names of the checkpoint that were not used.
    ///
    /// This is for a model that starts from another's weights, with a new head or other names. Only variables
    /// can be restored in part; leave out an optimizer, a dataset or a strategy, which then start over.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// use candle_nn::linear;
    /// use distribute::{Checkpoint, Select};
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
    ///     Checkpoint::new().part("model", &mine.variables).restore_some(&path, &Select::all().lenient())?;
    /// assert!(restored.restored.keys().eq(["model/body.bias", "model/body.weight"]));
    /// assert!(restored.kept.keys().eq(["model/head.bias", "model/head.weight"]));
    /// assert_eq!(restored.unused, ["model/head.bias", "model/head.weight"]);
    /// # Ok::<(), distribute::Error>(())
    /// ```
    ///
    /// # Errors
    /// Nothing has changed after an error.
    /// - [`Error::InvalidArgument`]: selected names are missing or do not match, with all of the names; nothing
    ///   would be restored; or a component can only be restored completely.
    /// - [`Error::Checkpoint`]: the checkpoint is damaged.
    /// - [`Error::WrongContext`]: called in a replica context.
    #[track_caller]
    pub fn restore_some(&self, path: impl AsRef<Path>, select: &Select<'_>) -> Result<Restored> {
        let some = |reader: &Reader| {
            let (mut ready, mut restored) = (Vec::new(), Restored::default());
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
    /// The error of the first component that cannot be rolled back.
    #[doc(hidden)]
    pub fn rewind(&self) -> Result<()> {
        self.parts.iter().try_for_each(|(_, part)| part.rewind())
    }

    /// Sets all components to their state in an image, on this worker alone.
    ///
    /// # Errors
    /// The errors of [`restore_from`](Checkpoint::restore_from).
    #[doc(hidden)]
    pub fn take_over(&self, reader: &Reader) -> Result<()> {
        self.all_of(reader)?.0.into_iter().try_for_each(|change| change())
    }

    /// Prepares to apply the saved state to all components.
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
                format!("two parts are named {name:?}; give each its own name"),
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
