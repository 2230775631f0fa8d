//! Checkpoints of a training: several parts, saved together and restored together.

mod names;
mod read;
mod workers;

pub(crate) use names::{in_common, of_replicas};
pub(crate) use read::{described, read_as, read_cast, require_names};

use crate::context::{ContextKind, Here, here};
use crate::{Error, Restored, Result, Select, Strategy};
use bytes::Bytes;
pub use distribute_checkpoint::{
    CheckpointManager, Description, Error as CheckpointError, Metadata, Reader, Value, Writer,
};
use std::panic::Location;
use std::path::{Path, PathBuf};
use workers::Saved;

/// What can be a part of a checkpoint: [`Variables`](crate::Variables), a [`Variable`](crate::Variable), an
/// [`Optimizer`](crate::Optimizer), something of your own.
pub trait Checkpointed {
    /// Adds everything that is needed to go on, under the name `prefix` or names that begin with it and `/`.
    ///
    /// # Errors
    /// Where something cannot be read or two tensors have one name.
    fn save(&self, prefix: &str, writer: &mut Writer) -> Result<()>;

    /// Reads and checks what [`save`](Checkpointed::save) added, and changes nothing yet: what is given back does that,
    /// once all parts have been found to fit.
    ///
    /// # Errors
    /// Where something is missing or does not fit, named together with the file.
    fn restore<'a>(&'a self, prefix: &str, from: &Reader) -> Result<Restore<'a>>;

    /// As [`restore`](Checkpointed::restore), of what `select` takes out of the names beginning with `prefix`; and what
    /// that is. What is only good as a whole refuses, as is done where this is not written.
    ///
    /// # Errors
    /// Where something selected is missing or does not fit, or nothing can be selected here.
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

    /// The strategy that it belongs to, whose workers save and restore it together. None, as where this is not written: one
    /// process does that alone, or the checkpoint's other parts tell.
    fn strategy(&self) -> Option<&Strategy> {
        None
    }
}

const SAVE: &str = "Checkpoint::save";
const RESTORE: &str = "Checkpoint::restore";
/// What errors of a restore in part call it.
pub(crate) const SOME: &str = "Checkpoint::restore_some";

/// What changes a part into what was saved.
pub type Restore<'a> = Box<dyn FnOnce() -> Result<()> + 'a>;

/// A training to be saved and restored: parts by name, and metadata.
///
/// Everything is in one folder of safetensors files with an index, which appears whole or not at all. A mirrored variable
/// is saved once. Running statistics are saved as their mean over the replicas, and for each replica
/// besides: on as many replicas as before, a training goes on with the same bits; on another number each replica goes on
/// with the mean. Slots of an optimizer are saved by variable name, `optimizer/m/fc.weight`, with the finished steps and
/// the learning rate. The seed of the model is in the metadata, for whoever builds it anew.
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
/// All workers make the same calls: each reads its parts, the chief alone writes, and what that came to is the result of
/// all, an error as well. A worker that doesn't come is named in the error of the others. They wait while the chief writes,
/// as long as the strategy's timeout at most: set a longer one
/// ([`CommunicationOptions::timeout`](crate::CommunicationOptions)) where a save takes longer.
///
/// Every worker reads what it restores, from a folder that all of them see: one of a shared file system, or a copy of the
/// chief's. That it is the same checkpoint is compared before anything is changed. Where each worker has a disk of its own,
/// only the chief's holds what was saved: a restore is an error on all workers then, and names the first that lacks it.
#[doc(alias = "tf.train.Checkpoint")]
#[derive(Clone, Default)]
pub struct Checkpoint<'a> {
    parts: Vec<(String, &'a dyn Checkpointed)>,
    metadata: Vec<(String, Value)>,
}

impl<'a> Checkpoint<'a> {
    /// Without parts.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a part, under a name that no other has.
    pub fn part(mut self, name: impl Into<String>, part: &'a dyn Checkpointed) -> Self {
        self.parts.push((name.into(), part));
        self
    }

    /// Adds metadata: an epoch, a position, hyper-parameters. It is read with [`Reader::metadata`]; numbers that may be NaN
    /// or infinite, which JSON doesn't have, with [`Reader::number`].
    pub fn metadata(mut self, key: impl Into<String>, value: impl Metadata) -> Self {
        self.metadata.push((key.into(), value.into_value()));
        self
    }

    /// A copy of everything as it is now, to be saved in several files, or later. Training may go on while it is written.
    ///
    /// Of several workers all make this call, which collects what each has; one of them saves it, the chief
    /// ([`should_checkpoint`](Strategy::should_checkpoint)).
    ///
    /// # Errors
    /// [`Error::WrongContext`] in a replica context; [`Error::InvalidArgument`] for two parts of one name; those of the parts.
    pub fn writer(&self) -> Result<Writer> {
        self.require(SAVE)?;
        let mut writer = Writer::new();
        self.parts.iter().try_for_each(|(name, part)| part.save(name, &mut writer))?;
        self.metadata.iter().for_each(|(key, value)| writer.metadata(key, value.clone()));
        Ok(writer)
    }

    /// Saves everything as a new folder at `path`, whole or not at all.
    ///
    /// # Errors
    /// Those of [`writer`](Checkpoint::writer); [`Error::Checkpoint`] where there is something at `path` already or the
    /// system refuses.
    #[doc(alias = "tf.train.Checkpoint.save")]
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.save_by(Location::caller(), |writer| Ok(writer.save(path, 1)?), |()| Bytes::new())?;
        Ok(())
    }

    /// Saves everything as the next checkpoint of a folder of them, which removes the oldest, and gives its path.
    ///
    /// # Errors
    /// Those of [`writer`](Checkpoint::writer); [`Error::Checkpoint`] as for [`CheckpointManager::save`].
    #[doc(alias = "tf.train.CheckpointManager.save")]
    #[track_caller]
    pub fn save_to(&self, manager: &CheckpointManager) -> Result<PathBuf> {
        let write = |writer: Writer| Ok(manager.save(&writer, 1)?);
        Ok(match self.save_by(Location::caller(), write, |path| workers::name(path))? {
            Saved::Here(path) => path,
            Saved::ByTheChief(name) => manager.folder().join(&*String::from_utf8_lossy(&name)),
        })
    }

    /// Restores all parts from the folder at `path`, and gives what was saved, to ask it for metadata.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for a checkpoint that is damaged or not there, and those of
    /// [`restore_from`](Checkpoint::restore_from).
    #[doc(alias = "tf.train.Checkpoint.restore")]
    #[track_caller]
    pub fn restore(&self, path: impl AsRef<Path>) -> Result<Reader> {
        self.restore_by(RESTORE, Location::caller(), || Ok(Reader::open(path)?), |reader| self.all_of(reader))
            .map(|(reader, ())| reader)
    }

    /// Restores all parts from the latest checkpoint of a folder of them, and gives what was saved; `None` before the first.
    /// Of several workers the chief says which one is the latest.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] as for [`CheckpointManager::latest`], and those of [`restore_from`](Checkpoint::restore_from).
    #[doc(alias = "tf.train.CheckpointManager.restore_or_initialize")]
    #[track_caller]
    pub fn restore_latest(&self, manager: &CheckpointManager) -> Result<Option<Reader>> {
        let at = Location::caller();
        self.require(RESTORE)?;
        let Some(open) = self.latest(manager, at)? else { return Ok(None) };
        self.restore_by(RESTORE, at, open, |reader| self.all_of(reader)).map(|(reader, ())| Some(reader))
    }

    /// Restores all parts from a checkpoint that is open. What is there besides is ignored.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where a part lacks something, or has it in another shape, dtype or of another rule;
    /// [`Error::Checkpoint`] for damage; [`Error::WrongContext`] in a replica context. Nothing has changed then.
    #[track_caller]
    pub fn restore_from(&self, reader: &Reader) -> Result<()> {
        self.restore_by(RESTORE, Location::caller(), || Ok(reader), |reader| self.all_of(reader)).map(drop)
    }

    /// Restores what `select` takes, of the names that the checkpoint would have of these parts: `model/fc.weight`. What
    /// it does not take stays as it is. Says what was set, what was not and why, and what of the checkpoint was not used.
    ///
    /// For a model that goes on from another's weights: with a new head, or other names. Variables can be restored in part;
    /// an optimizer, a dataset or a strategy is left out, and begins anew.
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
    /// [`Error::InvalidArgument`] where something selected is missing or does not fit, all of it by name; where nothing is
    /// restored; for parts that are restored as a whole. [`Error::Checkpoint`] for damage; [`Error::WrongContext`] in a
    /// replica context. Nothing has changed then.
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

    /// What changes all parts into what was saved.
    fn all_of(&self, reader: &Reader) -> Result<(Vec<Restore<'a>>, ())> {
        let ready = self.parts.iter().map(|(name, part)| part.restore(name, reader));
        Ok((ready.collect::<Result<_>>()?, ()))
    }

    fn require(&self, operation: &'static str) -> Result<()> {
        let found = match here() {
            Here::Default | Here::CrossReplica(..) => None,
            Here::Update(_) => Some(ContextKind::Update),
            Here::Replica(_) => Some(ContextKind::Replica),
        };
        if let Some(found) = found {
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
