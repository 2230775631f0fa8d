//! A series of checkpoints in one folder.

use crate::background::SaveHandle;
use crate::names::{LAST, PREFIX, name, number};
use crate::saves::Saves;
use crate::{Error, Progress, Reader, Result, WriteParts, Writer};
use distribute_files::{LockFile, Partial, destination_name};
use distribute_log::warn_or_stderr;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A manager that saves numbered checkpoints into one folder (`ckpt-000001` and so on), and keeps only the last
/// few.
///
/// A checkpoint gets its name by an atomic rename when it is complete, and older checkpoints are removed only after
/// that. The checkpoint with the highest number is therefore always complete, and is the latest. There is no other
/// record of the latest checkpoint.
///
/// Only one process may save at a time: among several workers, the chief. Any number of processes may read.
///
/// Other entries in the folder are ignored. If the name of an entry resembles that of a checkpoint, the manager logs
/// one warning: for a file, or for a folder with a number that the manager would not use.
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
    series: Series,
    /// The saves by this manager and its clones.
    saves: Arc<Saves>,
}

/// A folder with numbered checkpoints.
#[derive(Clone, Debug)]
struct Series {
    folder: PathBuf,
    keep: usize,
    /// The names of foreign entries for which a warning has been logged.
    warned: Arc<Mutex<BTreeSet<OsString>>>,
}

/// The default number of checkpoints to keep, as in TensorFlow.
const DEFAULT_KEPT: usize = 5;
/// The name of the file that is locked during a save. The operating system releases the lock when the process
/// exits, even after a crash.
const LOCK: &str = ".lock";

impl CheckpointManager {
    /// Creates a manager for the given folder. Creates the folder if it does not exist.
    ///
    /// The manager keeps the last five checkpoints, unless [`keep`](Self::keep) is called.
    ///
    /// # Errors
    /// - [`Error::Io`]: the folder cannot be created.
    pub fn new(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref().to_path_buf();
        fs::create_dir_all(&folder).map_err(Error::io("creating", &folder))?;
        let series = Series { folder, keep: DEFAULT_KEPT, warned: Arc::default() };
        let saves = Saves::new(&series.folder);
        Ok(Self { series, saves })
    }

    /// Sets the number of checkpoints to keep, at least 1; [`usize::MAX`] keeps all. A save removes older ones
    /// after the new one is complete.
    #[doc(alias = "max_to_keep")]
    pub fn keep(mut self, count: usize) -> Self {
        self.series.keep = count.max(1);
        self
    }

    /// Returns the folder that contains the checkpoints.
    pub fn folder(&self) -> &Path {
        &self.series.folder
    }

    /// Saves a checkpoint under the next number, in at most `shards` files, and returns its path.
    ///
    /// First waits for a save of this manager or a clone that is under way. Then removes incomplete checkpoints that
    /// a crash has left, saves the new one, and removes checkpoints beyond the number to [keep](Self::keep).
    ///
    /// # Errors
    /// The latest checkpoint stays the same, except after [`Error::Removal`], or if the folder cannot be synced or read
    /// after the save, or an earlier save failed.
    /// - [`Error::Busy`]: another process, or a thread with another manager, is saving to this folder.
    /// - [`Error::Io`]: the file `.lock` in the folder cannot be locked, or the folder cannot be read.
    /// - [`Error::InvalidArgument`]: the latest checkpoint has the highest number that is possible, or a save of this
    ///   manager has called the function that makes this call.
    /// - [`Error::Removal`]: the new checkpoint is saved, but an old one cannot be removed.
    /// - [`Error::Earlier`]: the new checkpoint is saved, but the last save in the background failed.
    /// - [`Error::Unfinished`]: a save before has made no progress for five minutes.
    /// - The errors of [`Writer::save`].
    pub fn save(&self, writer: &Writer, shards: usize) -> Result<PathBuf> {
        self.save_with(writer, shards, &mut || Ok(()))
    }

    /// Acts like [`save`](Self::save), and calls `progress` repeatedly while it waits for an earlier save and while
    /// files are written.
    ///
    /// # Errors
    /// Returns the errors of [`save`](Self::save) and of [`Writer::save_with`].
    pub fn save_with(&self, writer: &Writer, shards: usize, progress: &mut Progress<'_>) -> Result<PathBuf> {
        self.save_by(progress, |saved, progress| writer.save_with(saved, shards, progress))
    }

    /// Acts like [`save_with`](Self::save_with), for a checkpoint that `parts` processes write. `write` lets each of
    /// them create and write its part in this folder, and returns the parts in their order. Only one of the processes
    /// makes this call.
    ///
    /// # Errors
    /// Returns the errors of [`save`](Self::save) and of [`Writer::save_parts_with`].
    pub fn save_parts_with(
        &self,
        writer: &Writer,
        shards: usize,
        (parts, write): (usize, &mut WriteParts<'_>),
        progress: &mut Progress<'_>,
    ) -> Result<PathBuf> {
        self.save_by(progress, |saved, progress| {
            writer.save_parts_with(saved, shards, (parts, write), progress)
        })
    }

    /// Saves a checkpoint under the next number by calling `save`.
    fn save_by(
        &self,
        progress: &mut Progress<'_>,
        save: impl FnOnce(&Path, &mut Progress<'_>) -> Result<()>,
    ) -> Result<PathBuf> {
        let turn = self.saves.turn("save", progress)?;
        let (locked, saved) = self.series.begin()?;
        let (earlier, mut reported) = (turn.earlier(), None);
        turn.make(saved.clone(), progress, |progress| {
            let _locked = locked;
            save(&saved, progress)?;
            self.series.remove_old(&saved)?;
            // Reported before the next save begins, which would report it as well.
            reported = earlier.and_then(|earlier| earlier.report(&saved));
            Ok(())
        })?;
        reported.map_or(Ok(saved), Err)
    }

    /// Begins to save a checkpoint under the next number, and returns while a thread copies and writes it. The
    /// checkpoint is identical to that of a [`save`](Self::save) at this time, and appears in the folder when it is
    /// complete. The returned handle waits for it.
    ///
    /// Tensors that were added with [`insert_live`](Writer::insert_live) may change as soon as this call has returned.
    /// Each change waits until the thread has copied the tensor. The other tensors of `writer` are not copied, because
    /// nothing can change them. The thread then needs memory for one copy of the live tensors. It writes with a low
    /// priority on Linux, so that it does not slow down other threads while all cores are busy.
    ///
    /// At most one save of a manager and its clones is under way: the next save, in the background or not, first waits
    /// for this one. If this one fails, that is logged at once. The handle returns the error, or else the manager's
    /// next save does, as [`Error::Earlier`]. The process must not exit by [`std::process::exit`] before the save has
    /// finished, which would interrupt it like a crash. A program that returns from `main` waits for it when it drops
    /// the manager.
    ///
    /// ```
    /// use distribute_checkpoint::{CheckpointManager, Writer};
    /// use std::time::Duration;
    /// # let folder = tempfile::tempdir().unwrap();
    /// let manager = CheckpointManager::new(folder.path())?;
    /// let mut writer = Writer::new();
    /// writer.metadata("step", 7);
    /// let saving = manager.save_async(writer, 1)?;
    /// // … train …
    /// let path = saving.wait(Duration::from_secs(60))?;
    /// assert_eq!(manager.latest()?.expect("it was saved").path(), path);
    /// # Ok::<(), distribute_checkpoint::Error>(())
    /// ```
    ///
    /// # Errors
    /// Nothing is saved if an error other than [`Error::Earlier`] is returned.
    /// - [`Error::Busy`]: another process, or a thread with another manager, is saving to this folder.
    /// - [`Error::Io`]: the file `.lock` in the folder cannot be locked, the folder cannot be read, or the thread
    ///   cannot be started.
    /// - [`Error::InvalidArgument`]: the latest checkpoint has the highest number that is possible, `shards` is 0, or a
    ///   save of this manager has called the function that makes this call.
    /// - [`Error::InvalidArgument`]: rows of a tensor are [read during the save](Writer::insert_read), for which the
    ///   program must wait.
    /// - [`Error::Entry`]: some rows of a tensor were not added.
    /// - [`Error::Source`]: a live tensor cannot be held, for example because another thread is changing it.
    /// - [`Error::Panicked`]: the code that holds a live tensor panicked.
    /// - [`Error::Earlier`]: the save has begun, but the last save in the background failed.
    /// - [`Error::Unfinished`]: the save before has made no progress for five minutes.
    ///
    /// Later errors are those of [`save`](Self::save).
    #[doc(alias = "tf.train.CheckpointOptions")]
    #[doc(alias = "experimental_enable_async_checkpoint")]
    pub fn save_async(&self, writer: Writer, shards: usize) -> Result<SaveHandle> {
        self.save_async_with(writer, shards, &mut || Ok(()))
    }

    /// Acts like [`save_async`](Self::save_async), and calls `progress` repeatedly while it waits for an earlier
    /// save.
    ///
    /// # Errors
    /// - [`Error::Interrupted`]: `progress` returned an error. No save has begun.
    /// - The errors of [`save_async`](Self::save_async).
    pub fn save_async_with(
        &self,
        writer: Writer,
        shards: usize,
        progress: &mut Progress<'_>,
    ) -> Result<SaveHandle> {
        if writer.reads_rows() {
            let reason = "rows of a tensor are read while it is written, and may change; use save".into();
            return Err(Error::InvalidArgument { operation: "save_async", reason });
        }
        writer.layout(shards)?;
        let turn = self.saves.turn("save_async", progress)?;
        let (locked, saved) = self.series.begin()?;
        let earlier = turn.earlier();
        let (series, path) = (self.series.clone(), saved.clone());
        let saving = turn.start(saved, writer, move |writer, progress| {
            let _locked = locked;
            writer.save_with(&path, shards, progress)?;
            series.remove_old(&path)
        })?;
        let reported = earlier.and_then(|earlier| earlier.report(saving.path()));
        reported.map_or(Ok(saving), Err)
    }

    /// Waits for the saves of this manager and its clones that are under way. If a save in the background fails, this
    /// does not return its error; the next save does.
    ///
    /// # Errors
    /// - [`Error::Interrupted`]: `progress` returned an error. The saves continue.
    /// - [`Error::Unfinished`]: a save has made no progress for five minutes.
    /// - [`Error::InvalidArgument`]: a save of this manager has called the function that makes this call.
    pub fn finish_with(&self, progress: &mut Progress<'_>) -> Result<()> {
        self.saves.finish("finish_with", progress)
    }

    #[cfg(test)]
    pub(crate) fn saves(&self) -> &Arc<Saves> {
        &self.saves
    }

    /// Returns the paths of all checkpoints in the folder, from the oldest to the latest.
    ///
    /// # Errors
    /// - [`Error::Io`]: the folder cannot be read.
    pub fn paths(&self) -> Result<Vec<PathBuf>> {
        self.series.paths()
    }

    /// Opens and returns the latest checkpoint; `None` if there is none yet.
    ///
    /// # Errors
    /// Returns the errors of [`paths`](Self::paths) and [`Reader::open`], even if only the latest checkpoint is
    /// damaged. [`latest_undamaged`](Self::latest_undamaged) skips damaged checkpoints.
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

    /// Opens and returns the latest undamaged checkpoint; `None` if there is no checkpoint yet.
    ///
    /// First waits for saves of this manager and its clones. Reads the complete checkpoint to verify it, unless it is
    /// the only one. If the latest checkpoint is damaged and an older one is not, this logs a warning. Damaged
    /// checkpoints are not changed.
    ///
    /// # Errors
    /// - The errors of [`Reader::open`] and [`Reader::verify`] for the latest checkpoint, if all are damaged.
    /// - [`Error::Version`]: the latest checkpoint was written by another version of this crate.
    /// - [`Error::Io`]: the folder cannot be read, or the latest checkpoint cannot be read although its files exist.
    /// - The errors of [`finish_with`](Self::finish_with).
    pub fn latest_undamaged(&self) -> Result<Option<Reader>> {
        self.latest_undamaged_with(&mut || Ok(()))
    }

    /// Acts like [`latest_undamaged`](Self::latest_undamaged), and calls `progress` repeatedly while it waits
    /// for a save of this manager or verifies a checkpoint.
    ///
    /// # Errors
    /// - [`Error::Interrupted`]: `progress` returned an error.
    /// - The errors of [`latest_undamaged`](Self::latest_undamaged).
    pub fn latest_undamaged_with(&self, progress: &mut Progress<'_>) -> Result<Option<Reader>> {
        // A save in the background becomes the latest checkpoint, and removes the oldest. If it fails, the next save
        // reports the error.
        self.saves.finish("latest_undamaged", progress)?;
        let Some(latest) = self.latest().transpose() else { return Ok(None) };
        let paths = self.paths()?;
        if paths.len() < 2 {
            return latest.map(Some);
        }
        let tried = latest.as_ref().ok().map(|latest| latest.path().to_path_buf());
        let mut verified = |checkpoint: Reader| checkpoint.verify_with(progress).map(|()| checkpoint);
        let first = match latest.and_then(&mut verified) {
            Err(error) if is_damage(&error) => error,
            result => return result.map(Some),
        };
        for path in paths.iter().rev().filter(|path| Some(*path) != tried.as_ref()) {
            let older = match Reader::open(path).and_then(&mut verified) {
                Ok(older) => older,
                Err(error @ Error::Interrupted { .. }) => return Err(error),
                Err(_) => continue,
            };
            warn_or_stderr(|| {
                tracing::warn!(
                    "{first}; continues from {}, the latest undamaged checkpoint",
                    older.path().display()
                );
            });
            return Ok(Some(older));
        }
        Err(first)
    }
}

impl Series {
    /// Locks the folder, removes incomplete checkpoints that a crash has left, and returns the path of the next
    /// checkpoint.
    fn begin(&self) -> Result<(LockFile, PathBuf)> {
        let lock = self.folder.join(LOCK);
        let locked = LockFile::acquire(&lock).map_err(Error::io("locking", &lock))?;
        let Some(locked) = locked else { return Err(Error::Busy { path: self.folder.clone() }) };
        let Found { checkpoints, partials } = self.list()?;
        // No other process saves here, so partial checkpoints are from a crash. The new one may need their
        // disk space.
        partials.iter().for_each(|partial| Partial::clear_folder(partial));
        Ok((locked, self.unused(checkpoints.last().map_or(1, |(number, _)| number + 1))?))
    }

    /// Removes checkpoints beyond the number to keep, after `saved` was saved.
    fn remove_old(&self, saved: &Path) -> Result<()> {
        let paths = self.paths()?;
        for path in &paths[..paths.len().saturating_sub(self.keep)] {
            // Renamed first, so that a crash does not leave an incomplete checkpoint.
            Partial::of_old(path).and_then(Partial::remove).map_err(|source| Error::Removal {
                saved: saved.to_path_buf(),
                path: path.clone(),
                source,
            })?;
        }
        Ok(())
    }

    fn paths(&self) -> Result<Vec<PathBuf>> {
        Ok(self.list()?.checkpoints.into_iter().map(|(_, path)| path).collect())
    }

    /// Returns the first unused path for a checkpoint, counting up from `number`.
    fn unused(&self, number: u64) -> Result<PathBuf> {
        let paths = (number..=LAST).map(|number| self.folder.join(name(number)));
        let unused = paths.into_iter().find(|path| path.symlink_metadata().is_err());
        unused.ok_or_else(|| Error::InvalidArgument {
            operation: "save",
            reason: format!(
                "there are no more numbers in {} after {}: remove or rename that one",
                self.folder.display(),
                name(LAST)
            ),
        })
    }

    /// Lists the complete and the incomplete checkpoints in the folder. Logs one warning for each entry that only
    /// resembles a checkpoint.
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
            } else if destination_name(&found).and_then(number).is_some() {
                ours.partials.push(path);
            } else if text.starts_with(PREFIX) || text.starts_with(&format!(".{PREFIX}")) {
                self.warn_foreign(found, &path);
            }
        }
        ours.checkpoints.sort();
        Ok(ours)
    }

    fn warn_foreign(&self, found: OsString, path: &Path) {
        // The entry may have been removed in between.
        if path.symlink_metadata().is_ok()
            && self.warned.lock().unwrap_or_else(PoisonError::into_inner).insert(found)
        {
            warn_or_stderr(|| {
                tracing::warn!(
                    "{} is not a checkpoint of this folder although its name looks like one: it is left \
                     unchanged",
                    path.display()
                );
            });
        }
    }
}

/// Returns whether the error means that the checkpoint is damaged or files of it are missing, so that reading it again
/// would not help.
fn is_damage(error: &Error) -> bool {
    match error {
        Error::Damaged { .. } | Error::Index { .. } | Error::NoCheckpoint { .. } => true,
        Error::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

/// The entries of a manager's folder that the manager has created.
#[derive(Default)]
struct Found {
    /// The complete checkpoints, in ascending order of their numbers.
    checkpoints: Vec<(u64, PathBuf)>,
    /// The paths of incomplete checkpoints, which a crash has left or another process is writing.
    partials: Vec<PathBuf>,
}
