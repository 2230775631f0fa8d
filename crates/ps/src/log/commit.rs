//! The log that threads write to at once, and wait for.

use super::{Disk, LogFile, Opens, Record, path};
use crate::Durability;
use distribute_cluster::Deadline;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a thread waits until another one has written to the disk.
const PATIENCE: Duration = Duration::from_secs(60);

/// The log of one server.
pub(crate) struct Journal {
    folder: PathBuf,
    opens: Opens,
    durability: Durability,
    file: Mutex<LogFile>,
    durable: Mutex<Durable>,
    changed: Condvar,
    /// Whether a record could not be appended since tables were saved.
    refuses: AtomicBool,
}

/// How far the log is on the disk.
#[derive(Debug)]
struct Durable {
    /// All records below this number are.
    below: u64,
    /// Whether a thread waits for the disk now.
    syncing: bool,
    /// Why nothing more is, and the number of the record that was next then: who has failed once cannot know what is on the disk.
    failed: Option<(u64, String)>,
}

impl Journal {
    /// Goes on with a log.
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
            refuses: AtomicBool::new(false),
        }
    }

    /// The folder that it is in.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Appends a record, and gives its number: what is killed now comes back with it.
    pub fn append(&self, record: &Record) -> io::Result<u64> {
        let appended = match &self.durable().failed {
            Some((_, reason)) if self.durability != Durability::System => {
                Err(io::Error::other(reason.clone()))
            }
            _ => Ok(()),
        };
        let appended = appended.and_then(|()| self.file().append(record));
        if appended.is_err() {
            self.refuses.store(true, Ordering::Relaxed);
        }
        appended
    }

    /// Whether changes are refused, or were since tables were saved: to save them may help.
    pub fn refuses(&self) -> bool {
        self.refuses.load(Ordering::Relaxed) || self.durable().failed.is_some()
    }

    /// The number of the next record.
    pub fn next(&self) -> u64 {
        self.file().next()
    }

    /// Returns the number of bytes of the file that is written to.
    pub fn bytes(&self) -> u64 {
        self.file().bytes()
    }

    /// Whether the file that is written to has a change.
    pub fn has_changes(&self) -> bool {
        self.file().has_changes()
    }

    /// Marks that all changes so far were acknowledged: what is damaged of them later is no torn end. Best effort.
    pub fn mark(&self) {
        let _ = self.file().mark();
    }

    /// Waits until all records below a number are as safe as was asked for.
    pub fn commit(&self, below: u64) -> io::Result<()> {
        match self.durability {
            Durability::Disk => self.sync(below),
            Durability::Soon(_) | Durability::System => Ok(()),
        }
    }

    /// Waits until all records below a number are on the disk. Of several threads, one waits for the disk.
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
                return Err(io::Error::other(format!("the disk has not answered in {PATIENCE:?}")));
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
                let reason = format!("what was written before may not be on the disk: {error}");
                durable.failed = Some((next, reason));
            }
        }
        self.changed.notify_all();
        synced
    }

    /// Begins a new file, and returns the number of its first record. No thread may append meanwhile.
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
        // The new file first: a file that says that another one follows it is damage if there is none.
        let new = begin().and_then(|new| match file.seal() {
            Err(error) if !has_failed => Err(error),
            _ => Ok(new),
        });
        match new {
            Ok(new) => *file = new,
            Err(error) => {
                // The log goes on in the file before, and this number is another file's.
                let _ = std::fs::remove_file(&path);
                return Err(error);
            }
        }
        Ok(next)
    }

    /// A snapshot has all records below this number: what could not be written to the disk is there now.
    pub fn forget_failure(&self, below: u64) {
        self.refuses.store(false, Ordering::Relaxed);
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
