//! The file that says of which version a folder is. It is written when the folder's log is there: from then on, a log that is missing is
//! damage.

use crate::OpenError;
use distribute_files::WholeFile;
use std::io;
use std::path::{Path, PathBuf};

/// The version of what is in a folder.
const VERSION: &str = "2";

fn path(folder: &Path) -> PathBuf {
    folder.join("format")
}

/// Whether a folder has been begun.
///
/// # Errors
/// [`OpenError::Version`] for one of another version.
pub(crate) fn check(folder: &Path) -> Result<bool, OpenError> {
    let path = path(folder);
    match std::fs::read_to_string(&path) {
        Ok(text) if text.trim() == VERSION => Ok(true),
        Ok(_) => Err(OpenError::Version { path }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        // A number of another version has digits, too.
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(OpenError::Version { path }),
        Err(error) => Err(OpenError::io("reading", path)(error)),
    }
}

/// Writes that a folder has been begun.
pub(crate) fn write(folder: &Path) -> Result<(), OpenError> {
    let path = path(folder);
    WholeFile::write(&path, VERSION.as_bytes()).map_err(OpenError::io("writing", path))
}
