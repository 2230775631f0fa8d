//! The start of a server from its folder: the snapshot, and the changes after it.

use super::changed::{self, Changes};
use super::{Core, Persistence};
use crate::codec::EncodedRequest;
use crate::format;
use crate::ledger::Ledger;
use crate::log::{self, Journal, LogFacts, LogFile, Opens, ReadError, Record, Torn};
use crate::snapshot::{self, Manifest};
use crate::{OpenError, ServerOptions};
use bytes::Bytes;
use distribute_files::LockFile;
use distribute_log::warn_or_stderr;
use distribute_ps_tables::Tables;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

impl Core {
    /// Resumes from a folder, which is created if it does not exist. Apart from its lock, an existing folder is not
    /// changed before the snapshot and the log were read completely.
    pub(super) fn open(options: ServerOptions, opens: Opens) -> Result<Self, OpenError> {
        let folder = &options.folder;
        distribute_files::create_private_folder(folder).map_err(OpenError::io("making", folder))?;
        let held = hold(folder)?;
        let is_begun = format::check(folder)?;
        let mut core = Self::new(None);
        let memory = options.memory.unwrap_or_else(|| core.tables.memory());
        // Changes that were accepted once may take a little more memory when they are replayed.
        core.tables.set_memory(memory.saturating_add(memory / 4));
        let changes = changed::open(folder)?;
        let mut replay = Replay::new(&core.tables, &core.ledger, changes.as_ref());
        if let Some(manifest) = Manifest::newest(folder)? {
            replay.load(folder, manifest)?;
        }
        let (start, in_snapshot) = (replay.next, replay.in_snapshot.is_some());
        let (before, firsts) = files(folder, in_snapshot.then_some(start))?;
        let known = LogFacts { start, begun: is_begun };
        let refuse = |damage| Err(ReadError::Damaged(damage));
        let tail = log::read(folder, &firsts, known, |number, record| replay.record(number, record), refuse)?;
        // The whole log was readable. Only now files are removed, and the torn end is set aside.
        replay.failed.iter().try_for_each(|failed| failed.back_up(folder))?;
        snapshot::remove_others(folder, in_snapshot.then_some(start))?;
        for path in before.into_iter().map(|first| log::path(folder, first)) {
            fs::remove_file(&path).map_err(OpenError::io("removing", path))?;
        }
        let path = log::path(folder, tail.as_ref().map_or(start, |tail| tail.first));
        if let Some((end, torn)) = tail.as_ref().and_then(|tail| Some((tail.end, tail.torn.as_ref()?))) {
            cut(&path, end, torn)?;
        }
        let disk = opens(&path).map_err(OpenError::io("opening", &path))?;
        let mut file = match tail {
            Some(tail) => LogFile::new(disk, tail.end, tail.link, tail.changed),
            None => LogFile::new(disk, 0, log::Link { number: start, chain: 0 }, false),
        };
        // On a full disk the server starts without it, and refuses changes until there is room.
        let begun = file.begin().and_then(|()| if is_begun { Ok(()) } else { file.disk().sync() });
        if !is_begun && begun.is_ok() {
            format::write(folder)?;
        }
        core.tables.set_memory(memory);
        let journal = Journal::new(folder, opens, options.durability, file);
        core.found = (!core.tables.names().is_empty()).then(|| core.tables.job());
        if let Some(changes) = changes {
            let _ = core.changes.set(changes);
        }
        core.log = Some(Persistence { journal, saving: Mutex::default(), options, _lock: held });
        Ok(core)
    }
}

/// Returns the log files before the snapshot, and those to replay. Each file is identified by the number of its first
/// record.
///
/// # Errors
/// - [`OpenError::Io`]: the folder cannot be read.
/// - [`OpenError::Snapshot`]: there is no snapshot, but the log continues after one.
pub(crate) fn files(folder: &Path, snapshot: Option<u64>) -> Result<(Vec<u64>, Vec<u64>), OpenError> {
    let firsts = log::firsts(folder).map_err(OpenError::io("reading", folder))?;
    match (snapshot, firsts.first()) {
        (None, Some(first)) if *first > 0 => Err(OpenError::Snapshot {
            path: snapshot::manifest_path(folder, *first),
            reason: format!("it is missing, and the log begins with change {first}"),
        }),
        _ => Ok(firsts.into_iter().partition(|first| snapshot.is_some_and(|start| *first < start))),
    }
}

/// Locks a folder for the lifetime of the returned value.
///
/// # Errors
/// - [`OpenError::InUse`]: another process has locked the folder.
/// - [`OpenError::Io`]: the lock file cannot be opened.
pub(crate) fn hold(folder: &Path) -> Result<LockFile, OpenError> {
    let path = folder.join("lock");
    let held = LockFile::acquire(&path).map_err(OpenError::io("locking", path))?;
    held.ok_or_else(|| OpenError::InUse { folder: folder.to_path_buf() })
}

/// The state of a replay.
struct Replay<'a> {
    tables: &'a Tables,
    ledger: &'a Ledger,
    /// The record of changed rows, if the server has one.
    changes: Option<&'a Changes>,
    /// The number of the first record of the log to replay.
    next: u64,
    /// The number of the first record that the saved copy of each table does not contain, by the name of the table;
    /// `None` without a snapshot.
    in_snapshot: Option<BTreeMap<String, u64>>,
    /// The changes that cannot be replayed, unless the log revokes them later.
    failed: Vec<Failed>,
}

/// A change of the log that cannot be replayed.
struct Failed {
    number: u64,
    of: (u64, u64),
    head: Bytes,
    body: Bytes,
    reason: String,
}

impl Failed {
    /// Copies the bytes of the change to the folder for removed data, and logs a warning.
    fn back_up(&self, folder: &Path) -> Result<(), OpenError> {
        let Self { number, head, body, reason, .. } = self;
        let bytes = [&head[..], &body[..]].concat();
        let backup = log::back_up_once(folder, &format!("change-{number}"), &bytes);
        let backup = backup.map_err(OpenError::io("backing up a change of", folder))?;
        warn_or_stderr(|| {
            tracing::warn!(
                "change {number} of the log in {} cannot be replayed, and is skipped: {reason}; it was \
                 backed up in {}",
                folder.display(),
                backup.display()
            );
        });
        Ok(())
    }
}

impl<'a> Replay<'a> {
    fn new(tables: &'a Tables, ledger: &'a Ledger, changes: Option<&'a Changes>) -> Self {
        Self { tables, ledger, changes, next: 0, in_snapshot: None, failed: Vec::new() }
    }

    fn load(&mut self, folder: &Path, manifest: Manifest) -> Result<(), OpenError> {
        let wrong = |error: distribute_ps_tables::Error| OpenError::Snapshot {
            path: folder.to_path_buf(),
            reason: error.to_string(),
        };
        self.tables.restore_job(manifest.job);
        for (i, (name, first)) in manifest.tables.iter().enumerate() {
            let (image, changed) = snapshot::load_table(folder, (manifest.start, i), name)?;
            if let Some(changes) = self.changes {
                changes.load(name, changed, *first, image.rule.as_ref());
            }
            self.tables.restore_image(image).map_err(wrong)?;
        }
        manifest.clients().try_for_each(|client| self.ledger.restore(&client)).map_err(wrong)?;
        (self.next, self.in_snapshot) = (manifest.start, Some(manifest.tables));
        Ok(())
    }

    /// Replays a record of the log: applies a change unless the snapshot contains it, or notes that a change was
    /// rejected. Records the result for the client.
    fn record(&mut self, number: u64, record: Record) -> Result<(), String> {
        let Record { client, sequence, .. } = record;
        let refused = record.is_refusal();
        let mut applied = !refused;
        if !refused {
            let sent = EncodedRequest::decode(record.head.clone(), record.body.clone())
                .map_err(|error| format!("cannot be read ({error}): was it written by another version?"))?;
            let table = sent.request.table().unwrap_or_default();
            // INV-53
            let first = self.in_snapshot.as_ref().and_then(|tables| tables.get(table));
            if first.is_none_or(|first| number >= *first) {
                // A change that was refused is refused again.
                match (self.tables.handle(&sent.request), self.changes) {
                    (Ok(response), Some(changes)) => {
                        changes.record(number, &sent.request, &response, self.tables);
                    }
                    (Ok(_), None) => {}
                    (Err(error), _) => {
                        applied = false;
                        let (of, head, body) = ((client, sequence), record.head, record.body);
                        self.failed.push(Failed { number, of, head, body, reason: error.to_string() });
                    }
                }
            }
        } else {
            self.failed.retain(|failed| failed.of != (client, sequence));
        }
        self.ledger.record(client, sequence, applied);
        Ok(())
    }
}

impl From<ReadError> for OpenError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(path, source) => Self::io("reading", path)(source),
            ReadError::Old(path) => Self::Version { path },
            ReadError::Damaged(damage) => {
                let log::Damage { path, bytes: (offset, _), reason, .. } = damage;
                Self::Damaged { path, offset, reason }
            }
        }
    }
}

/// Copies the torn end of a file, and then removes it from the file.
fn cut(path: &Path, end: u64, torn: &Torn) -> Result<(), OpenError> {
    let backup = log::back_up(path, end).map_err(OpenError::io("backing up the end of", path))?;
    let why = if torn.is_prefix {
        "the server exited while it wrote this, and had not acknowledged it"
    } else {
        "the machine was restarted before this was on the disk"
    };
    warn_or_stderr(|| {
        tracing::warn!(
            "{} {} at byte {end}: {why}; the last {} bytes were backed up in {}",
            path.display(),
            torn.what,
            torn.bytes,
            backup.display()
        );
    });
    let cut = distribute_files::open_own(path, true).and_then(|file| {
        file.set_len(end)?;
        file.sync_all()
    });
    cut.map_err(OpenError::io("cutting off the end of", path))
}
