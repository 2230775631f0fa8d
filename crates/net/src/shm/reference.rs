//! A reference to a body, which is sent instead of the body. This module contains only pure functions and values.

use super::layout::SLOTS;
use crate::handshake::fields::{Malformed, Reader, Writer};
use bytes::Bytes;

/// A reference to a body: its location in the sender's memory, and the numbers with which the receiver returns the
/// loan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// The id of the sender's memory, which is never reused.
    pub segment: u64,
    /// The file descriptor, the inode number and the size of the memory's file.
    pub descriptor: u32,
    pub inode: u64,
    pub size: u64,
    /// The offset and the length of the body in the memory.
    pub offset: u64,
    pub length: u64,
    /// The slot and the id of the loan.
    pub slot: u32,
    pub loan: u64,
}

impl Reference {
    /// Encodes the reference.
    pub fn encode(&self) -> Bytes {
        let mut fields = Writer::default();
        fields.fixed(&self.descriptor.to_le_bytes());
        fields.fixed(&self.slot.to_le_bytes());
        for number in [self.segment, self.inode, self.size, self.offset, self.length, self.loan] {
            fields.u64(number);
        }
        fields.0.into()
    }

    /// Decodes a reference.
    ///
    /// # Errors
    /// - [`BadReference::Malformed`]: the bytes are not a reference.
    /// - [`BadReference::Slot`]: the slot does not exist.
    /// - [`BadReference::Outside`]: the body is not inside the memory.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadReference> {
        let mut fields = Reader(bytes);
        let (descriptor, slot) = (fields.fixed()?, fields.fixed()?);
        let (descriptor, slot) = (u32::from_le_bytes(descriptor), u32::from_le_bytes(slot));
        let (segment, inode, size) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let (offset, length, loan) = (fields.u64()?, fields.u64()?, fields.u64()?);
        fields.end()?;
        if slot as usize >= SLOTS {
            return Err(BadReference::Slot(slot));
        }
        match offset.checked_add(length) {
            Some(end) if end <= size => {}
            _ => return Err(BadReference::Outside { segment, offset, length, size }),
        }
        Ok(Self { segment, descriptor, inode, size, offset, length, slot, loan })
    }
}

/// An error in a reference that another worker has sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadReference {
    #[error("a reference to its memory is malformed: {0}")]
    Malformed(#[from] Malformed),
    #[error("it uses slot {0}, but there are {SLOTS}")]
    Slot(u32),
    #[error("it refers to {length} bytes from {offset} on of its memory {segment}, which has {size}")]
    Outside { segment: u64, offset: u64, length: u64, size: u64 },
    #[error("it refers to {length} bytes of its memory, but the maximum is {limit}")]
    TooLong { length: u64, limit: u64 },
    #[error("its memory {segment} cannot be opened: {source}")]
    NotOpened { segment: u64, source: std::io::Error },
    #[error("it refers to memory {0} at another location than before")]
    Changed(u64),
    #[error("it refers to more than {0} memories at once")]
    TooMany(usize),
    #[error("it refers to shared memory, but shares none")]
    NotShared,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reference() -> Reference {
        Reference {
            segment: 7,
            descriptor: 5,
            inode: 900,
            size: 4096,
            offset: 96,
            length: 4000,
            slot: 255,
            loan: 3,
        }
    }

    #[test]
    fn references_come_back_from_their_bytes() {
        assert_eq!(Reference::decode(&reference().encode()).unwrap(), reference());
    }

    // INV-32
    #[test]
    fn a_reference_outside_the_memory_is_refused() {
        for bad in [
            Reference { offset: 97, ..reference() },
            Reference { offset: u64::MAX, ..reference() },
            Reference { length: u64::MAX - 95, ..reference() },
            Reference { size: 4095, ..reference() },
        ] {
            assert!(matches!(Reference::decode(&bad.encode()), Err(BadReference::Outside { .. })), "{bad:?}");
        }
        let bad = Reference { slot: 256, ..reference() };
        assert!(matches!(Reference::decode(&bad.encode()), Err(BadReference::Slot(256))));
        let bytes = reference().encode();
        for bytes in [&bytes[1..], &[&bytes[..], &[0]].concat(), &[]] {
            assert!(matches!(Reference::decode(bytes), Err(BadReference::Malformed(_))));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_reference_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(reference) = Reference::decode(&bytes) {
                prop_assert!(reference.offset + reference.length <= reference.size);
            }
        }
    }
}
