//! The opening of local files that can be read repeatedly.

use std::fs::{File, FileType};
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

/// Opens a file that has the same bytes each time it is read. Other files, such as pipes, result in an error
/// immediately, without waiting for their writers.
pub(super) fn open(path: &Path) -> Result<File> {
    distribute_files::open_checked(path, again)
}

/// Checks that a file can be read repeatedly.
fn again(found: FileType) -> Result<()> {
    #[cfg(unix)]
    let disk = std::os::unix::fs::FileTypeExt::is_block_device(&found);
    #[cfg(not(unix))]
    let disk = false;
    // Reading a folder fails with its own message.
    if found.is_file() || found.is_dir() || disk {
        Ok(())
    } else {
        Err(Error::new(
            ErrorKind::Unsupported,
            "this is a pipe, a socket or a device, whose bytes come only once, but every pass reads its files again, \
             and some formats more than once in a pass: copy it into a file, or read all of it and use `Location::bytes`",
        ))
    }
}
