//! The headers of pages, which are read before the pages are decompressed.
//!
//! The library allocates as much memory as a page's header states. Headers are therefore read first, and pages that
//! exceed the limit for one element are rejected.

use super::plan::ColumnSize;
use super::thrift::{INT, STRUCT, Thrift};
use crate::file::ElementLimit;

/// The relevant contents of a page header.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Page {
    /// The length of the header in bytes.
    pub(super) header: u64,
    /// The number of compressed bytes that follow the header.
    pub(super) packed: u64,
    /// The number of bytes of the page after decompression.
    pub(super) unpacked: u64,
    /// The number of values, including null and repeated ones.
    pub(super) values: u64,
    /// Whether the page is a dictionary, whose values later pages refer to by index.
    pub(super) dictionary: bool,
    /// The checksum of the bytes after the header; `None` if the page has none.
    pub(super) checksum: Option<u32>,
}

/// The memory that the pages of a column in a row group may occupy, computed page by page.
#[derive(Debug, Default)]
pub(super) struct Widest {
    /// An upper bound in bytes on the longest text of the dictionary; 0 if there is no dictionary.
    pub(super) entry: u64,
    /// The average size in bytes of a text in the dictionary page, rounded down, without [`TEXT`]; 0 if there is no
    /// dictionary.
    average: u64,
    /// The memory that the column's values occupy.
    pub(super) size: ColumnSize,
}

/// The memory in bytes that a text occupies in addition to its contents.
const TEXT: u64 = size_of::<Vec<u8>>() as u64;

impl Widest {
    /// Adds a page. `width` is the size in bytes of the column's numbers, or `None` for text.
    ///
    /// # Errors
    ///
    /// Returns a message if the page is too large.
    pub(super) fn add(&mut self, page: &Page, width: Option<u64>, limit: ElementLimit) -> Result<(), String> {
        limit.check("a page", page.unpacked)?;
        match width {
            None if page.dictionary => {
                self.entry = self.entry.max(page.unpacked);
                self.average = page.unpacked / page.values.max(1);
            }
            None => {
                let texts = page.values.saturating_mul(self.average).max(page.unpacked);
                self.size.add(page.values, texts.saturating_add(page.values.saturating_mul(TEXT)));
            }
            Some(_) if page.dictionary => {}
            Some(width) => self.size.add(page.values, page.values.saturating_mul(width)),
        }
        // Run-length encoding can state many numbers in a few bytes.
        limit.check("a page's values", page.values.saturating_mul(width.unwrap_or(1)))
    }
}

impl Page {
    /// Parses the page header at the beginning of `bytes`. Returns `None` if it is incomplete or invalid.
    pub(super) fn read(bytes: &[u8]) -> Option<Page> {
        let mut input = Thrift::new(bytes);
        let mut page = Page::default();
        let mut id = 0;
        while let Some(kind) = input.field(&mut id)? {
            match (id, kind) {
                (1, INT) => page.dictionary = input.number()? == 2,
                (2, INT) => page.unpacked = u64::try_from(input.number()?).ok()?,
                (3, INT) => page.packed = u64::try_from(input.number()?).ok()?,
                (4, INT) => page.checksum = Some(input.number()? as u32),
                // The header of a data page, a dictionary page or a data page of version 2: field 1 is the
                // number of values.
                (5 | 7 | 8, STRUCT) => {
                    let mut inner = 0;
                    while let Some(kind) = input.field(&mut inner)? {
                        match (inner, kind) {
                            (1, INT) => page.values = u64::try_from(input.number()?).ok()?,
                            (_, kind) => input.skip(kind, MAX_DEPTH)?,
                        }
                    }
                }
                (_, kind) => input.skip(kind, MAX_DEPTH)?,
            }
        }
        page.header = input.next as u64;
        Some(page)
    }
}

/// The maximum nesting depth of structures in a header.
const MAX_DEPTH: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// A header of a dictionary page of 300 bytes, compressed to 20, with 7 values, a checksum and a
    /// statistic.
    const HEADER: &[u8] =
        &[0x15, 4, 0x15, 0xd8, 4, 0x15, 40, 0x15, 2, 0x3c, 0x15, 14, 0x15, 0, 0x1c, 0x18, 1, b'x', 0, 0, 0];

    #[test]
    fn headers_say_how_large_pages_are() {
        let page = Page::read(HEADER).unwrap();
        let expected = Page {
            header: HEADER.len() as u64,
            packed: 20,
            unpacked: 300,
            values: 7,
            dictionary: true,
            checksum: Some(1),
        };
        assert_eq!(page, expected);
        for len in 0..HEADER.len() {
            assert_eq!(Page::read(&HEADER[..len]), None, "{len}");
        }
        let mut longer = HEADER.to_vec();
        longer.push(9);
        assert_eq!(Page::read(&longer), Some(expected));
    }

    #[test]
    fn pages_beyond_the_limit_are_refused() {
        let limit = ElementLimit::new("limit").of(1000);
        let page = |unpacked, values| Page { unpacked, values, dictionary: true, ..Page::default() };
        let mut widest = Widest::default();
        widest.add(&page(900, 100), Some(8), limit).unwrap();
        assert_eq!(widest.entry, 0, "a number is no longer for being one of many");
        widest.add(&page(900, 100), None, limit).unwrap();
        assert_eq!(widest.entry, 900);
        assert!(widest.add(&page(1001, 1), Some(8), limit).unwrap_err().starts_with("a page takes"));
        assert!(widest.add(&page(10, 126), Some(8), limit).unwrap_err().starts_with("a page's values"));
    }
}
