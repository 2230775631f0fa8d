//! What can go wrong with a checkpoint, and what to do about it.

use distribute_tensor::DType;
use std::io;
use std::path::{Path, PathBuf};

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused a file or folder.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// What was being done.
        operation: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// There is no checkpoint at a path.
    #[error("{} is no checkpoint: {reason}", path.display())]
    NoCheckpoint {
        /// The path.
        path: PathBuf,
        /// A text that says what is there, and which path to give.
        reason: String,
    },
    /// There is something already where a checkpoint was to be saved. Nothing was changed.
    #[error(
        "{} exists: a checkpoint is never overwritten; save under another name, or let a CheckpointManager number them",
        path.display()
    )]
    Exists {
        /// The place.
        path: PathBuf,
    },
    /// Another process or thread is saving to the same folder. Nothing was changed.
    #[error("{} is being saved to by another process or thread; only the chief saves", path.display())]
    Busy {
        /// The folder of the manager.
        path: PathBuf,
    },
    /// The new checkpoint is in place, but an old one could not be removed.
    #[error("{} is saved, but {} could not be removed: {source}", saved.display(), path.display())]
    Removal {
        /// The new checkpoint.
        saved: PathBuf,
        /// What was to be removed.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Bytes are not those that were written: a torn or altered file.
    #[error("{}, at byte {offset}: {reason}; go back to an older checkpoint", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where in it what is wrong begins.
        offset: u64,
        /// What was expected and what was found.
        reason: String,
    },
    /// A format that this version of the crate doesn't read.
    #[error("{} is of format {found}; this version reads {expected}", path.display())]
    Version {
        /// The index.
        path: PathBuf,
        /// The format there.
        found: String,
        /// What can be read.
        expected: String,
    },
    /// The index says something that cannot be, or that the files contradict.
    #[error("{}: {at}: {reason}", path.display())]
    Index {
        /// The index.
        path: PathBuf,
        /// Which part of it: `entry "fc.weight"`, `file 2`, `line 7 column 3`.
        at: String,
        /// What was expected and what was found.
        reason: String,
    },
    /// The checkpoint has no tensor of this name.
    #[error("{} has no {name:?}; it has {} tensors: {}", path.display(), names.len(), shortened(names))]
    UnknownName {
        /// The checkpoint.
        path: PathBuf,
        /// The name asked for.
        name: String,
        /// Those there are.
        names: Vec<String>,
    },
    /// Rows that the tensor doesn't have.
    #[error("{name:?} has rows 0..{rows}; {start}..{end} were asked for")]
    Rows {
        /// The tensor.
        name: String,
        /// The first row asked for.
        start: usize,
        /// The row after the last one asked for.
        end: usize,
        /// How many there are.
        rows: usize,
    },
    /// What was to be saved doesn't fit together. Nothing was changed.
    #[error("{operation} {name:?}: {reason}")]
    Entry {
        /// What was called.
        operation: &'static str,
        /// The tensor.
        name: String,
        /// What is wrong and what was expected.
        reason: String,
    },
    /// An argument is out of range.
    #[error("{operation}: {reason}")]
    InvalidArgument {
        /// What was called.
        operation: &'static str,
        /// What is wrong and what was expected.
        reason: String,
    },
    /// Elements don't make a tensor.
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

/// Dtype and shape, as errors show them.
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
