//! [`Input`]: a reader that keeps track of its offset.

use crate::{Error, Result};
use std::io::Read;

/// A reader of a file from its beginning. Its errors contain the offset in the file.
pub(crate) struct Input<R> {
    path: String,
    reader: R,
    offset: u64,
}

impl<R: Read> Input<R> {
    pub(crate) fn new(path: String, reader: R) -> Self {
        Self { path, reader, offset: 0 }
    }

    /// Returns the number of bytes that have been read.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Creates an error about the bytes that were read last, or about missing bytes after them.
    pub(crate) fn damaged(&self, what: impl Into<String>) -> Error {
        self.damaged_at(self.offset, what)
    }

    /// Creates an error about the bytes at the given offset.
    pub(crate) fn damaged_at(&self, offset: u64, what: impl Into<String>) -> Error {
        Error::Damaged { path: self.path.clone(), offset, what: what.into() }
    }

    fn early(&self, missing: u64) -> Error {
        self.damaged(format!("the file ends, {missing} bytes early or more"))
    }

    fn io_error(&self, source: std::io::Error) -> Error {
        Error::Io { path: self.path.clone(), source }
    }

    /// Reads the next bytes into `buffer`, and fills only a part of it if the file ends. Returns the number of
    /// bytes read.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.reader.read(rest) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.io_error(e)),
            }
        }
        self.offset += filled as u64;
        Ok(filled)
    }

    /// Fills `buffer` completely with the next bytes. Returns an error if the file ends before that.
    pub(crate) fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        match buffer.len() - self.receive(buffer)? {
            0 => Ok(()),
            missing => Err(self.early(missing as u64)),
        }
    }

    /// Reads the next `N` bytes. Returns `None` if the file ends before the first of them, and an error if it ends
    /// before the last.
    #[cfg(feature = "webdataset")]
    pub(crate) fn array_or_end<const N: usize>(&mut self) -> Result<Option<[u8; N]>> {
        let mut bytes = [0; N];
        match self.receive(&mut bytes)? {
            0 => Ok(None),
            received if received == N => Ok(Some(bytes)),
            received => Err(self.early((N - received) as u64)),
        }
    }

    /// Reads the next `N` bytes. Returns an error if the file ends before that.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes).map(|()| bytes)
    }

    /// Reads the next `len` bytes. Returns an error if the file ends before that. Memory is allocated only for bytes
    /// that have been read, not for the stated length.
    pub(crate) fn bytes(&mut self, len: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let received = self.reader.by_ref().take(len).read_to_end(&mut bytes);
        self.offset += bytes.len() as u64;
        received.map_err(|e| self.io_error(e))?;
        match len - bytes.len() as u64 {
            0 => Ok(bytes),
            missing => Err(self.early(missing)),
        }
    }

    /// Checks that the file ends here. Reading to the end also makes decoders verify their checksums.
    pub(crate) fn end(&mut self) -> Result<()> {
        let mut more = Vec::new();
        match self.reader.by_ref().take(1).read_to_end(&mut more) {
            Ok(0) => Ok(()),
            Ok(_) => Err(self.damaged("nothing more was expected, but bytes follow")),
            Err(e) => Err(self.io_error(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that returns its bytes one by one.
    struct Slow<'a>(&'a [u8]);
    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(buffer.get_mut(..1).unwrap_or_default())
        }
    }

    #[test]
    fn an_end_too_early_or_too_late_is_named_at_its_place() {
        let mut input = Input::new("f".into(), Slow(b"abcdef"));
        assert_eq!(input.array().unwrap(), *b"ab");
        assert_eq!(input.bytes(2).unwrap(), b"cd");
        assert_eq!(
            input.end().unwrap_err().to_string(),
            "'f', byte 4: nothing more was expected, but bytes follow"
        );
        let error = input.array::<4>().unwrap_err();
        assert_eq!(error.to_string(), "'f', byte 5: the file ends, 3 bytes early or more");
        assert_eq!(input.bytes(u64::MAX).unwrap_err().to_string().split_once(", ").unwrap().0, "'f'");
        input.end().unwrap();
    }
}
