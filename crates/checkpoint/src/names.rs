//! The names of checkpoints in the folder of a manager.

use std::fs;
use std::path::{Path, PathBuf};

/// The prefix of the folder name of a checkpoint.
pub(crate) const PREFIX: &str = "ckpt-";
/// The highest number of a checkpoint, enough for a thousand checkpoints per second for thirty years.
pub(crate) const LAST: u64 = 999_999_999_999;

/// Returns the folder name of the checkpoint with the given number.
pub(crate) fn name(number: u64) -> String {
    format!("{PREFIX}{number:06}")
}

/// Parses the folder name of a checkpoint and returns its number; `None` if it is not such a name.
pub(crate) fn number(text: &str) -> Option<u64> {
    let number = text.strip_prefix(PREFIX)?.parse().ok()?;
    ((1..=LAST).contains(&number) && name(number) == text).then_some(number)
}

/// Returns the path of the latest checkpoint in a folder, judging by the names alone; `None` if there is none.
pub(crate) fn latest_in(folder: &Path) -> Option<PathBuf> {
    let names = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.file_name());
    let numbers = names.filter_map(|found| number(&found.to_string_lossy()));
    numbers.max().map(|latest| folder.join(name(latest)))
}
