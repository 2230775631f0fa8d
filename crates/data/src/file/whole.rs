//! Files that have their name only when they are whole.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// A new file that has another name, in the same folder, until it is finished. Dropped before, it is removed. So
/// nobody reads half of it, and a file of this name stays as it was until then.
#[derive(Debug)]
pub(crate) struct WholeFile {
    path: PathBuf,
    part: NamedTempFile,
}

impl WholeFile {
    /// Begins the file that is to be at `path`, in a folder that is there.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let no_name =
            || io::Error::new(io::ErrorKind::InvalidInput, "this does not end in the name of a file");
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(path.file_name().ok_or_else(no_name)?);
        prefix.push(".");
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".part");
        // What the user's mask allows, as for any file; temporary files are their owner's alone.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let part = builder.tempfile_in(parent.unwrap_or(Path::new(".")))?;
        Ok(Self { path: path.to_path_buf(), part })
    }

    /// Brings what was written to the disk, and gives the file its name. A file that had it is replaced.
    pub(crate) fn finish(self) -> io::Result<()> {
        self.part.as_file().sync_all()?;
        self.part.persist(&self.path).map(drop).map_err(|error| error.error)
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.part.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.part.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_file_has_its_name_only_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, b"old").unwrap();
        let mut file = WholeFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        let mut file = WholeFile::create(&path).unwrap();
        file.write_all(b"newer").unwrap();
        file.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"newer");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[cfg(unix)]
    #[test]
    fn a_file_may_be_read_by_those_who_may_read_others() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a"), folder.path().join("other"));
        WholeFile::create(&path).unwrap().finish().unwrap();
        fs::write(&other, b"").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&path), mode(&other));
    }

    #[test]
    fn a_place_that_cannot_be_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(WholeFile::create(&folder.path().join("missing/a")).is_err());
        assert!(WholeFile::create(&folder.path().join("..")).is_err());
    }
}
