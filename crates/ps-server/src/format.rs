//! The file with the version of a folder's format. It is written once the folder's log exists. If the log is missing
//! after that, it was lost.

use crate::OpenError;
use distribute_files::WholeFile;
use std::io;
use std::path::{Path, PathBuf};

/// The version of the folder's format.
const VERSION: &str = "3";

fn path(folder: &Path) -> PathBuf {
    folder.join("format")
}

/// Returns whether a folder has this file, with the current version.
///
/// # Errors
/// - [`OpenError::Version`]: the folder has a different version.
/// - [`OpenError::Io`]: the file cannot be read.
pub(crate) fn check(folder: &Path) -> Result<bool, OpenError> {
    let path = path(folder);
    match std::fs::read_to_string(&path) {
        Ok(text) if text.trim() == VERSION => Ok(true),
        Ok(_) => Err(OpenError::Version { path }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        // The version number of any format consists of digits.
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(OpenError::Version { path }),
        Err(error) => Err(OpenError::io("reading", path)(error)),
    }
}

/// Writes the file, which marks the folder as initialized.
pub(crate) fn write(folder: &Path) -> Result<(), OpenError> {
    let path = path(folder);
    WholeFile::write(&path, VERSION.as_bytes()).map_err(OpenError::io("writing", path))
}
