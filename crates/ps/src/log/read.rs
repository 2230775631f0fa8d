//! One file of a log, read.

use super::record::{HEADER, Header, Record, TRAILER};
use bytes::Bytes;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

/// Where a file ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    /// How many bytes whole records take.
    pub end: u64,
    /// What is behind, if there is anything.
    pub torn: Option<Torn>,
}

/// Bytes that are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Torn {
    /// What is wrong with them.
    pub what: &'static str,
    /// How many they are, to the end of the file.
    pub bytes: u64,
    /// Whether another record follows: then they were written whole, and damaged later.
    pub follows: bool,
}

/// Gives all whole records of a file to `then`, in their order. Nothing is allocated for lengths that the file doesn't have.
pub(crate) fn read<E: From<io::Error>>(
    path: &Path,
    mut then: impl FnMut(Record) -> Result<(), E>,
) -> Result<Tail, E> {
    let file: File = distribute_files::open(path)?;
    let length = file.metadata()?.len();
    let mut from = BufReader::with_capacity(1 << 20, file);
    let mut end = 0;
    let torn = loop {
        let left = length.saturating_sub(end);
        if left == 0 {
            break None;
        }
        match record(&mut from, left)? {
            Ok(record) => {
                end += record.bytes();
                then(record)?;
            }
            Err((what, follows)) => break Some(Torn { what, bytes: left, follows }),
        }
    };
    Ok(Tail { end, torn })
}

/// The next record, of the `left` bytes that the file still has; or what is wrong with them, and whether another one follows.
fn record(from: &mut impl Read, left: u64) -> io::Result<Result<Record, (&'static str, bool)>> {
    const SHORT: &str = "is cut off";
    let mut header = [0; HEADER];
    if left < (HEADER + TRAILER) as u64 {
        return Ok(Err((SHORT, false)));
    }
    from.read_exact(&mut header)?;
    let Some(Header { head, body, client, sequence }) = Header::decode(&header) else {
        return Ok(Err(("has no record", false)));
    };
    let whole = head.checked_add(body).and_then(|n| n.checked_add((HEADER + TRAILER) as u64));
    if whole.is_none_or(|whole| whole > left) {
        return Ok(Err((SHORT, false)));
    }
    let mut take = |length: u64| {
        let mut bytes = vec![0; length as usize];
        from.read_exact(&mut bytes).map(|()| Bytes::from(bytes))
    };
    let (head, body) = (take(head)?, take(body)?);
    let record = Record { client, sequence, head, body };
    let mut trailer = [0; TRAILER];
    from.read_exact(&mut trailer)?;
    if trailer == record.trailer() {
        return Ok(Ok(record));
    }
    let follows = left - record.bytes() >= HEADER as u64 && {
        from.read_exact(&mut header)?;
        Header::decode(&header).is_some()
    };
    Ok(Err(("has a record with another checksum", follows)))
}

#[cfg(test)]
mod tests {
    use super::super::{Faulty, LogFile, open_disk};
    use super::*;
    use distribute_testing::SplitMix;
    use std::fs;
    use std::sync::atomic::Ordering;

    fn records(count: u64) -> Vec<Record> {
        let record = |n: u64| {
            let (head, body) = (vec![n as u8; 1 + n as usize % 7], vec![7; n as usize * 13 % 100]);
            Record { client: n * 3, sequence: n, head: head.into(), body: body.into() }
        };
        (0..count).map(record).collect()
    }

    fn all(path: &Path) -> (Vec<Record>, Tail) {
        let mut all = Vec::new();
        let tail = read(path, |record| {
            all.push(record);
            io::Result::Ok(())
        });
        (all, tail.unwrap())
    }

    // INV-54
    #[test]
    fn wherever_a_log_is_cut_off_the_whole_records_before_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let written = records(20);
        let mut log = LogFile::new(open_disk(&path).unwrap(), 0, 100);
        let mut ends = vec![0];
        for (i, record) in written.iter().enumerate() {
            assert_eq!(log.append(record).unwrap(), 100 + i as u64);
            ends.push(log.bytes());
        }
        assert_eq!(all(&path), (written.clone(), Tail { end: log.bytes(), torn: None }));
        let bytes = fs::read(&path).unwrap();
        for cut in 0..bytes.len() {
            fs::write(&path, &bytes[..cut]).unwrap();
            let (found, tail) = all(&path);
            let whole = ends.iter().filter(|end| **end <= cut as u64).count() - 1;
            assert_eq!(found, written[..whole]);
            assert_eq!((tail.end, tail.torn.is_some()), (ends[whole], ends[whole] != cut as u64), "{cut}");
        }
    }

    // INV-54
    #[test]
    fn a_record_that_was_damaged_later_is_told_from_one_that_was_never_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = LogFile::new(open_disk(&path).unwrap(), 0, 0);
        let written = records(5);
        for record in &written {
            log.append(record).unwrap();
        }
        let bytes = fs::read(&path).unwrap();
        let last = (log.bytes() - written[4].bytes()) as usize;
        for (at, whole, follows) in [(last + HEADER, 4, false), (HEADER, 0, true)] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            fs::write(&path, damaged).unwrap();
            let (found, tail) = all(&path);
            assert_eq!(found, written[..whole]);
            let torn = tail.torn.unwrap();
            assert_eq!((torn.what, torn.follows), ("has a record with another checksum", follows));
        }
    }

    #[test]
    fn damaged_logs_give_whole_records_and_where_they_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let written = records(9);
        let mut log = LogFile::new(open_disk(&path).unwrap(), 0, 0);
        for record in &written {
            log.append(record).unwrap();
        }
        let bytes = fs::read(&path).unwrap();
        let mut random = SplitMix(5);
        for _ in 0..500 {
            let mut mutated = bytes.clone();
            random.mutate(&mut mutated);
            fs::write(&path, &mutated).unwrap();
            let (found, tail) = all(&path);
            assert!(found.iter().zip(&written).take_while(|(a, b)| a == b).count() + 4 >= found.len());
            assert!(tail.end <= mutated.len() as u64);
        }
    }

    #[test]
    fn a_disk_that_is_full_has_no_half_records() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let disk = Faulty::new();
        let mut log = LogFile::new(disk.open(&path).unwrap(), 0, 0);
        let written = records(3);
        for record in &written {
            for short in 0..record.bytes() {
                disk.room.store(short, Ordering::SeqCst);
                assert_eq!(log.append(record).unwrap_err().kind(), io::ErrorKind::StorageFull);
            }
            disk.room.store(record.bytes() - 1, Ordering::SeqCst);
            // Half of it stays until it can be removed.
            disk.fails.store(true, Ordering::SeqCst);
            assert_eq!(log.append(record).unwrap_err().kind(), io::ErrorKind::StorageFull);
            disk.room.store(1 << 20, Ordering::SeqCst);
            assert_eq!(log.append(record).unwrap_err().to_string(), "bad sector");
            disk.fails.store(false, Ordering::SeqCst);
            log.append(record).unwrap();
        }
        assert_eq!(all(&path), (written, Tail { end: log.bytes(), torn: None }));
    }
}
