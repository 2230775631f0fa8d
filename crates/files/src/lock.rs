//! [`LockFile`]: lock files, which exclude other processes and threads.

use crate::open_lock;
use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

/// A file that is locked until this value is dropped, or until the process exits in any way.
///
/// Dropping the value unlocks the file explicitly. Merely closing the file would not be enough: a process that another
/// thread starts at the same moment inherits the open file, and thus the lock, until that process executes its own
/// program.
#[derive(Debug)]
pub struct LockFile(File);

impl LockFile {
    /// Locks a file, which is created if it doesn't exist. Returns `None` if another process or thread holds the lock.
    ///
    /// # Errors
    /// Returns the errors of [`open_lock`], and the error of the operating system if the file cannot be locked.
    pub fn acquire(path: impl AsRef<Path>) -> io::Result<Option<Self>> {
        let file = open_lock(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // If this fails, closing unlocks it.
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_ends_when_it_is_dropped_although_a_new_process_has_inherited_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = LockFile::acquire(&path).unwrap().unwrap();
        assert!(LockFile::acquire(&path).unwrap().is_none());
        // The state of a process between fork and exec.
        let inherited = held.0.try_clone().unwrap();
        drop(held);
        assert!(LockFile::acquire(&path).unwrap().is_some());
        drop(inherited);
    }
}
