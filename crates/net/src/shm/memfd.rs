//! Files in memory: without a name, of a fixed size, found through `/proc` by other processes.

use std::fs::File;
use std::io;

/// The location at which another process finds a file that this one has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub pid: u32,
    pub descriptor: u32,
    /// The inode number, which distinguishes the file from another one with the same descriptor.
    pub inode: u64,
    pub size: u64,
}

#[cfg(target_os = "linux")]
mod system {
    use super::{File, Place, io};
    use rustix::fs::{
        MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create,
    };
    use std::fs::OpenOptions;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

    /// The seals of a fixed size, so that no page of a mapping ever vanishes. The seals cannot be removed.
    const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

    /// Creates memory of this size, filled with zeros.
    pub(crate) fn create(size: u64) -> io::Result<File> {
        let file = memfd_create("distribute", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, size)?;
        fcntl_add_seals(&file, FIXED)?;
        Ok(file.into())
    }

    /// Prevents writes, except through existing mappings, and further seals.
    pub(crate) fn seal_for_readers(file: &File) -> io::Result<()> {
        Ok(fcntl_add_seals(file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?)
    }

    pub(crate) fn seal(file: &File) -> io::Result<()> {
        Ok(fcntl_add_seals(file, SealFlags::SEAL)?)
    }

    /// Returns the location at which others find the file.
    pub(crate) fn place(file: &File) -> io::Result<Place> {
        let metadata = file.metadata()?;
        let descriptor = u32::try_from(file.as_raw_fd()).map_err(io::Error::other)?;
        Ok(Place { pid: std::process::id(), descriptor, inode: metadata.ino(), size: metadata.size() })
    }

    fn path(place: Place) -> String {
        format!("/proc/{}/fd/{}", place.pid, place.descriptor)
    }

    /// Whether the file still exists.
    pub(crate) fn is_there(place: Place) -> bool {
        std::fs::metadata(path(place)).is_ok_and(|file| file.ino() == place.inode)
    }

    /// Whether this process has the permission to open files of another one.
    pub(crate) fn can_open_of(pid: u32) -> bool {
        std::fs::read_link(format!("/proc/{pid}/exe")).is_ok()
    }

    /// Opens a file of another process, if it is memory of this user and of this fixed size.
    pub(crate) fn open(place: Place, write: bool) -> io::Result<File> {
        let path = path(place);
        // Other files are not opened, because that could block or have an effect.
        if !std::fs::read_link(&path)?.to_string_lossy().starts_with("/memfd:distribute") {
            return Err(io::Error::other("it is no memory of a worker"));
        }
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC).bits();
        let file =
            OpenOptions::new().read(true).write(write).custom_flags(flags.cast_signed()).open(&path)?;
        let metadata = file.metadata()?;
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("it is another user's"));
        }
        if (metadata.ino(), metadata.size()) != (place.inode, place.size) {
            return Err(io::Error::other("it is other memory than was said"));
        }
        if !fcntl_get_seals(&file)?.contains(FIXED | SealFlags::SEAL) {
            return Err(io::Error::other("its size could change"));
        }
        Ok(file)
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::{File, Place, io};

    pub(crate) fn create(_size: u64) -> io::Result<File> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn seal_for_readers(_file: &File) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn seal(_file: &File) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn place(_file: &File) -> io::Result<Place> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn is_there(_place: Place) -> bool {
        false
    }

    pub(crate) fn can_open_of(_pid: u32) -> bool {
        false
    }

    pub(crate) fn open(_place: Place, _write: bool) -> io::Result<File> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

pub(crate) use system::{can_open_of, create, is_there, open, place, seal, seal_for_readers};
