//! Why a server cannot go on where it was, or cannot save what it has.

use std::io;
use std::path::PathBuf;

/// Why a server cannot go on where it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A file or folder can't be read or written.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// Of which file or folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Another process has the folder.
    #[error("{} is in use by another parameter server: each needs a folder of its own", folder.display())]
    InUse {
        /// The folder.
        folder: PathBuf,
    },
    /// A log is damaged, or a file of it is missing. Nothing in the folder was changed.
    #[error(
        "{} {reason}, at byte {offset}: this is not the end of what was written, so that acknowledged changes are lost. Restore the file, or \
         see by `distribute repair {}` what is lost, and leave it out",
        path.display(), path.parent().unwrap_or(path).display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// A folder was written by another version.
    #[error(
        "{} was written by another version of this program, whose logs this one does not read. Start that version again, wait until it has \
         saved all tables (a minute without changes) and end it; or empty the folders of all servers, and restore a checkpoint",
        path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
    },
    /// A snapshot can't be read.
    #[error(
        "the snapshot in {}: {reason}. Restore that folder; or empty the folders of all servers, and restore a checkpoint",
        path.display()
    )]
    Snapshot {
        /// The folder.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The system has no thread to spare.
    #[error("a parameter server cannot start a thread: {source}")]
    Thread {
        /// Why.
        source: io::Error,
    },
}

/// Why tables could not be saved. The log has all that they were changed by since the last time, and grows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The server keeps nothing on a disk.
    #[error("snapshot: this server has no folder; open it with ServerOptions")]
    InMemory,
    /// A file or folder can't be written.
    #[error("snapshot: {action} {}: {source}; make room there, it is tried again", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// Of which file or folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A checkpoint can't be written.
    #[error("snapshot: {0}; it is tried again")]
    Checkpoint(#[from] distribute_checkpoint::Error),
    /// There is no memory for a copy of a table.
    #[error("snapshot: {0}")]
    Table(#[from] distribute_params::Error),
    /// What is to be saved cannot be written.
    #[error("snapshot: {what} of {name} cannot be written")]
    Head {
        /// What of it.
        what: &'static str,
        /// The table.
        name: String,
    },
}

impl OpenError {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}

impl SnapshotError {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}
