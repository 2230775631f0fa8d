//! The errors of writing summaries.

use std::io;
use std::path::PathBuf;

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error that occurs while a summary is written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The folder cannot be created.
    #[error("summaries: cannot create the folder {}: {source}", folder.display())]
    Folder {
        /// The path of the folder.
        folder: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file cannot be written, for example because the disk is full. Events that were flushed can be read. This
    /// writer writes no more events.
    #[error(
        "summaries: {0}; events that were flushed before are readable. Free space, and continue with \
         another writer in the same folder"
    )]
    Write(#[source] Box<distribute_data::Error>),
    /// The tag of a summary is empty or too long.
    #[error("{operation}: a tag of {} bytes; TensorBoard needs one of 1 to {most}", tag.len(), most = Self::MAX_TAG)]
    Tag {
        /// The name of the method that was called.
        operation: &'static str,
        /// The tag.
        tag: String,
    },
    /// A histogram contains NaN or an infinite value, which belongs to no bucket.
    #[error(
        "histogram: {tag} at step {step} has {value}, which is in no bucket; find its cause, or omit such \
         values"
    )]
    NotFinite {
        /// The tag of the histogram.
        tag: String,
        /// The step of the histogram.
        step: u64,
        /// The first value that is NaN or infinite.
        value: f64,
    },
}

impl Error {
    /// The maximum length of a tag in bytes.
    pub const MAX_TAG: usize = 4096;
}
