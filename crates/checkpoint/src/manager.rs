//! Checkpoints one after another in one folder.

use crate::save::PART;
use crate::{Error, Reader, Result, Writer};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// Saves checkpoints one after another into a folder, `ckpt-000001` and so on, and keeps the last ones.
///
/// A new checkpoint gets its name in one step when it is whole, and older ones are removed after that: at every moment
/// the one with the highest number is whole and the latest. There is no other record of which it is.
///
/// One process saves at a time: of several workers, the chief. Any number may read.
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
    keep: Option<usize>,
}

/// Of the names of checkpoints.
const PREFIX: &str = "ckpt-";
/// Held while a checkpoint is saved. The system lets go of it when the process ends, however it does.
const LOCK: &str = ".lock";

impl CheckpointManager {
    /// For a folder, which is created if it isn't there. All checkpoints are kept.
    ///
    /// # Errors
    /// [`Error::Io`] where it cannot be created.
    pub fn new(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref().to_path_buf();
        fs::create_dir_all(&folder).map_err(Error::io("creating", &folder))?;
        Ok(Self { folder, keep: None })
    }

    /// Keeps the last `count` checkpoints, 1 at least: a save removes older ones when the new one is in place.
    #[doc(alias = "max_to_keep")]
    pub fn keep(mut self, count: usize) -> Self {
        self.keep = Some(count.max(1));
        self
    }

    /// Saves under the next number, and gives the path; as [`Writer::save`].
    ///
    /// # Errors
    /// Those of [`Writer::save`]; [`Error::Busy`] while another process or thread saves here. The latest checkpoint is the
    /// one from before, then. [`Error::Removal`] where the new one is in place, but an old one cannot be removed.
    pub fn save(&self, writer: &Writer, shards: usize) -> Result<PathBuf> {
        let lock = self.folder.join(LOCK);
        let file = File::create(&lock).map_err(Error::io("opening", &lock))?;
        match file.try_lock() {
            Ok(()) => (),
            Err(TryLockError::WouldBlock) => return Err(Error::Busy { path: self.folder.clone() }),
            Err(TryLockError::Error(error)) => return Err(Error::io("locking", &lock)(error)),
        }
        // Nobody else saves: what is not whole was left by a crash, and takes the room that the new one needs.
        for part in self.list(|name| name.starts_with(&format!(".{PREFIX}")) && name.ends_with(PART))? {
            fs::remove_dir_all(&part).map_err(Error::io("removing", &part))?;
        }
        let next = self.numbered()?.last().map_or(1, |(number, _)| number.saturating_add(1));
        let saved = self.folder.join(format!("{PREFIX}{next:06}"));
        writer.save(&saved, shards)?;
        let paths = self.paths()?;
        for path in &paths[..paths.len().saturating_sub(self.keep.unwrap_or(usize::MAX))] {
            remove(path).map_err(|source| Error::Removal {
                saved: saved.clone(),
                path: path.clone(),
                source,
            })?;
        }
        Ok(saved)
    }

    /// The checkpoints, the latest last.
    ///
    /// # Errors
    /// [`Error::Io`] where the folder cannot be read.
    pub fn paths(&self) -> Result<Vec<PathBuf>> {
        Ok(self.numbered()?.into_iter().map(|(_, path)| path).collect())
    }

    /// The latest checkpoint; `None` before the first.
    ///
    /// # Errors
    /// Those of [`Reader::open`]: a damaged one is an error, not passed over. [`paths`](Self::paths) has the older ones.
    #[doc(alias = "latest_checkpoint")]
    #[doc(alias = "restore_or_initialize")]
    pub fn latest(&self) -> Result<Option<Reader>> {
        let mut latest = self.paths()?.pop();
        while let Some(path) = latest {
            match Reader::open(&path) {
                Ok(checkpoint) => return Ok(Some(checkpoint)),
                // It may have been removed, after newer ones came.
                Err(error) => match self.paths()?.pop() {
                    Some(newer) if newer != path => latest = Some(newer),
                    _ => return Err(error),
                },
            }
        }
        Ok(None)
    }

    fn numbered(&self) -> Result<Vec<(u64, PathBuf)>> {
        let number = |path: PathBuf| {
            let digits = path.file_name()?.to_str()?.strip_prefix(PREFIX)?;
            let all_digits = digits.bytes().all(|digit| digit.is_ascii_digit());
            Some((digits.parse().ok().filter(|_| all_digits)?, path))
        };
        let mut numbered: Vec<_> = self.list(|_| true)?.into_iter().filter_map(number).collect();
        numbered.sort();
        Ok(numbered)
    }

    fn list(&self, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
        let read = || {
            let names = fs::read_dir(&self.folder)?.map(|entry| Ok(entry?.file_name()));
            names.collect::<io::Result<Vec<_>>>()
        };
        let names = read().map_err(Error::io("reading", &self.folder))?;
        Ok(names
            .into_iter()
            .filter(|name| name.to_str().is_some_and(&wanted))
            .map(|name| self.folder.join(name))
            .collect())
    }
}

/// Removes a checkpoint. It loses its name first: a crash in between leaves no half of one.
fn remove(path: &Path) -> io::Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".old{PART}"));
    let nameless = path.with_file_name(name);
    fs::rename(path, &nameless)?;
    fs::remove_dir_all(nameless)
}
