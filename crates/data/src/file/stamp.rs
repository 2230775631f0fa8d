//! [`Stamp`]: the name, size and modification time of a file, which identify it without reading it.

use super::{Location, differ};
use std::time::UNIX_EPOCH;

/// The name of a file as it was given, its size, and its modification time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stamp {
    name: Vec<u8>,
    /// The size in bytes; `None` if it is unknown, as for an object behind a URL or a file that no longer
    /// exists.
    len: Option<u64>,
    /// The modification time in nanoseconds since 1970; `None` if it is unknown.
    modified: Option<u64>,
}

impl Stamp {
    /// Returns the current stamp of a file. No network request is sent, and no secrets of a URL are kept.
    pub(crate) fn of(file: &Location) -> Self {
        let Some(path) = file.path() else {
            return Self {
                name: file.to_string().into(),
                len: file.bytes_in_memory().map(|bytes| bytes.len() as u64),
                modified: None,
            };
        };
        let found = path.metadata().ok();
        let since_1970 = |found: &std::fs::Metadata| found.modified().ok()?.duration_since(UNIX_EPOCH).ok();
        Self {
            name: file.as_given().to_vec(),
            len: found.as_ref().map(std::fs::Metadata::len),
            modified: found.as_ref().and_then(since_1970).and_then(|time| time.as_nanos().try_into().ok()),
        }
    }

    /// Returns a description of how this stamp differs from an earlier one; `None` if it does not. A size or time that
    /// only one of them contains is not a difference.
    pub(crate) fn difference(&self, was: &Self) -> Option<String> {
        let text = |name: &[u8]| format!("'{}'", String::from_utf8_lossy(name));
        if self.name != was.name {
            return Some(format!("it was written from {}, here is {}", text(&was.name), text(&self.name)));
        }
        if let Some((mine, theirs)) = differ(self.len, was.len) {
            return Some(format!(
                "{} had {theirs} bytes when it was written, and has {mine}",
                text(&self.name)
            ));
        }
        let modified = differ(self.modified, was.modified);
        modified.map(|_| format!("{} is not as old as it was when it was written", text(&self.name)))
    }

    pub(crate) fn encode(&self, bytes: &mut Vec<u8>) {
        for number in [Some(self.name.len() as u64), self.len, self.modified] {
            bytes.extend(number.unwrap_or(UNKNOWN).to_le_bytes());
        }
        bytes.extend(&self.name);
    }

    /// Decodes a stamp from the beginning of `bytes`, and removes it from there. Returns `None` if it is
    /// incomplete.
    pub(crate) fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let mut number = || {
            let (number, rest) = bytes.split_first_chunk()?;
            *bytes = rest;
            Some(u64::from_le_bytes(*number))
        };
        let (name, len, modified) = (number()?, number()?, number()?);
        let (name, rest) = bytes.split_at_checked(usize::try_from(name).ok()?)?;
        *bytes = rest;
        let known = |number| Some(number).filter(|number| *number != UNKNOWN);
        Some(Self { name: name.to_vec(), len: known(len), modified: known(modified) })
    }
}

/// The encoding of an unknown number.
const UNKNOWN: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_differs_by_name_size_and_time_if_available() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "text").unwrap();
        let stamp = Stamp::of(&Location::from(&path));
        assert_eq!(Stamp::of(&Location::from(&path)), stamp);
        let differs = |other: Stamp| stamp.difference(&other).unwrap_or_default();
        assert_eq!(differs(stamp.clone()), "");
        assert_eq!(differs(Stamp { len: None, modified: None, ..stamp.clone() }), "");
        assert!(
            differs(Stamp { len: Some(3), ..stamp.clone() })
                .contains("had 3 bytes when it was written, and has 4")
        );
        assert!(differs(Stamp { modified: Some(1), ..stamp.clone() }).contains("not as old"));
        assert!(
            differs(Stamp { name: b"b".to_vec(), ..stamp.clone() })
                .starts_with("it was written from 'b', here is '/")
        );
        std::fs::remove_file(&path).unwrap();
        assert_eq!(differs(Stamp::of(&Location::from(&path))), "");
        // The secrets of a URL are not kept: a signature differs each time.
        let signed = Stamp::of(&Location::from("https://me:pass@host/a.csv?sig=abc"));
        assert_eq!(signed, Stamp::of(&Location::from("https://you:word@host/a.csv?sig=def")));
        assert_eq!(Stamp::of(&Location::bytes("a", "text")).len, Some(4));
    }

    #[test]
    fn stamps_round_trip_and_other_bytes_are_refused() {
        let mut bytes = Vec::new();
        let stamps = ["/nonexistent/a", "s3://b/k", ""].map(|name| Stamp::of(&Location::from(name)));
        stamps.iter().for_each(|stamp| stamp.encode(&mut bytes));
        let mut rest = bytes.as_slice();
        assert_eq!([(); 3].map(|()| Stamp::decode(&mut rest).unwrap()), stamps);
        assert!(rest.is_empty());
        assert_eq!(Stamp::decode(&mut [255; 100].as_slice()), None);
        assert!((0..bytes.len()).all(|end| {
            let mut cut = &bytes[..end];
            (0..3).any(|_| Stamp::decode(&mut cut).is_none())
        }));
    }
}
