//! Checkpoints of a training: several parts, saved together and restored together.

use crate::context::{ContextKind, Here, here};
use crate::{Error, Restored, Result, Select};
pub use distribute_checkpoint::{
    CheckpointManager, Description, Error as CheckpointError, Metadata, Reader, Value, Writer,
};
use distribute_tensor::{DType, HostTensor};
use std::path::Path;

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
}

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
/// Save and restore between runs, on the chief. A single file of weights for other programs is
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
/// let first_epoch = match manager.latest()? {
///     None => 0,                                                              // the first start
///     Some(saved) => {
///         training.restore_from(&saved)?;
///         1 + saved.metadata("epoch").and_then(|epoch| epoch.as_u64()).unwrap_or(0)
///     }
/// };
/// for epoch in first_epoch..3 {
///     // … train …
///     manager.save(&training.clone().metadata("epoch", epoch).writer()?, 1)?;
/// }
/// # assert_eq!(manager.latest()?.unwrap().tensor("optimizer/m/fc.weight")?.dims(), [2, 4]);
/// # Ok::<(), distribute::Error>(())
/// ```
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

    /// A copy of everything as it is now, to be saved by a [`CheckpointManager`] or in several files. Training may go on
    /// while it is written.
    ///
    /// # Errors
    /// [`Error::WrongContext`] in a replica context; [`Error::InvalidArgument`] for two parts of one name; those of the parts.
    pub fn writer(&self) -> Result<Writer> {
        self.require("Checkpoint::save")?;
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
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        Ok(self.writer()?.save(path, 1)?)
    }

    /// Restores all parts from the folder at `path`, and gives what was saved, to ask it for metadata.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] for a checkpoint that is damaged or not there, and those of
    /// [`restore_from`](Checkpoint::restore_from).
    #[doc(alias = "tf.train.Checkpoint.restore")]
    pub fn restore(&self, path: impl AsRef<Path>) -> Result<Reader> {
        let reader = Reader::open(path)?;
        self.restore_from(&reader)?;
        Ok(reader)
    }

    /// Restores all parts from a checkpoint that is open. What is there besides is ignored.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where a part lacks something, or has it in another shape, dtype or of another rule;
    /// [`Error::Checkpoint`] for damage; [`Error::WrongContext`] in a replica context. Nothing has changed then.
    pub fn restore_from(&self, reader: &Reader) -> Result<()> {
        self.require("Checkpoint::restore")?;
        let ready: Vec<_> =
            self.parts.iter().map(|(name, part)| part.restore(name, reader)).collect::<Result<_>>()?;
        ready.into_iter().try_for_each(|change| change())
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
    pub fn restore_some(&self, path: impl AsRef<Path>, select: &Select<'_>) -> Result<Restored> {
        self.require(SOME)?;
        let reader = Reader::open(path)?;
        let (mut ready, mut restored) = (Vec::new(), Restored::default());
        for (name, part) in &self.parts {
            let (change, of_part) = part.restore_some(name, &reader, select)?;
            ready.push(change);
            restored.append(of_part);
        }
        let from = reader.path().display().to_string();
        let restored = restored.finish(SOME, &from, reader.names().map(String::from))?;
        ready.into_iter().try_for_each(|change| change())?;
        Ok(restored)
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

/// The names among `expected` that a checkpoint lacks are an error.
pub(crate) fn require_names(reader: &Reader, expected: &[String]) -> Result<()> {
    let missing: Vec<_> = expected.iter().filter(|name| !reader.contains(name)).take(20).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let there: Vec<_> = reader.names().take(20).collect();
    let path = reader.path().display();
    Err(Error::invalid(
        "Checkpoint::restore",
        format!(
            "{path} lacks {missing:?}; it has {there:?}; build model and optimizer as they were when it was saved"
        ),
    ))
}

/// A tensor of a checkpoint that is as [`Select`] wants it, in this dtype.
pub(crate) fn read_cast(reader: &Reader, name: &str, dtype: DType) -> Result<HostTensor> {
    let value = reader.tensor(name)?;
    Ok(if value.dtype() == dtype { value } else { value.cast(dtype)? })
}

/// What a checkpoint has under a name.
pub(crate) fn described(reader: &Reader, name: &str) -> Option<(Option<DType>, Vec<usize>)> {
    reader.describe(name).ok().map(|found| (Some(found.dtype), found.shape))
}

/// A tensor of a checkpoint, if it is of this dtype and shape.
pub(crate) fn read_as(reader: &Reader, name: &str, dtype: DType, shape: &[usize]) -> Result<HostTensor> {
    let found = reader.describe(name)?;
    if (found.dtype, &*found.shape) != (dtype, shape) {
        return Err(Error::invalid(
            "Checkpoint::restore",
            format!(
                "{name} in {} is {}{:?}, but here it is {dtype}{shape:?}",
                reader.path().display(),
                found.dtype,
                found.shape
            ),
        ));
    }
    Ok(reader.tensor(name)?)
}
