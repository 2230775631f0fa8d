//! Unnamed files in memory with a fixed size, which other processes open through `/proc`.

use std::fs::File;
use std::io;

/// The data by which another process finds a file that is open in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub pid: u32,
    pub descriptor: u32,
    /// The inode number, which distinguishes the file from a later one with the same descriptor.
    pub inode: u64,
    pub size: u64,
}

#[cfg(target_os = "linux")]
mod system {
    use super::{File, Location, io};
    use rustix::fs::{
        MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
    };
    use std::fs::OpenOptions;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

    /// The seals that fix the size of a file, so that no page of a mapping ever vanishes. The seals cannot be removed.
    const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

    /// Creates a file of `size` bytes in memory, filled with zeros.
    pub(crate) fn create(size: u64) -> io::Result<File> {
        let file = memfd_create("distribute", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, size)?;
        fcntl_add_seals(&file, FIXED)?;
        Ok(file.into())
    }

    /// Forbids further seals, and all writes except through existing mappings.
    pub(crate) fn seal_for_readers(file: &File) -> io::Result<()> {
        Ok(fcntl_add_seals(file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?)
    }

    pub(crate) fn seal(file: &File) -> io::Result<()> {
        Ok(fcntl_add_seals(file, SealFlags::SEAL)?)
    }

    /// Returns the location at which other processes find the file.
    pub(crate) fn location(file: &File) -> io::Result<Location> {
        let metadata = file.metadata()?;
        let descriptor = u32::try_from(file.as_raw_fd()).map_err(io::Error::other)?;
        Ok(Location { pid: std::process::id(), descriptor, inode: metadata.ino(), size: metadata.size() })
    }

    fn path(location: Location) -> String {
        format!("/proc/{}/fd/{}", location.pid, location.descriptor)
    }

    /// Returns whether the file's process still has the file open under the same descriptor.
    pub(crate) fn is_there(location: Location) -> bool {
        std::fs::metadata(path(location)).is_ok_and(|file| file.ino() == location.inode)
    }

    /// Returns whether this process is allowed to open the files of process `pid`.
    pub(crate) fn can_open_of(pid: u32) -> bool {
        std::fs::read_link(format!("/proc/{pid}/exe")).is_ok()
    }

    /// Opens a file of another process.
    ///
    /// # Errors
    /// Returns an I/O error if the file is not in memory, is not the announced one, does not belong to this user, or
    /// has no fixed size.
    pub(crate) fn open(location: Location, write: bool) -> io::Result<File> {
        let path = path(location);
        // Other files are not opened, because that could block or have an effect.
        if !std::fs::read_link(&path)?.to_string_lossy().starts_with("/memfd:distribute") {
            return Err(io::Error::other("it is not the memory of a worker"));
        }
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC).bits();
        let file =
            OpenOptions::new().read(true).write(write).custom_flags(flags.cast_signed()).open(&path)?;
        let metadata = file.metadata()?;
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("it is another user's"));
        }
        if (metadata.ino(), metadata.size()) != (location.inode, location.size) {
            return Err(io::Error::other("it is other memory than was announced"));
        }
        if !fcntl_get_seals(&file)?.contains(FIXED | SealFlags::SEAL) {
            return Err(io::Error::other("its size could change"));
        }
        Ok(file)
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::{File, Location, io};

    pub(crate) fn create(_size: u64) -> io::Result<File> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn seal_for_readers(_file: &File) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn seal(_file: &File) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn location(_file: &File) -> io::Result<Location> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn is_there(_location: Location) -> bool {
        false
    }

    pub(crate) fn can_open_of(_pid: u32) -> bool {
        false
    }

    pub(crate) fn open(_location: Location, _write: bool) -> io::Result<File> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

pub(crate) use system::{can_open_of, create, is_there, location, open, seal, seal_for_readers};
