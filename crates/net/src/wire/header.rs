//! The header of a frame: its kind, and the lengths of its two parts.

use crate::Message;

/// The length of a header: the kind, three zeros, the head's length in 4 bytes and the body's in 8, both
/// little-endian.
pub const HEADER: usize = 16;

/// A unit of transfer on a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A message with its body.
    Data(Message),
    /// A message whose body is in the sender's shared memory. The frame contains a reference to the body instead of the
    /// body.
    Reference(Message),
    /// A sign of life, sent while there is nothing else to send.
    Heartbeat,
    /// The sender has exited gracefully, and sends nothing more.
    Goodbye,
    /// The sender leaves for a new rendezvous, and sends nothing more.
    Leave,
}

/// The kind of a frame, as the first byte of its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A message with its contents: [`Frame::Data`].
    Data = 1,
    /// A sign of life: [`Frame::Heartbeat`].
    Heartbeat = 2,
    /// The orderly end of the connection: [`Frame::Goodbye`].
    Goodbye = 3,
    /// A message whose body is in shared memory: [`Frame::Reference`].
    Reference = 4,
    /// The departure for a new rendezvous: [`Frame::Leave`].
    Leave = 5,
}

/// The maximum lengths of a message's head and body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum length of a head, in bytes.
    pub head: u32,
    /// The maximum length of a body, in bytes.
    pub body: u64,
}

impl Default for Limits {
    /// Returns the limits of 16 MiB for heads and 64 GiB for bodies.
    fn default() -> Self {
        Self { head: 16 << 20, body: 64 << 30 }
    }
}

/// An error in the header or the size of a received frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The kind is unknown, or bytes that must be 0 are not.
    #[error("a frame begins with {0:02x?}, which is not a frame of this protocol")]
    Kind([u8; 4]),
    /// The head is too long.
    #[error("a frame announces a head of {length} bytes, but the maximum is {limit}")]
    Head {
        /// The announced length.
        length: u32,
        /// The maximum length.
        limit: u32,
    },
    /// The body is too long.
    #[error("a frame announces a body of {length} bytes, but the maximum is {limit}")]
    Body {
        /// The announced length.
        length: u64,
        /// The maximum length.
        limit: u64,
    },
    /// A frame of a kind without data announces data.
    #[error("a frame without data announces {0} bytes")]
    NotEmpty(u64),
    /// There is not enough memory for the frame. The field is the number of bytes to allocate.
    #[error("failed to allocate {0} bytes for a part")]
    Memory(usize),
}

/// A header whose lengths were checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of frame.
    pub kind: Kind,
    /// The length of the head in bytes.
    pub head: usize,
    /// The length of the body in bytes.
    pub body: usize,
}

impl Header {
    /// Encodes the header.
    pub fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0] = self.kind as u8;
        bytes[4..8].copy_from_slice(&(self.head as u32).to_le_bytes());
        bytes[8..].copy_from_slice(&(self.body as u64).to_le_bytes());
        bytes
    }

    /// Decodes a header, and compares it with the limits.
    ///
    /// # Errors
    /// - [`WireError::Kind`]: the kind is unknown, or bytes that must be 0 are not.
    /// - [`WireError::NotEmpty`]: a frame of a kind without data announces data.
    /// - [`WireError::Head`]: the head is too long.
    /// - [`WireError::Body`]: the body is too long.
    pub fn decode(bytes: &[u8; HEADER], limits: Limits) -> Result<Self, WireError> {
        let [k0, k1, k2, k3, h0, h1, h2, h3, body @ ..] = *bytes;
        let kind = match [k0, k1, k2, k3] {
            [1, 0, 0, 0] => Kind::Data,
            [2, 0, 0, 0] => Kind::Heartbeat,
            [3, 0, 0, 0] => Kind::Goodbye,
            [4, 0, 0, 0] => Kind::Reference,
            [5, 0, 0, 0] => Kind::Leave,
            other => return Err(WireError::Kind(other)),
        };
        let (head, body) = (u32::from_le_bytes([h0, h1, h2, h3]), u64::from_le_bytes(body));
        if matches!(kind, Kind::Heartbeat | Kind::Goodbye | Kind::Leave) && (head > 0 || body > 0) {
            return Err(WireError::NotEmpty(body.saturating_add(u64::from(head))));
        }
        if head > limits.head {
            return Err(WireError::Head { length: head, limit: limits.head });
        }
        let too_long = WireError::Body { length: body, limit: limits.body };
        if body > limits.body {
            return Err(too_long);
        }
        Ok(Self { kind, head: head as usize, body: usize::try_from(body).map_err(|_| too_long)? })
    }
}
