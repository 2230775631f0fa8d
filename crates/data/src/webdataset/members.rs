//! A reader of the files in a tar file, from its beginning to its end.

use crate::Result;
use crate::file::{ElementLimit, Input};
use std::io::Read;
use tar::{EntryType, Header, PaxExtensions};

/// The alignment of headers and contents in bytes.
const BLOCK: usize = 512;

/// A file that was read from a tar file.
pub(super) struct Member {
    /// The offset of the file's header in the tar file.
    pub(super) offset: u64,
    pub(super) name: Vec<u8>,
    pub(super) bytes: Vec<u8>,
}

/// A reader of the files in a tar file.
///
/// The crate `tar` parses the headers. Its `Archive` is not used, because an iterator cannot contain both an archive
/// and entries that borrow from it. The errors of `Archive` also do not contain the offset in the file.
pub(super) struct Members<R> {
    pub(super) input: Input<R>,
    pub(super) limit: ElementLimit,
    /// Whether the block that was read last in place of a header was empty. An empty block ends an archive, but another
    /// archive may follow.
    pub(super) ended: bool,
    /// The name of the file that was read last. After an error, this is the name of the file with the error; `None` if
    /// the error occurred before that name was known.
    pub(super) reading: Option<Vec<u8>>,
}

impl<R: Read> Members<R> {
    pub(super) fn new(input: Input<R>, limit: ElementLimit) -> Self {
        Self { input, limit, ended: false, reading: None }
    }

    /// Reads the next file, and skips folders and links. Returns `None` at the end. If a name is too long for a header,
    /// it is taken from the GNU or PAX extension that precedes the file.
    pub(super) fn next(&mut self) -> Result<Option<Member>> {
        let (mut name, mut size): (Option<Vec<u8>>, _) = (None, None);
        self.reading = None;
        loop {
            let Some((offset, header)) = self.header()? else { return Ok(None) };
            let kind = header.entry_type();
            let stated = header.entry_size().map_err(|e| self.input.damaged_at(offset, e.to_string()))?;
            let of_file = !(kind.is_gnu_longname() || kind.is_gnu_longlink() || is_pax(kind));
            if let EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse = kind {
                self.reading = Some(name.clone().unwrap_or_else(|| header.path_bytes().into_owned()));
            }
            let bytes = self.contents(offset, size.filter(|_| of_file).unwrap_or(stated))?;
            match kind {
                EntryType::GNULongName => {
                    name = Some(bytes.split(|b| *b == 0).next().unwrap_or(&[]).to_vec())
                }
                EntryType::XHeader => {
                    for extension in PaxExtensions::new(&bytes) {
                        let extension =
                            extension.map_err(|e| self.input.damaged_at(offset, e.to_string()))?;
                        match extension.key_bytes() {
                            b"path" => name = Some(extension.value_bytes().to_vec()),
                            b"size" => {
                                let bad = || self.input.damaged_at(offset, "a PAX size that is not a number");
                                let text = std::str::from_utf8(extension.value_bytes());
                                size = Some(text.ok().and_then(|s| s.parse().ok()).ok_or_else(bad)?);
                            }
                            _ => {}
                        }
                    }
                }
                EntryType::Regular | EntryType::Continuous => {
                    let name = name.unwrap_or_else(|| header.path_bytes().into_owned());
                    return Ok(Some(Member { offset, name, bytes }));
                }
                EntryType::GNUSparse => {
                    return Err(self.input.damaged_at(offset, "sparse files are not supported"));
                }
                // A name or size from an earlier member belonged to this one.
                _ if of_file => (name, size) = (None, None),
                _ => {}
            }
        }
    }

    /// Reads the next header; `None` at the end of the tar file. Several archives may follow each other, as `cat`
    /// joins them.
    fn header(&mut self) -> Result<Option<(u64, Header)>> {
        let (offset, block) = loop {
            let offset = self.input.offset();
            let Some(block) = self.input.array_or_end::<BLOCK>()? else { return Ok(None) };
            self.ended = block == [0; BLOCK];
            if !self.ended {
                break (offset, block);
            }
        };
        let mut header = Header::new_old();
        header.as_mut_bytes().copy_from_slice(&block);
        // The checksum is computed with blanks at its own position.
        let own = 148..156;
        let sum: u32 = block
            .iter()
            .enumerate()
            .map(|(at, b)| u32::from(if own.contains(&at) { b' ' } else { *b }))
            .sum();
        match header.cksum() {
            Ok(stated) if stated == sum => Ok(Some((offset, header))),
            _ => Err(self.input.damaged_at(
                offset,
                "this is not the header of a tar file: its checksum is \
                                                    wrong",
            )),
        }
    }

    /// Reads contents of `size` bytes, which follow the header at `offset`.
    fn contents(&mut self, offset: u64, size: u64) -> Result<Vec<u8>> {
        self.limit.check("this file", size).map_err(|what| self.input.damaged_at(offset, what))?;
        let bytes = self.input.bytes(size)?;
        let blank = bytes.len().next_multiple_of(BLOCK) - bytes.len();
        self.input.bytes(blank as u64)?;
        Ok(bytes)
    }
}

fn is_pax(kind: EntryType) -> bool {
    kind.is_pax_global_extensions() || kind.is_pax_local_extensions()
}
