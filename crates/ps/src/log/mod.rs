//! Changes on the disk, before they are acknowledged.
//!
//! A log is a series of files, each named by the number of its first record: `changes-00000000000000000000.log`. Records have
//! the numbers that follow. A snapshot begins a new file, and those before are removed when it is whole.

mod commit;
mod disk;
mod file;
mod read;
mod record;

pub(crate) use commit::Journal;
#[cfg(test)]
pub(crate) use disk::tests::Faulty;
pub(crate) use disk::{Disk, Opens, open_disk};
pub(crate) use file::LogFile;
pub(crate) use read::{Torn, read};
pub(crate) use record::Record;

use std::path::{Path, PathBuf};

/// The name of the file whose first record has this number.
pub(crate) fn path(folder: &Path, first: u64) -> PathBuf {
    folder.join(format!("changes-{first:020}.log"))
}

/// The number of the first record of a file of this name.
pub(crate) fn first(name: &str) -> Option<u64> {
    name.strip_prefix("changes-")?.strip_suffix(".log")?.parse().ok()
}
