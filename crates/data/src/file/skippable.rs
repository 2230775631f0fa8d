//! The frames that zstd and lz4 skip. They have a header of 8 bytes with the length of the rest.

use super::compression::{DAMAGED, HEAD};
use std::io::{self, Cursor, Read};

/// Returns the length of a skippable frame after its header of 8 bytes; `None` if the bytes do not begin with
/// such a header. Zstd and lz4 have the same headers.
pub(super) fn skippable(head: &[u8]) -> Option<u64> {
    let (&[0x50..=0x5f, 0x2a, 0x4d, 0x18], rest) = head.split_first_chunk::<4>()? else { return None };
    rest.first_chunk().map(|length| u64::from(u32::from_le_bytes(*length)))
}

/// Skips `length` bytes. Returns an error if the input ends before that.
pub(super) fn pass(bytes: &mut impl Read, length: u64) -> io::Result<()> {
    let passed = io::copy(&mut bytes.take(length), &mut io::sink())?;
    if passed == length {
        Ok(())
    } else {
        Err(io::Error::new(DAMAGED, "it is cut off in a frame that is to be skipped"))
    }
}

/// Skips the skippable frames at the beginning of a file. `head` contains the first bytes of the file. Returns
/// the first bytes after the frames.
pub(super) fn after_skippable(mut head: Vec<u8>, raw: &mut impl Read) -> io::Result<Vec<u8>> {
    while let Some(length) = skippable(&head) {
        let mut all = Cursor::new(head).chain(raw.by_ref());
        pass(&mut all, 8 + length)?;
        head = Vec::with_capacity(HEAD);
        all.take(HEAD as u64).read_to_end(&mut head)?;
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::super::{Compression, Location};
    use crate::Error;
    use std::io::BufRead;

    /// The text "abc", compressed by the program zstd.
    const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd\x24\x03\x19\0\0abc\x99\x09\x77\xad";

    fn read(mut bytes: Box<dyn BufRead + Send>) -> std::io::Result<Vec<u8>> {
        let mut all = Vec::new();
        bytes.read_to_end(&mut all).map(|_| all)
    }

    #[test]
    fn frames_that_are_to_be_skipped_are_skipped_before_between_and_after_frames() {
        let skip = |length: u32, number: u8| {
            let bytes = vec![7; length as usize];
            [&[0x50 | number, 0x2a, 0x4d, 0x18][..], &length.to_le_bytes(), &bytes].concat()
        };
        let lz4: &[u8] = b"\x04\x22\x4d\x18\x60\x40\x82\x03\0\0\x80abc\0\0\0\0";
        let kinds = [
            (Compression::Zstd, ZSTD, cfg!(feature = "zstd")),
            (Compression::Lz4, lz4, cfg!(feature = "lz4")),
        ];
        for (kind, frame, enabled) in kinds {
            let open = |kind: Compression, parts: &[&[u8]]| kind.open(&Location::bytes("a", parts.concat()));
            if !enabled {
                let error = open(Compression::Auto, &[&skip(3, 1), frame]).map(drop).unwrap_err();
                assert!(matches!(error, Error::Feature { .. }), "{error}");
                continue;
            }
            for named in [Compression::Auto, kind] {
                for length in [0, 1, 7, 8, 9, 300_000] {
                    let [first, second] = [skip(length, 0), skip(length, 15)];
                    for parts in [
                        &[&first[..], frame, frame][..],
                        &[&first, &second, frame, frame],
                        &[frame, &first, frame],
                        &[&first, frame, &second, &first, frame, &second],
                    ] {
                        let read = read(open(named, parts).unwrap()).unwrap();
                        assert_eq!(read, b"abcabc", "{kind:?} as {named:?}, {length}");
                    }
                    assert_eq!(read(open(named, &[&first, &second]).unwrap()).unwrap(), b"");
                }
                // A truncated frame, before another frame and after it.
                let cut = skip(300_000, 3);
                for length in [1, 4, 7, 8, 200_000] {
                    let cut = &cut[..length];
                    assert!(
                        open(named, &[frame, cut])
                            .and_then(
                                |bytes| read(bytes).map_err(|e| { Location::bytes("a", "").io_error(e) })
                            )
                            .is_err(),
                        "{kind:?} as {named:?}, {length}"
                    );
                }
                assert!(open(named, &[&cut[..200_000]]).map_or(true, |bytes| read(bytes).is_err()));
            }
        }
        let location = Location::bytes("a", [&skip(3, 0), &b"a text"[..]].concat());
        let error = Compression::Auto.open(&location).map(drop).unwrap_err().to_string();
        assert!(error.contains("no frame of zstd or lz4 follows"), "{error}");
        // Many frames don't cause deep recursion.
        let many = Location::bytes(
            "a",
            [skip(0, 0).repeat(200_000), lz4.to_vec(), skip(0, 0).repeat(200_000)].concat(),
        );
        if cfg!(feature = "lz4") {
            assert_eq!(read(Compression::Auto.open(&many).unwrap()).unwrap(), b"abc");
        }
    }
}
