//! A series of checkpoints in one folder.

use crate::{Error, Reader, Result, Writer};
use distribute_files::{LockFile, Partial, whole_name};
use distribute_log::heard;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A manager that saves checkpoints one after another into a folder, `ckpt-000001` and so on, and keeps the
/// last ones.
///
/// A new checkpoint is renamed atomically when it is complete, and older ones are removed after that. So the
/// checkpoint with the highest number is always complete and the latest. There is no other record of the
/// latest checkpoint.
///
/// Only one process saves at a time: of several workers, the chief. Any number may read.
///
/// Other entries of the folder are ignored, even if their names resemble those of checkpoints: a file, or a
/// folder with a number that no manager uses. A warning names such an entry once.
///
/// ```
/// use distribute_checkpoint::{CheckpointManager, Writer};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let manager = CheckpointManager::new(folder.path().join("run-1"))?.keep(2);
/// for step in 1..=3 {
///     let mut writer = Writer::new();
///     writer.metadata("step", step);
///     manager.save(&writer, 1)?;
/// }
/// assert_eq!(manager.paths()?.len(), 2);
/// let latest = manager.latest()?.expect("three were saved");
/// assert_eq!(latest.metadata("step").and_then(|step| step.as_u64()), Some(3));
/// # Ok::<(), distribute_checkpoint::Error>(())
/// ```
#[doc(alias = "tf.train.CheckpointManager")]
#[derive(Clone, Debug)]
pub struct CheckpointManager {
    folder: PathBuf,
    keep: usize,
    /// The foreign names that have been reported.
    told: Arc<Mutex<BTreeSet<OsString>>>,
}

/// The number of checkpoints that are kept by default, as in TensorFlow.
const KEPT: usize = 5;
/// The prefix of checkpoints' names.
const PREFIX: &str = "ckpt-";
/// The highest number: a thousand checkpoints per second for thirty years.
const LAST: u64 = 999_999_999_999;
/// The name of the file that is locked during a save. The system releases the lock however the process exits.
const LOCK: &str = ".lock";

impl CheckpointManager {
    /// Creates a manager for a folder, and the folder if it does not exist.
    ///
    /// The manager keeps the last five checkpoints, unless [`keep`](Self::keep) is called.
    ///
    /// # Errors
    /// - [`Error::Io`]: the folder cannot be created.
    pub fn new(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref().to_path_buf();
        fs::create_dir_all(&folder).map_err(Error::io("creating", &folder))?;
        Ok(Self { folder, keep: KEPT, told: Arc::default() })
    }

    /// Sets the number of checkpoints to keep, at least 1; [`usize::MAX`] keeps all. A save removes older ones
    /// after the new one is complete.
    #[doc(alias = "max_to_keep")]
    pub fn keep(mut self, count: usize) -> Self {
        self.keep = count.max(1);
        self
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Saves under the next number, like [`Writer::save`], and returns the path.
    ///
    /// # Errors
    /// The latest checkpoint does not change, except after [`Error::Removal`].
    /// - [`Error::Busy`]: another process or thread is saving here.
    /// - [`Error::Io`]: `.lock` in the folder is not a file.
    /// - [`Error::Removal`]: the new checkpoint is saved, but an old one cannot be removed.
    /// - The errors of [`Writer::save`].
    pub fn save(&self, writer: &Writer, shards: usize) -> Result<PathBuf> {
        let lock = self.folder.join(LOCK);
        let locked = LockFile::acquire(&lock).map_err(Error::io("locking", &lock))?;
        let Some(_locked) = locked else { return Err(Error::Busy { path: self.folder.clone() }) };
        let Found { checkpoints, partials } = self.list()?;
        // No other process saves here, so partial checkpoints are from a crash. The new one may need their
        // disk space.
        partials.iter().for_each(|partial| Partial::clear_folder(partial));
        let saved = self.unused(checkpoints.last().map_or(1, |(number, _)| number + 1))?;
        writer.save(&saved, shards)?;
        let paths = self.paths()?;
        for path in &paths[..paths.len().saturating_sub(self.keep)] {
            // Renamed first, so that a crash does not leave an incomplete checkpoint.
            Partial::of_old(path).and_then(Partial::remove).map_err(|source| Error::Removal {
                saved: saved.clone(),
                path: path.clone(),
                source,
            })?;
        }
        Ok(saved)
    }

    /// Returns the paths of the checkpoints, the latest last.
    ///
    /// # Errors
    /// - [`Error::Io`]: the folder cannot be read.
    pub fn paths(&self) -> Result<Vec<PathBuf>> {
        Ok(self.list()?.checkpoints.into_iter().map(|(_, path)| path).collect())
    }

    /// Returns the latest checkpoint; `None` before the first.
    ///
    /// # Errors
    /// Returns the errors of [`Reader::open`], even for a damaged checkpoint, which
    /// [`latest_whole`](Self::latest_whole) skips.
    #[doc(alias = "latest_checkpoint")]
    #[doc(alias = "restore_or_initialize")]
    pub fn latest(&self) -> Result<Option<Reader>> {
        let mut latest = self.paths()?.pop();
        while let Some(path) = latest {
            match Reader::open(&path) {
                Ok(checkpoint) => return Ok(Some(checkpoint)),
                // The checkpoint may have been removed because of newer ones.
                Err(error) => match self.paths()?.pop() {
                    Some(newer) if newer != path => latest = Some(newer),
                    _ => return Err(error),
                },
            }
        }
        Ok(None)
    }

    /// Returns the latest undamaged checkpoint; `None` before the first.
    ///
    /// Reads all of the checkpoint, unless there is no older one. A warning names the latest checkpoint if it
    /// is damaged. Damaged checkpoints are not changed.
    ///
    /// # Errors
    /// - The errors of [`Reader::open`] and [`Reader::verify`] for the latest checkpoint, if all are damaged.
    /// - [`Error::Version`]: the latest checkpoint was written by another version of this crate.
    /// - [`Error::Io`]: the system refuses to read it, for another reason than a missing file.
    pub fn latest_whole(&self) -> Result<Option<Reader>> {
        let Some(latest) = self.latest().transpose() else { return Ok(None) };
        let paths = self.paths()?;
        if paths.len() < 2 {
            return latest.map(Some);
        }
        let tried = latest.as_ref().ok().map(|latest| latest.path().to_path_buf());
        let first = match latest.and_then(verified) {
            Err(error) if is_damage(&error) => error,
            result => return result.map(Some),
        };
        for path in paths.iter().rev().filter(|path| Some(*path) != tried.as_ref()) {
            let Ok(older) = Reader::open(path).and_then(verified) else { continue };
            heard(|| {
                tracing::warn!("{first}; goes on from {}, the newest that is whole", older.path().display());
            });
            return Ok(Some(older));
        }
        Err(first)
    }

    /// Returns the first unused path from this number on.
    fn unused(&self, number: u64) -> Result<PathBuf> {
        let paths = (number..=LAST).map(|number| self.folder.join(name(number)));
        let unused = paths.into_iter().find(|path| path.symlink_metadata().is_err());
        unused.ok_or_else(|| Error::InvalidArgument {
            operation: "save",
            reason: format!(
                "no number is left in {} after {}: remove or rename that one",
                self.folder.display(),
                name(LAST)
            ),
        })
    }

    /// Lists the folder. Entries that only resemble checkpoints are reported once.
    fn list(&self) -> Result<Found> {
        let read = || {
            let names = fs::read_dir(&self.folder)?.map(|entry| Ok(entry?.file_name()));
            names.collect::<io::Result<Vec<_>>>()
        };
        let mut ours = Found::default();
        for found in read().map_err(Error::io("reading", &self.folder))? {
            let path = self.folder.join(&found);
            let text = found.to_string_lossy();
            if let Some(number) = number(&text).filter(|_| path.is_dir()) {
                ours.checkpoints.push((number, path));
            } else if whole_name(&found).and_then(number).is_some() {
                ours.partials.push(path);
            } else if text.starts_with(PREFIX) || text.starts_with(&format!(".{PREFIX}")) {
                self.tell(found, &path);
            }
        }
        ours.checkpoints.sort();
        Ok(ours)
    }

    fn tell(&self, found: OsString, path: &Path) {
        // The entry may have been removed in between.
        if path.symlink_metadata().is_ok()
            && self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(found)
        {
            heard(|| {
                tracing::warn!(
                    "{} is no checkpoint of this folder's, though its name is like theirs: it stays as it is",
                    path.display()
                );
            });
        }
    }
}

fn verified(checkpoint: Reader) -> Result<Reader> {
    checkpoint.verify().map(|()| checkpoint)
}

/// Whether the checkpoint itself is damaged, so that reading it again would not help.
fn is_damage(error: &Error) -> bool {
    match error {
        Error::Damaged { .. } | Error::Index { .. } | Error::NoCheckpoint { .. } => true,
        Error::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

/// Returns the latest checkpoint in a folder, by its name.
pub(crate) fn latest_in(folder: &Path) -> Option<PathBuf> {
    let names = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name());
    let numbers = names.filter_map(|found| number(&found.to_string_lossy()));
    numbers.max().map(|latest| folder.join(name(latest)))
}

/// The entries of a folder that belong to its manager.
#[derive(Default)]
struct Found {
    /// The checkpoints, by number.
    checkpoints: Vec<(u64, PathBuf)>,
    /// The incomplete checkpoints.
    partials: Vec<PathBuf>,
}

/// Returns the folder name of a checkpoint.
fn name(number: u64) -> String {
    format!("{PREFIX}{number:06}")
}

/// Returns the number of a checkpoint from its folder name.
fn number(text: &str) -> Option<u64> {
    let number = text.strip_prefix(PREFIX)?.parse().ok()?;
    ((1..=LAST).contains(&number) && name(number) == text).then_some(number)
}
