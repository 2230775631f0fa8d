//! Checksums of the messages between workers.
//!
//! A checksum is the CRC-32 of the bytes. The sender computes it on the thread that has made the data, when the message
//! is passed to the transport. The receiver checks the head when the message arrives, and the body when a call uses it.
//! So errors of memory are detected as well as those of links.

// - INV-104: a head is compared on arrival, a body when a call takes it, and a vector that was sent early when its call
//   receives it. After its first message with checksums, a worker sends none without. Tests: `group/frame.rs`,
//   `group/round/tests.rs`, `collective/tests/it/corruption.rs`, `multi_worker/flips.rs`.

use super::Frame;
use bytes::Bytes;
use distribute_cluster::Corruption;
use std::fmt;
use std::str::FromStr;

/// The links on which messages between workers have checksums.
///
/// A checksum detects bits that change between the sender's memory and the receiver's use of the data: in memory, in a
/// network card or in transit. TLS protects bytes only while they are encrypted, so its links have checksums as well.
///
/// Gradients that change before they are sent are the same on all workers, and are not detected. Sums that a library
/// such as MPI or NCCL computes have no checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Checksums {
    /// Links to other machines have checksums: all but those over loopback addresses, shared memory and MPI.
    #[default]
    Auto,
    /// All links have checksums.
    Always,
    /// No link has checksums.
    Never,
}

impl fmt::Display for Checksums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        })
    }
}

/// An error that a text is not the name of a setting of [`Checksums`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is none of auto, always and never")]
pub struct UnknownChecksums;

/// Parses the names that [`Display`](fmt::Display) prints, ignoring case.
impl FromStr for Checksums {
    type Err = UnknownChecksums;

    fn from_str(name: &str) -> Result<Self, UnknownChecksums> {
        let all = [Self::Auto, Self::Always, Self::Never];
        let found = all.into_iter().find(|one| one.to_string().eq_ignore_ascii_case(name.trim()));
        found.ok_or(UnknownChecksums)
    }
}

/// An error that the checksum of a received message differs from the one that its sender computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The name of the data, such as `bucket 3`.
    pub data: String,
    /// The length of the data in bytes.
    pub bytes: usize,
    /// The checksum that the sender computed.
    pub sent: u32,
    /// The checksum of the received bytes.
    pub received: u32,
}

impl Changed {
    /// Compares the checksum of received bytes with that of the sender. Returns `None` if they are equal, or if the
    /// sender has sent none.
    pub(super) fn find(bytes: &[u8], sent: Option<u32>, data: impl FnOnce() -> String) -> Option<Self> {
        let sent = sent?;
        let received = crc32fast::hash(bytes);
        (received != sent).then(|| Self { data: data(), bytes: bytes.len(), sent, received })
    }

    /// Converts the error into the corruption of data between two workers.
    pub(super) fn between(self, sender: usize, receiver: usize) -> Corruption {
        let Self { data, bytes, sent, received } = self;
        Corruption { sender, receiver, data, bytes: bytes as u64, sent, received }
    }
}

/// The checksum of the last body, so that a body that is sent to several workers one after another is summed only once.
#[derive(Debug, Default)]
pub(super) struct BodySums(Option<(Bytes, u32)>);

impl BodySums {
    /// Returns the checksum of the body of a frame.
    pub fn sum(&mut self, frame: &Frame) -> u32 {
        let Some(body) = frame.body() else { return crc32fast::hash(&[]) };
        // The last body is held, so its memory has not been reused for another one.
        match &self.0 {
            Some((last, sum)) if last.as_ptr() == body.as_ptr() && last.len() == body.len() => *sum,
            _ => {
                let sum = crc32fast::hash(body);
                self.0 = Some((body.clone(), sum));
                sum
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Content, SessionId};
    use super::*;

    #[test]
    fn settings_are_read_as_they_are_printed_and_others_are_refused() {
        for one in [Checksums::Auto, Checksums::Always, Checksums::Never] {
            assert_eq!(one.to_string().to_uppercase().parse(), Ok(one));
        }
        assert_eq!("on".parse::<Checksums>(), Err(UnknownChecksums));
    }

    #[test]
    fn equal_bodies_are_read_once_and_others_are_not_confused() {
        let frame = |body: &Bytes| {
            let content = Content::Early { part: 0, body: body.clone() };
            Frame { session: SessionId { name: 1, number: 1 }, round: 1, content, sum: None }
        };
        let mut sums = BodySums::default();
        for text in ["one", "two", "two", "longer", ""] {
            let body = Bytes::copy_from_slice(text.as_bytes());
            for _ in 0..2 {
                assert_eq!(sums.sum(&frame(&body)), crc32fast::hash(text.as_bytes()));
            }
            assert_eq!(
                sums.sum(&frame(&body.slice(..body.len() / 2))),
                crc32fast::hash(&body[..body.len() / 2])
            );
        }
    }
}
