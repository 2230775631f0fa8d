//! The errors of saving and reading checkpoints. Their messages contain remedies.

use distribute_tensor::DType;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error while a checkpoint is saved or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation on a file or folder failed.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// The operation that failed, such as `reading`.
        operation: &'static str,
        /// The path of the file or folder.
        path: PathBuf,
        /// The error from the operating system.
        #[source]
        source: io::Error,
    },
    /// There is no checkpoint at the path.
    #[error("{} is not a checkpoint: {reason}", path.display())]
    NoCheckpoint {
        /// The path that was opened.
        path: PathBuf,
        /// A description of what is at the path instead and, if there is one, of the path to use.
        reason: String,
    },
    /// The destination of a save already exists. Nothing has changed.
    #[error(
        "{} exists: a checkpoint is never overwritten; save under another name, or let a CheckpointManager number them",
        path.display()
    )]
    Exists {
        /// The path at which the checkpoint was to be saved.
        path: PathBuf,
    },
    /// Another process or thread is saving to the same folder. Nothing has changed.
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
        /// The path of the old checkpoint.
        path: PathBuf,
        /// The error from the operating system.
        #[source]
        source: io::Error,
    },
    /// A save in the background failed. The previous checkpoint remains the latest, unless the failure came after the
    /// new one was complete, for example because an old one could not be removed.
    #[error("the save of {} in the background failed: {source}", path.display())]
    Background {
        /// The path at which the checkpoint was to be saved.
        path: PathBuf,
        /// The error of the save.
        #[source]
        source: Arc<Error>,
    },
    /// An earlier save in the background failed, and no call has reported that yet. The save that returns this error
    /// was made nevertheless, or has begun in the background.
    #[error(
        "the earlier save of {} in the background failed: {source}; the save of {} is not affected",
        path.display(),
        next.display()
    )]
    Earlier {
        /// The path at which the earlier checkpoint was to be saved.
        path: PathBuf,
        /// The path of the checkpoint whose save returns this error.
        next: PathBuf,
        /// The error of the earlier save.
        #[source]
        source: Arc<Error>,
    },
    /// A save, usually in the background, is still under way after the time that a call may wait for it.
    #[error("{} is still being saved after {after:?}; wait longer, or check the disk", path.display())]
    Unfinished {
        /// The path of the checkpoint; the manager's folder if the call waited for its turn to begin a save.
        path: PathBuf,
        /// The time after which the wait ended: the timeout of the call, or five minutes without progress.
        after: Duration,
    },
    /// A thread that saves in the background panicked. This is a defect of the program's own source of tensors, or of
    /// this crate.
    #[error("the thread that saves {} panicked; its message is in the log", path.display())]
    Panicked {
        /// The path at which the checkpoint was to be saved.
        path: PathBuf,
    },
    /// A file is truncated or altered: its bytes differ from those that were written.
    #[error("{}, at byte {offset}: {reason}; go back to an older checkpoint", path.display())]
    Damaged {
        /// The path of the file.
        path: PathBuf,
        /// The offset in the file at which the damage was found, in bytes.
        offset: u64,
        /// A description of the expected and the actual contents.
        reason: String,
    },
    /// The checkpoint has a format that this version of the crate does not support.
    #[error("{} is of format {found}; this version reads {expected}", path.display())]
    Version {
        /// The path of the index.
        path: PathBuf,
        /// The name and version of the checkpoint's format.
        found: String,
        /// The name and version of the supported format.
        expected: String,
    },
    /// The index is inconsistent, or the files contradict it.
    #[error("{}: {at}: {reason}", path.display())]
    Index {
        /// The path of the index.
        path: PathBuf,
        /// The position in the index, such as `entry "fc.weight"`, `file 2`, `line 7 column 3`.
        at: String,
        /// A description of the expected and the actual value.
        reason: String,
    },
    /// The checkpoint has no tensor with the requested name.
    #[error("{} has no {name:?}; it has {} tensors: {}", path.display(), names.len(), shortened(names))]
    UnknownName {
        /// The path of the checkpoint.
        path: PathBuf,
        /// The requested name.
        name: String,
        /// The names of all tensors in the checkpoint.
        names: Vec<String>,
    },
    /// The requested rows are out of range, or the tensor is a scalar.
    #[error("{name:?} has rows 0..{rows}, but {start}..{end} were requested")]
    Rows {
        /// The name of the tensor.
        name: String,
        /// The first requested row.
        start: usize,
        /// The row after the last requested one.
        end: usize,
        /// The number of rows of the tensor; 0 for a scalar.
        rows: usize,
    },
    /// A tensor cannot be added or saved, because its name is already used, its slices are inconsistent or incomplete,
    /// or the function does not support its dtype or shape. Nothing has changed.
    #[error("{operation} {name:?}: {reason}")]
    Entry {
        /// The function that was called.
        operation: &'static str,
        /// The name of the tensor.
        name: String,
        /// A description of the problem and of the expected value.
        reason: String,
    },
    /// Rows of a tensor could not be read or copied from their source. No checkpoint was saved.
    #[error("{name:?} was not saved: {source}")]
    Source {
        /// The name of the tensor.
        name: String,
        /// The error of the source: of the function that reads rows
        /// ([`Writer::insert_read`](crate::Writer::insert_read)), or of the live tensors
        /// ([`Writer::insert_live`](crate::Writer::insert_live)).
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The folder of a checkpoint that several processes write is not the one that the saving process describes: this
    /// process sees another file system, may not write to the folder, or the save has ended.
    #[error("{} is not shared with the process that saves the checkpoint: {reason}", path.display())]
    NotShared {
        /// The path of the folder, as this process sees it.
        path: PathBuf,
        /// The reason: what this process finds there.
        reason: String,
    },
    /// The parts that several processes wrote do not fit together, or the process that saves the checkpoint does not
    /// see them as they were written. No checkpoint was saved.
    #[error("the parts of {} cannot be put together: {source}; no checkpoint was saved", path.display())]
    Parts {
        /// The path of the checkpoint that was to be saved.
        path: PathBuf,
        /// The first error that was found. It contains the path of the file.
        #[source]
        source: Box<Error>,
    },
    /// A function that is called during a long operation returned an error, so the operation has ended.
    #[error("{source}")]
    Interrupted {
        /// The error of the function.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An argument is invalid, or a function that reports the progress of a save has called the manager.
    #[error("{operation}: {reason}")]
    InvalidArgument {
        /// The function that was called.
        operation: &'static str,
        /// A description of the problem and of the expected value.
        reason: String,
    },
    /// The elements that were read do not form a valid tensor.
    #[error(transparent)]
    Tensor(#[from] distribute_tensor::Error),
}

impl Error {
    /// Returns a function for `map_err` that wraps an I/O error.
    pub(crate) fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { operation, path: path.to_path_buf(), source }
    }

    pub(crate) fn entry(operation: &'static str, name: &str, reason: impl Into<String>) -> Error {
        Error::Entry { operation, name: name.to_string(), reason: reason.into() }
    }
}

/// Formats a dtype and a shape for error messages.
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
