//! [`LogFile`]: the file to which a log is appended.

use super::boot;
use super::disk::Disk;
use super::record::{Kind, Link, Record};
use bytes::Bytes;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// The file to which a log is appended. Each record is written completely, or not at all.
pub(crate) struct LogFile {
    disk: Arc<dyn Disk>,
    /// The size of the file in bytes.
    end: u64,
    /// The position of the next record: its number, and the checksum of the previous record.
    link: Link,
    /// Whether the file contains a change.
    changed: bool,
    /// Whether this process has written a begin record to the file.
    begun: bool,
    /// Whether the last record is a change that is not followed by a mark.
    unmarked: bool,
    /// Whether a partial record may follow `end`, because it could not be removed.
    torn: bool,
}

impl LogFile {
    /// Continues a file after `end` bytes, at the position `link` in the log. `changed` is whether the file contains a
    /// change. A begin record is written before the first new change.
    pub fn new(disk: Arc<dyn Disk>, end: u64, link: Link, changed: bool) -> Self {
        Self { disk, end, link, changed, begun: false, unmarked: false, torn: false }
    }

    /// Returns the number of the next record.
    pub fn next(&self) -> u64 {
        self.link.number
    }

    /// Returns the position of the next record.
    pub fn link(&self) -> Link {
        self.link
    }

    /// Returns whether the file contains a change.
    pub fn has_changes(&self) -> bool {
        self.changed
    }

    /// Returns the size of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.end
    }

    pub fn disk(&self) -> Arc<dyn Disk> {
        self.disk.clone()
    }

    /// Writes a begin record, unless this process has already written one to the file.
    pub fn begin(&mut self) -> io::Result<()> {
        if !self.begun {
            self.write(Kind::Begin, &Record::of_log(boot::id()))?;
            self.begun = true;
        }
        Ok(())
    }

    /// Appends a record, and returns its number. If this fails, nothing is appended.
    pub fn append(&mut self, record: &Record) -> io::Result<u64> {
        self.begin()?;
        self.write(Kind::Change, record)?;
        (self.changed, self.unmarked) = (true, true);
        self.link.number += 1;
        Ok(self.link.number - 1)
    }

    /// Appends a mark after the last change, if there is none yet. The mark distinguishes damage to an acknowledged
    /// change from a change that was being written.
    pub fn mark(&mut self) -> io::Result<()> {
        if self.unmarked {
            self.write(Kind::Mark, &Record::of_log(Bytes::new()))?;
            self.unmarked = false;
        }
        Ok(())
    }

    /// Appends the record that the log continues in another file.
    pub fn seal(&mut self) -> io::Result<()> {
        let before = self.link;
        let sealed = self.write(Kind::End, &Record::of_log(Bytes::new()));
        // The next file continues after the last record, whether the end record was written or not.
        self.link = before;
        sealed
    }

    fn write(&mut self, kind: Kind, record: &Record) -> io::Result<()> {
        if self.torn {
            self.disk.truncate(self.end)?;
            self.torn = false;
        }
        let header = record.header(kind, self.link).ok_or(io::ErrorKind::InvalidInput)?;
        let chain = record.checksum(&header);
        let trailer = chain.to_le_bytes();
        let mut parts = [&header[..], &record.head[..], &record.body[..], &trailer[..]].map(IoSlice::new);
        if let Err(error) = write_all(&*self.disk, &mut parts) {
            self.torn = self.disk.truncate(self.end).is_err();
            return Err(error);
        }
        self.end += record.bytes();
        self.link.chain = chain;
        Ok(())
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
