//! The masked checksums of the parts of a record.

/// Returns the masked CRC-32C of bytes.
///
/// A checksum over bytes that end with their own checksum is always the same number. Masking avoids this for
/// records that contain records.
pub(crate) fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // RFC 3720, B.4: the CRC-32C of 32 zeros is 8a9136aa.
        assert_eq!(masked_crc(&[0; 32]), 0x8a91_36aau32.rotate_right(15).wrapping_add(0xa282_ead8));
        assert_eq!(masked_crc(&[]), 0xa282_ead8);
    }
}
