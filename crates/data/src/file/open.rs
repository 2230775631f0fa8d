//! Opening local files that can be read again.

use std::fs::{File, FileType};
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

/// Opens a file that gives the same bytes each time it is read. Others are refused at once, without waiting for
/// whoever writes into them.
pub(super) fn open(path: &Path) -> Result<File> {
    distribute_files::open_checked(path, again)
}

/// Returns whether what is read can be read once more.
fn again(found: FileType) -> Result<()> {
    #[cfg(unix)]
    let disk = std::os::unix::fs::FileTypeExt::is_block_device(&found);
    #[cfg(not(unix))]
    let disk = false;
    // Reading a folder fails with a text of its own.
    if found.is_file() || found.is_dir() || disk {
        Ok(())
    } else {
        Err(Error::new(
            ErrorKind::Unsupported,
            "this is a pipe, a socket or a device, whose bytes come only once, but every pass reads its files anew, \
             and some formats more than once in a pass: copy it into a file, or read all of it and use `Location::bytes`",
        ))
    }
}
