//! The threads that save tables and sync the log to disk.

use super::Core;
use crate::snapshot::{self, Manifest};
use crate::{Durability, SnapshotError, log};
use distribute_cluster::Stopwatch;
use distribute_log::heard;
use parking_lot::{Condvar, Mutex};
use std::fs;
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// The interval at which the log is checked.
const LOOK: Duration = Duration::from_millis(50);

/// The delay before tables are saved again after a failure, and the interval while the log refuses changes: a
/// new log may help.
const AGAIN: Duration = Duration::from_secs(2);

/// Saves tables periodically, and syncs the log to disk, until it is dropped.
#[derive(Debug)]
pub(super) struct Keeper {
    end: Arc<End>,
    threads: Vec<JoinHandle<()>>,
}

/// A stop signal for a thread, which waits for it between two items of work.
#[derive(Debug, Default)]
pub(crate) struct End {
    has_come: Mutex<bool>,
    changed: Condvar,
}

impl Keeper {
    pub fn start(core: &Arc<Core>) -> io::Result<Self> {
        let mut keeper = Self { end: Arc::default(), threads: Vec::new() };
        // Two threads, because saving takes long and the log must be on disk within a fixed time.
        type Work = fn(&Core, &End);
        let works =
            [("distribute-snapshots", Core::keep_saving as Work), ("distribute-log", Core::keep_syncing)];
        for (name, work) in works {
            let (core, end) = (core.clone(), keeper.end.clone());
            let thread = Builder::new().name(name.to_owned());
            keeper.threads.push(thread.spawn(move || work(&core, &end))?);
        }
        Ok(keeper)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end.come();
        for thread in self.threads.drain(..) {
            // The thread finishes its current snapshot.
            let _ = thread.join();
        }
    }
}

impl End {
    /// Sets the signal.
    pub fn come(&self) {
        *self.has_come.lock() = true;
        self.changed.notify_all();
    }

    /// Waits for a while, and returns whether the signal is set.
    pub fn wait(&self, patience: Duration) -> bool {
        let mut has_come = self.has_come.lock();
        if !*has_come {
            self.changed.wait_for(&mut has_come, patience);
        }
        *has_come
    }
}

impl Core {
    /// Syncs the log to disk within the time that the durability promises.
    fn keep_syncing(&self, end: &End) {
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
                            heard(|| {
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

    /// Saves all tables when it is time to.
    fn keep_saving(&self, end: &End) {
        let Some(log) = &self.log else { return };
        let every = log.options.every;
        let look = LOOK.min(every).max(Duration::from_millis(1));
        let (mut since, mut failed) = (Stopwatch::start(), false);
        let mut looked_at = log.journal.next();
        while !end.wait(look) {
            let next = log.journal.next();
            if std::mem::replace(&mut looked_at, next) == next {
                log.journal.mark();
            }
            let elapsed = since.elapsed();
            let is_time = if failed || log.journal.refuses() {
                elapsed >= AGAIN.min(every)
            } else {
                log.journal.has_changes() && (elapsed >= every || self.is_large())
            };
            if is_time {
                let saved = self.snapshot();
                if let Err(error) = &saved
                    && !failed
                {
                    heard(|| tracing::warn!("{error}"));
                }
                failed = saved.is_err();
                since = Stopwatch::start();
            }
        }
    }

    /// Returns whether tables must be saved because of the size of the log. It must be twice as large as they
    /// are, so that most of the written bytes are the log.
    fn is_large(&self) -> bool {
        self.log.as_ref().is_some_and(|log| {
            let bytes = log.journal.bytes();
            bytes >= log.options.after && bytes / 2 >= self.tables.bytes() as u64
        })
    }

    /// Saves all tables, so that the log can start again. Changes of a table only wait while it is copied.
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
            let (next, image) = {
                let _order = self.order_of(&name);
                (journal.next(), self.tables.image(&name)?)
            };
            // The table may have been removed.
            if let Some(image) = image {
                snapshot::save_table(folder, start, manifest.tables.len(), image)?;
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
            heard(|| tracing::warn!("an old snapshot or log cannot be removed: {error}"));
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
