//! [`Partial`]: incomplete files and folders, and their names.
//!
//! A partial file or folder is locked while its writer runs, if the file system supports locks. The system releases the
//! lock when the process exits in any way. If a partial can be locked, it was therefore left behind.

use crate::regular::{kind, open_any};
use distribute_log::warn_or_stderr;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// A file or folder that isn't complete yet, next to its destination, such as `.model.distribute-0.part` for `model`.
/// It is removed when dropped, unless it has been [renamed](Partial::rename).
///
/// Creating a partial removes those that killed processes have left for the same destination.
#[derive(Debug)]
pub struct Partial {
    path: PathBuf,
    /// The open file, which is locked; `None` for folders on Windows, because they cannot be opened, and for anything
    /// that [`of_old`](Partial::of_old) has moved.
    handle: Option<File>,
    complete: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    File,
    /// A file that, on Unix, is accessible only to its owner.
    Private,
    Folder,
}

/// The number of names per destination that are checked for leftovers, even if names before them are unused. A leftover
/// can remain only if more writers than this number were running at the same time and were killed.
const MAX_CHECKED: u64 = 8;
const MARK: &str = ".distribute-";
const END: &str = ".part";

impl Partial {
    /// Creates an empty file that will become `path`.
    ///
    /// # Errors
    /// - [`InvalidInput`](io::ErrorKind::InvalidInput): the path doesn't end in a name.
    /// - Any error of the operating system.
    pub fn file(path: &Path) -> io::Result<Self> {
        Self::new(path, Kind::File)
    }

    /// Creates an empty file like [`file`](Self::file). On Unix, it is accessible only to its owner.
    ///
    /// # Errors
    /// Returns the errors of [`file`](Self::file).
    pub fn private(path: &Path) -> io::Result<Self> {
        Self::new(path, Kind::Private)
    }

    /// Creates an empty folder that will become `path`.
    ///
    /// # Errors
    /// Returns the errors of [`file`](Self::file).
    pub fn folder(path: &Path) -> io::Result<Self> {
        Self::new(path, Kind::Folder)
    }

    /// Moves the file or folder at `path` to an unused name next to it, so that nothing incomplete is at `path` while
    /// it is removed. Dropping the partial, or calling [`remove`](Self::remove), removes the file or folder.
    ///
    /// # Errors
    /// - [`InvalidInput`](io::ErrorKind::InvalidInput): the path doesn't end in a name.
    /// - Any error of the operating system. `path` is then unchanged.
    pub fn of_old(path: &Path) -> io::Result<Self> {
        let unused = |partial: &io::Result<PathBuf>| {
            partial.as_ref().map_or(true, |partial| fs::symlink_metadata(partial).is_err())
        };
        let partial = (0..u64::MAX).map(|number| next_to(path, number)).find(unused);
        let partial = partial.unwrap_or_else(|| Err(io::ErrorKind::AlreadyExists.into()))?;
        fs::rename(path, &partial)?;
        Ok(Self { path: partial, handle: None, complete: false })
    }

    /// Removes a partial folder that a killed process has left. A folder that is still being written remains. If
    /// anything other than a folder is at `path`, it remains, and a warning is logged.
    pub fn clear_folder(path: &Path) {
        clear(path, Kind::Folder);
    }

    /// Returns the path of the partial file or folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file to write to, or an error for a folder.
    pub(crate) fn handle(&self) -> io::Result<&File> {
        self.handle.as_ref().ok_or_else(|| io::Error::other("this is a folder, not a file"))
    }

    /// Renames the file or folder to its final name. An existing file is replaced, as with the system's `rename`.
    /// Returns the open file or folder; `None` for a folder on Windows, and for a partial from
    /// [`of_old`](Self::of_old).
    ///
    /// # Errors
    /// Returns any error of the operating system. The partial is then removed.
    pub fn rename(mut self, path: &Path) -> io::Result<Option<File>> {
        fs::rename(&self.path, path)?;
        self.complete = true;
        Ok(self.handle.take())
    }

    /// Removes the file or folder. Unlike dropping the partial, returns errors.
    ///
    /// # Errors
    /// Returns any error of the operating system.
    pub fn remove(mut self) -> io::Result<()> {
        self.complete = true;
        remove(&self.path)
    }

    fn new(path: &Path, kind: Kind) -> io::Result<Self> {
        let mut mine = None;
        for number in 0..u64::MAX {
            if mine.is_some() && number >= MAX_CHECKED {
                break;
            }
            let partial = next_to(path, number)?;
            clear(&partial, kind);
            if mine.is_none() {
                mine = match create(&partial, kind) {
                    Ok(handle) => hold(&partial, handle)?,
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
                    Err(error) => return Err(error),
                };
            }
        }
        mine.ok_or_else(|| io::ErrorKind::AlreadyExists.into())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.complete {
            // If this fails, a later writer removes it.
            let _ = remove(&self.path);
        }
    }
}

/// Returns the file name of a partial's destination, or `None` if `partial` is not the name of a partial.
pub fn destination_name(partial: &OsStr) -> Option<&str> {
    let (name, number) = partial.to_str()?.strip_prefix('.')?.strip_suffix(END)?.rsplit_once(MARK)?;
    let is_number = !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit());
    (is_number && !name.is_empty()).then_some(name)
}

fn next_to(path: &Path, number: u64) -> io::Result<PathBuf> {
    let no_name = || io::Error::new(io::ErrorKind::InvalidInput, "the path does not end in a name");
    let mut name = OsString::from(".");
    name.push(path.file_name().ok_or_else(no_name)?);
    name.push(format!("{MARK}{number}{END}"));
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    Ok(parent.unwrap_or(Path::new(".")).join(name))
}

fn create(partial: &Path, kind: Kind) -> io::Result<Option<File>> {
    match kind {
        Kind::File | Kind::Private => {
            let mut options = OpenOptions::new();
            #[cfg(unix)]
            if kind == Kind::Private {
                std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            }
            options.read(true).write(true).create_new(true).open(partial).map(Some)
        }
        Kind::Folder => {
            fs::create_dir(partial)?;
            // Another process may have removed it as a leftover.
            Ok(open_any(partial).ok())
        }
    }
}

/// Locks the partial if the file system supports it. Returns `None` if another process has removed it as a leftover, or
/// is about to.
fn hold(partial: &Path, handle: Option<File>) -> io::Result<Option<Partial>> {
    let mine = match &handle {
        // Without locks, no process removes it as a leftover.
        None => partial.exists(),
        Some(handle) => match handle.try_lock() {
            Ok(()) => is_at(handle, partial),
            Err(fs::TryLockError::WouldBlock) => false,
            Err(fs::TryLockError::Error(_)) => true,
        },
    };
    Ok(mine.then(|| Partial { path: partial.to_path_buf(), handle, complete: false }))
}

/// Removes a partial that no process has locked. Logs a warning if removing fails, or if something of another kind has
/// the name of the partial.
fn clear(partial: &Path, kind: Kind) {
    let Ok(found) = fs::symlink_metadata(partial).map(|found| found.file_type()) else { return };
    let is_ours = match kind {
        Kind::File | Kind::Private => found.is_file(),
        Kind::Folder => found.is_dir(),
    };
    if !is_ours {
        let what = self::kind(found);
        warn_or_stderr(|| {
            tracing::warn!(
                "{} is {what}, which this program did not create: it is left unchanged",
                partial.display()
            );
        });
        return;
    }
    let Ok(handle) = open_any(partial) else { return };
    if handle.try_lock().is_err() || !is_at(&handle, partial) {
        return;
    }
    match remove(partial) {
        Ok(()) => tracing::debug!("removed {}, which a killed process had left", partial.display()),
        Err(error) => warn_or_stderr(|| {
            tracing::warn!(
                "{}, which a killed process had left, cannot be removed: {error}",
                partial.display()
            );
        }),
    }
}

/// Returns `true` if a path still refers to the file that was opened there. On systems other than Unix, returns `true`
/// if anything is at the path.
fn is_at(handle: &File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let same = || {
            let (mine, there) = (handle.metadata()?, fs::symlink_metadata(path)?);
            io::Result::Ok((mine.dev(), mine.ino()) == (there.dev(), there.ino()))
        };
        same().unwrap_or(false)
    }
    #[cfg(not(unix))]
    {
        let _ = handle;
        path.exists()
    }
}

fn remove(partial: &Path) -> io::Result<()> {
    if fs::symlink_metadata(partial)?.is_dir() {
        fs::remove_dir_all(partial)
    } else {
        fs::remove_file(partial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_testing::names_in;

    #[test]
    fn leftover_files_are_removed_unless_locked_or_of_others() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        // Two writers at once, and a leftover of a killed one, whose lock is free.
        let first = Partial::file(&at("a")).unwrap();
        let second = Partial::file(&at("a")).unwrap();
        assert_eq!(names_in(folder.path()), [".a.distribute-0.part", ".a.distribute-1.part"]);
        fs::write(at(".a.distribute-2.part"), "left").unwrap();
        fs::write(at(".a.distribute-7.part"), "left").unwrap();
        // Partials of others: another folder, another name, another kind.
        fs::write(at(".b.distribute-0.part"), "of b").unwrap();
        fs::write(at(".a.part"), "not ours").unwrap();
        fs::create_dir(at(".a.distribute-3.part")).unwrap();
        drop(first);
        let third = Partial::file(&at("a")).unwrap();
        assert_eq!(third.path(), at(".a.distribute-0.part"));
        let others = [".a.distribute-3.part", ".a.part", ".b.distribute-0.part"];
        let held = [".a.distribute-0.part", ".a.distribute-1.part"];
        assert_eq!(names_in(folder.path()), [held.as_slice(), &others].concat());
        second.rename(&at("a")).unwrap();
        drop(third);
        assert_eq!(names_in(folder.path()), [others.as_slice(), &["a"]].concat());
    }

    #[test]
    fn folders_are_held_too() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let held = Partial::folder(&at("a")).unwrap();
        fs::write(held.path().join("file"), "x").unwrap();
        fs::create_dir(at(".a.distribute-1.part")).unwrap();
        fs::write(at(".a.distribute-1.part/file"), "left").unwrap();
        Partial::clear_folder(held.path());
        let other = Partial::folder(&at("a")).unwrap();
        assert_eq!(names_in(folder.path()), [".a.distribute-0.part", ".a.distribute-1.part"]);
        assert_eq!(names_in(other.path()), [""; 0]);
        held.rename(&at("a")).unwrap();
        drop(other);
        assert_eq!(
            (names_in(folder.path()), names_in(&at("a"))),
            (vec!["a".to_string()], vec!["file".to_string()])
        );
        let old = Partial::of_old(&at("a")).unwrap();
        assert_eq!(names_in(folder.path()), [".a.distribute-0.part"]);
        old.remove().unwrap();
        assert_eq!(names_in(folder.path()), [""; 0]);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_in_the_place_of_a_part_is_neither_followed_nor_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("precious"), "text").unwrap();
        std::os::unix::fs::symlink(at("precious"), at(".a.distribute-0.part")).unwrap();
        let partial = Partial::file(&at("a")).unwrap();
        assert_eq!(partial.path(), at(".a.distribute-1.part"));
        assert_eq!(fs::read_to_string(at(".a.distribute-0.part")).unwrap(), "text");
    }

    #[test]
    fn the_name_of_a_partial_file_includes_its_target() {
        for (partial, name) in [
            (".a.distribute-0.part", Some("a")),
            (".a.distribute-1.distribute-20.part", Some("a.distribute-1")),
            (".a.part", None),
            ("a.distribute-0.part", None),
            (".a.distribute-.part", None),
            (".a.distribute-x.part", None),
            ("..distribute-1.part", None),
            (".distribute-1.part", None),
        ] {
            assert_eq!(destination_name(OsStr::new(partial)), name, "{partial}");
        }
    }
}
