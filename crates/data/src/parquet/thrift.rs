//! A parser of Thrift's compact protocol, as far as page headers and footers need it.

/// The code of an integer of any width.
pub(super) const INT: u8 = 5;
pub(super) const STRUCT: u8 = 12;
pub(super) const LIST: u8 = 9;
pub(super) const SET: u8 = 10;

/// A parser of Thrift's compact protocol.
pub(super) struct Thrift<'a> {
    bytes: &'a [u8],
    pub(super) next: usize,
}

impl<'a> Thrift<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, next: 0 }
    }

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

    pub(super) fn number(&mut self) -> Option<i64> {
        let zigzag = self.varint()?;
        Some((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64))
    }

    /// Returns the kind of the next field, and sets `id` to its number. Returns `Some(None)` at the end of the
    /// structure, and `None` if the bytes end or a number overflows.
    pub(super) fn field(&mut self, id: &mut i64) -> Option<Option<u8>> {
        let byte = self.byte()?;
        if byte == 0 {
            return Some(None);
        }
        *id = match byte >> 4 {
            0 => self.number()?,
            more => id.checked_add(i64::from(more))?,
        };
        // The library accepts integers of any width for each other.
        Some(Some(match byte & 0x0f {
            4 | 6 => INT,
            kind => kind,
        }))
    }

    pub(super) fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            // The value of a boolean is in the field's header.
            1 | 2 => {}
            3 => drop(self.byte()?),
            4..=6 => drop(self.varint()?),
            7 => self.pass(8)?,
            8 => {
                let len = self.varint()?;
                self.pass(len)?;
            }
            LIST | SET => {
                let (kind, len) = self.list()?;
                for _ in 0..len {
                    match kind {
                        1 | 2 => drop(self.byte()?),
                        kind => self.skip(kind, depth)?,
                    }
                }
            }
            STRUCT => {
                let mut id = 0;
                while let Some(kind) = self.field(&mut id)? {
                    self.skip(kind, depth)?;
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// Reads the header of a list or set. Returns the kind and the number of its elements.
    pub(super) fn list(&mut self) -> Option<(u8, u64)> {
        let head = self.byte()?;
        let len = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
        Some((head & 0x0f, len))
    }

    fn pass(&mut self, len: u64) -> Option<()> {
        self.next = self.next.checked_add(usize::try_from(len).ok()?)?;
        (self.next <= self.bytes.len()).then_some(())
    }
}
