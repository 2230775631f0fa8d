//! What is no part of a log any more: nothing is cut off that is not kept elsewhere.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The folder of what was set aside, in that of the server.
const FOLDER: &str = "set-aside";

/// Copies a file from a byte on, on the disk, and returns where the copy is.
pub(crate) fn set_aside(path: &Path, from: u64) -> io::Result<PathBuf> {
    let mut file = distribute_files::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("file");
    let name = if from == 0 { name.to_owned() } else { format!("{name}-from-byte-{from}") };
    keep(path.parent().unwrap_or(Path::new(".")), &name, file)
}

/// Writes bytes to a new file among what was set aside.
pub(crate) fn keep(folder: &Path, name: &str, mut bytes: impl Read) -> io::Result<PathBuf> {
    let aside = folder.join(FOLDER);
    fs::create_dir_all(&aside)?;
    for number in 0..u32::MAX {
        let name = if number == 0 { name.to_owned() } else { format!("{name}-{number}") };
        let path = aside.join(name);
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(error),
            Ok(mut copy) => {
                let copied = io::copy(&mut bytes, &mut copy).and_then(|_| {
                    copy.sync_all()?;
                    File::open(&aside)?.sync_all()?;
                    File::open(folder)?.sync_all()
                });
                if let Err(error) = copied {
                    let _ = fs::remove_file(&path);
                    return Err(error);
                }
                return Ok(path);
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
