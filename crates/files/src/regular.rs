//! Opening of regular files.

use std::fs::{self, File, FileType, OpenOptions};
use std::io;
use std::path::Path;

/// Opens a file for reading. Links are followed.
///
/// # Errors
/// - [`InvalidInput`](io::ErrorKind::InvalidInput): the path does not refer to a file but, for example, to a folder or
///   a named pipe. Opening a pipe would block until there is a writer; this function returns immediately.
/// - Any error of the operating system.
pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
    open_checked(path.as_ref(), regular)
}

/// Opens a file for reading if `fits` accepts its type. Links are followed. Never blocks.
///
/// # Errors
/// Returns the error of `fits`, and any error of the operating system.
pub fn open_checked(path: &Path, fits: impl Fn(FileType) -> io::Result<()>) -> io::Result<File> {
    // Checked first: opening a pipe and closing it again would end the program that writes to it.
    fits(fs::metadata(path)?.file_type())?;
    // Opened without blocking, because the file may have been replaced by a pipe.
    let file = options(false).read(true).open(path)?;
    fits(file.metadata()?.file_type())?;
    Ok(file)
}

/// Opens a lock file. Never blocks. On Unix, a link is not followed, because locking its target would lock another
/// file. If the file doesn't exist, it is created; on Unix, it is accessible only to its owner. Existing contents are
/// kept.
///
/// # Errors
/// - [`InvalidInput`](io::ErrorKind::InvalidInput): on Unix, the path is a link; or it refers to something other than a
///   file, such as a named pipe.
/// - Any error of the operating system.
pub fn open_lock(path: impl AsRef<Path>) -> io::Result<File> {
    own(path.as_ref(), private().read(true).write(true).truncate(false))
}

/// Opens a file for appending. Never blocks. On Unix, a link is not followed. If the file doesn't exist, it is created;
/// on Unix, it is accessible only to its owner.
///
/// # Errors
/// - [`InvalidInput`](io::ErrorKind::InvalidInput): on Unix, the path is a link; or it refers to something other than a
///   file, such as a named pipe.
/// - Any error of the operating system.
pub fn open_append(path: impl AsRef<Path>) -> io::Result<File> {
    own(path.as_ref(), private().append(true))
}

/// Opens an existing file for reading or, if `writes` is `true`, for reading and writing. On Unix, a link is rejected.
///
/// # Errors
/// Returns the errors of [`open_append`], and [`NotFound`](io::ErrorKind::NotFound) if the file doesn't exist.
pub fn open_own(path: impl AsRef<Path>, writes: bool) -> io::Result<File> {
    own(path.as_ref(), options(true).read(true).write(writes))
}

/// Returns options that create a file, on Unix accessible only to its owner.
fn private() -> OpenOptions {
    let mut options = options(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.create(true);
    options
}

fn own(path: &Path, options: &OpenOptions) -> io::Result<File> {
    match options.open(path) {
        Ok(file) => {
            regular(file.metadata()?.file_type())?;
            Ok(file)
        }
        Err(error) => match fs::symlink_metadata(path).map(|found| found.file_type()) {
            Ok(found) if !found.is_file() => Err(no_file(found)),
            _ => Err(error),
        },
    }
}

/// Creates a folder and its parents, on Unix accessible only to their owner. Existing folders are not changed.
///
/// # Errors
/// Returns any error of the operating system.
pub fn create_private_folder(path: impl AsRef<Path>) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Opens a file or a folder to lock it. On Unix, links are not followed.
pub(crate) fn open_any(path: &Path) -> io::Result<File> {
    options(true).read(true).open(path)
}

/// Checks that the path does not exist, or refers to a file or a link.
pub(crate) fn require_replaceable(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path).map(|found| found.file_type()) {
        Ok(found) if !found.is_file() && !found.is_symlink() => Err(no_file(found)),
        _ => Ok(()),
    }
}

/// Returns the kind of a file, for messages.
pub(crate) fn kind(found: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if found.is_fifo() {
            return "a named pipe";
        }
        if found.is_socket() {
            return "a socket";
        }
    }
    match () {
        () if found.is_dir() => "a folder",
        () if found.is_symlink() => "a symbolic link",
        () if found.is_file() => "a file",
        () => "a device",
    }
}

fn options(no_follow: bool) -> OpenOptions {
    #[allow(unused_mut, reason = "only Unix has flags")]
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        use std::os::unix::fs::OpenOptionsExt;
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let flags = if no_follow { flags | OFlags::NOFOLLOW } else { flags };
        options.custom_flags(flags.bits() as i32);
    }
    let _ = no_follow;
    options
}

fn regular(found: FileType) -> io::Result<()> {
    if found.is_file() { Ok(()) } else { Err(no_file(found)) }
}

fn no_file(found: FileType) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("this is {}, not a file", kind(found)))
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;
    use distribute_testing::watched;
    use std::os::unix::fs::symlink;

    fn named_pipe(path: &Path) {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    }

    #[test]
    fn own_files_are_private_and_no_links() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        create_private_folder(at("a/b")).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!([mode(&at("a")), mode(&at("a/b"))], [0o700; 2]);
        drop(open_append(at("a/log")).unwrap());
        drop(open_lock(at("a/lock")).unwrap());
        assert_eq!([mode(&at("a/log")), mode(&at("a/lock"))], [0o600; 2]);
        fs::write(at("precious"), "text").unwrap();
        symlink(at("precious"), at("link")).unwrap();
        for refused in [open_append(at("link")), open_own(at("link"), true), open_own(at("link"), false)] {
            assert_eq!(refused.unwrap_err().to_string(), "this is a symbolic link, not a file");
        }
        assert!(open_own(at("none"), true).is_err() && open_own(at("precious"), true).is_ok());
        assert_eq!(fs::read_to_string(at("precious")).unwrap(), "text");
    }

    /// Returns the error of `open`, which must fail. A watchdog ends the test if `open` hangs.
    fn refused(open: impl FnOnce() -> io::Result<File> + Send + 'static) -> String {
        watched(move || open().map(drop)).unwrap_err().to_string()
    }

    // INV-24
    #[test]
    fn a_path_that_is_no_file_is_refused_at_once_and_nothing_is_created() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        named_pipe(&at("pipe"));
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        symlink(at("target"), at("link")).unwrap();
        for (name, what) in [("pipe", "a named pipe"), ("socket", "a socket"), ("folder", "a folder")] {
            let (path, expected) = (at(name), format!("this is {what}, not a file"));
            assert_eq!(
                refused({
                    let path = path.clone();
                    move || open_lock(path)
                }),
                expected
            );
            assert!(require_replaceable(&path).unwrap_err().to_string().contains(what));
            assert_eq!(refused(move || open(path)), expected);
        }
        assert_eq!(
            refused({
                let path = at("link");
                move || open_lock(path)
            }),
            "this is a symbolic link, not a file"
        );
        assert!(!at("target").exists());
        assert!(open("/dev/null").unwrap_err().to_string().contains("a device"));
    }

    #[test]
    fn who_writes_into_a_pipe_does_not_notice_that_it_was_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        named_pipe(&path);
        let (to, from) = (path.clone(), path.clone());
        let writer = std::thread::spawn(move || fs::write(to, "text"));
        for _ in 0..10_000 {
            assert!(open(&path).is_err());
        }
        assert!(!writer.is_finished(), "opened and closed, the pipe would be broken");
        assert_eq!(watched(move || fs::read_to_string(from)).unwrap(), "text");
        writer.join().unwrap().unwrap();
    }

    #[test]
    fn a_lock_keeps_the_content_of_the_file_and_reading_follows_links() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("a"), folder.path().join("link"));
        fs::write(&path, "text").unwrap();
        symlink(&path, &link).unwrap();
        open_lock(&path).unwrap().try_lock().unwrap();
        assert_eq!(io::read_to_string(open(&link).unwrap()).unwrap(), "text");
        open_lock(folder.path().join("new")).unwrap();
        assert!(folder.path().join("new").is_file());
    }
}
