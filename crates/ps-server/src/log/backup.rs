//! Copies of bytes that are about to be removed from a log. Nothing is removed without a copy.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The name of the folder for copies, in the server's folder.
const FOLDER: &str = "set-aside";

/// Copies a file, from an offset to its end, to the folder for copies. Syncs the copy to disk, and returns its path.
pub(crate) fn back_up(path: &Path, from: u64) -> io::Result<PathBuf> {
    let mut file = distribute_files::open_own(path, false)?;
    file.seek(SeekFrom::Start(from))?;
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("file");
    let name = if from == 0 { name.to_owned() } else { format!("{name}-from-byte-{from}") };
    keep(path.parent().unwrap_or(Path::new(".")), &name, file)
}

/// Writes bytes to a file in the folder for copies, unless the file already contains them. A log is read at each start,
/// so the same bytes may be set aside again.
pub(crate) fn back_up_once(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
    let path = folder.join(FOLDER).join(name);
    let there = distribute_files::open_own(&path, false).and_then(|mut file| {
        let mut there = Vec::new();
        file.read_to_end(&mut there).map(|_| there)
    });
    if there.is_ok_and(|there| there == bytes) { Ok(path) } else { keep(folder, name, bytes) }
}

/// Writes bytes to a new file in the folder for copies, syncs it to disk, and returns its path. If a file with this
/// name exists, a number is appended to the name.
fn keep(folder: &Path, name: &str, mut bytes: impl Read) -> io::Result<PathBuf> {
    let backup = folder.join(FOLDER);
    distribute_files::create_private_folder(&backup)?;
    for number in 0..u32::MAX {
        let name = if number == 0 { name.to_owned() } else { format!("{name}-{number}") };
        let path = backup.join(name);
        let mut options = OpenOptions::new();
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        match options.write(true).create_new(true).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(error),
            Ok(mut copy) => {
                let copied = io::copy(&mut bytes, &mut copy).and_then(|_| {
                    copy.sync_all()?;
                    File::open(&backup)?.sync_all()?;
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
