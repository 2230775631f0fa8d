//! Errors of opening a server's folder and of saving its tables.

use std::io;
use std::path::PathBuf;

/// The reason why a server cannot resume from its folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A file or folder cannot be read or written.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The path of the file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Another process is using the folder.
    #[error("{} is in use by another parameter server: each needs a separate folder", folder.display())]
    InUse {
        /// The path of the folder.
        folder: PathBuf,
    },
    /// A log is damaged, or one of its files is missing. The folder is unchanged.
    #[error(
        "{} {reason}, at byte {offset}: this is not a write that was interrupted, so acknowledged changes are \
         lost. Restore the file, or list the loss with `distribute repair {}` and remove the damage",
        path.display(), path.parent().unwrap_or(path).display()
    )]
    Damaged {
        /// The path of the file.
        path: PathBuf,
        /// The offset of the damage in bytes.
        offset: u64,
        /// A description of the damage.
        reason: String,
    },
    /// The folder was written by a different version.
    #[error(
        "{} was written by another version of this program, whose logs this one does not read. Start that \
         version again, wait until it has saved all tables (a minute without changes) and stop it; or empty \
         the folders of all servers, and restore a checkpoint",
        path.display()
    )]
    Version {
        /// The path of the file that contains the version.
        path: PathBuf,
    },
    /// A snapshot is missing or cannot be read, or the file with the server's number of starts (its *life*) contains no
    /// number.
    #[error(
        "the snapshot in {}: {reason}. Restore that folder; or empty the folders of all servers, and restore a checkpoint",
        path.display()
    )]
    Snapshot {
        /// The path of the snapshot or file, or of the server's folder.
        path: PathBuf,
        /// A description of the problem.
        reason: String,
    },
    /// A thread could not be started.
    #[error("a parameter server cannot start a thread: {source}")]
    Thread {
        /// The error of the operating system.
        source: io::Error,
    },
}

/// The reason why tables could not be saved. No change is lost: the log grows, because it keeps all changes since the
/// last snapshot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The server has no folder.
    #[error("snapshot: this server has no folder; open it with ServerOptions")]
    InMemory,
    /// A file or folder cannot be written.
    #[error("snapshot: {action} {}: {source}; free space there; the snapshot will be retried", path.display())]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The path of the file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A checkpoint cannot be written.
    #[error("snapshot: {0}; it will be retried")]
    Checkpoint(#[from] distribute_checkpoint::Error),
    /// There is not enough memory for a copy of a table.
    #[error("snapshot: {0}")]
    Table(#[from] distribute_ps_tables::Error),
    /// Data of a table cannot be encoded.
    #[error("snapshot: {what} of {name} cannot be written")]
    Head {
        /// The kind of data, such as the manifest.
        what: &'static str,
        /// The name of the table.
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
