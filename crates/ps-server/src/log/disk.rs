//! The files to which a log writes.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::path::Path;
use std::sync::Arc;

/// A file to which bytes are appended. Tests use an implementation that can be full.
pub(crate) trait Disk: Send + Sync {
    /// Appends some or all of the bytes, and returns their number.
    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize>;
    /// Truncates the file to `length` bytes.
    fn truncate(&self, length: u64) -> io::Result<()>;
    /// Waits until the contents of the file are on disk.
    fn sync(&self) -> io::Result<()>;
}

impl Disk for File {
    fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        (&mut &*self).write_vectored(parts)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// A function that opens the file to which a log is appended.
pub(crate) type Opens = Arc<dyn Fn(&Path) -> io::Result<Arc<dyn Disk>> + Send + Sync>;

/// Opens or creates a file of a log. Writes append to its end. Symbolic links are an error.
pub(crate) fn open_disk(path: &Path) -> io::Result<Arc<dyn Disk>> {
    let file = distribute_files::open_append(path)?;
    // The entry in the folder must also be on disk.
    if let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    Ok(Arc::new(file))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// A disk with limited space, which may fail.
    #[derive(Debug)]
    pub(crate) struct Faulty {
        pub(crate) room: AtomicU64,
        pub(crate) fails: AtomicBool,
    }

    /// A file on that disk.
    struct FaultyFile(File, Arc<Faulty>);

    impl Faulty {
        /// Creates a disk with practically unlimited space and without failures.
        pub(crate) fn new() -> Arc<Self> {
            Arc::new(Self { room: AtomicU64::new(u64::MAX / 2), fails: AtomicBool::new(false) })
        }

        pub(crate) fn open(self: &Arc<Self>, path: &Path) -> io::Result<Arc<dyn Disk>> {
            let file = OpenOptions::new().append(true).create(true).open(path)?;
            Ok(Arc::new(FaultyFile(file, self.clone())))
        }

        pub(crate) fn opens(self: &Arc<Self>) -> Opens {
            let disk = self.clone();
            Arc::new(move |path| disk.open(path))
        }
    }

    impl Disk for FaultyFile {
        fn write(&self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
            let bytes = parts.iter().flat_map(|part| part.iter().copied()).collect::<Vec<_>>();
            let room = self.1.room.load(Ordering::SeqCst) as usize;
            if room == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let wrote = Write::write(&mut &self.0, &bytes[..bytes.len().min(room)])?;
            self.1.room.fetch_sub(wrote as u64, Ordering::SeqCst);
            Ok(wrote)
        }

        fn truncate(&self, length: u64) -> io::Result<()> {
            if self.1.fails.load(Ordering::SeqCst) {
                return Err(io::Error::other("bad sector"));
            }
            let before = self.0.metadata()?.len();
            self.0.set_len(length)?;
            self.1.room.fetch_add(before - length, Ordering::SeqCst);
            Ok(())
        }

        fn sync(&self) -> io::Result<()> {
            if self.1.fails.load(Ordering::SeqCst) {
                Err(io::Error::other("bad sector"))
            } else {
                self.0.sync_data()
            }
        }
    }
}
