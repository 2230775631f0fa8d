//! Files that the benchmark writes.

use distribute::{Error, Result};
use distribute_files::WholeFile;
use std::path::Path;

/// Writes a file atomically.
pub fn write(path: &Path, text: &str) -> Result<()> {
    WholeFile::write(path, text.as_bytes())
        .map_err(|source| Error::Io { operation: format!("writing {}", path.display()), source })
}
