//! The parsing of records in bytes that have been read.

use super::checksum::masked_crc;
use std::ops::Range;

/// The number of bytes of a record before its data: the length and its checksum.
pub(super) const HEADER: usize = 12;
/// The number of bytes of a record after its data: the checksum.
pub(super) const FOOTER: usize = 4;

/// The result of parsing the record at a position in some bytes.
#[derive(Debug, PartialEq)]
pub(super) enum Frame {
    /// A complete record with matching checksums: the range of its data, and the start of the next record.
    Whole { data: Range<usize>, next: usize },
    /// The beginning of a record that needs at least `needs` bytes.
    Incomplete { needs: usize },
    /// A record whose data does not match its checksum: the start of the next record, and the message.
    Damaged { next: usize, what: String },
    /// Bytes that are not a record, so that the start of the next one is unknown: the message.
    Broken(String),
}

impl Frame {
    /// Parses the record that begins at byte `start`.
    pub(super) fn at(bytes: &[u8], start: usize) -> Frame {
        let bytes = bytes.get(start..).unwrap_or_default();
        let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
            return Frame::Incomplete { needs: HEADER };
        };
        let Some((stored, rest)) = rest.split_first_chunk::<4>() else {
            return Frame::Incomplete { needs: HEADER };
        };
        if let Err(what) = compare("length", masked_crc(length), *stored) {
            return Frame::Broken(what);
        }
        let length = u64::from_le_bytes(*length);
        // Beyond this length, no memory could hold it together with the bytes before it.
        let Some(len) = usize::try_from(length).ok().filter(|len| *len <= isize::MAX as usize / 2) else {
            return Frame::Broken(format!("a length of {length} bytes is too long"));
        };
        let Some((data, rest)) = rest.split_at_checked(len) else {
            return Frame::Incomplete { needs: HEADER + len + FOOTER };
        };
        let Some(stored) = rest.first_chunk::<4>() else {
            return Frame::Incomplete { needs: HEADER + len + FOOTER };
        };
        let compared = compare("data", masked_crc(data), *stored);
        let data = start + HEADER..start + HEADER + len;
        let next = data.end + FOOTER;
        match compared {
            Ok(()) => Frame::Whole { next, data },
            Err(what) => Frame::Damaged { next, what },
        }
    }
}

/// Returns whether `head` is the beginning of an uncompressed TFRecord file. It must contain at least the first
/// 12 bytes, or the complete file. Either the checksum of the first length must match, or the file must be empty.
pub(super) fn starts(head: &[u8]) -> bool {
    match head.split_first_chunk::<8>().map(|(length, rest)| (length, rest.first_chunk::<4>())) {
        Some((length, Some(stored))) => compare("length", masked_crc(length), *stored).is_ok(),
        _ => head.is_empty(),
    }
}

fn compare(part: &str, found: u32, stored: [u8; 4]) -> Result<(), String> {
    let stored = u32::from_le_bytes(stored);
    if found == stored {
        Ok(())
    } else {
        Err(format!(
            "the checksum of its {part} is {found:08x}, but {stored:08x} is stored: the file is damaged, \
             or is not a TFRecord file, or has another compression than the given one"
        ))
    }
}

/// Returns the message for a file that ends within a record. `found` is the number of bytes of the record that
/// exist, `needs` the number that it needs.
pub(super) fn truncated(found: usize, needs: usize) -> String {
    if found < HEADER {
        format!("the file ends after {found} of the {HEADER} bytes of its header")
    } else {
        format!(
            "the file ends after {} of the {} bytes of its data and their checksum",
            found - HEADER,
            needs.saturating_sub(HEADER)
        )
    }
}

/// Returns the bytes that precede and follow `data` in a record.
pub(super) fn around(data: &[u8]) -> ([u8; HEADER], [u8; FOOTER]) {
    let length = (data.len() as u64).to_le_bytes();
    let mut header = [0; HEADER];
    let (front, back) = header.split_at_mut(8);
    front.copy_from_slice(&length);
    back.copy_from_slice(&masked_crc(&length).to_le_bytes());
    (header, masked_crc(data).to_le_bytes())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a record as stored in a file.
    pub(in super::super) fn framed(data: &[u8]) -> Vec<u8> {
        let (header, footer) = around(data);
        [&header[..], data, &footer].concat()
    }

    #[test]
    fn a_record_has_16_bytes_around_its_data() {
        let bytes = [&b"???"[..], &framed(b"abc"), &framed(b"")].concat();
        assert_eq!(Frame::at(&bytes, 3), Frame::Whole { data: 15..18, next: 22 });
        assert_eq!(Frame::at(&bytes, 22), Frame::Whole { data: 34..34, next: 38 });
        assert_eq!(Frame::at(&bytes, 38), Frame::Incomplete { needs: HEADER });
    }

    #[test]
    fn a_part_says_how_much_it_needs() {
        let bytes = framed(b"abcde");
        for len in 0..bytes.len() {
            let needs = if len < HEADER { HEADER } else { bytes.len() };
            assert_eq!(Frame::at(&bytes[..len], 0), Frame::Incomplete { needs }, "{len}");
        }
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let bytes = framed(b"abcde");
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            match Frame::at(&bytes, 0) {
                Frame::Broken(_) => assert!(bit / 8 < HEADER, "bit {bit}"),
                Frame::Damaged { next, .. } => assert!(bit / 8 >= HEADER && next == bytes.len(), "bit {bit}"),
                other => panic!("bit {bit}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_header_of_12_bytes_identifies_a_file() {
        let bytes = framed(b"abc");
        assert!(starts(&bytes) && starts(&bytes[..12]) && starts(b""));
        assert!(!starts(&bytes[..11]) && !starts(&bytes[1..]) && !starts(&[0; 16]));
        assert!(!starts(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    }

    #[test]
    fn a_length_beyond_all_memory_is_broken_not_awaited() {
        for length in [u64::MAX, u64::MAX - 15, 1 << 63] {
            let length = length.to_le_bytes();
            let bytes = [&length[..], &masked_crc(&length).to_le_bytes()].concat();
            assert!(matches!(Frame::at(&bytes, 0), Frame::Broken(what) if what.contains("is too long")));
        }
    }
}
