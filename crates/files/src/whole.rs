//! [`WholeFile`]: a file that gets its name only when it is complete.

// - INV-24: the exceptions are a trace and an event file, which grow. Input may also be a disk. Tests:
//   `files/src/whole.rs`, `files/src/regular.rs`, `data/src/file/location.rs`, `checkpoint/tests/it/manager.rs`,
//   `computing/resume/partial.rs`, `computing/trace.rs`, `ps-server/src/store/tests/comes_back.rs`.

use crate::Partial;
use crate::regular::require_replaceable;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A new file that has a temporary name in the same folder until it is finished. If it is dropped before that, it is
/// removed. An incomplete file is therefore never read, except after [`into_growing`](Self::into_growing), and an
/// existing file at the path does not change until then. A link at the path is replaced, not followed.
///
/// The leftovers of a killed process are removed by the next process that writes to the same path.
#[derive(Debug)]
pub struct WholeFile {
    path: PathBuf,
    partial: Partial,
}

impl WholeFile {
    /// Creates a file that will be at `path`, in an existing folder.
    ///
    /// # Errors
    /// - [`InvalidInput`](io::ErrorKind::InvalidInput): `path` is a folder, a named pipe or a device, or
    ///   doesn't end in a name.
    /// - Any error of the operating system.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        require_replaceable(path)?;
        Ok(Self { path: path.to_path_buf(), partial: Partial::file(path)? })
    }

    /// Creates a file like [`create`](Self::create). On Unix, it is accessible only to its owner.
    ///
    /// # Errors
    /// Returns the errors of [`create`](Self::create).
    pub fn create_private(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        require_replaceable(path)?;
        Ok(Self { path: path.to_path_buf(), partial: Partial::private(path)? })
    }

    /// Writes a file with the given contents to `path`, and syncs it to disk.
    ///
    /// # Errors
    /// Returns the errors of [`create`](Self::create) and [`finish`](Self::finish). An existing file is then not
    /// changed.
    pub fn write(path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
        let mut file = Self::create(path)?;
        file.write_all(bytes)?;
        file.finish()
    }

    /// Syncs the file to disk and gives it its final name, replacing an existing file.
    ///
    /// # Errors
    /// The new file does not exist in these cases.
    /// - [`InvalidInput`](io::ErrorKind::InvalidInput): a folder, a named pipe or a device is now at the path.
    /// - Any error of the operating system.
    pub fn finish(self) -> io::Result<()> {
        self.partial.handle()?.sync_all()?;
        require_replaceable(&self.path)?;
        self.partial.rename(&self.path).map(drop)
    }

    /// Gives the file its final name immediately, replacing an existing file, so that it can be read while it grows.
    /// Returns the file for writing.
    ///
    /// # Errors
    /// Returns the errors of [`finish`](Self::finish).
    pub fn into_growing(self) -> io::Result<File> {
        require_replaceable(&self.path)?;
        let file = self.partial.rename(&self.path)?;
        file.ok_or_else(|| io::Error::other("this is a folder, not a file"))
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.partial.handle()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.partial.handle()?.flush()
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
        WholeFile::write(&path, b"newer").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"newer");
        let mut file = WholeFile::create(&path).unwrap().into_growing().unwrap();
        file.write_all(b"grows").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"grows");
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
        // Accessible to no other user, also if it replaces another file.
        WholeFile::create_private(&path).unwrap().finish().unwrap();
        assert_eq!(mode(&path) & 0o777, 0o600);
    }

    // INV-24
    #[cfg(unix)]
    #[test]
    fn a_link_is_replaced_and_its_target_stays() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("precious"), "text").unwrap();
        std::os::unix::fs::symlink(at("precious"), at("a")).unwrap();
        WholeFile::create(at("a")).unwrap().into_growing().unwrap().write_all(b"new").unwrap();
        assert_eq!(fs::read_to_string(at("a")).unwrap(), "new");
        assert_eq!(fs::read_to_string(at("precious")).unwrap(), "text");
    }

    #[test]
    fn a_place_that_cannot_be_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(WholeFile::create(folder.path().join("missing/a")).is_err());
        assert!(WholeFile::create(folder.path().join("..")).is_err());
        let error = WholeFile::create(folder.path()).unwrap_err();
        assert_eq!(error.to_string(), "this is a folder, not a file");
        #[cfg(unix)]
        assert!(WholeFile::create("/dev/null").unwrap_err().to_string().contains("a device"));
        // Also if it was created later.
        let path = folder.path().join("a");
        let file = WholeFile::create(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(file.finish().unwrap_err().to_string().contains("a folder"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }
}
