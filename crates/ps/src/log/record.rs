//! A record of a log as bytes. Pure.

use bytes::Bytes;

/// The bytes before head and body: their lengths, client, sequence, and the checksum of these.
pub(super) const HEADER: usize = 32;

/// The bytes after them: their checksum.
pub(super) const TRAILER: usize = 4;

/// A change, or that the change before with these numbers was refused after all: then head and body are empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Whose change it is.
    pub client: u64,
    /// Its number.
    pub sequence: u64,
    /// The request's head.
    pub head: Bytes,
    /// The request's body.
    pub body: Bytes,
}

/// How long head and body of a record are, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub head: u64,
    pub body: u64,
    pub client: u64,
    pub sequence: u64,
}

impl Record {
    /// What stands before head and body; `None` if a head is longer than any that comes over a connection.
    pub(super) fn header(&self) -> Option<[u8; HEADER]> {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&u32::try_from(self.head.len()).ok()?.to_le_bytes());
        bytes[4..12].copy_from_slice(&(self.body.len() as u64).to_le_bytes());
        bytes[12..20].copy_from_slice(&self.client.to_le_bytes());
        bytes[20..28].copy_from_slice(&self.sequence.to_le_bytes());
        let sum = crc32c::crc32c(&bytes[..28]);
        bytes[28..].copy_from_slice(&sum.to_le_bytes());
        Some(bytes)
    }

    /// What stands after them.
    pub(super) fn trailer(&self) -> [u8; TRAILER] {
        crc32c::crc32c_append(crc32c::crc32c(&self.head), &self.body).to_le_bytes()
    }

    /// How many bytes it takes.
    pub(crate) fn bytes(&self) -> u64 {
        (HEADER + TRAILER + self.head.len() + self.body.len()) as u64
    }

    /// Whether it takes the change of the same numbers back.
    pub(crate) fn is_refusal(&self) -> bool {
        self.head.is_empty()
    }
}

impl Header {
    /// What these bytes say, if their checksum is right.
    pub fn decode(bytes: &[u8; HEADER]) -> Option<Self> {
        let number = |at: usize| bytes[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let small = |at: usize| bytes[at..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        if small(28)? != crc32c::crc32c(&bytes[..28]) {
            return None;
        }
        Some(Self { head: small(0)?.into(), body: number(4)?, client: number(12)?, sequence: number(20)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_header_comes_back_and_a_changed_one_is_none(
            lengths in (0usize..99, 0usize..99),
            numbers: (u64, u64),
            at in 0usize..HEADER,
            bits in 1u8..,
        ) {
            let (head, body) = (vec![1; lengths.0].into(), vec![2; lengths.1].into());
            let record = Record { client: numbers.0, sequence: numbers.1, head, body };
            let mut bytes = record.header().unwrap();
            let header = Header::decode(&bytes).unwrap();
            prop_assert_eq!((header.head, header.body), (lengths.0 as u64, lengths.1 as u64));
            prop_assert_eq!((header.client, header.sequence), numbers);
            bytes[at] ^= bits;
            prop_assert_eq!(Header::decode(&bytes), None);
        }
    }
}
