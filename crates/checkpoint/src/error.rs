//! Errors of checkpoints, whose messages name the fix.

use distribute_tensor::DType;
use std::io;
use std::path::{Path, PathBuf};

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refuses an operation on a file or folder.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// The operation.
        operation: &'static str,
        /// The path of the file or folder.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// There is no checkpoint at a path.
    #[error("{} is no checkpoint: {reason}", path.display())]
    NoCheckpoint {
        /// The path.
        path: PathBuf,
        /// The contents of the path, and the path to use instead, as text.
        reason: String,
    },
    /// The destination of a save already exists. Nothing was changed.
    #[error(
        "{} exists: a checkpoint is never overwritten; save under another name, or let a CheckpointManager number them",
        path.display()
    )]
    Exists {
        /// The destination.
        path: PathBuf,
    },
    /// Another process or thread is saving to the same folder. Nothing was changed.
    #[error("{} is being saved to by another process or thread; only the chief saves", path.display())]
    Busy {
        /// The folder of the manager.
        path: PathBuf,
    },
    /// The new checkpoint is saved, but an old one could not be removed.
    #[error("{} is saved, but {} could not be removed: {source}", saved.display(), path.display())]
    Removal {
        /// The path of the new checkpoint.
        saved: PathBuf,
        /// The path of the old one.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// A file is truncated or altered: its bytes differ from those written.
    #[error("{}, at byte {offset}: {reason}; go back to an older checkpoint", path.display())]
    Damaged {
        /// The path of the file.
        path: PathBuf,
        /// The offset of the damage.
        offset: u64,
        /// The expected and the found contents, as text.
        reason: String,
    },
    /// The format is not supported by this version of the crate.
    #[error("{} is of format {found}; this version reads {expected}", path.display())]
    Version {
        /// The path of the index.
        path: PathBuf,
        /// The format of the checkpoint.
        found: String,
        /// The supported format.
        expected: String,
    },
    /// The index is inconsistent, or the files contradict it.
    #[error("{}: {at}: {reason}", path.display())]
    Index {
        /// The path of the index.
        path: PathBuf,
        /// The position in the index, such as `entry "fc.weight"`, `file 2`, `line 7 column 3`.
        at: String,
        /// The expected and the found value, as text.
        reason: String,
    },
    /// The checkpoint has no tensor of this name.
    #[error("{} has no {name:?}; it has {} tensors: {}", path.display(), names.len(), shortened(names))]
    UnknownName {
        /// The path of the checkpoint.
        path: PathBuf,
        /// The requested name.
        name: String,
        /// The existing names.
        names: Vec<String>,
    },
    /// The tensor does not have the requested rows.
    #[error("{name:?} has rows 0..{rows}; {start}..{end} were asked for")]
    Rows {
        /// The name of the tensor.
        name: String,
        /// The first requested row.
        start: usize,
        /// The row after the last requested one.
        end: usize,
        /// The number of rows of the tensor.
        rows: usize,
    },
    /// The tensors to be saved do not fit together. Nothing was changed.
    #[error("{operation} {name:?}: {reason}")]
    Entry {
        /// The function that was called.
        operation: &'static str,
        /// The name of the tensor.
        name: String,
        /// The problem and the expected value, as text.
        reason: String,
    },
    /// An argument is out of range.
    #[error("{operation}: {reason}")]
    InvalidArgument {
        /// The function that was called.
        operation: &'static str,
        /// The problem and the expected value, as text.
        reason: String,
    },
    /// Elements do not form a tensor.
    #[error(transparent)]
    Tensor(#[from] distribute_tensor::Error),
}

impl Error {
    /// Wraps an error of the system, for `map_err`.
    pub(crate) fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { operation, path: path.to_path_buf(), source }
    }

    pub(crate) fn entry(operation: &'static str, name: &str, reason: impl Into<String>) -> Error {
        Error::Entry { operation, name: name.to_string(), reason: reason.into() }
    }
}

/// Formats dtype and shape for errors.
pub(crate) fn show(dtype: DType, shape: &[usize]) -> String {
    format!("{dtype}{shape:?}")
}

fn shortened(names: &[String]) -> String {
    const SHOWN: usize = 20;
    if names.len() > SHOWN {
        format!("{:?} and {} more", &names[..SHOWN], names.len() - SHOWN)
    } else {
        format!("{names:?}")
    }
}
