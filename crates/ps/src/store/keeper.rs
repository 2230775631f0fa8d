//! The threads that save tables, and the log to the disk.

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

/// How often the log is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// How long after one that failed tables are saved again, and how often where the log refuses changes: a new one may help.
const AGAIN: Duration = Duration::from_secs(2);

/// Saves tables from time to time, and sees to it that the log is on the disk, until it is dropped.
#[derive(Debug)]
pub(super) struct Keeper {
    end: Arc<End>,
    threads: Vec<JoinHandle<()>>,
}

/// The end of a thread, which it waits for between two pieces of work.
#[derive(Debug, Default)]
pub(crate) struct End {
    has_come: Mutex<bool>,
    changed: Condvar,
}

impl Keeper {
    pub fn start(core: &Arc<Core>) -> io::Result<Self> {
        let mut keeper = Self { end: Arc::default(), threads: Vec::new() };
        // Two of them, as saving takes long, and the disk is promised to have the log soon.
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
            // It finishes what it is saving.
            let _ = thread.join();
        }
    }
}

impl End {
    /// Says that it has come.
    pub fn come(&self) {
        *self.has_come.lock() = true;
        self.changed.notify_all();
    }

    /// Waits for a while, and returns whether the end has come.
    pub fn wait(&self, patience: Duration) -> bool {
        let mut has_come = self.has_come.lock();
        if !*has_come {
            self.changed.wait_for(&mut has_come, patience);
        }
        *has_come
    }
}

impl Core {
    /// Sees to it that the log is on the disk within the time that was promised.
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

    /// Whether the log has become so large that tables are saved for it: twice as large as they are, so that most of what is written
    /// is the log.
    fn is_large(&self) -> bool {
        self.log.as_ref().is_some_and(|log| {
            let bytes = log.journal.bytes();
            bytes >= log.options.after && bytes / 2 >= self.tables.bytes() as u64
        })
    }

    /// Saves all tables, so that the log can begin anew. Each table waits with its changes while it is copied, and no longer.
    pub fn snapshot(&self) -> Result<(), SnapshotError> {
        let Some(log) = &self.log else { return Err(SnapshotError::InMemory) };
        let (folder, journal) = (log.journal.folder(), &log.journal);
        let _saving = log.saving.lock();
        let io = |error| SnapshotError::io("writing to the log in", folder)(error);
        // Most of what has to be on the disk gets there before all changes wait for the rest.
        let _ = journal.sync(journal.next());
        let mut manifest = {
            let _all: Vec<_> = self.orders();
            let start = journal.rotate().map_err(io)?;
            Manifest::new(start, self.ledger.clients(), self.tables.job())
        };
        let start = manifest.start;
        if snapshot::exists(folder, start) {
            // Nothing has changed since; and where it was the disk that let nothing change, it may work again.
            journal.forget_failure(start);
            return Ok(());
        }
        snapshot::begin(folder, start)?;
        for name in self.tables.names() {
            let (next, image) = {
                let _order = self.order_of(&name);
                (journal.next(), self.tables.image(&name)?)
            };
            // It may have been removed.
            if let Some(image) = image {
                snapshot::save_table(folder, start, manifest.tables.len(), image)?;
                manifest.tables.insert(name, next);
            }
        }
        manifest.save(folder)?;
        journal.forget_failure(start);
        // From here on it counts; what is not removed now is when the server comes back.
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
