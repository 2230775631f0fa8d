//! [`Compression`]: the compression of a file, which is decompressed before its format reads the bytes.

use super::Location;
use super::announced::announced;
use super::skippable::{after_skippable, pass, skippable};
use crate::{Error, Result};
use flate2::bufread::{GzDecoder, ZlibDecoder};
#[cfg(feature = "lz4")]
use lz4_flex::frame::FrameDecoder as Lz4Decoder;
use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, Read};
#[cfg(feature = "zstd")]
use zstd::stream::read::Decoder as ZstdDecoder;

/// The compression of a file.
///
/// [`Auto`](Self::Auto) detects gzip by its first three bytes. No text begins with them. A TFRecord file does so only
/// if the length of its first record is 559 903 bytes plus a multiple of 16 MiB. The first two bytes of zlib may also
/// be the text `x^`. Zlib is therefore detected only by formats that recognize their own first bytes; for other
/// formats, such as text, zlib must be specified. Zstd and lz4 are also detected, but can be read only if the features
/// `zstd` and `lz4` are enabled (`parquet` enables both). Other compressions with magic bytes, such as bzip2 and xz,
/// result in an error that contains their name.
///
/// Skippable frames before and between frames of zstd and lz4 are skipped. Except with zstd, a stream may be followed
/// by zeros, because some media fill their blocks with them. A gzip member, or a frame of zstd or lz4, may be followed
/// by another one. Anything else after the end is an error, because it may be the rest of a damaged member.
///
/// ```
/// use distribute_data::{Compression, Location};
/// use std::io::Read;
///
/// let plain = Location::bytes("plain.txt", "x^2,y");
/// let mut text = String::new();
/// Compression::Auto.open(&plain)?.read_to_string(&mut text).unwrap();
/// assert_eq!(text, "x^2,y");
/// # Ok::<(), distribute_data::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compression {
    /// The compression is detected from the first bytes. File names are ignored, because they may be wrong, and
    /// bytes in memory have none.
    #[default]
    Auto,
    /// The file is not compressed: bytes are read without changes.
    None,
    /// Gzip, with one or more members.
    Gzip,
    /// Zlib: deflate with zlib's header and checksum.
    Zlib,
    /// Zstandard, with one or more frames. Requires the feature `zstd`.
    Zstd,
    /// The lz4 frame format, with one or more frames. Requires the feature `lz4`.
    Lz4,
}

/// The size of read buffers in bytes. It is large enough to read files of long records with few system calls.
const BUFFER: usize = 256 * 1024;

/// The number of bytes at the beginning of a file that are inspected.
pub(super) const HEAD: usize = 16;

impl Compression {
    /// Opens a file, and returns a buffered reader of its decompressed bytes. Zlib is decompressed only if it is
    /// specified.
    ///
    /// A damaged stream results in an error when it is read. The error contains the number of bytes that could be
    /// decompressed.
    ///
    /// # Errors
    ///
    /// - [`Error::Io`](crate::Error::Io): the file cannot be opened, its first bytes cannot be read, or its
    ///   compression is not supported.
    /// - [`Error::Feature`](crate::Error::Feature): the file is compressed with zstd or lz4, but the feature of that
    ///   name is not enabled; or the location is a URL, but the feature `object-store` is not enabled.
    pub fn open(self, location: &Location) -> Result<Box<dyn BufRead + Send>> {
        self.unpack(location, |_| None).map(|(bytes, _)| bytes)
    }

    /// Opens a file like [`open`](Self::open), for a format with known first bytes. [`Auto`](Self::Auto) calls `plain`
    /// with the first 16 bytes (fewer if the file is shorter). `plain` returns whether they belong to the format. If
    /// they do, nothing is decompressed. Otherwise zlib is detected in addition to the other compressions.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`open`](Self::open).
    pub fn open_known(
        self,
        location: &Location,
        plain: impl FnOnce(&[u8]) -> bool,
    ) -> Result<Box<dyn BufRead + Send>> {
        self.unpack(location, |head| Some(plain(head))).map(|(bytes, _)| bytes)
    }

    /// Opens a file. Returns a reader of its decompressed bytes, and whether the file was compressed. `plain` is
    /// called with the first bytes of the file. It returns whether an uncompressed file of the caller's format begins
    /// like this, or `None` if the format cannot tell.
    pub(crate) fn unpack(
        self,
        location: &Location,
        plain: impl FnOnce(&[u8]) -> Option<bool>,
    ) -> Result<(Box<dyn BufRead + Send>, bool)> {
        let mut raw = location.open()?;
        let mut head = Vec::with_capacity(HEAD);
        if matches!(self, Compression::Auto | Compression::Lz4) {
            raw.by_ref().take(HEAD as u64).read_to_end(&mut head).map_err(|e| location.io_error(e))?;
        }
        let mut found = match self {
            Compression::Auto => announced(&head, plain(&head)).map_err(|name| refused(location, name))?,
            named => named,
        };
        if matches!(found, Compression::Zstd | Compression::Lz4) && skippable(&head).is_some() {
            head = after_skippable(head, &mut raw).map_err(|e| location.io_error(e))?;
            found = match announced(&head, None) {
                Ok(packed @ (Compression::Zstd | Compression::Lz4)) => packed,
                _ if head.is_empty() => return Ok((Box::new(io::empty()), true)),
                _ => return Err(location.io_error(io::Error::new(DAMAGED, NO_FRAME))),
            };
        }
        let packed = BufReader::with_capacity(BUFFER, Cursor::new(head).chain(raw));
        Ok(match found {
            Compression::Gzip => (unpacked(Decoder::Gzip(GzDecoder::new(packed))), true),
            Compression::Zlib => (unpacked(Decoder::Zlib(ZlibDecoder::new(packed))), true),
            #[cfg(feature = "zstd")]
            Compression::Zstd => {
                let decoder = ZstdDecoder::with_buffer(packed).map_err(|e| location.io_error(e))?;
                (unpacked(Decoder::Zstd(decoder)), true)
            }
            #[cfg(not(feature = "zstd"))]
            Compression::Zstd => return Err(needs(location, "zstd")),
            #[cfg(feature = "lz4")]
            Compression::Lz4 => (unpacked(Decoder::lz4(packed)), true),
            #[cfg(not(feature = "lz4"))]
            Compression::Lz4 => return Err(needs(location, "lz4")),
            Compression::Auto | Compression::None => (Box::new(packed), false),
        })
    }

    /// Returns the reason why a format could not parse a file that was opened in this way: damage of its compressed
    /// stream if there is any, otherwise `error`. A damaged stream may decompress to any bytes, and the checksum that
    /// reveals the damage is at the end. The file is therefore opened again and, if it is compressed, decompressed up
    /// to [`MAX_LOOKED_AT`].
    pub(crate) fn blame(
        self,
        location: &Location,
        plain: impl FnOnce(&[u8]) -> Option<bool>,
        error: Error,
    ) -> Error {
        if matches!(error, Error::Io { .. }) {
            return error;
        }
        let read = self.unpack(location, plain).and_then(|(bytes, packed)| {
            let first_elements = if packed { MAX_LOOKED_AT } else { 0 };
            io::copy(&mut bytes.take(first_elements), &mut io::sink()).map_err(|e| location.io_error(e))
        });
        match read {
            Err(Error::Io { path, source }) if source.kind() == DAMAGED => Error::Io { path, source },
            _ => error,
        }
    }
}

/// The maximum number of bytes that are decompressed to detect damage. This takes seconds. A file of zeros may
/// decompress to far more.
const MAX_LOOKED_AT: u64 = 4 << 30;

/// The message for a file with an unknown format after its skippable frames.
const NO_FRAME: &str =
    "a frame that is to be skipped is at its beginning, and no frame of zstd or lz4 follows";

/// The kind of all errors about damaged streams. Errors while a file is read have other kinds.
pub(super) const DAMAGED: ErrorKind = ErrorKind::InvalidData;

/// Returns a buffered reader of the decompressed bytes of a stream.
fn unpacked(decoder: Decoder<impl BufRead + Send + 'static>) -> Box<dyn BufRead + Send> {
    Box::new(BufReader::with_capacity(BUFFER, Unpacked { decoder: Some(decoder), offset: 0 }))
}

enum Decoder<R: BufRead> {
    /// A decoder of a single gzip member.
    Gzip(GzDecoder<R>),
    Zlib(ZlibDecoder<R>),
    #[cfg(feature = "zstd")]
    Zstd(ZstdDecoder<'static, R>),
    /// A decoder of a single lz4 frame.
    #[cfg(feature = "lz4")]
    Lz4(Box<Lz4Decoder<Watched<R>>>),
}

impl<R: BufRead> Decoder<R> {
    #[cfg(feature = "lz4")]
    fn lz4(bytes: R) -> Self {
        Decoder::Lz4(Box::new(Lz4Decoder::new(Watched { bytes, ended: false })))
    }

    fn name(&self) -> &'static str {
        match self {
            Decoder::Gzip(_) => "gzip",
            Decoder::Zlib(_) => "zlib",
            #[cfg(feature = "zstd")]
            Decoder::Zstd(_) => "zstd",
            #[cfg(feature = "lz4")]
            Decoder::Lz4(_) => "lz4",
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Decoder::Gzip(member) => member.read(buffer),
            Decoder::Zlib(stream) => stream.read(buffer),
            #[cfg(feature = "zstd")]
            Decoder::Zstd(frames) => frames.read(buffer),
            #[cfg(feature = "lz4")]
            Decoder::Lz4(frame) => match frame.read(buffer)? {
                // The decoder takes the end of the bytes for the end of the frame.
                0 if !buffer.is_empty() && frame.get_mut().ended => Err(ErrorKind::UnexpectedEof.into()),
                read => Ok(read),
            },
        }
    }

    /// Returns the first byte after the end of the stream that is not 0 and, for lz4, not part of a skippable frame;
    /// `None` if there is none.
    fn following(&mut self) -> io::Result<Option<u8>> {
        #[cfg(feature = "lz4")]
        let skips = matches!(self, Decoder::Lz4(_));
        #[cfg(not(feature = "lz4"))]
        let skips = false;
        let raw = match self {
            Decoder::Gzip(member) => member.get_mut(),
            Decoder::Zlib(stream) => stream.get_mut(),
            #[cfg(feature = "zstd")]
            Decoder::Zstd(frames) => frames.get_mut(),
            #[cfg(feature = "lz4")]
            Decoder::Lz4(frame) => &mut frame.get_mut().bytes,
        };
        loop {
            let bytes = raw.fill_buf()?;
            let (zeros, len) = (bytes.iter().take_while(|byte| **byte == 0).count(), bytes.len());
            let found = bytes.get(zeros).copied();
            raw.consume(zeros);
            if skips && matches!(found, Some(0x50..=0x5f)) {
                let mut head = [0; 8];
                raw.read_exact(&mut head)?;
                pass(raw, skippable(&head).ok_or_else(|| io::Error::new(DAMAGED, NO_PART))?)?;
                continue;
            }
            if found.is_some() || len == 0 {
                return Ok(found);
            }
        }
    }
}

/// The message for unexpected bytes after the end of a stream.
const NO_PART: &str = "it ends here, and the bytes that follow are not part of it";

/// A reader that records whether its end was reached.
#[cfg(feature = "lz4")]
struct Watched<R> {
    bytes: R,
    ended: bool,
}

#[cfg(feature = "lz4")]
impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.bytes.read(buffer)?;
        self.ended |= read == 0 && !buffer.is_empty();
        Ok(read)
    }
}

/// A reader that decompresses a stream. Its errors contain the number of decompressed bytes.
struct Unpacked<R: BufRead> {
    /// The decoder; `None` after the end.
    decoder: Option<Decoder<R>>,
    offset: u64,
}

impl<R: BufRead> Unpacked<R> {
    /// Handles the end of a member, and continues with the next one if there is one. Returns an error if anything else
    /// follows, except zeros and skippable frames.
    fn end(&mut self) -> io::Result<()> {
        let Some(decoder) = &mut self.decoder else { return Ok(()) };
        let found = decoder.following()?;
        self.decoder = match (found, self.decoder.take()) {
            (Some(0x1f), Some(Decoder::Gzip(member))) => {
                Some(Decoder::Gzip(GzDecoder::new(member.into_inner())))
            }
            #[cfg(feature = "lz4")]
            (Some(0x04), Some(Decoder::Lz4(frame))) => Some(Decoder::lz4(frame.into_inner().bytes)),
            (Some(_), decoder) => {
                self.decoder = decoder;
                return Err(io::Error::new(DAMAGED, NO_PART));
            }
            (None, _) => None,
        };
        Ok(())
    }
}

impl<R: BufRead> Read for Unpacked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(decoder) = self.decoder.as_mut().filter(|_| !buffer.is_empty()) {
            let (name, offset) = (decoder.name(), self.offset);
            let damaged = |e: io::Error| match e.kind() {
                ErrorKind::InvalidInput | ErrorKind::UnexpectedEof | DAMAGED => {
                    let what = format!("its {name} stream is damaged at byte {offset}, unpacked: {e}");
                    io::Error::new(DAMAGED, what)
                }
                ErrorKind::Interrupted => e,
                kind => io::Error::new(kind, format!("at byte {offset}, unpacked: {e}")),
            };
            let read = decoder.read(buffer).map_err(damaged)?;
            if read > 0 {
                self.offset += read as u64;
                return Ok(read);
            }
            self.end().map_err(damaged)?;
        }
        Ok(0)
    }
}

/// Creates the error for a file whose compression is not supported.
fn refused(location: &Location, name: &str) -> Error {
    let what = format!(
        "it is compressed with {name}, which is not supported: decompress it first, or compress it with \
         gzip or zstd"
    );
    location.io_error(io::Error::new(ErrorKind::Unsupported, what))
}

/// Creates the error for a file whose compression needs a feature that is not enabled.
#[cfg(not(all(feature = "zstd", feature = "lz4")))]
fn needs(location: &Location, feature: &'static str) -> Error {
    Error::Feature { what: format!("{location}, which is compressed with {feature}"), feature }
}

#[cfg(test)]
mod tests {
    use super::super::announced::starts_zlib;
    use super::*;
    use flate2::write::{GzEncoder, ZlibEncoder};
    use std::io::Write;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }
    fn zlib(text: &[u8], level: u32) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), flate2::Compression::new(level));
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }
    fn read(mut bytes: Box<dyn BufRead + Send>) -> std::io::Result<Vec<u8>> {
        let mut all = Vec::new();
        bytes.read_to_end(&mut all).map(|_| all)
    }

    #[test]
    fn auto_takes_gzip_off_however_many_members_and_leaves_the_rest() {
        let text = b"abc".repeat(200_000);
        let (first, second) = text.split_at(123);
        let packed = Location::bytes("a", [gzip(first), gzip(b""), gzip(second)].concat());
        assert_eq!(read(Compression::Auto.open(&packed).unwrap()).unwrap(), text);
        assert_eq!(read(Compression::Gzip.open(&packed).unwrap()).unwrap(), text);
        for plain in [&b""[..], b"x", b"x^2,y\n", b"\x1f\x8b", b"0123456789abcdefg", &zlib(b"t", 6)] {
            let location = Location::bytes("a", plain.to_vec());
            assert_eq!(read(Compression::Auto.open(&location).unwrap()).unwrap(), plain);
        }
        let raw = read(Compression::None.open(&packed).unwrap()).unwrap();
        assert!(raw.starts_with(&[0x1f, 0x8b]));
    }

    #[test]
    fn zlib_is_found_at_any_level_only_where_the_format_is_not() {
        for level in 0..=9 {
            let packed = Location::bytes("a", zlib(b"x^2,y", level));
            assert_eq!(read(Compression::Zlib.open(&packed).unwrap()).unwrap(), b"x^2,y");
            assert_eq!(read(Compression::Auto.open_known(&packed, |_| false).unwrap()).unwrap(), b"x^2,y");
            let taken_as_is = read(Compression::Auto.open_known(&packed, |_| true).unwrap()).unwrap();
            assert!(starts_zlib(&taken_as_is));
        }
        assert_eq!(announced(&[0x1f, 0x8b, 8, 0], Some(true)), Ok(Compression::None));
        assert_eq!(announced(&[0x1f, 0x8b, 8, 0], Some(false)), Ok(Compression::Gzip));
        // Not divisible by 31, a dictionary, another method, a window that is too large.
        for not in [[0x78, 0x9d], [0x78, 0xbb], [0x77, 0x9c], [0x88, 0x1c], [0x00, 0x00]] {
            assert!(!starts_zlib(&not), "{not:?}");
        }
    }

    #[test]
    fn a_broken_stream_fails_wherever_it_is_cut() {
        for (packed, kind) in [(gzip(b"text"), Compression::Gzip), (zlib(b"text", 6), Compression::Zlib)] {
            for cut in 1..packed.len() {
                let location = Location::bytes("cut", packed[..cut].to_vec());
                assert!(read(kind.open(&location).unwrap()).is_err(), "{kind:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn behind_the_end_there_may_be_zeros_or_a_member_and_nothing_else() {
        let member = gzip(b"text");
        let packed = [
            (Compression::Gzip, member.clone(), member.clone(), &b"texttext"[..]),
            (Compression::Zlib, zlib(b"text", 6), Vec::new(), b"text"),
        ];
        for (kind, first, second, text) in packed {
            let opened = |rest: &[u8]| {
                let bytes = [&first, rest].concat();
                read(kind.open(&Location::bytes("a", bytes)).unwrap())
            };
            let zeros = vec![0; 600_000];
            assert_eq!(opened(&zeros).unwrap(), b"text");
            assert_eq!(opened(&[zeros.as_slice(), &second, &zeros].concat()).unwrap(), text);
            for rest in [&b"x"[..], b"\x1f", b"\0\0x", b"more text than a header has", &zlib(b"text", 6)] {
                let error = opened(rest).unwrap_err();
                assert!(error.to_string().contains("stream is damaged at byte 4, unpacked: "), "{error}");
                assert_eq!(error.kind(), DAMAGED);
            }
        }
    }

    /// Checks that files in unsupported compression formats are rejected with an error that names the format. An
    /// earlier version read their bytes as text.
    #[test]
    fn other_compressions_are_refused_by_name() {
        let packed: [(&str, &[u8]); 7] = [
            ("bzip2", b"BZh91AY&SY\x12"),
            ("bzip2", b"BZh9\x17rE8P\x90\0\0"),
            ("xz", b"\xfd7zXZ\0\0\x04"),
            ("framed snappy", b"\xff\x06\0\0sNaPpY"),
            ("zip", b"PK\x03\x04\x14\0"),
            ("7z", b"7z\xbc\xaf\x27\x1c\0"),
            (".Z", b"\x1f\x9d\x90"),
        ];
        for (name, bytes) in packed {
            let location = Location::bytes("a", bytes);
            let error = Compression::Auto.open(&location).map(drop).unwrap_err().to_string();
            assert!(
                error.starts_with("cannot read 'a': it is compressed with ") && error.contains(name),
                "{error}"
            );
            assert_eq!(read(Compression::None.open(&location).unwrap()).unwrap(), bytes);
            assert!(Compression::Auto.open_known(&location, |_| true).is_ok());
        }
        for text in ["BZh9 is a mark", "PK", "7z"] {
            assert!(Compression::Auto.open(&Location::bytes("a", text)).is_ok(), "{text}");
        }
    }

    /// The text "abc", compressed by the program zstd.
    const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd\x24\x03\x19\0\0abc\x99\x09\x77\xad";

    #[test]
    fn zstd_and_lz4_are_read_or_name_their_feature() {
        let lz4: &[u8] = b"\x04\x22\x4d\x18\x60\x40\x82\x03\0\0\x80abc\0\0\0\0";
        let kinds = [
            ("zstd", Compression::Zstd, ZSTD, cfg!(feature = "zstd")),
            ("lz4", Compression::Lz4, lz4, cfg!(feature = "lz4")),
        ];
        for (feature, kind, frame, enabled) in kinds {
            let location = Location::bytes("a", [frame, frame].concat());
            if !enabled {
                let error = Compression::Auto.open(&location).map(drop).unwrap_err();
                assert!(
                    matches!(&error, Error::Feature { feature: needed, .. } if *needed == feature),
                    "{error}"
                );
                continue;
            }
            assert_eq!(read(Compression::Auto.open(&location).unwrap()).unwrap(), b"abcabc", "{feature}");
            assert_eq!(read(kind.open(&location).unwrap()).unwrap(), b"abcabc");
            let zeros = Location::bytes("a", [frame, &[0; 1000]].concat());
            // Zeros after the end: zstd takes them for a frame.
            assert_eq!(read(kind.open(&zeros).unwrap()).is_ok(), feature == "lz4");
            for cut in 1..frame.len() {
                let location = Location::bytes("cut", frame[..cut].to_vec());
                let error = read(kind.open(&location).unwrap()).unwrap_err();
                assert_eq!(error.kind(), DAMAGED, "{feature} cut at {cut}: {error}");
            }
            let followed = Location::bytes("a", [frame, b"more"].concat());
            assert!(read(kind.open(&followed).unwrap()).is_err(), "{feature}");
        }
    }

    #[test]
    fn a_format_sees_all_of_a_short_file() {
        let short = Location::bytes("a", "abc");
        let opened = Compression::Auto.open_known(&short, |head| head == b"abc").unwrap();
        assert_eq!(read(opened).unwrap(), b"abc");
    }
}
