//! Reads all files of a log, and tells damage from a record that was being written when the process stopped.

use super::record::{Kind, Link, Record};
use super::scan::{Broken, Entry, Found, Scan};
use super::{boot, path};
use bytes::Bytes;
use std::io;
use std::path::{Path, PathBuf};

/// The last file of a log, in which the log continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    /// The number of the file's first record.
    pub first: u64,
    /// The size of the complete records in bytes.
    pub end: u64,
    /// The number of the next record, and the checksum of the last one.
    pub link: Link,
    /// Whether the file contains a change.
    pub changed: bool,
    /// The incomplete bytes after `end`, if there are any.
    pub torn: Option<Torn>,
}

/// The torn end of a log: no record follows it, and no record before it is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Torn {
    /// A description of the fault, which continues a sentence that begins with the name of the file.
    pub what: String,
    /// The size of the torn end in bytes.
    pub bytes: u64,
    /// Whether a process was killed while it wrote the record, which was therefore not acknowledged. Otherwise the
    /// machine has restarted before the record was on disk.
    pub is_prefix: bool,
}

/// The reason why reading a log stops.
#[derive(Debug)]
pub(crate) enum ReadError {
    Io(PathBuf, io::Error),
    /// A file has version 1 of the format.
    Old(PathBuf),
    Damaged(Damage),
}

/// A range of a log that contains no valid records, or in which records are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    /// The damaged file, or the path of a missing one.
    pub path: PathBuf,
    /// The offset of the first damaged byte, and of the first byte after the damage.
    pub bytes: (u64, u64),
    /// A description of the fault, which continues a sentence that begins with the name of the file.
    pub reason: String,
    /// The position of the first missing record.
    pub link: Link,
    /// The position of the next readable record, if there is one in this file.
    pub to: Option<Link>,
}

/// The facts about a log that must be known before it is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogFacts {
    /// The number of the first record to read.
    pub start: u64,
    /// Whether the log must exist, so that a missing log is damage.
    pub begun: bool,
}

// INV-54
/// Passes all changes of the files `firsts` to `then`, in order and with their numbers. Returns the position at which
/// the log continues, or `None` if the log has no file yet.
///
/// Calls `damaged` for all damage, which includes each change for which `then` returns an error. If `damaged` returns
/// `Ok`, reading continues after the damage.
///
/// # Errors
/// - [`ReadError::Io`]: a file cannot be read.
/// - [`ReadError::Old`]: a file has version 1 of the format.
/// - The error that `damaged` returns.
pub(crate) fn read(
    folder: &Path,
    firsts: &[u64],
    known: LogFacts,
    mut then: impl FnMut(u64, Record) -> Result<(), String>,
    mut damaged: impl FnMut(Damage) -> Result<(), ReadError>,
) -> Result<Option<Tail>, ReadError> {
    let (then, damaged) = (&mut then, &mut damaged);
    let mut reading = Reading { number: known.start, chain: None, sealed: false, run: None, then, damaged };
    let (mut last, mut was_begun) = (None, known.begun);
    for (i, first) in firsts.iter().copied().enumerate() {
        let next = firsts.get(i + 1).map(|next| path(folder, *next));
        let may_lack_begin = next.is_none() && !was_begun;
        let mut file =
            LogPart { path: path(folder, first), first, next, may_lack_begin, begun: false, changed: false };
        last = Some(reading.file(&mut file)?);
        // A file without any valid record does not determine the next one.
        if file.begun {
            was_begun = reading.sealed;
        }
    }
    if reading.sealed || last.is_none() && known.begun {
        reading.damage(&path(folder, reading.number), (0, 0), "is missing".to_owned(), None)?;
    }
    Ok(last)
}

/// The state of reading a log, between two records.
struct Reading<'a> {
    /// The number of the next record.
    number: u64,
    /// The checksum of the previous record, if it is known.
    chain: Option<u32>,
    /// Whether the last record states that the log continues in another file.
    sealed: bool,
    /// The boot of the machine during which the last records were written, if it is known.
    run: Option<Bytes>,
    then: &'a mut dyn FnMut(u64, Record) -> Result<(), String>,
    damaged: &'a mut dyn FnMut(Damage) -> Result<(), ReadError>,
}

/// A file of a log that is being read.
struct LogPart {
    path: PathBuf,
    /// The number in the name of the file, which is that of its first record.
    first: u64,
    /// The path of the next file; `None` for the last one.
    next: Option<PathBuf>,
    /// Whether the begin record may be missing, because a server stopped before writing it.
    may_lack_begin: bool,
    /// Whether any record of the file was read so far.
    begun: bool,
    /// Whether any change in the file was read so far.
    changed: bool,
}

impl Reading<'_> {
    fn file(&mut self, file: &mut LogPart) -> Result<Tail, ReadError> {
        let path = file.path.clone();
        let io = |error| ReadError::Io(path.clone(), error);
        let mut scan = Scan::open(&path).map_err(io)?;
        let (mut end, mut torn) = (scan.length(), None);
        self.sealed = false;
        loop {
            match scan.next(self.number, self.chain).map_err(io)? {
                Found::Entry(entry) if self.sealed => {
                    self.damage(&path, (entry.at, scan.at()), "continues after its end".to_owned(), None)?;
                }
                Found::Entry(entry) => self.entry(file, entry, scan.at())?,
                Found::End if file.begun || file.may_lack_begin => break,
                Found::End => {
                    self.damage(&path, (0, 0), "is empty".to_owned(), None)?;
                    break;
                }
                Found::Broken(Broken { is_old: true, .. }) => return Err(ReadError::Old(path)),
                Found::Broken(broken) => {
                    if let Some(next) = scan.search(self.number).map_err(io)? {
                        let reason = missing(&broken.what, (self.number, next.number), scan.at());
                        self.damage(&path, (broken.at, scan.at()), reason, Some(next))?;
                        (self.number, self.chain) = (next.number, Some(next.chain));
                        continue;
                    }
                    if self.is_torn(file, &broken).map_err(io)? {
                        let Broken { what, at, is_prefix, .. } = broken;
                        torn = Some(Torn { what, bytes: end - at, is_prefix });
                        end = at;
                    } else {
                        self.damage(&path, (broken.at, end), broken.what, None)?;
                    }
                    break;
                }
            }
        }
        Ok(Tail { first: file.first, end, link: self.link(), changed: file.changed, torn })
    }

    /// Processes the next record, which ends at offset `end`.
    fn entry(&mut self, file: &mut LogPart, entry: Entry, end: u64) -> Result<(), ReadError> {
        if entry.at == 0 && entry.kind == Kind::Begin && file.first != self.number {
            let reason = format!("is named after change {}, and begins with {}", file.first, self.number);
            self.damage(&file.path, (0, 0), reason, Some(entry.link))?;
        }
        file.begun = true;
        match entry.kind {
            Kind::Change => {
                file.changed = true;
                if let Err(reason) = (self.then)(self.number, entry.record) {
                    let reason = format!("has change {}, which {reason}", self.number);
                    self.damage(&file.path, (entry.at, end), reason, Some(entry.next))?;
                }
            }
            Kind::Begin => self.run = Some(entry.record.body),
            Kind::End => self.sealed = true,
            Kind::Mark | Kind::Gap => {}
        }
        (self.number, self.chain) = (entry.next.number, Some(entry.next.chain));
        Ok(())
    }

    /// Returns whether invalid bytes at the end of a file are a torn end. Otherwise they are damage.
    fn is_torn(&self, file: &LogPart, broken: &Broken) -> io::Result<bool> {
        let Some(next) = &file.next else {
            let other_run = self.run.as_ref().is_none_or(|run| run.is_empty() || *run != boot::id());
            return Ok(!self.sealed
                && (broken.is_prefix || other_run)
                && (file.begun || file.may_lack_begin));
        };
        Ok(file.begun && continues(next, self.link())?)
    }

    /// Reports damage instead of the next record.
    fn damage(
        &mut self,
        path: &Path,
        bytes: (u64, u64),
        reason: String,
        to: Option<Link>,
    ) -> Result<(), ReadError> {
        let link = self.link();
        (self.damaged)(Damage { path: path.to_path_buf(), bytes, reason, link, to })
    }

    /// Returns the position of the next record.
    fn link(&self) -> Link {
        Link { number: self.number, chain: self.chain.unwrap_or_default() }
    }
}

/// Returns whether the next file begins exactly at `link`, so that no change is missing.
fn continues(next: &Path, link: Link) -> io::Result<bool> {
    let found = Scan::open(next)?.next(link.number, Some(link.chain))?;
    Ok(matches!(found, Found::Entry(_)))
}

/// Describes a fault, with the numbers of the missing changes.
fn missing(what: &str, (from, to): (u64, u64), at: u64) -> String {
    let lost = match to.saturating_sub(from) {
        0 => String::new(),
        1 => format!("change {from} is missing; "),
        _ => format!("changes {from} to {} are missing; ", to - 1),
    };
    format!("{what} ({lost}complete records follow from byte {at} on)")
}
