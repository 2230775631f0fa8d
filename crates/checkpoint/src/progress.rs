//! Reports of progress during long saves and reads.

use crate::{Error, Result};
use std::error::Error as StdError;
use std::fmt;
use std::io;

/// The error by which a [`Progress`] function ends an operation.
pub type ProgressError = Box<dyn StdError + Send + Sync>;

/// A function that is called repeatedly during a long save or read, at least once for every 8 MiB that are
/// written or verified, unless a row is larger. If it returns an error, the operation ends with
/// [`Error::Interrupted`].
pub type Progress<'p> = dyn FnMut() -> Result<(), ProgressError> + 'p;

/// The error of a [`Progress`] function, as the source of an I/O error.
#[derive(Debug)]
pub(crate) struct Stopped(pub(crate) ProgressError);

/// Calls `progress`, and wraps its error in [`Error::Interrupted`].
pub(crate) fn report(progress: &mut Progress<'_>) -> Result<()> {
    progress().map_err(|source| Error::Interrupted { source })
}

/// Calls `progress` in a function that returns I/O errors. [`rows::error`](crate::rows::error) extracts the error of
/// `progress` from them.
pub(crate) fn report_in_write(progress: &mut Progress<'_>) -> io::Result<()> {
    progress().map_err(|source| io::Error::other(Stopped(source)))
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the write was interrupted: {}", self.0)
    }
}

impl StdError for Stopped {}
