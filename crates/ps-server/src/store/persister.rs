//! The threads that save tables and sync the log to disk.

use super::Core;
use crate::snapshot::{self, Manifest};
use crate::{Durability, SnapshotError, log};
use distribute_cluster::Stopwatch;
use distribute_log::warn_or_stderr;
use parking_lot::{Condvar, Mutex};
use std::fs;
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The interval at which the threads check the log.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The pause before tables are saved again after a failure. While the log rejects changes, tables are saved at this
/// interval, because a new file of the log may work.
const AGAIN: Duration = Duration::from_secs(2);

/// The threads that periodically save tables and sync the log to disk, until this value is dropped.
#[derive(Debug)]
pub(super) struct Persister {
    end: Arc<StopSignal>,
    threads: Vec<JoinHandle<()>>,
}

/// A signal that makes a thread stop. The thread waits on it between two pieces of work.
#[derive(Debug, Default)]
pub(crate) struct StopSignal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Persister {
    pub fn start(core: &Arc<Core>) -> io::Result<Self> {
        let mut persister = Self { end: Arc::default(), threads: Vec::new() };
        // Two threads, because saving takes long and the log must be on disk within a fixed time.
        type Work = fn(&Core, &StopSignal);
        let works = [
            ("distribute-snapshots", Core::save_periodically as Work),
            ("distribute-log", Core::sync_periodically),
        ];
        for (name, work) in works {
            let (core, end) = (core.clone(), persister.end.clone());
            let thread = Builder::new().name(name.to_owned());
            persister.threads.push(thread.spawn(move || work(&core, &end))?);
        }
        Ok(persister)
    }
}

impl Drop for Persister {
    fn drop(&mut self) {
        self.end.set();
        for thread in self.threads.drain(..) {
            // The thread finishes its current snapshot.
            let _ = thread.join();
        }
    }
}

impl StopSignal {
    /// Sets the signal.
    pub fn set(&self) {
        *self.is_set.lock() = true;
        self.changed.notify_all();
    }

    /// Waits at most `patience` until the signal is set. Returns whether it is.
    pub fn wait(&self, patience: Duration) -> bool {
        let mut is_set = self.is_set.lock();
        if !*is_set {
            self.changed.wait_for(&mut is_set, patience);
        }
        *is_set
    }
}

impl Core {
    /// Syncs the log to disk within the time that [`Durability::Soon`] guarantees, until `end` is set. Returns
    /// immediately with another durability.
    fn sync_periodically(&self, end: &StopSignal) {
        let Some(log) = &self.log else { return };
        let Durability::Soon(within) = log.options.durability else { return };
        let (mut synced, mut failing) = (log.journal.next(), false);
        loop {
            let over = end.wait((within / 2).clamp(Duration::from_millis(1), Duration::from_secs(60)));
            let next = log.journal.next();
            if next > synced {
                match log.journal.sync(next) {
                    Ok(()) => (synced, failing) = (next, false),
                    Err(error) => {
                        if !std::mem::replace(&mut failing, true) {
                            let folder = log.journal.folder().display();
                            warn_or_stderr(|| {
                                tracing::warn!(
                                    "the log in {folder} is not on the disk, and changes are refused: {error}"
                                )
                            });
                        }
                    }
                }
            }
            if over {
                return;
            }
        }
    }

    /// Saves all tables whenever a snapshot is due, until `end` is set. Whenever no change was added for a while, marks
    /// the changes in the log as acknowledged.
    fn save_periodically(&self, end: &StopSignal) {
        let Some(log) = &self.log else { return };
        let every = log.options.every;
        let look = CHECK_INTERVAL.min(every).max(Duration::from_millis(1));
        let (mut since, mut failed) = (Stopwatch::start(), false);
        let mut looked_at = log.journal.next();
        while !end.wait(look) {
            let next = log.journal.next();
            if std::mem::replace(&mut looked_at, next) == next {
                log.journal.mark();
            }
            let elapsed = since.elapsed();
            let is_time = if failed || log.journal.rejects_changes() {
                elapsed >= AGAIN.min(every)
            } else {
                log.journal.has_changes() && (elapsed >= every || self.is_large())
            };
            if is_time {
                let saved = self.snapshot();
                if let Err(error) = &saved
                    && !failed
                {
                    warn_or_stderr(|| tracing::warn!("{error}"));
                }
                failed = saved.is_err();
                since = Stopwatch::start();
            }
        }
    }

    /// Returns whether the log is so large that tables must be saved: it has reached the size in the options, and is at
    /// least twice as large as the tables, so that most written bytes belong to the log.
    fn is_large(&self) -> bool {
        self.log.as_ref().is_some_and(|log| {
            let bytes = log.journal.bytes();
            bytes >= log.options.after && bytes / 2 >= self.tables.bytes() as u64
        })
    }

    /// Saves all tables, so that earlier files of the log can be removed. All changes wait while the log is synced and
    /// continued in a new file. After that, changes to a table wait only while the table is copied.
    ///
    /// # Errors
    /// Returns a [`SnapshotError`] if the tables cannot be saved. The log is then kept.
    pub fn snapshot(&self) -> Result<(), SnapshotError> {
        let Some(log) = &self.log else { return Err(SnapshotError::InMemory) };
        let (folder, journal) = (log.journal.folder(), &log.journal);
        let _saving = log.saving.lock();
        let io = |error| SnapshotError::io("writing to the log in", folder)(error);
        // Most of the log gets to the disk before all changes wait for the rest.
        let _ = journal.sync(journal.next());
        let mut manifest = {
            let _all: Vec<_> = self.orders();
            let start = journal.rotate().map_err(io)?;
            Manifest::new(start, self.ledger.clients(), self.tables.job())
        };
        let start = manifest.start;
        if snapshot::exists(folder, start) {
            // Nothing has changed since. If the disk had refused changes, it may work again.
            journal.forget_failure(start);
            return Ok(());
        }
        snapshot::begin(folder, start)?;
        for name in self.tables.names() {
            let (next, image, changed) = {
                let _order = self.order_of(&name);
                let changed = self.changes.get().and_then(|changes| changes.of(&name));
                let changed = changed.map(|changed| changed.lock().clone());
                (journal.next(), self.tables.image(&name)?, changed)
            };
            // The table may have been removed.
            if let Some(image) = image {
                snapshot::save_table(folder, (start, manifest.tables.len()), image, changed)?;
                manifest.tables.insert(name, next);
            }
        }
        manifest.save(folder)?;
        journal.forget_failure(start);
        // The snapshot is complete from here on. Files that are not removed now are removed at the next start.
        let removed = snapshot::remove_others(folder, Some(start)).map_err(|error| error.to_string());
        if let Err(error) =
            removed.and_then(|()| self.remove_logs(folder, start).map_err(|error| error.to_string()))
        {
            warn_or_stderr(|| tracing::warn!("an old snapshot or log cannot be removed: {error}"));
        }
        Ok(())
    }

    fn remove_logs(&self, folder: &std::path::Path, start: u64) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_name().to_str().and_then(log::first).is_some_and(|first| first < start) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}
