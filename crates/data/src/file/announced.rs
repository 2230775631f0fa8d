//! The detection of a file's compression from its first bytes.

use super::Compression;

/// Returns the compression of a file that begins with `head`. `plain` is `true` if the format recognizes `head` as the
/// beginning of an uncompressed file, and `None` if the format cannot tell. Zlib is detected only if `plain` is
/// `Some(false)`.
///
/// # Errors
///
/// Returns the name of the compression if it is not supported.
pub(super) fn announced(head: &[u8], plain: Option<bool>) -> Result<Compression, &'static str> {
    if plain == Some(true) {
        return Ok(Compression::None);
    }
    if let Some((found, _)) = READ.iter().find(|(_, first)| head.starts_with(first)) {
        return Ok(*found);
    }
    if let Some((name, _)) = NOT_READ.iter().find(|(_, first)| head.starts_with(first)) {
        return Err(name);
    }
    match head {
        // Some writers put a skippable frame before all others; 16 magic numbers are reserved for it. The
        // frames after it determine whether the file is zstd.
        [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Ok(Compression::Zstd),
        _ if starts_bzip2(head) => Err("bzip2"),
        _ if plain == Some(false) && starts_zlib(head) => Ok(Compression::Zlib),
        _ => Ok(Compression::None),
    }
}

/// The first bytes of files in the supported compressions, except for zlib.
const READ: [(Compression, &[u8]); 3] = [
    (Compression::Gzip, &[0x1f, 0x8b, 8]),
    (Compression::Zstd, &[0x28, 0xb5, 0x2f, 0xfd]),
    (Compression::Lz4, &[0x04, 0x22, 0x4d, 0x18]),
];

/// The first bytes of files in unsupported compressions. No text begins with any of them.
const NOT_READ: [(&str, &[u8]); 6] = [
    ("xz", b"\xfd7zXZ\0"),
    ("the lz4 format before frames", &[0x02, 0x21, 0x4c, 0x18]),
    ("framed snappy", b"\xff\x06\0\0sNaPpY"),
    ("zip, which is an archive", b"PK\x03\x04"),
    ("7z, which is an archive", b"7z\xbc\xaf\x27\x1c"),
    ("compress (.Z)", &[0x1f, 0x9d]),
];

/// Returns whether `head` begins with bzip2's magic bytes and block size, followed by the digits of pi or, if nothing
/// was compressed, by those of the square root of pi.
fn starts_bzip2(head: &[u8]) -> bool {
    match head.strip_prefix(b"BZh") {
        Some([b'1'..=b'9', rest @ ..]) => rest.starts_with(b"1AY&SY") || rest.starts_with(b"\x17rE8P\x90"),
        _ => false,
    }
}

/// Returns whether `head` is a zlib header (RFC 1950): deflate with a window of at most 32 KiB and no dictionary,
/// in two bytes that together are a multiple of 31.
pub(super) fn starts_zlib(head: &[u8]) -> bool {
    let &[cmf, flg, ..] = head else { return false };
    cmf & 15 == 8 && cmf >> 4 <= 7 && flg & 0x20 == 0 && u16::from_be_bytes([cmf, flg]) % 31 == 0
}
