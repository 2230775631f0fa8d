//! [`Scan`]: reads one file of a log, record by record, and finds records after damage.

use super::record::{HEADER, Header, Kind, Link, MAGIC, Record, TRAILER};
use bytes::Bytes;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

/// The number of bytes to read at a time in a search for the next record.
const SEARCHED: usize = 1 << 20;

/// A reader of one file of a log. It allocates no memory for invalid lengths.
pub(crate) struct Scan {
    from: BufReader<File>,
    length: u64,
    at: u64,
}

/// A record of a file, and its offset there.
#[derive(Debug)]
pub(crate) struct Entry {
    pub kind: Kind,
    pub link: Link,
    /// The position of the record after this one.
    pub next: Link,
    pub at: u64,
    pub record: Record,
}

/// The result of reading the next record.
#[derive(Debug)]
pub(crate) enum Found {
    Entry(Entry),
    /// The end of the file, without further bytes.
    End,
    Broken(Broken),
}

/// The reason why the next bytes are not the expected record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    /// A description of the fault, which continues a sentence that begins with the name of the file.
    pub what: String,
    /// The offset of the first of these bytes.
    pub at: u64,
    /// Whether the bytes are the beginning of the expected record, as if a process was killed while it wrote the
    /// record.
    pub is_prefix: bool,
    /// Whether the file has version 1 of the format.
    pub is_old: bool,
}

impl Scan {
    pub fn open(path: &Path) -> io::Result<Self> {
        let file: File = distribute_files::open_own(path, false)?;
        let length = file.metadata()?.len();
        Ok(Self { from: BufReader::with_capacity(1 << 20, file), length, at: 0 })
    }

    /// Returns the offset of the next record.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Returns the size of the file in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Reads the next record. Returns [`Found::Broken`] if it does not have the given number and, if that is known, the
    /// given checksum of the previous record.
    pub fn next(&mut self, number: u64, chain: Option<u32>) -> io::Result<Found> {
        let left = self.length.saturating_sub(self.at);
        if left == 0 {
            return Ok(Found::End);
        }
        let at = self.at;
        let broken = |what: String, is_prefix| Broken { what, at, is_prefix, is_old: false };
        let mut header = [0; HEADER];
        let short = (left as usize).min(HEADER);
        self.from.read_exact(&mut header[..short])?;
        if left < HEADER as u64 {
            let is_prefix = may_begin(&header[..short], number, chain);
            let what = format!("ends within record {number}");
            return Ok(Found::Broken(Broken {
                is_old: self.is_old(&header[..short]),
                ..broken(what, is_prefix)
            }));
        }
        let Some(head) = Header::decode(&header) else {
            let what = format!("has something other than record {number}");
            return Ok(Found::Broken(Broken { is_old: self.is_old(&header), ..broken(what, false) }));
        };
        let link = head.link;
        if link.number != number || chain.is_some_and(|chain| link.chain != chain) {
            let what = if link.number == number {
                format!("has a record {number} that belongs after another record than the one before it")
            } else {
                format!("has record {}, where {number} belongs", link.number)
            };
            return Ok(Found::Broken(broken(what, false)));
        }
        if head.whole().is_none_or(|whole| whole > left) {
            return Ok(Found::Broken(broken(format!("ends within record {number}"), true)));
        }
        match self.rest(&head, &header)? {
            Some(entry) => Ok(Found::Entry(entry)),
            None => Ok(Found::Broken(broken(format!("has a record {number} with another checksum"), false))),
        }
    }

    /// Reads the rest of a record, whose lengths were compared with the size of the file. Returns `None` if its
    /// checksum is wrong, or if it is a gap without a valid end.
    fn rest(&mut self, head: &Header, header: &[u8; HEADER]) -> io::Result<Option<Entry>> {
        let mut take = |length: u64| {
            let mut bytes = vec![0; length as usize];
            self.from.read_exact(&mut bytes).map(|()| Bytes::from(bytes))
        };
        let record = Record {
            client: head.client,
            sequence: head.sequence,
            head: take(head.head)?,
            body: take(head.body)?,
        };
        let mut trailer = [0; TRAILER];
        self.from.read_exact(&mut trailer)?;
        let (kind, link, at) = (head.kind, head.link, self.at);
        let mut next = Link { number: link.number, chain: record.checksum(header) };
        if trailer != next.chain.to_le_bytes() {
            return Ok(None);
        }
        match kind {
            Kind::Change => next.number = next.number.saturating_add(1),
            Kind::Gap => match Link::from_bytes(&record.body) {
                Some(to) if to.number >= link.number => next = to,
                _ => return Ok(None),
            },
            // The next file continues after the previous record.
            Kind::End => next = link,
            Kind::Begin | Kind::Mark => {}
        }
        self.at += record.bytes();
        Ok(Some(Entry { kind, link, next, at, record }))
    }

    /// Searches for the next complete record with at least the number `least`, and returns its position in the log;
    /// `None` if there is none. Reading then continues at this record, or at the end of the file.
    pub fn search(&mut self, least: u64) -> io::Result<Option<Link>> {
        let (mut window, mut base) = (Vec::new(), self.at);
        self.from.seek(SeekFrom::Start(base))?;
        loop {
            let before = window.len();
            (&mut self.from).take(SEARCHED as u64).read_to_end(&mut window)?;
            let is_end = window.len() == before;
            for i in 0..window.len().saturating_sub(HEADER - 1) {
                let Some(header) =
                    window[i..].first_chunk::<HEADER>().filter(|bytes| bytes.starts_with(&MAGIC))
                else {
                    continue;
                };
                let at = base + i as u64;
                let whole = Header::decode(header).filter(|head| {
                    head.link.number >= least && head.whole().is_some_and(|whole| whole <= self.length - at)
                });
                if let Some(head) = whole {
                    let back = self.from.stream_position()?;
                    self.from.seek(SeekFrom::Start(at + HEADER as u64))?;
                    self.at = at;
                    if self.rest(&head, header)?.is_some() {
                        self.go_to(at)?;
                        return Ok(Some(head.link));
                    }
                    self.from.seek(SeekFrom::Start(back))?;
                }
            }
            if is_end {
                self.go_to(self.length)?;
                return Ok(None);
            }
            let done = window.len().saturating_sub(HEADER - 1);
            window.drain(..done);
            base += done as u64;
        }
    }

    fn go_to(&mut self, at: u64) -> io::Result<()> {
        self.at = at;
        self.from.seek(SeekFrom::Start(at)).map(drop)
    }

    fn is_old(&self, bytes: &[u8]) -> bool {
        self.at == 0 && Header::is_of_version_1(bytes)
    }
}

/// Returns whether `bytes` may be the beginning of the expected record, of which not even the header is complete.
fn may_begin(bytes: &[u8], number: u64, chain: Option<u32>) -> bool {
    let agrees = |at: usize, expected: &[u8]| {
        bytes.iter().skip(at).zip(expected).all(|(found, expected)| found == expected)
    };
    let chain = chain.map(u32::to_le_bytes);
    agrees(0, &MAGIC) && agrees(32, &number.to_le_bytes()) && chain.is_none_or(|chain| agrees(40, &chain))
}
