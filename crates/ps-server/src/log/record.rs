//! The encoding of the records of a log.

use bytes::Bytes;

/// The first bytes of each record, by which a reader finds the next record after damage.
pub(super) const MAGIC: [u8; 4] = *b"dps2";

/// The size in bytes of a record's header.
pub(super) const HEADER: usize = 52;

/// The size in bytes of a record's trailer, which is the checksum of the record.
pub(super) const TRAILER: usize = 4;

/// The contents of a record: a change, or the data of another [`Kind`] in `body`. A change without head and body states
/// that the earlier change with the same client and number was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The client of the change.
    pub client: u64,
    /// The sequence number that the client gave the change.
    pub sequence: u64,
    /// The head of the request.
    pub head: Bytes,
    /// The body of the request.
    pub body: Bytes,
}

/// The kind of a record. Only changes are numbered; records of other kinds have the number of the next change. Those
/// are written by the server or by a repair of the log, not for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A change.
    Change = 0,
    /// A server begins or continues here. Each file begins with such a record. Its body identifies the boot of the
    /// machine.
    Begin = 1,
    /// All changes before this record were acknowledged, so invalid bytes before it are not a torn end.
    Mark = 2,
    /// The log continues in another file.
    End = 3,
    /// A repair has removed damage here. The body contains the position at which the log continues.
    Gap = 4,
}

/// The position of a record in its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// The number of the record; for records other than changes, the number of the next change.
    pub number: u64,
    /// The checksum of the previous record.
    pub chain: u32,
}

/// The header of a record: its kind, the lengths of head and body, client, sequence, position, and a checksum
/// of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub kind: Kind,
    pub head: u64,
    pub body: u64,
    pub client: u64,
    pub sequence: u64,
    pub link: Link,
}

impl Record {
    /// Creates a record that belongs to no client, but to the log itself.
    pub(super) fn of_log(body: Bytes) -> Self {
        Self { client: 0, sequence: 0, head: Bytes::new(), body }
    }

    /// Returns the encoded header; `None` if the head is too long for the header.
    pub(super) fn header(&self, kind: Kind, link: Link) -> Option<[u8; HEADER]> {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&u32::try_from(self.head.len()).ok()?.to_le_bytes());
        bytes[8..16].copy_from_slice(&(self.body.len() as u64).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.client.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[32..40].copy_from_slice(&link.number.to_le_bytes());
        bytes[40..44].copy_from_slice(&link.chain.to_le_bytes());
        bytes[44..48].copy_from_slice(&(kind as u32).to_le_bytes());
        let sum = crc32c::crc32c(&bytes[..48]);
        bytes[48..].copy_from_slice(&sum.to_le_bytes());
        Some(bytes)
    }

    /// Returns the encoded record; `None` if the head is too long for the header.
    pub(super) fn encoded(&self, kind: Kind, link: Link) -> Option<Vec<u8>> {
        let header = self.header(kind, link)?;
        let trailer = self.checksum(&header).to_le_bytes();
        Some([&header[..], &self.head, &self.body, &trailer].concat())
    }

    /// Returns the checksum of the record, which is in the record's trailer and in the next record's header.
    pub(super) fn checksum(&self, header: &[u8; HEADER]) -> u32 {
        // The header's own checksum is excluded: with it, the result would be the same for all headers.
        let sum = crc32c::crc32c_append(crc32c::crc32c(&header[..HEADER - 4]), &self.head);
        crc32c::crc32c_append(sum, &self.body)
    }

    /// Returns the size of the encoded record in bytes, including header and trailer.
    pub(crate) fn bytes(&self) -> u64 {
        (HEADER + TRAILER + self.head.len() + self.body.len()) as u64
    }

    /// Returns whether the record revokes an earlier change with the same client and number.
    pub(crate) fn is_refusal(&self) -> bool {
        self.head.is_empty()
    }
}

impl Header {
    /// Decodes a header; `None` if its first bytes, its checksum or its kind are not valid.
    pub fn decode(bytes: &[u8; HEADER]) -> Option<Self> {
        if bytes[..4] != MAGIC || small(bytes, 48)? != crc32c::crc32c(&bytes[..48]) {
            return None;
        }
        let kind = match small(bytes, 44)? {
            0 => Kind::Change,
            1 => Kind::Begin,
            2 => Kind::Mark,
            3 => Kind::End,
            4 => Kind::Gap,
            _ => return None,
        };
        let link = Link { number: number(bytes, 32)?, chain: small(bytes, 40)? };
        Some(Self {
            kind,
            head: small(bytes, 4)?.into(),
            body: number(bytes, 8)?,
            client: number(bytes, 16)?,
            sequence: number(bytes, 24)?,
            link,
        })
    }

    /// Returns the size of the encoded record in bytes; `None` if it overflows.
    pub fn whole(&self) -> Option<u64> {
        self.head.checked_add(self.body)?.checked_add((HEADER + TRAILER) as u64)
    }

    /// Returns whether a file begins like a log in version 1 of the format, whose records are different.
    pub fn is_of_version_1(bytes: &[u8]) -> bool {
        bytes.len() >= 32 && small(bytes, 28).is_some_and(|sum| sum == crc32c::crc32c(&bytes[..28]))
    }
}

impl Link {
    /// Encodes the position, as it is stored in a [`Kind::Gap`].
    pub(super) fn to_bytes(self) -> Bytes {
        [&self.number.to_le_bytes()[..], &self.chain.to_le_bytes()].concat().into()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        (bytes.len() == 12).then_some(Self { number: number(bytes, 0)?, chain: small(bytes, 8)? })
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn small(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
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
            link: (u64, u32),
            at in 0usize..HEADER,
            bits in 1u8..,
        ) {
            let (head, body) = (vec![1; lengths.0].into(), vec![2; lengths.1].into());
            let record = Record { client: numbers.0, sequence: numbers.1, head, body };
            let link = Link { number: link.0, chain: link.1 };
            let mut bytes = record.header(Kind::Mark, link).unwrap();
            let header = Header::decode(&bytes).unwrap();
            prop_assert_eq!((header.head, header.body), (lengths.0 as u64, lengths.1 as u64));
            prop_assert_eq!((header.client, header.sequence), numbers);
            prop_assert_eq!((header.kind, header.link), (Kind::Mark, link));
            prop_assert_eq!(Link::from_bytes(&link.to_bytes()), Some(link));
            bytes[at] ^= bits;
            prop_assert_eq!(Header::decode(&bytes), None);
        }
    }
}
