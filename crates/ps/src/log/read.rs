//! All files of a log, read: what was being written when the process ended is told from damage.

use super::record::{Kind, Link, Record};
use super::scan::{Broken, Found, Scan};
use super::{boot, path};
use std::io;
use std::path::{Path, PathBuf};

/// The file in which a log goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    /// The number of its first record.
    pub first: u64,
    /// The number of its bytes that whole records take.
    pub end: u64,
    /// The position of the next record.
    pub link: Link,
    /// Whether it has a change.
    pub changed: bool,
    /// What follows `end`, if anything does.
    pub torn: Option<Torn>,
}

/// The torn end of a log: no record follows it, and none before it is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Torn {
    /// What is wrong with it.
    pub what: String,
    /// The number of its bytes.
    pub bytes: u64,
    /// Whether a process was killed while it wrote this, so that it was not acknowledged. Otherwise the machine has ended since.
    pub is_prefix: bool,
}

/// Why a log is not read any further.
#[derive(Debug)]
pub(crate) enum ReadError {
    Io(PathBuf, io::Error),
    /// A file is of version 1.
    Old(PathBuf),
    Damaged(Damage),
}

/// What is in a log in place of records, or missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    /// The file. It may be the file that is missing.
    pub path: PathBuf,
    /// Where what is damaged begins and ends.
    pub bytes: (u64, u64),
    /// What is wrong, behind the name of the file.
    pub reason: String,
    /// The position of the record that belongs there.
    pub link: Link,
    /// The position of the next whole record, if there is one in this file.
    pub to: Option<Link>,
}

/// What is known of a log before it is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// The number of its first record.
    pub start: u64,
    /// Whether it is known to have been begun.
    pub begun: bool,
}

// INV-54
/// Gives all changes of the files `firsts` to `then`, in their order, with their numbers, and returns where the log goes on; `None` for a
/// log that has not been begun.
///
/// What is damaged is given to `damaged`, and left out if that returns.
pub(crate) fn read(
    folder: &Path,
    firsts: &[u64],
    known: Known,
    mut then: impl FnMut(u64, Record) -> Result<(), String>,
    mut damaged: impl FnMut(Damage) -> Result<(), ReadError>,
) -> Result<Option<Tail>, ReadError> {
    let (mut number, mut chain, mut last, mut sealed) = (known.start, None, None::<Tail>, false);
    // The run of the machine in which the last records were written.
    let mut run = None;
    for (i, first) in firsts.iter().copied().enumerate() {
        let path = path(folder, first);
        let io = |error| ReadError::Io(path.clone(), error);
        let mut scan = Scan::open(&path).map_err(io)?;
        let (mut begun, mut changed, mut torn) = (false, false, None);
        let may_lack_begin = i + 1 == firsts.len() && if i == 0 { !known.begun } else { !sealed };
        sealed = false;
        loop {
            let link = Link { number, chain: chain.unwrap_or_default() };
            let damage = |bytes, reason: String, to| Damage { path: path.clone(), bytes, reason, link, to };
            match scan.next(number, chain).map_err(io)? {
                Found::Entry(entry) if sealed => {
                    damaged(damage((entry.at, scan.at()), "goes on after its end".to_owned(), None))?;
                }
                Found::Entry(entry) => {
                    if entry.at == 0 && entry.kind == Kind::Begin && first != number {
                        let reason = format!("is named after change {first}, and begins with {number}");
                        damaged(damage((0, 0), reason, Some(entry.link)))?;
                    }
                    begun = true;
                    match entry.kind {
                        Kind::Change => {
                            changed = true;
                            if let Err(reason) = then(number, entry.record) {
                                let bytes = (entry.at, scan.at());
                                damaged(damage(
                                    bytes,
                                    format!("has change {number}, which {reason}"),
                                    Some(entry.next),
                                ))?;
                            }
                        }
                        Kind::Begin => run = Some(entry.record.body),
                        Kind::End => sealed = true,
                        Kind::Mark | Kind::Gap => {}
                    }
                    (number, chain) = (entry.next.number, Some(entry.next.chain));
                }
                Found::End => {
                    if !begun && !may_lack_begin {
                        damaged(damage((0, 0), "is empty".to_owned(), None))?;
                    }
                    break;
                }
                Found::Broken(Broken { is_old: true, .. }) => return Err(ReadError::Old(path)),
                Found::Broken(Broken { what, at, is_prefix, .. }) => {
                    if let Some(next) = scan.search(number).map_err(io)? {
                        let reason = missing(&what, (number, next.number), scan.at());
                        damaged(damage((at, scan.at()), reason, Some(next)))?;
                        (number, chain) = (next.number, Some(next.chain));
                        continue;
                    }
                    let other_run = run.as_ref().is_none_or(|run| run.is_empty() || *run != boot::id());
                    let is_torn = i + 1 == firsts.len()
                        && !sealed
                        && (is_prefix || other_run)
                        && (begun || may_lack_begin);
                    let bytes = scan.length() - at;
                    if is_torn || begun && continues(folder, firsts.get(i + 1), link).map_err(io)? {
                        torn = Some((at, Torn { what, bytes, is_prefix }));
                    } else {
                        damaged(damage((at, scan.length()), what, None))?;
                    }
                    break;
                }
            }
        }
        let end = torn.as_ref().map_or(scan.length(), |(at, _)| *at);
        let link = Link { number, chain: chain.unwrap_or_default() };
        last = Some(Tail { first, end, link, changed, torn: torn.map(|(_, torn)| torn) });
    }
    if sealed || last.is_none() && known.begun {
        let (path, link) = (path(folder, number), Link { number, chain: chain.unwrap_or_default() });
        damaged(Damage { path, bytes: (0, 0), reason: "is missing".to_owned(), link, to: None })?;
    }
    Ok(last)
}

/// Whether the next file goes on exactly here, so that no change is missing.
fn continues(folder: &Path, next: Option<&u64>, link: Link) -> io::Result<bool> {
    let Some(next) = next else { return Ok(false) };
    let found = Scan::open(&path(folder, *next))?.next(link.number, Some(link.chain))?;
    Ok(matches!(found, Found::Entry(_)))
}

/// Says what is wrong, and what is missing for it.
fn missing(what: &str, (from, to): (u64, u64), at: u64) -> String {
    let lost = match to.saturating_sub(from) {
        0 => String::new(),
        1 => format!("change {from} is missing; "),
        _ => format!("changes {from} to {} are missing; ", to - 1),
    };
    format!("{what} ({lost}whole records follow from byte {at} on)")
}
