//! Errors that name a file and a byte, and the checksums of bundles.

use distribute_checkpoint::{Error, Result};
use std::fs::File;
use std::io;
use std::path::Path;

/// Creates the error for damage at a byte of a file.
pub(crate) fn damaged(path: &Path, offset: u64, reason: impl Into<String>) -> Error {
    Error::Damaged { path: path.to_path_buf(), offset, reason: reason.into() }
}

/// Returns a function for `map_err` that wraps an I/O error.
pub(crate) fn io_error(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { operation, path: path.to_path_buf(), source }
}

/// Creates the error of an operation on a tensor.
pub(crate) fn entry(operation: &'static str, name: &str, reason: impl Into<String>) -> Error {
    Error::Entry { operation, name: name.to_string(), reason: reason.into() }
}

/// Opens a file for reading.
pub(crate) fn open(path: &Path) -> Result<File> {
    distribute_files::open(path).map_err(io_error("opening", path))
}

/// Returns the masked form of a CRC-32C, in which LevelDB and TensorFlow store checksums.
pub(crate) fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Removes a varint from the front of `rest` and returns it. Returns `None` if `rest` doesn't begin with one.
///
/// A varint with more bytes than needed is rejected. No writer produces one, and otherwise an altered byte could go
/// unnoticed.
pub(crate) fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for (at, byte) in rest.iter().take(10).enumerate() {
        // The tenth byte has space for one bit.
        if at == 9 && *byte > 1 {
            return None;
        }
        number |= u64::from(byte & 0x7f) << (7 * at);
        if *byte == 0 && at > 0 {
            return None;
        }
        if *byte < 0x80 {
            *rest = rest.get(at + 1..)?;
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_end_with_a_small_byte_and_have_64_bits() {
        let read = |bytes: &[u8]| {
            let mut rest = bytes;
            varint(&mut rest).map(|number| (number, rest.len()))
        };
        assert_eq!(read(&[0x7f, 1]), Some((127, 1)));
        assert_eq!(read(&[0x80, 1]), Some((128, 0)));
        assert_eq!(read(&[[0xff; 9].as_slice(), &[1]].concat()), Some((u64::MAX, 0)));
        assert_eq!(read(&[[0xff; 9].as_slice(), &[2]].concat()), None);
        assert_eq!(read(&[0x80; 12]), None);
        assert_eq!((read(&[0, 0]), read(&[0x81, 0])), (Some((0, 1)), None));
        assert_eq!((read(&[]), read(&[0x80])), (None, None));
    }

    #[test]
    fn checksums_are_masked() {
        // RFC 3720, B.4: the CRC-32C of 32 zeros.
        assert_eq!(
            masked(crc32c::crc32c(&[0; 32])),
            0x8a91_36aau32.rotate_right(15).wrapping_add(0xa282_ead8)
        );
    }
}
