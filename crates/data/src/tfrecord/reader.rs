//! [`TfRecordReader`]: a reader of records, many at once.

use super::block::Records;
use super::frame::{FOOTER, Frame, HEADER, starts, truncated};
use crate::broken::Broken;
use crate::file::ElementLimit;
use crate::{Compression, Error, Location, Result};
use std::io::{BufRead, Read};
use std::ops::Range;
use std::sync::Arc;

/// The minimum number of bytes that are read at a time.
const BLOCK: usize = 1 << 18;

/// A reader of the records of a TFRecord file, many at once.
///
/// All checksums are compared. The records before a damaged one are returned first, then the error, and no records
/// after it. Memory grows only with the bytes that have been read, whatever length a record states. A record that is
/// larger than the [limit for one element](Location::element_limit) results in an error.
///
/// ```
/// use distribute_data::tfrecord::TfRecordReader;
///
/// let bytes: &[u8] = &[3, 0, 0, 0, 0, 0, 0, 0, 7];
/// let mut reader = TfRecordReader::new("torn.tfrecord", bytes);
/// assert_eq!(
///     reader.read(1).unwrap_err().to_string(),
///     "'torn.tfrecord', record 0 at byte 0: the file ends after 9 of the 12 bytes of its header"
/// );
/// ```
#[doc(alias = "tf.data.TFRecordDataset")]
#[doc(alias = "TFRecordDataset")]
pub struct TfRecordReader<R> {
    path: Arc<str>,
    source: R,
    /// The bytes that have been read. Returned records share them.
    bytes: Arc<Vec<u8>>,
    /// The start of the next record in `bytes`.
    next: usize,
    /// The offset of `bytes` in the file.
    base: u64,
    /// The number of records that have been returned or skipped.
    records: u64,
    limit: ElementLimit,
    broken: Broken,
    end: End,
}

/// Whether the end of the input has been reached.
enum End {
    NotYet,
    Reached,
    /// Reading failed with this error, which is returned after the records before it.
    Failed(Error),
}

impl TfRecordReader<Box<dyn BufRead + Send>> {
    /// Opens a file. [`Compression::Auto`] detects whether it is compressed.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Compression::open`].
    pub fn open(location: impl Into<Location>, compression: Compression) -> Result<Self> {
        let location = location.into();
        let limit = location.limit();
        Ok(Self { limit, ..Self::new(location.to_string(), compression.open_known(&location, starts)?) })
    }
}

impl<R: Read> TfRecordReader<R> {
    /// Creates a reader of uncompressed bytes from `source`, which need not be buffered. Errors contain `path`.
    pub fn new(path: impl Into<Arc<str>>, source: R) -> Self {
        let (path, bytes) = (path.into(), Arc::default());
        let limit = ElementLimit::new("element_limit");
        let broken = Broken::default();
        Self { path, source, bytes, next: 0, base: 0, records: 0, limit, broken, end: End::NotYet }
    }

    /// Sets the maximum number of bytes of a record; 256 MiB by default. For a file that was opened with
    /// [`open`](Self::open), the default is the limit of its [`Location`](Location::element_limit).
    pub fn element_limit(self, bytes: u64) -> Self {
        Self { limit: self.limit.of(bytes), ..self }
    }

    /// Makes the reader skip records with damaged data, as `broken` allows.
    pub(crate) fn skip_broken(self, broken: Broken) -> Self {
        Self { broken, ..self }
    }

    /// Reads up to `most` records. There are fewer only if the file ends, or if an error follows them; the next call
    /// then returns that error. Returns an empty block at the end of the file, after an error, or if `most` is 0.
    ///
    /// # Errors
    ///
    /// - [`Error::Record`]: the next record is damaged or too large, or the file ends within it.
    /// - [`Error::Io`]: reading failed, or a compressed stream is damaged.
    pub fn read(&mut self, most: usize) -> Result<Records> {
        self.next(most, false)
    }

    /// Returns up to `most` records that are already in the buffer. Reads more bytes only if the buffer contains no
    /// complete record.
    pub(crate) fn read_at_hand(&mut self, most: usize) -> Result<Records> {
        self.next(most, true)
    }

    fn next(&mut self, most: usize, at_hand: bool) -> Result<Records> {
        let mut ranges = Vec::new();
        let mut at = self.next;
        while ranges.len() < most {
            match Frame::at(&self.bytes, at) {
                Frame::Whole { data, next } => {
                    ranges.push(data);
                    at = next;
                }
                Frame::Incomplete { .. } if at_hand && !ranges.is_empty() => break,
                Frame::Incomplete { needs } => {
                    let length = needs.saturating_sub(HEADER + FOOTER) as u64;
                    if let Err(what) = self.limit.check("the record", length) {
                        self.end = End::Failed(self.damaged(at, ranges.len(), what));
                        break;
                    }
                    if matches!(self.end, End::NotYet) {
                        at -= self.fill(at + needs, &mut ranges);
                        continue;
                    }
                    let found = self.bytes.len() - at;
                    if found > 0 && matches!(self.end, End::Reached) {
                        self.end = End::Failed(self.damaged(at, ranges.len(), truncated(found, needs)));
                    }
                    break;
                }
                Frame::Damaged { .. } if self.broken.skips() && !ranges.is_empty() => {
                    // Records that are returned together must be consecutive.
                    break;
                }
                Frame::Damaged { next, what } => {
                    match self.broken.skip(self.damaged(at, ranges.len(), what)) {
                        Ok(()) => {
                            // Its bytes are dropped at the next refill, so many damaged records take no memory.
                            (at, self.next) = (next, next);
                            self.records += 1;
                        }
                        Err(error) => {
                            self.end = End::Failed(error);
                            break;
                        }
                    }
                }
                Frame::Broken(what) => {
                    self.end = End::Failed(self.damaged(at, ranges.len(), what));
                    break;
                }
            }
        }
        self.next = at;
        if ranges.is_empty() && most > 0 && matches!(self.end, End::Failed(_)) {
            // Nothing comes after an error.
            self.bytes = Arc::default();
            self.next = 0;
            if let End::Failed(error) = std::mem::replace(&mut self.end, End::Reached) {
                return Err(error);
            }
        }
        let first = self.records;
        self.records += ranges.len() as u64;
        Ok(Records { path: self.path.clone(), first, bytes: self.bytes.clone(), ranges })
    }

    /// Reads until the buffer contains `wanted` bytes, counted from its old start, or the end is reached. Drops the
    /// bytes of returned records from the front of the buffer, and shifts `ranges`, the records found by the current
    /// call, by the same number of bytes. Returns that number.
    fn fill(&mut self, wanted: usize, ranges: &mut [Range<usize>]) -> usize {
        let dropped = self.next;
        let bytes = match Arc::get_mut(&mut self.bytes) {
            Some(bytes) => {
                bytes.drain(..dropped);
                bytes
            }
            None => {
                // Returned records are still in use: the bytes that they share stay as they are.
                let rest = self.bytes.get(dropped..).unwrap_or_default();
                let mut bytes = Vec::with_capacity(rest.len() + BLOCK);
                bytes.extend_from_slice(rest);
                self.bytes = Arc::new(bytes);
                Arc::make_mut(&mut self.bytes)
            }
        };
        self.next = 0;
        self.base += dropped as u64;
        if dropped > 0 {
            // Happens once for each block: while it is read, nothing more is dropped.
            for range in ranges {
                *range = range.start - dropped..range.end - dropped;
            }
        }
        let wanted = wanted - dropped;
        while bytes.len() < wanted {
            // Reads no more than is already there, because a length may be wrong.
            let more = (wanted - bytes.len()).min(bytes.len()).max(BLOCK);
            bytes.reserve(more);
            match self.source.by_ref().take(more as u64).read_to_end(bytes) {
                Ok(0) => self.end = End::Reached,
                Ok(_) => continue,
                Err(source) => self.end = End::Failed(Error::Io { path: self.path.to_string(), source }),
            }
            break;
        }
        dropped
    }

    /// Creates the error for the record that begins at `at` in the buffer. `ahead` is the number of records
    /// before it that have not been returned yet.
    fn damaged(&self, at: usize, ahead: usize, what: String) -> Error {
        let (offset, record) = (self.base + at as u64, self.records + ahead as u64);
        Error::Record { path: self.path.to_string(), offset, record, what }
    }
}

impl<R> std::fmt::Debug for TfRecordReader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TfRecordReader('{}', {} records read)", self.path, self.records)
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::tests::framed;
    use super::*;
    use proptest::prelude::*;

    fn file(records: &[Vec<u8>]) -> Vec<u8> {
        records.iter().flat_map(|record| framed(record)).collect()
    }

    /// Reads records, `most` at a time. Returns those before the end or the first error, and the error.
    fn read(bytes: impl Read, most: usize) -> (Vec<Vec<u8>>, Option<Error>) {
        let mut reader = TfRecordReader::new("f", bytes);
        let mut all = Vec::new();
        loop {
            match reader.read(most) {
                Ok(records) if records.is_empty() => return (all, None),
                Ok(records) => {
                    assert_eq!(records.first(), all.len() as u64);
                    all.extend(records.iter().map(<[u8]>::to_vec));
                }
                Err(error) => {
                    assert!(reader.read(most).unwrap().is_empty(), "nothing comes after an error");
                    return (all, Some(error));
                }
            }
        }
    }

    struct Gone;

    impl Read for Gone {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("the disk is gone"))
        }
    }

    fn three() -> Vec<Vec<u8>> {
        vec![b"one".to_vec(), Vec::new(), b"three".to_vec()]
    }

    #[test]
    fn damaged_records_that_are_skipped_do_not_stay_in_memory() {
        let mut one = framed(&[7; 100_000]);
        one[20_000] ^= 1;
        let bytes = [one.repeat(200), framed(b"last")].concat();
        let skipped = crate::SkippedRecords::new();
        let broken = Broken::of_pass(Some(&skipped));
        let mut reader = TfRecordReader::new("f", bytes.as_slice()).skip_broken(broken);
        let records = crate::testing::quietly(|| reader.read_at_hand(10)).unwrap();
        assert_eq!((records.get(0), records.first(), skipped.count()), (Some(&b"last"[..]), 200, 200));
        assert!(reader.bytes.len() < 3 * BLOCK.max(100_000), "{}", reader.bytes.len());
        crate::testing::quietly(|| drop(reader));
    }

    #[test]
    fn records_are_given_out_in_blocks_as_large_as_wanted() {
        let bytes = file(&three());
        for (most, sizes) in (0..).zip([[0, 0, 0, 0], [1, 1, 1, 0], [2, 1, 0, 0], [3, 0, 0, 0]]) {
            let mut reader = TfRecordReader::new("f", &bytes[..]);
            assert_eq!([(); 4].map(|()| reader.read(most).unwrap().len()), sizes);
        }
    }

    #[test]
    fn records_kept_stay_as_they_were_while_others_are_read() {
        let records: Vec<Vec<u8>> = (0..300u32).map(|i| vec![i as u8; 4000 + i as usize]).collect();
        let bytes = file(&records);
        let mut reader = TfRecordReader::new("f", &bytes[..]);
        let blocks: Vec<Records> = (0..30).map(|_| reader.read(10).unwrap()).collect();
        assert!(blocks.iter().flat_map(Records::iter).eq(records.iter().map(Vec::as_slice)));
        assert!(reader.read(10).unwrap().is_empty());
    }

    #[test]
    fn records_before_an_error_of_the_source_come_first() {
        let bytes = file(&three());
        let (records, error) = read(Read::chain(&bytes[..], Gone), 256);
        assert_eq!(records, three());
        assert_eq!(error.unwrap().to_string(), "cannot read 'f': the disk is gone");
    }

    #[test]
    fn a_file_cut_short_at_any_byte_gives_its_whole_records_and_says_where_it_ends() {
        let bytes = file(&three());
        let starts = [0, 19, 35, bytes.len()];
        for len in 0..bytes.len() {
            let whole = starts.iter().filter(|start| **start <= len).count() - 1;
            let (records, error) = read(&bytes[..len], 2);
            assert_eq!(records, three()[..whole], "{len}");
            match error {
                None => assert!(starts.contains(&len), "{len}"),
                Some(Error::Record { offset, record, what, .. }) => {
                    assert_eq!((offset, record), (starts[whole] as u64, whole as u64), "{len}");
                    assert!(what.starts_with("the file ends after"), "{what}");
                }
                Some(other) => panic!("{other}"),
            }
        }
    }

    #[test]
    fn any_flipped_bit_is_found_in_its_record() {
        let bytes = file(&three());
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let damaged = [19, 35, usize::MAX].iter().position(|next| bit / 8 < *next).unwrap();
            let (records, error) = read(&bytes[..], 256);
            assert_eq!(records, three()[..damaged], "bit {bit}");
            assert!(
                matches!(error, Some(Error::Record { record, .. }) if record == damaged as u64),
                "bit {bit}"
            );
        }
    }

    #[test]
    fn memory_grows_with_bytes_read_and_not_with_a_declared_length() {
        let length = (1u64 << 61).to_le_bytes();
        let checksum = super::super::checksum::masked_crc(&length).to_le_bytes();
        let bytes = [&length[..], &checksum, &[7; 100_000]].concat();
        let mut reader = TfRecordReader::new("f", &bytes[..]).element_limit(u64::MAX);
        let error = reader.read(1).unwrap_err().to_string();
        assert!(error.contains("ends after 100000 of the 2305843009213693956 bytes of its data"), "{error}");
    }

    proptest! {
        #[test]
        fn records_come_back(
            sizes in prop::collection::vec(prop_oneof![4 => 0..50usize, 1 => 0..BLOCK * 2], 0..12),
            most in 1..7usize,
        ) {
            let records: Vec<Vec<u8>> =
                sizes.iter().map(|size| (0..*size).map(|i| (i * 31 + size) as u8).collect()).collect();
            let (found, error) = read(&file(&records)[..], most);
            prop_assert!(error.is_none() && found == records);
        }
    }
}
