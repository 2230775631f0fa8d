//! Copies of the files of a state that is about to be replaced.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// The prefixes of the names of the files and folders of a state.
const KINDS: [&str; 3] = ["changes-", "tables-", "snapshot-"];

/// Copies the log and the snapshot of a folder to `replaced-<life>` inside it, and returns the path of the copy; `None`
/// if there are no files. The originals remain until a later snapshot removes them. An existing copy for the same life
/// is kept. `log` is the current file of the log, without changes yet, which is copied because the previous file refers
/// to it.
pub(super) fn back_up(folder: &Path, life: u64, log: &Path) -> io::Result<Option<PathBuf>> {
    let backup = folder.join(format!("replaced-{life}"));
    let part = folder.join(format!("replaced-{life}.part"));
    if backup.exists() {
        return Ok(Some(backup));
    }
    if part.exists() {
        fs::remove_dir_all(&part)?;
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let is_open = log.file_name() == Some(&*name);
        if !is_open && name.to_str().is_some_and(|name| KINDS.iter().any(|kind| name.starts_with(kind))) {
            found.push(name);
        }
    }
    if found.is_empty() {
        return Ok(None);
    }
    distribute_files::create_private_folder(&part)?;
    for name in found {
        keep(&folder.join(&name), &part.join(&name))?;
    }
    if let Some(name) = log.file_name().filter(|_| log.exists()) {
        fs::copy(log, part.join(name))?;
    }
    fs::rename(&part, &backup)?;
    File::open(folder)?.sync_all()?;
    Ok(Some(backup))
}

/// Creates a hard link to a file, or a copy if that fails. For a folder, does this with each of its files.
fn keep(from: &Path, to: &Path) -> io::Result<()> {
    if from.symlink_metadata()?.is_dir() {
        distribute_files::create_private_folder(to)?;
        for entry in fs::read_dir(from)? {
            let name = entry?.file_name();
            keep(&from.join(&name), &to.join(&name))?;
        }
        return Ok(());
    }
    fs::hard_link(from, to).or_else(|_| fs::copy(from, to).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_set_aside_whole_and_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        assert_eq!(back_up(folder.path(), 3, &at("changes-9.log")).unwrap(), None);
        fs::create_dir_all(at("tables-7/0")).unwrap();
        for (name, text) in [
            ("changes-1.log", "one"),
            ("tables-7/0/x", "two"),
            ("snapshot-7", "three"),
            ("life", "3"),
            ("changes-9.log", ""),
        ] {
            fs::write(at(name), text).unwrap();
        }
        // A part of an interrupted attempt is not a state.
        fs::create_dir(at("replaced-3.part")).unwrap();
        assert_eq!(back_up(folder.path(), 3, &at("changes-9.log")).unwrap(), Some(at("replaced-3")));
        fs::remove_dir_all(at("tables-7")).unwrap();
        fs::remove_file(at("changes-1.log")).unwrap();
        assert_eq!(back_up(folder.path(), 3, &at("changes-9.log")).unwrap(), Some(at("replaced-3")));
        for (name, text) in [("changes-1.log", "one"), ("tables-7/0/x", "two"), ("snapshot-7", "three")] {
            assert_eq!(fs::read_to_string(at("replaced-3").join(name)).unwrap(), text);
        }
        assert!(!at("replaced-3.part").exists() && !at("replaced-3").join("life").exists());
        // Later appends are not part of the copy.
        fs::write(at("changes-9.log"), "later").unwrap();
        assert_eq!(fs::read_to_string(at("replaced-3").join("changes-9.log")).unwrap(), "");
    }
}
