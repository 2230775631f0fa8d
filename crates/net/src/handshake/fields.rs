//! An encoding of numbers, bytes and texts for handshake messages and other small messages.

/// An error that received bytes are malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is truncated, too long, or not text")]
pub struct Malformed;

/// An encoder of fields.
#[derive(Debug, Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// Writes a number as 8 little-endian bytes.
    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes bytes without their length, which the reader must know.
    pub fn fixed(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Writes a text after its length in 2 bytes. A text of more than 65,535 bytes is truncated at a character
    /// boundary.
    pub fn text(&mut self, text: &str) {
        let text = &text[..text.floor_char_boundary(usize::from(u16::MAX))];
        self.0.extend_from_slice(&(text.len() as u16).to_le_bytes());
        self.0.extend_from_slice(text.as_bytes());
    }
}

/// A decoder of fields. It allocates nothing.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// Reads `N` bytes, without a length before them.
    ///
    /// # Errors
    /// Returns [`Malformed`] if there are fewer bytes.
    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*bytes)
    }

    /// Reads a number of 8 little-endian bytes.
    ///
    /// # Errors
    /// Returns [`Malformed`] if the number is incomplete.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.fixed().map(u64::from_le_bytes)
    }

    /// Reads a count of items, and converts it to `usize`.
    ///
    /// # Errors
    /// Returns [`Malformed`] if the number is incomplete or too large.
    pub fn count(&mut self) -> Result<usize, Malformed> {
        usize::try_from(self.u64()?).map_err(|_| Malformed)
    }

    /// Reads a text of at most `limit` bytes, after its length in 2 bytes.
    ///
    /// # Errors
    /// Returns [`Malformed`] if the text is incomplete, longer, or not UTF-8.
    pub fn text(&mut self, limit: usize) -> Result<&'a str, Malformed> {
        let length = usize::from(u16::from_le_bytes(self.fixed()?));
        if length > limit {
            return Err(Malformed);
        }
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        std::str::from_utf8(bytes).map_err(|_| Malformed)
    }

    /// Checks that all bytes have been read.
    ///
    /// # Errors
    /// Returns [`Malformed`] if bytes are left.
    pub fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}
