//! An incremental decoder of handshake messages.

use super::words::{LONGEST, MAGIC};
use super::{Reason, Refusal, VERSION, Words};

/// The length in bytes of the magic number and the version.
pub const PREAMBLE: usize = MAGIC.len() + 2;

/// Returns the bytes that a side sends before its first message: the magic number and the version.
pub fn preamble() -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes()].concat()
}

/// An incremental decoder of handshake messages. It never reads past the expected message, because frames follow the
/// last message. It buffers at most [`LONGEST`] bytes, whatever length is announced.
#[derive(Debug)]
pub struct HandshakeDecoder {
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

impl Default for HandshakeDecoder {
    fn default() -> Self {
        Self { bytes: vec![0; PREAMBLE], filled: 0, part: Part::Preamble }
    }
}

impl HandshakeDecoder {
    /// Returns the buffer to read into. It is empty only after [`advance`](Self::advance) has failed.
    pub fn buffer(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    /// Records that `read` bytes were read into the buffer. Returns a message once it is complete.
    ///
    /// # Errors
    /// Returns the refusal to send to the other side if the bytes are not valid in this protocol, or if the other side
    /// uses a different version.
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
                            "one task uses version {theirs} of the protocol and the other version \
                             {VERSION}: start all tasks from the same build"
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
