//! What the pages of a column say of themselves, before they are unpacked.
//!
//! The library makes as much room as a page's header asks for. So headers are read first, and pages that take more than
//! an element may are refused.

use super::plan::ColumnSize;
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
    /// Adds a page of a column whose values are numbers of `width` bytes, or text (`None`); why it is too large, if it is.
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
    /// The header that bytes begin with; `None` if they end before it does, or are none.
    pub(super) fn read(bytes: &[u8]) -> Option<Page> {
        let mut input = Thrift { bytes, next: 0 };
        let mut page = Page::default();
        let mut id = 0;
        while let Some(kind) = input.field(&mut id)? {
            match (id, kind) {
                (1, INT) => page.dictionary = input.number()? == 2,
                (2, INT) => page.unpacked = u64::try_from(input.number()?).ok()?,
                (3, INT) => page.packed = u64::try_from(input.number()?).ok()?,
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

/// Kinds of values in thrift's compact protocol that are looked at.
const INT: u8 = 5;
const STRUCT: u8 = 12;

/// How deep structures may be within each other.
const DEEPEST: usize = 16;

/// Thrift's compact protocol.
struct Thrift<'a> {
    bytes: &'a [u8],
    next: usize,
}

impl Thrift<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.next)?;
        self.next += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for at in 0..10 {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn number(&mut self) -> Option<i64> {
        let zigzag = self.varint()?;
        Some((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64))
    }

    /// The kind of the next field, and in `id` its number; `Some(None)` at the structure's end.
    fn field(&mut self, id: &mut i64) -> Option<Option<u8>> {
        let byte = self.byte()?;
        if byte == 0 {
            return Some(None);
        }
        *id = match byte >> 4 {
            0 => self.number()?,
            more => id.checked_add(i64::from(more))?,
        };
        Some(Some(byte & 0x0f))
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            // Whether it is true stands in the field's head.
            1 | 2 => {}
            3 => drop(self.byte()?),
            4..=6 => drop(self.varint()?),
            7 => self.pass(8)?,
            8 => {
                let len = self.varint()?;
                self.pass(len)?;
            }
            9 | 10 => {
                let head = self.byte()?;
                let len = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                for _ in 0..len {
                    match head & 0x0f {
                        1 | 2 => drop(self.byte()?),
                        kind => self.skip(kind, depth)?,
                    }
                }
            }
            12 => {
                let mut id = 0;
                while let Some(kind) = self.field(&mut id)? {
                    self.skip(kind, depth)?;
                }
            }
            _ => return None,
        }
        Some(())
    }

    fn pass(&mut self, len: u64) -> Option<()> {
        self.next = self.next.checked_add(usize::try_from(len).ok()?)?;
        (self.next <= self.bytes.len()).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dictionary page of 300 bytes, 20 of them packed, with 7 values; a checksum and a statistic besides.
    const HEADER: &[u8] =
        &[0x15, 4, 0x15, 0xd8, 4, 0x15, 40, 0x15, 2, 0x3c, 0x15, 14, 0x15, 0, 0x1c, 0x18, 1, b'x', 0, 0, 0];

    #[test]
    fn headers_say_how_large_pages_are() {
        let page = Page::read(HEADER).unwrap();
        let expected =
            Page { header: HEADER.len() as u64, packed: 20, unpacked: 300, values: 7, dictionary: true };
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
