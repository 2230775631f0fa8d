//! The folders of the cache, as Python's `huggingface_hub` has them.
//!
//! A folder such as `models--org--name` contains `blobs`, whose files are named by their hashes; `snapshots`, which has
//! links to blobs for each commit, with the names of the files; and `refs`, with the commit of each branch. The folder
//! `.locks` next to it contains a lock for each blob.

use crate::digest::Hash;
use crate::error::{Error, Result};
use crate::names::{Kind, is_commit};
use distribute_files::WholeFile;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The folder of a repository in the cache.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    root: PathBuf,
    locks: PathBuf,
}

impl Folder {
    /// Returns the folder of a repository whose name has been checked.
    pub(crate) fn new(cache: &Path, kind: Kind, id: &str) -> Self {
        let name = format!("{}--{}", kind.plural(), id.replace('/', "--"));
        Self { root: cache.join(&name), locks: cache.join(".locks").join(name) }
    }

    pub(crate) fn blob(&self, hash: &Hash) -> PathBuf {
        self.root.join("blobs").join(hash.text())
    }

    /// Returns the path of a blob's incomplete download. Creates the folder of blobs if it does not exist.
    pub(crate) fn partial(&self, hash: &Hash) -> Result<PathBuf> {
        let blobs = self.root.join("blobs");
        fs::create_dir_all(&blobs).map_err(Error::io("creating", &blobs))?;
        Ok(blobs.join(format!("{}.incomplete", hash.text())))
    }

    /// Returns the path of a blob's lock. Creates the folder of locks if it does not exist.
    pub(crate) fn lock(&self, hash: &Hash) -> Result<PathBuf> {
        fs::create_dir_all(&self.locks).map_err(Error::io("creating", &self.locks))?;
        Ok(self.locks.join(format!("{}.lock", hash.text())))
    }

    /// Returns `true` if the cache has the complete blob: a file of `size` bytes.
    pub(crate) fn has(&self, hash: &Hash, size: u64) -> bool {
        fs::symlink_metadata(self.blob(hash)).is_ok_and(|found| found.is_file() && found.len() == size)
    }

    /// Returns the total size in bytes of all files of a blob, complete or partial, which grows while any process
    /// downloads it. Partial files are found by prefix, because Python adds a random component to their names.
    pub(crate) fn downloaded(&self, hash: &Hash) -> u64 {
        let Ok(entries) = fs::read_dir(self.root.join("blobs")) else { return 0 };
        let is_of = |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| name.starts_with(hash.text()));
        let entries = entries.flatten().filter(|entry| is_of(&entry.file_name()));
        entries.filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum()
    }

    /// Returns the commit that a branch or tag had when it was last requested; `None` if the cache does not have it.
    pub(crate) fn commit(&self, revision: &str) -> Option<String> {
        let mut text = String::new();
        let file = distribute_files::open(self.root.join("refs").join(revision)).ok()?;
        file.take(64).read_to_string(&mut text).ok()?;
        Some(text.trim().to_string()).filter(|commit| is_commit(commit))
    }

    /// Returns the path of a file of a commit if the cache has it.
    pub(crate) fn find(&self, commit: &str, file: &str) -> Option<PathBuf> {
        let path = self.snapshot(commit, file);
        fs::metadata(&path).is_ok_and(|found| found.is_file()).then_some(path)
    }

    fn snapshot(&self, commit: &str, file: &str) -> PathBuf {
        file.split('/').fold(self.root.join("snapshots").join(commit), |path, part| path.join(part))
    }

    /// Links a complete blob to the name of a file in a commit, and returns the path of the link.
    pub(crate) fn publish(&self, commit: &str, file: &str, hash: &Hash) -> Result<PathBuf> {
        let path = self.snapshot(commit, file);
        let parent = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(parent).map_err(Error::io("creating", parent))?;
        // Relative, so that the cache can be moved.
        let target = format!("{}../blobs/{}", "../".repeat(file.split('/').count()), hash.text());
        link(&self.blob(hash), &target, &path).map_err(Error::io("linking", &path))?;
        Ok(path)
    }

    /// Records the commit of a branch or tag, for [`commit`](Self::commit).
    pub(crate) fn remember(&self, revision: &str, commit: &str) -> Result<()> {
        if self.commit(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.root.join("refs").join(revision);
        let parent = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(parent).map_err(Error::io("creating", parent))?;
        WholeFile::write(&path, commit.as_bytes()).map_err(Error::io("writing", &path))
    }
}

#[cfg(unix)]
fn link(_blob: &Path, target: &str, path: &Path) -> io::Result<()> {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    match symlink(target, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        done => return done,
    }
    if fs::read_link(path).is_ok_and(|found| found == Path::new(target)) {
        return Ok(());
    }
    // It leads elsewhere, such as to a blob that was removed.
    let other = loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let other = path.with_file_name(format!(".distribute-{}-{number}.link", std::process::id()));
        match symlink(target, &other) {
            // A process with this id, on this machine or another, has left it or is using it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            done => break done.map(|()| other)?,
        }
    };
    fs::rename(&other, path).inspect_err(|_| {
        let _ = fs::remove_file(&other);
    })
}

/// Creates a hard link, because symbolic links require a privilege.
#[cfg(not(unix))]
fn link(blob: &Path, _target: &str, path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::hard_link(blob, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn links_lead_to_blobs_and_are_repaired() {
        let cache = tempfile::tempdir().unwrap();
        let folder = Folder::new(cache.path(), Kind::Model, "org/name");
        let hash = Hash::parse(&"a".repeat(40)).unwrap();
        folder.partial(&hash).unwrap();
        fs::write(folder.blob(&hash), "text").unwrap();
        let commit = "c".repeat(40);
        for file in ["a", "b/c/d"] {
            assert_eq!(folder.find(&commit, file), None);
            let path = folder.publish(&commit, file, &hash).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "text");
            assert!(fs::read_link(&path).unwrap().starts_with("../.."));
            // Another process was faster.
            assert_eq!(folder.publish(&commit, file, &hash).unwrap(), path);
            fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink("nowhere", &path).unwrap();
            assert_eq!(folder.find(&commit, file), None);
            assert_eq!(folder.publish(&commit, file, &hash).unwrap(), path);
            assert_eq!(folder.find(&commit, file), Some(path));
        }
        let snapshot = cache.path().join("models--org--name/snapshots").join(&commit);
        // Links that a process with the same id has left.
        let left = |number: usize| snapshot.join(format!(".distribute-{}-{number}.link", std::process::id()));
        (0..20).for_each(|number| std::os::unix::fs::symlink("nowhere", left(number)).unwrap());
        let path = snapshot.join("a");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("nowhere", &path).unwrap();
        assert_eq!(folder.publish(&commit, "a", &hash).unwrap(), path);
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        (0..20).for_each(|number| fs::remove_file(left(number)).unwrap());
        assert_eq!(distribute_testing::names_in(&snapshot), ["a", "b"]);
    }

    #[test]
    fn a_damaged_reference_is_none() {
        let cache = tempfile::tempdir().unwrap();
        let folder = Folder::new(cache.path(), Kind::Dataset, "name");
        let commit = "c".repeat(40);
        folder.remember("refs/pr/1", &commit).unwrap();
        assert_eq!(folder.commit("refs/pr/1"), Some(commit));
        let path = cache.path().join("datasets--name/refs/main");
        for text in ["", "../../..", "cccc"] {
            fs::write(&path, text).unwrap();
            assert_eq!(folder.commit("main"), None);
        }
    }
}
