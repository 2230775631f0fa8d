//! Truncated, damaged, and repaired logs.

use super::record::{Kind, Link};
use super::*;
use crate::Durability;
use distribute_testing::{SplitMix, fuzz_inputs};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn records(count: u64) -> Vec<Record> {
    let record = |n: u64| {
        let (head, body) = (vec![n as u8; 1 + n as usize % 7], vec![7; n as usize * 13 % 100]);
        Record { client: n * 3, sequence: n, head: head.into(), body: body.into() }
    };
    (0..count).map(record).collect()
}

const KNOWN: LogFacts = LogFacts { start: 0, begun: true };

/// Returns all changes of a folder, and the position at which its log continues.
fn all(folder: &Path, known: LogFacts) -> (Vec<Record>, Result<Option<read::Tail>, ReadError>) {
    let mut all = Vec::new();
    let add = |number, record| {
        assert_eq!(number, known.start + all.len() as u64);
        all.push(record);
        Ok(())
    };
    let refuse = |damage| Err(ReadError::Damaged(damage));
    let tail = read(folder, &firsts(folder).unwrap(), known, add, refuse);
    (all, tail)
}

fn open(folder: &Path, first: u64) -> LogFile {
    let disk = open_disk(&path(folder, first)).unwrap();
    LogFile::new(disk, 0, Link { number: first, chain: 0 }, false)
}

/// Creates a log of two files, of which the second was resumed once; the last change has a mark if `marked`.
fn log(folder: &Path, written: &[Record], marked: bool) {
    let journal = Journal::new(folder, Arc::new(open_disk), Durability::System, open(folder, 0));
    let third = written.len() / 3;
    written[..third].iter().for_each(|record| assert!(journal.append(record).is_ok()));
    journal.mark();
    written[third..2 * third].iter().for_each(|record| assert!(journal.append(record).is_ok()));
    journal.rotate().unwrap();
    journal.append(&written[2 * third]).unwrap();
    drop(journal);
    let tail = all(folder, KNOWN).1.unwrap().unwrap();
    let disk = open_disk(&path(folder, tail.first)).unwrap();
    let mut file = LogFile::new(disk, tail.end, tail.link, tail.changed);
    written[2 * third + 1..].iter().for_each(|record| assert!(file.append(record).is_ok()));
    if marked {
        file.mark().unwrap();
    }
}

/// Returns the damage that was found, and checks the changes before it. If there is none, checks that all changes were
/// read.
fn damage(found: (Vec<Record>, Result<Option<read::Tail>, ReadError>), written: &[Record]) -> Option<Damage> {
    match found.1 {
        Ok(_) => {
            assert!(found.0 == written, "{} changes of {} are there", found.0.len(), written.len());
            None
        }
        Err(ReadError::Damaged(damage)) => {
            assert_eq!(found.0, written[..found.0.len()]);
            Some(damage)
        }
        Err(other) => panic!("{other:?}"),
    }
}

/// Repairs a log, checks that it can be read, and returns its changes.
fn repaired(folder: &Path) -> Vec<Record> {
    let (files, mut found) = (firsts(folder).unwrap(), Vec::new());
    let collect = |damage| {
        found.push(damage);
        Ok(())
    };
    read(folder, &files, KNOWN, |_, _| Ok(()), collect).unwrap();
    let before: Vec<_> = files.iter().map(|first| fs::read(path(folder, *first)).unwrap()).collect();
    let kept = repair(&found, files.last().copied()).unwrap();
    assert!(kept.iter().all(|kept| before.contains(&fs::read(kept).unwrap())), "{kept:?}");
    let mut changes = Vec::new();
    let add = |_, record| {
        changes.push(record);
        Ok(())
    };
    let refuse = |damage: Damage| Err(ReadError::Damaged(damage));
    let files = firsts(folder).unwrap();
    read(folder, &files, KNOWN, add, refuse)
        .unwrap_or_else(|error| panic!("{error:?} of {found:?}"))
        .unwrap();
    changes
}

/// Returns whether `some` is a subsequence of `all`.
fn are_among(some: &[Record], all: &[Record]) -> bool {
    let mut all = all.iter();
    some.iter().all(|one| all.any(|other| one == other))
}

// INV-54
#[test]
fn wherever_a_log_is_cut_off_the_whole_records_before_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let written = records(20);
    let mut log = open(folder.path(), 0);
    log.begin().unwrap();
    let mut ends = vec![log.bytes()];
    for (i, record) in written.iter().enumerate() {
        assert_eq!(log.append(record).unwrap(), i as u64);
        ends.push(log.bytes());
    }
    let path = path(folder.path(), 0);
    let bytes = fs::read(&path).unwrap();
    for cut in 0..=bytes.len() as u64 {
        fs::write(&path, &bytes[..cut as usize]).unwrap();
        let (found, tail) = all(folder.path(), KNOWN);
        if cut < ends[0] {
            // The log was begun, so there was more.
            assert!(
                matches!(tail, Err(ReadError::Damaged(damage)) if damage.bytes.0 == 0 && damage.path == path)
            );
            let new = all(folder.path(), LogFacts { begun: false, ..KNOWN }).1.unwrap().unwrap();
            assert_eq!((new.end, new.torn.is_some()), (0, cut > 0));
            continue;
        }
        let whole = ends.iter().filter(|end| **end <= cut).count() - 1;
        assert_eq!(found, written[..whole]);
        let tail = tail.unwrap().unwrap();
        assert_eq!((tail.end, tail.link.number), (ends[whole], whole as u64));
        assert_eq!(
            tail.torn.map(|torn| (torn.bytes, torn.is_prefix)),
            (ends[whole] < cut).then(|| (cut - ends[whole], true))
        );
    }
}

// INV-54
#[test]
fn each_flipped_bit_is_named_or_loses_nothing() {
    let written = records(12);
    for marked in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        log(folder.path(), &written, marked);
        assert_eq!(damage(all(folder.path(), KNOWN), &written), None);
        let (mut named, mut harmless) = (0, 0);
        for first in firsts(folder.path()).unwrap() {
            let path = path(folder.path(), first);
            let bytes = fs::read(&path).unwrap();
            for at in 0..bytes.len() {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << (at % 8);
                fs::write(&path, &flipped).unwrap();
                match damage(all(folder.path(), KNOWN), &written) {
                    Some(damage) => {
                        assert_eq!(damage.path, path);
                        assert!((damage.bytes.0..damage.bytes.1).contains(&(at as u64)), "{at}: {damage:?}");
                        named += 1;
                    }
                    None => harmless += 1,
                }
            }
            fs::write(&path, &bytes).unwrap();
        }
        // Only bits at the end of the first file can flip without the loss of a change.
        assert!(named > 1000 && harmless == 56, "{named} {harmless}");
    }
}

// INV-54
#[test]
fn bytes_that_are_zero_added_or_removed_are_named_or_lose_nothing() {
    let written = records(12);
    let folder = tempfile::tempdir().unwrap();
    log(folder.path(), &written, true);
    for first in firsts(folder.path()).unwrap() {
        let path = path(folder.path(), first);
        let bytes = fs::read(&path).unwrap();
        let check = |changed: Vec<u8>| {
            fs::write(&path, &changed).unwrap();
            damage(all(folder.path(), KNOWN), &written);
        };
        for at in 0..bytes.len() {
            for count in [1, 2, 31, 200] {
                let end = (at + count).min(bytes.len());
                let (before, after) = (&bytes[..at], &bytes[end..]);
                let added = vec![b'd'; count];
                check([before, &added, &bytes[at..]].concat());
                // Bytes removed up to the end of the last file are a torn end: see the previous test.
                if first == 0 || end <= bytes.len() - 56 {
                    check([before, after].concat());
                }
            }
        }
        for sector in [64, 512] {
            for at in (0..bytes.len()).step_by(sector) {
                let end = (at + sector).min(bytes.len());
                check([&bytes[..at], &vec![0; end - at], &bytes[end..]].concat());
            }
        }
        fs::write(&path, &bytes).unwrap();
    }
}

// INV-54
#[test]
fn a_file_that_is_removed_or_cut_off_or_another_ones_is_named() {
    let written = records(12);
    let folder = tempfile::tempdir().unwrap();
    log(folder.path(), &written, true);
    let files = firsts(folder.path()).unwrap();
    let [first, second] = [0, 1].map(|i| path(folder.path(), files[i]));
    let (bytes, last) = (fs::read(&first).unwrap(), fs::read(&second).unwrap());
    for (path, bytes, named) in [(&first, &bytes, &second), (&second, &last, &second)] {
        fs::remove_file(path).unwrap();
        let found = damage(all(folder.path(), KNOWN), &written).unwrap();
        assert_eq!((&found.path, found.bytes), (named, (0, 0)));
        fs::write(path, bytes).unwrap();
    }
    // Both files are gone.
    fs::remove_file(&first).unwrap();
    fs::remove_file(&second).unwrap();
    let found = damage(all(folder.path(), KNOWN), &written).unwrap();
    assert_eq!((found.path, found.reason), (first.clone(), "is missing".to_owned()));
    fs::write(&second, &last).unwrap();
    // A file that is not the last has no torn end.
    for cut in 0..bytes.len() {
        fs::write(&first, &bytes[..cut]).unwrap();
        if let Some(found) = damage(all(folder.path(), KNOWN), &written) {
            assert!(found.path == first || found.path == second && found.bytes.0 == 0, "{found:?}");
        }
    }
    // A file of another log, with the same numbers.
    fs::write(&first, &bytes).unwrap();
    let other = tempfile::tempdir().unwrap();
    let mut changed = written.clone();
    changed[0].client += 1;
    log(other.path(), &changed, true);
    fs::copy(path(other.path(), files[1]), &second).unwrap();
    let found = damage(all(folder.path(), KNOWN), &written).unwrap();
    assert_eq!((found.path, found.bytes.0), (second, 0));
}

/// Returns a log that was written before the machine was restarted.
fn of_another_run(records: &[Record]) -> Vec<u8> {
    let mut link = Link { number: 0, chain: 0 };
    let begin = Record::of_log("another run".into());
    let mut bytes = Vec::new();
    for (kind, record) in
        [(Kind::Begin, &begin)].into_iter().chain(records.iter().map(|one| (Kind::Change, one)))
    {
        bytes.extend(record.encoded(kind, link).unwrap());
        link.chain = record.checksum(&record.header(kind, link).unwrap());
        link.number += u64::from(kind == Kind::Change);
    }
    bytes
}

// INV-54
#[test]
fn an_unwritten_record_is_torn_only_at_the_end_of_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let written = records(3);
    let path = path(folder.path(), 0);
    let bytes = of_another_run(&written);
    let last = bytes.len() - written[2].bytes() as usize;
    for zeros in [last, last + 5, bytes.len() - 1] {
        let mut torn = bytes.clone();
        torn[zeros..].fill(0);
        fs::write(&path, &torn).unwrap();
        let (found, tail) = all(folder.path(), KNOWN);
        assert_eq!(found, written[..2]);
        let tail = tail.unwrap().unwrap();
        assert_eq!((tail.end, tail.torn.unwrap().is_prefix), (last as u64, false));
    }
    let mut damaged = bytes.clone();
    damaged[last - 1] ^= 1;
    fs::write(&path, &damaged).unwrap();
    assert!(damage(all(folder.path(), KNOWN), &written).is_some());
}

#[test]
fn a_log_of_version_1_is_refused_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let mut header = [0; 32];
    header[0] = 1;
    let sum = crc32c::crc32c(&header[..28]);
    header[28..].copy_from_slice(&sum.to_le_bytes());
    let path = path(folder.path(), 0);
    fs::write(&path, [&header[..], &[1; 5]].concat()).unwrap();
    let found = all(folder.path(), LogFacts { begun: false, ..KNOWN }).1;
    assert!(matches!(found, Err(ReadError::Old(old)) if old == path));
}

// INV-54
#[test]
fn a_repaired_log_has_all_readable_changes_and_the_original_is_kept() {
    let written = records(12);
    let template = tempfile::tempdir().unwrap();
    log(template.path(), &written, true);
    let files = firsts(template.path()).unwrap();
    let mut random = SplitMix(5);
    for _ in 0..fuzz_inputs() / 20 {
        let folder = tempfile::tempdir().unwrap();
        for first in &files {
            let mut bytes = fs::read(path(template.path(), *first)).unwrap();
            match random.below(4) {
                0 | 2 => random.mutate(&mut bytes),
                1 => continue,
                _ => {}
            }
            fs::write(path(folder.path(), *first), bytes).unwrap();
        }
        let found = repaired(folder.path());
        assert!(are_among(&found, &written));
    }
    // Only the damaged record is lost.
    for first in &files {
        let bytes = fs::read(path(template.path(), *first)).unwrap();
        for at in (0..bytes.len()).step_by(23) {
            let folder = tempfile::tempdir().unwrap();
            for other in &files {
                fs::copy(path(template.path(), *other), path(folder.path(), *other)).unwrap();
            }
            let mut flipped = bytes.clone();
            flipped[at] ^= 4;
            fs::write(path(folder.path(), *first), flipped).unwrap();
            let found = repaired(folder.path());
            assert!(found.len() + 1 >= written.len() && are_among(&found, &written), "{at}: {}", found.len());
        }
    }
}

// INV-54
#[test]
fn a_log_of_which_no_record_is_left_can_be_read_after_one_repair() {
    for left in [0, 40, 127] {
        let folder = tempfile::tempdir().unwrap();
        log(folder.path(), &records(12), true);
        for first in firsts(folder.path()).unwrap() {
            fs::write(path(folder.path(), first), vec![5; left]).unwrap();
        }
        assert_eq!(repaired(folder.path()), []);
    }
}

#[test]
fn a_disk_that_is_full_has_no_half_records() {
    let folder = tempfile::tempdir().unwrap();
    let path = path(folder.path(), 0);
    let disk = Faulty::new();
    let link = Link { number: 0, chain: 0 };
    let mut log = LogFile::new(disk.open(&path).unwrap(), 0, link, false);
    let written = records(3);
    log.begin().unwrap();
    for record in &written {
        for short in 0..record.bytes() {
            disk.room.store(short, Ordering::SeqCst);
            assert_eq!(log.append(record).unwrap_err().kind(), io::ErrorKind::StorageFull);
        }
        disk.room.store(record.bytes() - 1, Ordering::SeqCst);
        // Half of the record stays until it can be removed.
        disk.fails.store(true, Ordering::SeqCst);
        assert_eq!(log.append(record).unwrap_err().kind(), io::ErrorKind::StorageFull);
        disk.room.store(1 << 20, Ordering::SeqCst);
        assert_eq!(log.append(record).unwrap_err().to_string(), "bad sector");
        disk.fails.store(false, Ordering::SeqCst);
        log.append(record).unwrap();
    }
    let (found, tail) = all(folder.path(), KNOWN);
    let tail = tail.unwrap().unwrap();
    assert_eq!((found, tail.end, tail.torn), (written, log.bytes(), None));
}

// INV-54
#[test]
fn a_log_that_cannot_begin_a_new_file_goes_on_in_the_one_that_it_has() {
    let written = records(6);
    for room in [0, 60, 150] {
        let folder = tempfile::tempdir().unwrap();
        let disk = Faulty::new();
        let file =
            LogFile::new(disk.open(&path(folder.path(), 0)).unwrap(), 0, Link { number: 0, chain: 0 }, false);
        let journal = Journal::new(folder.path(), disk.opens(), Durability::System, file);
        written[..3].iter().for_each(|record| assert!(journal.append(record).is_ok()));
        disk.room.store(room, Ordering::SeqCst);
        let rotated = journal.rotate();
        disk.room.store(1 << 20, Ordering::SeqCst);
        written[3..].iter().for_each(|record| assert!(journal.append(record).is_ok()));
        drop(journal);
        let files = firsts(folder.path()).unwrap().len();
        assert_eq!((rotated.is_ok(), files), if room == 150 { (true, 2) } else { (false, 1) });
        assert_eq!(damage(all(folder.path(), KNOWN), &written), None);
    }
}
