//! An incremental decoder of words.

use super::words::{LONGEST, MAGIC};
use super::{Reason, Refusal, VERSION, Words};

/// The length of the magic and the version, in bytes.
pub const PREAMBLE: usize = MAGIC.len() + 2;

/// Returns the bytes that a side sends before its first words.
pub fn preamble() -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes()].concat()
}

/// An incremental decoder of words. It never reads past the expected words, because frames follow the last
/// ones. It holds at most [`LONGEST`] bytes, whatever length is announced.
#[derive(Debug)]
pub struct Hearing {
    bytes: Vec<u8>,
    filled: usize,
    part: Part,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    Preamble,
    Length,
    Words,
}

impl Default for Hearing {
    fn default() -> Self {
        Self { bytes: vec![0; PREAMBLE], filled: 0, part: Part::Preamble }
    }
}

impl Hearing {
    /// Returns the buffer to read into, which is never empty.
    pub fn buffer(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    /// Advances by `read` bytes that were read into the buffer. Returns words once they are complete.
    ///
    /// # Errors
    /// Returns the refusal to send to the other side if the bytes are not of this protocol.
    pub fn advance(&mut self, read: usize) -> Result<Option<Words>, Refusal> {
        self.filled = self.bytes.len().min(self.filled + read);
        if self.part == Part::Preamble {
            let magic = self.filled.min(MAGIC.len());
            if self.bytes[..magic] != MAGIC[..magic] {
                return Err(Refusal::protocol());
            }
        }
        if self.filled < self.bytes.len() {
            return Ok(None);
        }
        match (self.part, &self.bytes[..]) {
            (Part::Preamble, [.., low, high]) => {
                let theirs = u16::from_le_bytes([*low, *high]);
                if theirs != VERSION {
                    return Err(Refusal::new(
                        Reason::Version,
                        format!(
                            "one task speaks version {theirs} of the protocol and the other version {VERSION}: start all \
                             tasks from the same build"
                        ),
                    ));
                }
                self.expect(2, Part::Length);
                Ok(None)
            }
            (Part::Length, &[low, high]) => {
                let length = usize::from(u16::from_le_bytes([low, high]));
                if !(1..=LONGEST).contains(&length) {
                    return Err(Refusal::protocol());
                }
                self.expect(length, Part::Words);
                Ok(None)
            }
            (_, bytes) => {
                let words = Words::decode(bytes).map_err(|_| Refusal::protocol())?;
                self.expect(2, Part::Length);
                Ok(Some(words))
            }
        }
    }

    fn expect(&mut self, length: usize, part: Part) {
        (self.filled, self.part) = (0, part);
        self.bytes.clear();
        self.bytes.resize(length, 0);
    }
}
