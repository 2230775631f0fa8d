//! Changes on the disk, before they are acknowledged.
//!
//! A log is a series of files, each named by the number of its first record: `changes-00000000000000000000.log`. Changes have
//! the numbers that follow. A snapshot begins a new file, and those before are removed when it is complete.
//!
//! Each record has its number and the checksum of the record before it, so that none can be missing, be twice, or be in another place
//! unnoticed. Beside changes there are records of the log itself ([`Kind`]). A record that is not there completely is a *torn end* if it
//! is the last, and the process or the machine ended while it was written; anything else is damage.
//!
//! | file | what it is |
//! |---|---|
//! | `record` | a record as bytes: pure |
//! | `file` | the end of a log, written |
//! | `commit` | the log that threads write to at once, and wait for |
//! | `scan` | one file, read record by record |
//! | `read` | all files, read: torn ends, and damage |
//! | `repair` | what is damaged, left out |
//! | `aside` | what is no part of the log any more, kept |
//! | `disk`, `boot` | the system: files, and since when the machine runs |

mod aside;
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

pub(crate) use aside::{keep_once, set_aside};
pub(crate) use commit::Journal;
#[cfg(test)]
pub(crate) use disk::tests::Faulty;
pub(crate) use disk::{Disk, Opens, open_disk};
pub(crate) use file::LogFile;
pub(crate) use read::{Damage, Known, ReadError, Torn, read};
pub(crate) use record::{Link, Record};
pub(crate) use repair::repair;

use std::io;
use std::path::{Path, PathBuf};

/// The name of the file whose first record has this number.
pub(crate) fn path(folder: &Path, first: u64) -> PathBuf {
    folder.join(format!("changes-{first:020}.log"))
}

/// The number of the first record of a file of this name.
pub(crate) fn first(name: &str) -> Option<u64> {
    name.strip_prefix("changes-")?.strip_suffix(".log")?.parse().ok()
}

/// Returns the numbers of the first records of all files of a folder, in their order.
pub(crate) fn firsts(folder: &Path) -> io::Result<Vec<u64>> {
    let mut firsts = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        firsts.extend(entry?.file_name().to_str().and_then(first));
    }
    firsts.sort_unstable();
    Ok(firsts)
}
