//! [`Journal`]: the log to which several threads append, and on whose syncs they wait.

use super::{Disk, LogFile, Opens, Record, path};
use crate::Durability;
use distribute_cluster::Deadline;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The maximum time for which a thread waits while another one syncs to disk.
const PATIENCE: Duration = Duration::from_secs(60);

/// The log of one server.
pub(crate) struct Journal {
    folder: PathBuf,
    opens: Opens,
    durability: Durability,
    file: Mutex<LogFile>,
    durable: Mutex<Durable>,
    changed: Condvar,
    /// Whether an append has failed since the last snapshot.
    rejects_changes: AtomicBool,
}

/// The state of syncing the log to disk.
#[derive(Debug)]
struct Durable {
    /// The number below which all records are on disk.
    below: u64,
    /// Whether a thread is currently syncing to disk.
    syncing: bool,
    /// The number of the next record when a sync failed, and the reason. The state of the disk is then unknown.
    failed: Option<(u64, String)>,
}

impl Journal {
    /// Creates the journal of a log that continues in `file`.
    pub fn new(folder: &Path, opens: Opens, durability: Durability, file: LogFile) -> Self {
        let durable = Durable { below: file.next(), syncing: false, failed: None };
        let (folder, file, durable) = (folder.to_path_buf(), Mutex::new(file), Mutex::new(durable));
        Self {
            folder,
            opens,
            durability,
            file,
            durable,
            changed: Condvar::new(),
            rejects_changes: AtomicBool::new(false),
        }
    }

    /// Returns the folder of the log.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Appends a record, and returns its number. The record then survives a kill of the process. After an error,
    /// [`rejects_changes`](Self::rejects_changes) returns `true`.
    ///
    /// # Errors
    /// Returns the error of the file, or that of an earlier sync that the durability requires.
    pub fn append(&self, record: &Record) -> io::Result<u64> {
        let appended = match &self.durable().failed {
            Some((_, reason)) if self.durability != Durability::System => {
                Err(io::Error::other(reason.clone()))
            }
            _ => Ok(()),
        };
        let appended = appended.and_then(|()| self.file().append(record));
        if appended.is_err() {
            self.rejects_changes.store(true, Ordering::Relaxed);
        }
        appended
    }

    /// Returns whether an append has failed since the last snapshot, or a sync has failed. Changes are then rejected,
    /// unless only a sync has failed that the durability does not require. A new snapshot may end this state.
    pub fn rejects_changes(&self) -> bool {
        self.rejects_changes.load(Ordering::Relaxed) || self.durable().failed.is_some()
    }

    /// Returns the number of the next record.
    pub fn next(&self) -> u64 {
        self.file().next()
    }

    /// Returns the size of the current file in bytes.
    pub fn bytes(&self) -> u64 {
        self.file().bytes()
    }

    /// Returns whether the current file contains a change.
    pub fn has_changes(&self) -> bool {
        self.file().has_changes()
    }

    /// Appends a mark that all changes so far were acknowledged, so that later damage to them is not mistaken for an
    /// interrupted write. Errors are ignored.
    pub fn mark(&self) {
        let _ = self.file().mark();
    }

    /// Waits until all records with numbers less than `below` are as safe as the durability requires.
    pub fn commit(&self, below: u64) -> io::Result<()> {
        match self.durability {
            Durability::Disk => self.sync(below),
            Durability::Soon(_) | Durability::System => Ok(()),
        }
    }

    /// Waits until all records with numbers less than `below` are on disk. If several threads call this at the same
    /// time, one of them syncs.
    ///
    /// # Errors
    /// Returns the error of this sync or of an earlier one that has failed, and an error if another thread's sync takes
    /// longer than a minute.
    pub fn sync(&self, below: u64) -> io::Result<()> {
        let mut deadline = Deadline::after(PATIENCE);
        let mut durable = self.durable();
        loop {
            if durable.below >= below {
                return Ok(());
            }
            if let Some((_, reason)) = &durable.failed {
                return Err(io::Error::other(reason.clone()));
            }
            if !durable.syncing {
                break;
            }
            let slice = deadline.look();
            if slice.is_zero() {
                return Err(io::Error::other(format!("the disk did not respond within {PATIENCE:?}")));
            }
            self.changed.wait_for(&mut durable, slice);
            deadline.look();
        }
        durable.syncing = true;
        drop(durable);
        let (disk, next): (Arc<dyn Disk>, u64) = {
            let file = self.file();
            (file.disk(), file.next())
        };
        let synced = disk.sync();
        let mut durable = self.durable();
        durable.syncing = false;
        match &synced {
            Ok(()) => durable.below = durable.below.max(next),
            Err(error) => {
                let reason = format!("earlier records may not be on the disk: {error}");
                durable.failed = Some((next, reason));
            }
        }
        self.changed.notify_all();
        synced
    }

    /// Syncs the log to disk, begins a new file, and returns the number of its first record. If the current file
    /// contains no change, the log continues in that file instead, and the number is that of the next record. After a
    /// failed sync, begins the new file without another sync. No thread may append at the same time.
    pub fn rotate(&self) -> io::Result<u64> {
        let next = self.next();
        let has_failed = self.durable().failed.is_some();
        if !has_failed {
            self.sync(next)?;
        }
        let mut file = self.file();
        if !file.has_changes() {
            return Ok(next);
        }
        let path = path(&self.folder, next);
        let begin = || {
            let mut new = LogFile::new((self.opens)(&path)?, 0, file.link(), false);
            new.begin()?;
            new.disk().sync().or_else(|error| if has_failed { Ok(()) } else { Err(error) })?;
            Ok(new)
        };
        // The new file is created first: a sealed file without a following one is damage.
        let new = begin().and_then(|new| match file.seal() {
            Err(error) if !has_failed => Err(error),
            _ => Ok(new),
        });
        match new {
            Ok(new) => *file = new,
            Err(error) => {
                // The log continues in the previous file, and this number belongs to another file.
                let _ = std::fs::remove_file(&path);
                return Err(error);
            }
        }
        Ok(next)
    }

    /// Treats all records with numbers less than `below` as synced, because a snapshot on disk contains them. Forgets
    /// failures of appends, and a failed sync if it concerned only these records.
    pub fn forget_failure(&self, below: u64) {
        self.rejects_changes.store(false, Ordering::Relaxed);
        let mut durable = self.durable();
        durable.below = durable.below.max(below);
        if durable.failed.as_ref().is_some_and(|(next, _)| *next <= below) {
            durable.failed = None;
        }
    }

    fn file(&self) -> MutexGuard<'_, LogFile> {
        self.file.lock()
    }

    fn durable(&self) -> MutexGuard<'_, Durable> {
        self.durable.lock()
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.mark();
    }
}
