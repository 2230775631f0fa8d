//! The inspection and repair of the folder of a server that is not running.

use crate::codec::EncodedRequest;
use crate::log::{self, LogFacts, ReadError};
use crate::snapshot::{self, Manifest};
use crate::store::{changed, files, hold};
use crate::{OpenError, format};
use distribute_files::LockFile;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The contents of the folder of a server: see [`inspect`].
#[derive(Debug)]
pub struct Inspection {
    folder: PathBuf,
    tables: usize,
    changes: u64,
    log: Vec<log::Damage>,
    damage: Vec<Damage>,
    torn: Option<log::Torn>,
    last: Option<u64>,
    /// The lock that prevents servers from using the folder.
    _lock: LockFile,
}

/// A damaged range of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The damaged file, or the path of a missing one.
    pub path: PathBuf,
    /// The range of unreadable bytes; empty if a file is missing.
    pub bytes: Range<u64>,
    /// A description of the damage, which continues a sentence that begins with the name of the file.
    pub reason: String,
    /// The number of lost changes; `None` if it is unknown because no readable record follows.
    pub lost: Option<u64>,
}

/// Inspects the folder of a server that is not running: counts the changes in its log, and finds damage. The folder is
/// locked until the returned value is dropped, and is not changed.
///
/// # Errors
/// - [`OpenError::InUse`]: a server uses the folder.
/// - [`OpenError::Snapshot`]: tables cannot be read, or are missing. A server cannot start without them.
/// - [`OpenError::Version`]: a different version has written the folder.
/// - [`OpenError::Io`]: the folder or a file cannot be read, or no server has used the folder.
///
/// ```
/// use distribute_ps_server::{ParameterServer, ServerOptions, inspect};
///
/// let folder = tempfile::tempdir()?;
/// drop(ParameterServer::open(ServerOptions::new(folder.path()))?);
/// let found = inspect(folder.path())?;
/// assert!(found.damage().is_empty());
/// assert_eq!(found.changes(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn inspect(folder: impl AsRef<Path>) -> Result<Inspection, OpenError> {
    let folder = folder.as_ref().to_path_buf();
    let names = std::fs::read_dir(&folder).map_err(OpenError::io("reading", &folder))?;
    let is_ours = |name: &str| {
        ["lock", "format"].contains(&name)
            || ["changes-", "snapshot-"].iter().any(|prefix| name.starts_with(prefix))
    };
    if !names.flatten().any(|entry| entry.file_name().to_str().is_some_and(is_ours)) {
        let source = io::Error::new(io::ErrorKind::NotFound, "no parameter server has used this folder");
        return Err(OpenError::io("looking for a log in", folder)(source));
    }
    let lock = hold(&folder)?;
    let begun = format::check(&folder)?;
    let manifest = Manifest::newest(&folder)?;
    let tables = manifest.as_ref().map_or(0, |manifest| manifest.tables.len());
    if let Some(manifest) = &manifest {
        for (i, name) in manifest.tables.keys().enumerate() {
            snapshot::load_table(&folder, (manifest.start, i), name)?;
        }
    }
    let start = manifest.as_ref().map(|manifest| manifest.start);
    let (_, firsts) = files(&folder, start)?;
    let known = LogFacts { start: start.unwrap_or_default(), begun };
    let (mut changes, mut log) = (0, Vec::new());
    let tail = log::read(
        &folder,
        &firsts,
        known,
        |_, record| {
            let read = if record.is_refusal() {
                Ok(())
            } else {
                EncodedRequest::decode(record.head, record.body).map(drop)
            };
            changes += u64::from(read.is_ok());
            read.map_err(|error| format!("cannot be read ({error})"))
        },
        |damage| {
            log.push(damage);
            Ok::<(), ReadError>(())
        },
    )?;
    let damage = log.iter().map(Damage::of).collect();
    let torn = tail.and_then(|tail| tail.torn);
    Ok(Inspection { folder, tables, changes, log, damage, torn, last: firsts.last().copied(), _lock: lock })
}

impl Inspection {
    /// Returns the number of changes in the log that a server would replay. Earlier changes are in the saved tables.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the damage, in the order of the log. A server starts only if there is none.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// Removes the damage from the log. All readable changes are kept; the others are lost. The original files are
    /// first copied to the folder `set-aside`. Returns the paths of these copies.
    ///
    /// # Errors
    /// - [`OpenError::Io`]: a file cannot be read or written. Copies in `set-aside` stay there, and some files may
    ///   already be repaired.
    pub fn repair(self) -> Result<Vec<PathBuf>, OpenError> {
        // Clients may have rows from changes that are lost.
        changed::forget(&self.folder).map_err(OpenError::io("unmarking", &self.folder))?;
        let kept =
            log::repair(&self.log, self.last).map_err(OpenError::io("repairing the log in", &self.folder))?;
        format::write(&self.folder)?;
        Ok(kept)
    }
}

impl Damage {
    fn of(damage: &log::Damage) -> Self {
        let log::Damage { path, bytes: (begin, end), reason, link, to } = damage;
        let lost = to.map(|to| to.number.saturating_sub(link.number));
        Self { path: path.clone(), bytes: *begin..*end, reason: reason.clone(), lost }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, bytes: Range { start, end }, reason, lost } = self;
        write!(f, "{} {reason}, at byte {start}", path.display())?;
        if end > start {
            write!(f, ": {} bytes cannot be read", end - start)?;
        }
        match lost {
            Some(0) => write!(f, "; no change is lost by it"),
            Some(1) => write!(f, "; 1 change is lost"),
            Some(lost) => write!(f, "; {lost} changes are lost"),
            None => write!(f, "; the number of lost changes is unknown"),
        }
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { folder, tables, changes, damage, torn, .. } = self;
        write!(
            f,
            "{}: {tables} tables were saved, and the log has {changes} changes after that",
            folder.display()
        )?;
        if let Some(log::Torn { bytes, .. }) = torn {
            write!(
                f,
                "; at its end are {bytes} bytes of a change that was being written, which the next start \
                 backs up and removes"
            )?;
        }
        damage.iter().try_for_each(|damage| write!(f, "\n  {damage}"))
    }
}
