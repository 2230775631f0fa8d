//! What can go wrong.

use std::io;
use std::path::PathBuf;

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Why no event was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The folder cannot be made.
    #[error("summaries: cannot make the folder {}: {source}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file cannot be written: the disk is full, say. What was flushed before can be read; this writer
    /// writes no more.
    #[error(
        "summaries: {0}; what was flushed before can be read. Make room, and go on with another writer in the same folder"
    )]
    Write(#[source] Box<distribute_data::Error>),
    /// A summary has no name, or one that is too long.
    #[error("{operation}: a tag of {} bytes; TensorBoard needs one of 1 to {most}", tag.len(), most = Self::LONGEST_TAG)]
    Tag {
        /// What was called.
        operation: &'static str,
        /// The name.
        tag: String,
    },
    /// A histogram has no place for NaN and infinities.
    #[error(
        "histogram: {tag} at step {step} has {value}, which is in no bucket; look where it comes from, or leave such values out"
    )]
    NotFinite {
        /// The name of the histogram.
        tag: String,
        /// The step.
        step: u64,
        /// The first such value.
        value: f64,
    },
}

impl Error {
    /// The longest name of a summary, in bytes.
    pub const LONGEST_TAG: usize = 4096;
}
