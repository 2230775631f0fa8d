//! The errors of writing summaries.

use std::io;
use std::path::PathBuf;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of writing a summary.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The folder cannot be created.
    #[error("summaries: cannot make the folder {}: {source}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file cannot be written, for example because the disk is full. Flushed events can be read. This
    /// writer writes no more.
    #[error(
        "summaries: {0}; what was flushed before can be read. Make room, and go on with another writer in the same folder"
    )]
    Write(#[source] Box<distribute_data::Error>),
    /// The tag of a summary is empty or too long.
    #[error("{operation}: a tag of {} bytes; TensorBoard needs one of 1 to {most}", tag.len(), most = Self::LONGEST_TAG)]
    Tag {
        /// The method that was called.
        operation: &'static str,
        /// The tag.
        tag: String,
    },
    /// A histogram has NaN or an infinite value, which fits into no bucket.
    #[error(
        "histogram: {tag} at step {step} has {value}, which is in no bucket; look where it comes from, or leave such values out"
    )]
    NotFinite {
        /// The tag of the histogram.
        tag: String,
        /// The step.
        step: u64,
        /// The first such value.
        value: f64,
    },
}

impl Error {
    /// The longest tag of a summary, in bytes.
    pub const LONGEST_TAG: usize = 4096;
}
