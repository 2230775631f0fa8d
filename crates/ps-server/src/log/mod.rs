//! The log: changes on disk, written before they are acknowledged.
//!
//! A log is a series of files, each named after the number of its first record: `changes-00000000000000000000.log`.
//! Changes are numbered consecutively. Each snapshot begins a new file. When the snapshot is complete, earlier files
//! are removed.
//!
//! Each record contains its number and the checksum of the previous record, so that missing, repeated and misplaced
//! records are detected. Besides changes, there are records of the log itself ([`Kind`]).
//!
//! An incomplete record is a *torn end* if it is the last one, and the process or the machine stopped while it was
//! written. Any other invalid bytes are damage.
//!
//! | file | contents |
//! |---|---|
//! | `record` | a record as bytes |
//! | `file` | the file to which a log is appended |
//! | `commit` | the log to which several threads append, and on whose syncs they wait |
//! | `scan` | reading one file, record by record |
//! | `read` | reading all files, and telling torn ends from damage |
//! | `repair` | removing damage |
//! | `backup` | copies of bytes that are removed from a log |
//! | `disk`, `boot` | the system: files, and the current boot of the machine |

// - **INV-54** A record is in a log completely or not at all, and none is missing unnoticed: each has its number
//   and the checksum of the record before. Bytes that are not the next record are a torn end, which is set aside,
//   only at the end of the last file, if no record follows, and if they are the beginning of a record or the
//   machine has restarted since. Anything else is an error with file and byte, and nothing in the folder changes.
//   Tests: `ps-server/src/log/tests.rs`, `ps-server/src/store/tests/`, `ps-server/tests/it/disks.rs`.

mod backup;
mod boot;
mod commit;
mod disk;
mod file;
mod read;
mod record;
mod repair;
mod scan;
#[cfg(test)]
mod tests;

pub(crate) use backup::{back_up, back_up_once};
pub(crate) use boot::id as boot_id;
pub(crate) use commit::Journal;
#[cfg(test)]
pub(crate) use disk::tests::Faulty;
pub(crate) use disk::{Disk, Opens, open_disk};
pub(crate) use file::LogFile;
pub(crate) use read::{Damage, LogFacts, ReadError, Torn, read};
pub(crate) use record::{Link, Record};
pub(crate) use repair::repair;

use std::io;
use std::path::{Path, PathBuf};

/// Returns the path of the file whose first record has the number `first`.
pub(crate) fn path(folder: &Path, first: u64) -> PathBuf {
    folder.join(format!("changes-{first:020}.log"))
}

/// Returns the number of a file's first record from the name of the file; `None` if the name is not that of a log file.
pub(crate) fn first(name: &str) -> Option<u64> {
    name.strip_prefix("changes-")?.strip_suffix(".log")?.parse().ok()
}

/// Returns the numbers of the first records of all log files in a folder, in ascending order.
pub(crate) fn firsts(folder: &Path) -> io::Result<Vec<u64>> {
    let mut firsts = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        firsts.extend(entry?.file_name().to_str().and_then(first));
    }
    firsts.sort_unstable();
    Ok(firsts)
}
