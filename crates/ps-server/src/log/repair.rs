//! The removal of damage from a log. Files are rewritten without the damage, and the originals are kept as copies.

use super::record::{Kind, Link, Record};
use super::{Damage, back_up, boot, path};
use distribute_files::WholeFile;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::PathBuf;

/// Removes damage from a log, and returns the paths of the copies of the original files. `last` is the number in the
/// name of the log's last file.
pub(crate) fn repair(damage: &[Damage], last: Option<u64>) -> io::Result<Vec<PathBuf>> {
    let mut of_files: BTreeMap<&PathBuf, Vec<&Damage>> = BTreeMap::new();
    for one in damage {
        of_files.entry(&one.path).or_default().push(one);
    }
    let mut kept = Vec::new();
    for (old, damage) in of_files {
        let Some(first) = damage.first() else { continue };
        let folder = first.path.parent().unwrap_or(&first.path);
        let mut content = Content::of(old, &damage)?;
        let is_last = last.is_none_or(|last| *old >= path(folder, last));
        let mut name = old.clone();
        let named = path(folder, first.link.number);
        if content.is_empty() && is_last && (named == *old || !named.exists()) {
            // The log continues in this file.
            name = named;
            let begin = Record::of_log(boot::id()).encoded(Kind::Begin, first.link);
            content.parts.push(Part::Bytes(begin.unwrap_or_default()));
        } else if first.bytes == (0, 0) && !named.exists() {
            // The file now begins where a previous one is missing.
            name = named;
        }
        if old.exists() {
            kept.push(back_up(old, 0)?);
        }
        let is_gone = content.is_empty();
        if !is_gone {
            let mut file = WholeFile::create_private(&name)?;
            content.write(&mut file)?;
            file.finish()?;
        }
        if (is_gone || name != *old) && old.exists() {
            fs::remove_file(old)?;
        }
        File::open(folder)?.sync_all()?;
    }
    Ok(kept)
}

/// The new contents of a file: parts of the old file, and new records.
struct Content {
    old: Option<File>,
    parts: Vec<Part>,
}

enum Part {
    Old(Range<u64>),
    Bytes(Vec<u8>),
}

impl Content {
    fn of(old: &PathBuf, damage: &[&Damage]) -> io::Result<Self> {
        let old = if old.exists() { Some(distribute_files::open_own(old, false)?) } else { None };
        let length = old.as_ref().map_or(Ok(0), |old| old.metadata().map(|found| found.len()))?;
        let (mut parts, mut at) = (Vec::new(), 0);
        for one in damage {
            let (begin, end) = one.bytes;
            parts.push(Part::Old(at..begin));
            at = end;
            parts.extend(one.to.map(|to| Part::Bytes(gap(one.link, to))));
        }
        parts.push(Part::Old(at..length));
        parts.retain(|part| !matches!(part, Part::Old(bytes) if bytes.is_empty()));
        Ok(Self { old, parts })
    }

    fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    fn write(self, to: &mut WholeFile) -> io::Result<()> {
        for part in self.parts {
            match (part, &self.old) {
                (Part::Bytes(bytes), _) => to.write_all(&bytes)?,
                (Part::Old(bytes), Some(old)) => {
                    (&mut &*old).seek(SeekFrom::Start(bytes.start))?;
                    io::copy(&mut old.take(bytes.end - bytes.start), to).map(drop)?;
                }
                (Part::Old(_), None) => {}
            }
        }
        Ok(())
    }
}

/// Encodes a [`Kind::Gap`] at position `from`, after which the log continues at position `to`.
fn gap(from: Link, to: Link) -> Vec<u8> {
    Record::of_log(to.to_bytes()).encoded(Kind::Gap, from).unwrap_or_default()
}
