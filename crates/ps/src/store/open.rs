//! A server that comes back: the snapshot, and the changes after it.

use super::{Core, Kept};
use crate::codec::Sent;
use crate::ledger::Ledger;
use crate::log::{self, Journal, LogFile, Opens, Record, Torn};
use crate::snapshot::{self, Manifest};
use crate::{OpenError, ServerOptions};
use distribute_log::heard;
use distribute_params::Tables;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions, TryLockError};
use std::io;
use std::path::Path;
use std::sync::Mutex;

impl Core {
    /// Goes on with what is in the folder, which is made if it isn't there.
    pub(super) fn open(options: ServerOptions, opens: Opens) -> Result<Self, OpenError> {
        let folder = &options.folder;
        fs::create_dir_all(folder).map_err(OpenError::io("making", folder))?;
        let path = folder.join("lock");
        let held = distribute_files::open_lock(&path).map_err(OpenError::io("opening", &path))?;
        match held.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::InUse { folder: folder.clone() }),
            Err(TryLockError::Error(source)) => return Err(OpenError::io("locking", path)(source)),
        }
        let mut core = Self::new(None);
        let manifest = Manifest::newest(folder)?;
        let mut replay = Replay { tables: &core.tables, ledger: &core.ledger, next: 0, in_snapshot: None };
        if let Some(manifest) = manifest {
            replay.load(folder, manifest)?;
        }
        let start = replay.next;
        snapshot::remove_others(folder, replay.in_snapshot.is_some().then_some(start))?;
        let end = replay.logs(folder, start)?;
        let next = replay.next;
        let file = match end {
            Some((first, end)) => {
                let path = log::path(folder, first);
                LogFile::new(opens(&path).map_err(OpenError::io("opening", &path))?, end, next)
            }
            None => {
                let path = log::path(folder, next);
                LogFile::new(opens(&path).map_err(OpenError::io("making", &path))?, 0, next)
            }
        };
        let journal = Journal::new(folder, opens, options.durability, file);
        core.log = Some(Kept { journal, saving: Mutex::default(), options, _lock: held });
        Ok(core)
    }
}

/// Tables and changes as they come back.
struct Replay<'a> {
    tables: &'a Tables,
    ledger: &'a Ledger,
    /// The number of the next record.
    next: u64,
    /// For each table of the snapshot, if there is one, the first record that is not in it.
    in_snapshot: Option<BTreeMap<String, u64>>,
}

impl Replay<'_> {
    fn load(&mut self, folder: &Path, manifest: Manifest) -> Result<(), OpenError> {
        let wrong = |error: distribute_params::Error| OpenError::Snapshot {
            path: folder.to_path_buf(),
            reason: error.to_string(),
        };
        self.tables.restore_job(manifest.job);
        for i in 0..manifest.tables.len() {
            let image = snapshot::load_table(folder, manifest.start, i)?;
            self.tables.restore_image(image).map_err(wrong)?;
        }
        manifest.clients().try_for_each(|client| self.ledger.restore(&client)).map_err(wrong)?;
        (self.next, self.in_snapshot) = (manifest.start, Some(manifest.tables));
        Ok(())
    }

    /// Reads all logs from record `start` on, removes those before, and gives the one to go on with: its first record, and how many
    /// bytes it has.
    fn logs(&mut self, folder: &Path, start: u64) -> Result<Option<(u64, u64)>, OpenError> {
        let mut firsts = Vec::new();
        for entry in fs::read_dir(folder).map_err(OpenError::io("reading", folder))? {
            let name = entry.map_err(OpenError::io("reading", folder))?.file_name();
            firsts.extend(name.to_str().and_then(log::first));
        }
        firsts.sort_unstable();
        let mut last = None;
        for (i, first) in firsts.iter().copied().enumerate() {
            let path = log::path(folder, first);
            if first < start {
                fs::remove_file(&path).map_err(OpenError::io("removing", path))?;
                continue;
            }
            let damaged = |offset, reason: String| OpenError::Damaged { path: path.clone(), offset, reason };
            if first != self.next {
                let reason = format!("begins with record {first}, and {} is missing", self.next);
                return Err(damaged(0, reason));
            }
            let tail = log::read(&path, |record| self.record(record)).map_err(|error| match error {
                ReadError::Io(source) => OpenError::io("reading", &path)(source),
                ReadError::Record { number, reason } => {
                    damaged(0, format!("has record {number}, of which {reason}"))
                }
            })?;
            // Where the next file goes on behind it, nothing is missing.
            let follows = firsts.get(i + 1) == Some(&self.next);
            if let Some(torn) = tail.torn {
                if torn.follows || i + 1 < firsts.len() && !follows {
                    return Err(damaged(tail.end, torn.what.to_owned()));
                }
                cut(&path, tail.end, torn)?;
            }
            last = Some((first, tail.end));
        }
        Ok(last)
    }

    /// Makes a change again, unless it is in the snapshot.
    fn record(&mut self, record: Record) -> Result<(), ReadError> {
        let number = self.next;
        self.next += 1;
        let Record { client, sequence, .. } = record;
        let refused = record.is_refusal();
        let mut applied = !refused;
        if !refused {
            let wrong =
                |error: crate::codec::Malformed| ReadError::Record { number, reason: error.to_string() };
            let sent = Sent::decode(record.head, record.body).map_err(wrong)?;
            let table = sent.request.table().unwrap_or_default();
            // INV-53
            let first = self.in_snapshot.as_ref().and_then(|tables| tables.get(table));
            if first.is_none_or(|first| number >= *first) {
                // One that was refused is refused again.
                applied = self.tables.handle(&sent.request).is_ok();
            }
        }
        self.ledger.note(client, sequence, applied);
        Ok(())
    }
}

/// Why a log was not read to its end.
enum ReadError {
    Io(io::Error),
    Record { number: u64, reason: String },
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Cuts off what was being written when the process ended.
fn cut(path: &Path, end: u64, torn: Torn) -> Result<(), OpenError> {
    heard(|| {
        tracing::warn!(
            "{} {} at byte {end}: it was being written when the server ended, and was not acknowledged; {} bytes are cut off",
            path.display(),
            torn.what,
            torn.bytes
        );
    });
    let cut = OpenOptions::new().write(true).open(path).and_then(|file| {
        file.set_len(end)?;
        file.sync_all()
    });
    cut.map_err(OpenError::io("cutting off the end of", path))
}
