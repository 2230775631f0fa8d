//! What the pages of a column say of themselves, before they are unpacked.
//!
//! The library makes as much room as a page's header asks for. So headers are read first, and pages that take more than
//! an element may are refused.

use super::plan::ColumnSize;
use super::thrift::{INT, STRUCT, Thrift};
use crate::file::ElementLimit;

/// The header of a page, as far as it is asked for.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Page {
    /// How long the header is.
    pub(super) header: u64,
    /// How many bytes follow it.
    pub(super) packed: u64,
    /// What these are unpacked.
    pub(super) unpacked: u64,
    /// How many values it has, those that are null or repeated included.
    pub(super) values: u64,
    /// Whether its values are those that later pages mean by numbers.
    pub(super) dictionary: bool,
    /// The checksum of the bytes that follow the header.
    pub(super) checksum: Option<u32>,
}

/// The memory that the pages of a column of a row group so far can take.
#[derive(Debug, Default)]
pub(super) struct Widest {
    /// What the longest text of a dictionary may take.
    pub(super) entry: u64,
    /// The memory that a text of the dictionary takes on average.
    average: u64,
    /// The memory that the values take.
    pub(super) size: ColumnSize,
}

/// The memory that a text takes in addition to its bytes.
const TEXT: u64 = size_of::<Vec<u8>>() as u64;

impl Widest {
    /// Adds a page of a column whose values are numbers of `width` bytes, or text (`None`); why it is too
    /// large, if it is.
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
        // Numbers can be said to come again and again in a few bytes.
        limit.check("a page's values", page.values.saturating_mul(width.unwrap_or(1)))
    }
}

impl Page {
    /// Returns the header that bytes begin with; `None` if they end before it does, or are none.
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
                // Of a data page, a dictionary or a data page of the second kind: how many values is field 1.
                (5 | 7 | 8, STRUCT) => {
                    let mut inner = 0;
                    while let Some(kind) = input.field(&mut inner)? {
                        match (inner, kind) {
                            (1, INT) => page.values = u64::try_from(input.number()?).ok()?,
                            (_, kind) => input.skip(kind, DEEPEST)?,
                        }
                    }
                }
                (_, kind) => input.skip(kind, DEEPEST)?,
            }
        }
        page.header = input.next as u64;
        Some(page)
    }
}

/// How deep structures may be within each other.
const DEEPEST: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// A dictionary page of 300 bytes, 20 of them packed, with 7 values; a checksum and a statistic besides.
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
