//! One file of a log, written.

use super::disk::Disk;
use super::record::Record;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// The end of a log. A record is in it whole, or not at all.
pub(crate) struct LogFile {
    disk: Arc<dyn Disk>,
    /// How many bytes it has.
    end: u64,
    /// The number of the next record.
    next: u64,
    /// Whether there may be half a record behind `end`, which could not be removed.
    torn: bool,
}

impl LogFile {
    /// Goes on behind `end` bytes, with record `next`.
    pub fn new(disk: Arc<dyn Disk>, end: u64, next: u64) -> Self {
        Self { disk, end, next, torn: false }
    }

    /// The number of the next record.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> u64 {
        self.end
    }

    /// What it is written to.
    pub fn disk(&self) -> Arc<dyn Disk> {
        self.disk.clone()
    }

    /// Appends a record, and gives its number. On an error nothing is appended.
    pub fn append(&mut self, record: &Record) -> io::Result<u64> {
        if self.torn {
            self.disk.truncate(self.end)?;
            self.torn = false;
        }
        let header = record.header().ok_or(io::ErrorKind::InvalidInput)?;
        let trailer = record.trailer();
        let mut parts = [&header[..], &record.head[..], &record.body[..], &trailer[..]].map(IoSlice::new);
        if let Err(error) = write_all(&*self.disk, &mut parts) {
            self.torn = self.disk.truncate(self.end).is_err();
            return Err(error);
        }
        self.end += record.bytes();
        self.next += 1;
        Ok(self.next - 1)
    }
}

fn write_all(disk: &dyn Disk, mut parts: &mut [IoSlice<'_>]) -> io::Result<()> {
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match disk.write(parts) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(wrote) => IoSlice::advance_slices(&mut parts, wrote),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
