//! The number of a server's life, in its folder.

use crate::OpenError;
use distribute_files::WholeFile;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Where a server keeps the number of its life.
fn path(folder: &Path) -> PathBuf {
    folder.join("life")
}

/// The life of which a folder is; 0 if it is of none.
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

/// Writes it, so that it is there whole or not at all.
pub(crate) fn write_life(folder: &Path, life: u64) -> Result<(), OpenError> {
    let path = path(folder);
    let write = || {
        let mut file = WholeFile::create(&path)?;
        file.write_all(life.to_string().as_bytes())?;
        file.finish()
    };
    write().map_err(OpenError::io("writing", path.clone()))
}
