//! [`FileState`]: the size of a file and a checksum of its ends, which are equal for all copies of the file.

use super::Location;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

/// The size of a file and a checksum of its ends. Both are found without reading the complete file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileState {
    /// The number of bytes; `None` if it is unknown, as for an object that has not been listed or a file that no longer
    /// exists.
    pub(crate) bytes: Option<u64>,
    /// A checksum of the file's ends, or of an object's tag; `None` if it is unknown.
    pub(crate) content: Option<u32>,
}

/// The number of bytes that are read at each end of a file.
const END: u64 = 4096;

impl FileState {
    /// Returns the current state of a file. Reads its ends, but sends no network request.
    pub(crate) fn of(file: &Location) -> Self {
        if let Some(bytes) = file.bytes_in_memory() {
            let ends = END as usize;
            let first = bytes.get(..ends).unwrap_or(bytes);
            let last = bytes.get(bytes.len().saturating_sub(ends)..).unwrap_or_default();
            return Self { bytes: Some(bytes.len() as u64), content: Some(checksum(first, last)) };
        }
        match file.open_file() {
            Ok(Some(file)) => Self::of_open(file).unwrap_or_default(),
            Ok(None) => file.listed().unwrap_or_default(),
            Err(_) => Self::default(),
        }
    }

    fn of_open(mut file: File) -> std::io::Result<Self> {
        let found = file.metadata()?;
        if !found.is_file() {
            return Ok(Self::default());
        }
        let (mut first, mut last) = (Vec::new(), Vec::new());
        file.by_ref().take(END).read_to_end(&mut first)?;
        file.seek(SeekFrom::Start(found.len().saturating_sub(END)))?;
        file.take(END).read_to_end(&mut last)?;
        Ok(Self { bytes: Some(found.len()), content: Some(checksum(&first, &last)) })
    }

    /// Creates the state of an object from the size and tag in a listing.
    #[cfg(feature = "object-store")]
    pub(crate) fn of_object(bytes: u64, tag: Option<&str>) -> Self {
        Self { bytes: Some(bytes), content: tag.map(|tag| crc32c::crc32c(tag.as_bytes())) }
    }

    /// Encodes the state as bytes, for checksums.
    pub(crate) fn encode(self) -> Vec<u8> {
        let number = |number: Option<u64>| number.unwrap_or(u64::MAX).to_le_bytes();
        [number(self.bytes), number(self.content.map(u64::from))].concat()
    }
}

/// Returns both values if both are known and differ, otherwise `None`.
pub(crate) fn differ<T: PartialEq>(mine: Option<T>, theirs: Option<T>) -> Option<(T, T)> {
    mine.zip(theirs).filter(|(mine, theirs)| mine != theirs)
}

fn checksum(first: &[u8], last: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(first), last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_and_its_copy_are_alike_and_its_ends_tell() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let mut bytes = vec![b'x'; 20_000];
        let mut seen = Vec::new();
        for change in [None, Some(0), Some(4095), Some(19_999), Some(16_000)] {
            if let Some(at) = change {
                bytes[at] = b'y';
            }
            std::fs::write(&path, &bytes).unwrap();
            let state = FileState::of(&Location::from(&path));
            assert_eq!(state, FileState::of(&Location::bytes("b", bytes.clone())));
            assert_eq!(state.bytes, Some(20_000));
            assert!(!seen.contains(&state.content));
            seen.push(state.content);
        }
        for (unknown, expected) in [(folder.path().join("none"), None), (folder.path().into(), None)] {
            assert_eq!(FileState::of(&Location::from(unknown)).bytes, expected);
        }
        assert_eq!(FileState::of(&Location::from("s3://bucket/key")), FileState::default());
    }
}
