//! The file in a server's folder with the number of its life: see [`replica`](crate::replica).

use crate::OpenError;
use distribute_files::WholeFile;
use std::io;
use std::path::{Path, PathBuf};

fn path(folder: &Path) -> PathBuf {
    folder.join("life")
}

/// Reads the life from a folder; 0 if the file does not exist, because the server had no follower.
///
/// # Errors
/// - [`OpenError::Snapshot`]: the file contains no number.
/// - [`OpenError::Io`]: the file cannot be read.
pub(crate) fn read_life(folder: &Path) -> Result<u64, OpenError> {
    let path = path(folder);
    match std::fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(|_| OpenError::Snapshot {
            path: path.clone(),
            reason: format!("{text:?} is no number"),
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(OpenError::io("reading", path)(error)),
    }
}

/// Writes the number of a life to a folder, atomically.
pub(crate) fn write_life(folder: &Path, life: u64) -> Result<(), OpenError> {
    let path = path(folder);
    WholeFile::write(&path, life.to_string().as_bytes()).map_err(OpenError::io("writing", path))
}
