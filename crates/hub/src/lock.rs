//! Waits for another process that downloads the same file. The lock is that of Python's `huggingface_hub`.

use crate::cache::Folder;
use crate::digest::Hash;
use crate::error::{Error, Result};
use distribute_cluster::Deadline;
use distribute_files::LockFile;
use std::fs::OpenOptions;
use std::io;
use std::time::Duration;

/// The time between two attempts to acquire the lock.
const PAUSE: Duration = Duration::from_millis(50);

/// Locks the file with the given hash. Waits as long as another process has the lock and its download grows. Returns
/// [`Error::Busy`] if the download has not grown for `timeout`.
pub(crate) fn acquire(folder: &Folder, hash: &Hash, timeout: Duration) -> Result<LockFile> {
    let path = folder.lock(hash)?;
    // Others who share the cache may lock it: its mode is the default one.
    match OpenOptions::new().write(true).create_new(true).open(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(Error::io("creating", &path)(error));
        }
        _ => {}
    }
    let (mut deadline, mut size) = (Deadline::after(timeout), 0);
    loop {
        if let Some(lock) = LockFile::acquire(&path).map_err(Error::io("locking", &path))? {
            return Ok(lock);
        }
        let found = folder.downloaded(hash);
        if found != size {
            (deadline, size) = (Deadline::after(timeout), found);
        }
        if deadline.has_passed() {
            return Err(Error::Busy { lock: path, waited: timeout });
        }
        std::thread::park_timeout(PAUSE.min(deadline.remaining()));
    }
}
