//! What is taken off a file before its format sees the bytes.

use super::Location;
use crate::{Error, Result};
use flate2::bufread::{GzDecoder, ZlibDecoder};
use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, Read};

/// How a file is compressed.
///
/// Gzip announces itself: three bytes with which no text starts, and with which a TFRecord file starts only if its
/// first record has a length of 559 903 bytes plus a multiple of 16 MiB. Zlib doesn't: its two bytes may be the text
/// `x^`. So zlib is found only by formats that know their own first bytes when they see them; for others, such as
/// text, it has to be named.
///
/// Behind the end of a stream there may be zeros, with which some media fill their blocks, and behind gzip another gzip
/// member. Anything else there is an error: it may be what is left of a member.
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
    /// What the first bytes say; a name may lie, and bytes in memory have none.
    #[default]
    Auto,
    /// None: bytes are read as they are.
    None,
    /// Gzip, of one member or several.
    Gzip,
    /// Zlib: deflate with zlib's header and checksum.
    Zlib,
}

/// What is read at once: files of long records are read in few calls of the operating system.
const BUFFER: usize = 256 * 1024;

/// How many of the first bytes are looked at.
const HEAD: usize = 16;

impl Compression {
    /// The unpacked bytes of a file, buffered. Zlib is unpacked only if it is named.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) if the file cannot be opened or its first bytes cannot be read. A stream that
    /// is broken fails when it is read, with how many bytes of it could be unpacked.
    pub fn open(self, location: &Location) -> Result<Box<dyn BufRead + Send>> {
        self.unpack(location, |_| None).map(|(bytes, _)| bytes)
    }

    /// The unpacked bytes of a file of a format that knows its own beginning: where `plain` says that the first 16
    /// bytes (fewer if the file is shorter) are the format's, [`Auto`](Self::Auto) takes nothing off, and where it
    /// doesn't, zlib is looked for as well as gzip.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_known(
        self,
        location: &Location,
        plain: impl FnOnce(&[u8]) -> bool,
    ) -> Result<Box<dyn BufRead + Send>> {
        self.unpack(location, |head| Some(plain(head))).map(|(bytes, _)| bytes)
    }

    /// The unpacked bytes, and whether there was anything to unpack. `plain` says whether the first bytes are those of
    /// the format, where that can be told.
    pub(crate) fn unpack(
        self,
        location: &Location,
        plain: impl FnOnce(&[u8]) -> Option<bool>,
    ) -> Result<(Box<dyn BufRead + Send>, bool)> {
        let mut raw = location.open()?;
        let mut head = Vec::with_capacity(HEAD);
        if self == Compression::Auto {
            raw.by_ref().take(HEAD as u64).read_to_end(&mut head).map_err(|e| location.io_error(e))?;
        }
        let found = if self == Compression::Auto { announced(&head, plain(&head)) } else { self };
        let packed = BufReader::with_capacity(BUFFER, Cursor::new(head).chain(raw));
        Ok(match found {
            Compression::Gzip => (unpacked(Decoder::Gzip(GzDecoder::new(packed))), true),
            Compression::Zlib => (unpacked(Decoder::Zlib(ZlibDecoder::new(packed))), true),
            Compression::Auto | Compression::None => (Box::new(packed), false),
        })
    }

    /// Why a format can make nothing of a file that it has opened in this way: that its stream is damaged, if it is, else
    /// `error`. What comes out of a damaged stream is wrong in any way, and the checksum that says so is at its end.
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
            let looked_at = if packed { MOST_LOOKED_AT } else { 0 };
            io::copy(&mut bytes.take(looked_at), &mut io::sink()).map_err(|e| location.io_error(e))
        });
        match read {
            Err(Error::Io { path, source }) if source.kind() == DAMAGED => Error::Io { path, source },
            _ => error,
        }
    }
}

/// How much is unpacked to find whether a stream is damaged: it takes seconds, and a file of zeros may unpack to more
/// than anybody waits for.
const MOST_LOOKED_AT: u64 = 4 << 30;

/// The kind of all errors about a stream, other than those of reading it.
const DAMAGED: ErrorKind = ErrorKind::InvalidData;

/// The bytes of a stream, buffered.
fn unpacked(decoder: Decoder<impl BufRead + Send + 'static>) -> Box<dyn BufRead + Send> {
    Box::new(BufReader::with_capacity(BUFFER, Unpacked { decoder: Some(decoder), offset: 0 }))
}

enum Decoder<R> {
    /// One member of several.
    Gzip(GzDecoder<R>),
    Zlib(ZlibDecoder<R>),
}

impl<R: BufRead> Decoder<R> {
    fn name(&self) -> &'static str {
        match self {
            Decoder::Gzip(_) => "gzip",
            Decoder::Zlib(_) => "zlib",
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Decoder::Gzip(member) => member.read(buffer),
            Decoder::Zlib(stream) => stream.read(buffer),
        }
    }

    /// The first byte behind the end that is not 0.
    fn following(&mut self) -> io::Result<Option<u8>> {
        let raw = match self {
            Decoder::Gzip(member) => member.get_mut(),
            Decoder::Zlib(stream) => stream.get_mut(),
        };
        loop {
            let bytes = raw.fill_buf()?;
            let (zeros, len) = (bytes.iter().take_while(|byte| **byte == 0).count(), bytes.len());
            let found = bytes.get(zeros).copied();
            raw.consume(zeros);
            if found.is_some() || len == 0 {
                return Ok(found);
            }
        }
    }
}

/// Unpacks a stream, and says in errors how far it could be unpacked.
struct Unpacked<R> {
    /// `None` behind the end.
    decoder: Option<Decoder<R>>,
    offset: u64,
}

impl<R: BufRead> Unpacked<R> {
    /// Goes on to the next member, if there is one.
    fn end(&mut self) -> io::Result<()> {
        let Some(decoder) = &mut self.decoder else { return Ok(()) };
        let found = decoder.following()?;
        self.decoder = match (found, self.decoder.take()) {
            (Some(0x1f), Some(Decoder::Gzip(member))) => {
                Some(Decoder::Gzip(GzDecoder::new(member.into_inner())))
            }
            (Some(_), decoder) => {
                self.decoder = decoder;
                return Err(io::Error::new(DAMAGED, "it ends here, and what follows is no part of it"));
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

/// What a file that starts with `head` is compressed with, where its format says that this is how plain files start,
/// or that it isn't, or can't tell.
fn announced(head: &[u8], plain: Option<bool>) -> Compression {
    match plain {
        Some(true) => Compression::None,
        _ if head.starts_with(&[0x1f, 0x8b, 8]) => Compression::Gzip,
        Some(false) if starts_zlib(head) => Compression::Zlib,
        _ => Compression::None,
    }
}

/// Deflate with a window of at most 32 KiB, no dictionary, and the two bytes as one number divisible by 31 (RFC 1950).
fn starts_zlib(head: &[u8]) -> bool {
    let &[cmf, flg, ..] = head else { return false };
    cmf & 15 == 8 && cmf >> 4 <= 7 && flg & 0x20 == 0 && u16::from_be_bytes([cmf, flg]) % 31 == 0
}

#[cfg(test)]
mod tests {
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
        assert_eq!(announced(&[0x1f, 0x8b, 8, 0], Some(true)), Compression::None);
        assert_eq!(announced(&[0x1f, 0x8b, 8, 0], Some(false)), Compression::Gzip);
        // Not divisible by 31, a dictionary, another method, a window too large.
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

    #[test]
    fn a_format_sees_all_of_a_short_file() {
        let short = Location::bytes("a", "abc");
        let opened = Compression::Auto.open_known(&short, |head| head == b"abc").unwrap();
        assert_eq!(read(opened).unwrap(), b"abc");
    }
}
