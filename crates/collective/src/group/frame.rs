//! The messages between workers, and their encoding as bytes.

use super::Loss;
use super::checksums::Changed;
use bytes::{BufMut, Bytes};
use distribute_cluster::bounded::{Budget, SHORT};
use distribute_cluster::{Blame, ReplicaStatus};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The id of a session, in which the workers make their calls. It consists of a name and a count, which are equal on
/// all workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionId {
    /// The digest of the session's name, which describes the purpose of the session.
    pub name: u64,
    /// The number of sessions with this name that have been opened, including this one.
    pub number: u64,
}

/// A message from one worker to another in a round of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// The session that the frame belongs to.
    pub session: SessionId,
    /// The sequence number of the round in the session; the first is 1.
    pub round: u64,
    /// The content of the message.
    pub content: Content,
    /// The checksum of the body that the sender computed; `None` if the link has no checksums, or if the frame has not
    /// been received.
    pub sum: Option<u32>,
}

/// The maximum length in bytes of the head of a [`Content::Call`] without checksums: four numbers of at most 10 bytes,
/// and the kind of content.
pub(super) const MAX_CALL_HEAD: usize = 41;

/// The length in bytes of the checksums at the end of a head: the checksum of the body, and that of the head before it.
const SUMS: usize = 8;

/// An error in a received head.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not a valid head.
    #[error(transparent)]
    Malformed(#[from] postcard::Error),
    /// The checksum of the head differs from the one that its sender computed.
    #[error("its checksum is {:08x}, but {:08x} was sent", .0.received, .0.sent)]
    Changed(Changed),
}

/// The message of a worker in a round.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// All replicas of the worker make this call.
    Call {
        /// [`Fingerprint::digest`](distribute_cluster::Fingerprint::digest) of the call.
        digest: u64,
        /// The data of the call, which is used only if all workers make the call.
        body: Bytes,
    },
    /// The statuses of the worker's replicas. A worker sends them if calls differ, if it has aborted the call, if a
    /// worker has left or is lost, or if the deadline has passed.
    Statuses {
        /// One status for each replica of the worker.
        statuses: Vec<ReplicaStatus>,
        /// The current step of the worker. In a session between steps, it may differ between workers.
        step: u64,
        /// The time that the worker has waited, if its deadline has passed.
        expired: Option<Duration>,
        /// The workers from which nothing had arrived before the deadline.
        late: Vec<usize>,
        /// The index of a worker that became unreachable without making the call, and the reason.
        lost: Option<(usize, Loss)>,
    },
    /// The closures of all replicas of the worker have returned, so it makes no more calls in this session.
    Left {
        /// One status for each replica of the worker.
        statuses: Vec<ReplicaStatus>,
    },
    /// The reason why the call did not complete. One worker decides it, because others may have received different
    /// statuses.
    Verdict(Blame),
    /// A vector for a later call. The frame's round is the last one before that call.
    Early {
        /// The index of the vector among the worker's vectors of the call.
        part: u64,
        /// The vector, or the range of it that the receiver sums.
        body: Bytes,
    },
}

/// A frame without its data, as it is serialized.
#[derive(Serialize, Deserialize)]
struct Head {
    session: SessionId,
    round: u64,
    content: ContentHead,
}

#[derive(Serialize, Deserialize)]
enum ContentHead {
    Call {
        digest: u64,
    },
    Statuses {
        statuses: Vec<ReplicaStatus>,
        step: u64,
        expired: Option<Duration>,
        late: Vec<usize>,
        lost: Option<(usize, Loss)>,
    },
    Left {
        statuses: Vec<ReplicaStatus>,
    },
    Verdict(Blame),
    Early {
        part: u64,
    },
}

impl Frame {
    /// Returns the minimum size in bytes of the frame in the inbox.
    pub fn memory_size(&self) -> usize {
        let statuses = |all: &[ReplicaStatus]| size_of_val(all);
        size_of::<Self>()
            + match &self.content {
                Content::Call { body, .. } | Content::Early { body, .. } => body.len(),
                Content::Statuses { statuses: all, late, .. } => statuses(all) + size_of_val(&late[..]),
                Content::Left { statuses: all } => statuses(all),
                Content::Verdict(_) => size_of::<Blame>(),
            }
    }

    /// Encodes the frame as a head and a body. Transports keep them separate, so that the data need not be copied.
    ///
    /// # Errors
    /// Returns an error if the head cannot be serialized.
    pub fn encode(self) -> postcard::Result<(Bytes, Bytes)> {
        let (head, body) = self.encode_head()?;
        Ok((head.into(), body))
    }

    /// Encodes the head of a [`Content::Call`] into `buffer`: the head that [`encode`](Self::encode) returns. Two such
    /// heads are equal if and only if the session, the round and the digest are.
    ///
    /// # Errors
    /// Returns an error if the head cannot be serialized.
    pub(super) fn encode_call_head(
        session: SessionId,
        round: u64,
        digest: u64,
        buffer: &mut [u8; MAX_CALL_HEAD],
    ) -> postcard::Result<&[u8]> {
        let head = Head { session, round, content: ContentHead::Call { digest } };
        Ok(postcard::to_slice(&head, buffer)?)
    }

    /// Returns the encoded head, and the body.
    fn encode_head(self) -> postcard::Result<(Vec<u8>, Bytes)> {
        let (content, body) = match self.content {
            Content::Call { digest, body } => (ContentHead::Call { digest }, body),
            Content::Statuses { statuses, step, expired, late, lost } => {
                (ContentHead::Statuses { statuses, step, expired, late, lost }, Bytes::new())
            }
            Content::Left { statuses } => (ContentHead::Left { statuses }, Bytes::new()),
            Content::Verdict(blame) => (ContentHead::Verdict(blame), Bytes::new()),
            Content::Early { part, body } => (ContentHead::Early { part }, body),
        };
        let head = Head { session: self.session, round: self.round, content };
        Ok((postcard::to_allocvec(&head)?, body))
    }

    /// Encodes the frame like [`encode`](Self::encode), and appends `sum`, the checksum of the body, and the checksum
    /// of the head.
    ///
    /// # Errors
    /// Returns an error if the head cannot be serialized.
    pub fn encode_with_sum(self, sum: u32) -> postcard::Result<(Bytes, Bytes)> {
        let (mut head, body) = self.encode_head()?;
        head.reserve_exact(SUMS);
        head.put_u32_le(sum);
        head.put_u32_le(crc32fast::hash(&head));
        Ok((head.into(), body))
    }

    /// Returns the data of the frame, if it has any.
    pub fn body(&self) -> Option<&Bytes> {
        match &self.content {
            Content::Call { body, .. } | Content::Early { body, .. } => Some(body),
            _ => None,
        }
    }

    /// Compares the checksum of the data with the one that the sender computed. Returns `None` if they are equal, or if
    /// the sender has computed none.
    pub fn changed(&self) -> Option<Changed> {
        let data = || match &self.content {
            Content::Early { part, .. } => format!("bucket {part}"),
            _ => "the data".to_owned(),
        };
        Changed::find(self.body().map_or(&[][..], |body| body), self.sum, data)
    }

    /// Decodes a frame that may have checksums. The checksum of the head is compared here, and that of the body is
    /// stored in the frame.
    ///
    /// # Errors
    /// - [`DecodeError::Malformed`]: the bytes are not a valid frame.
    /// - [`DecodeError::Changed`]: the head has arrived changed.
    pub fn decode(head: &[u8], body: Bytes) -> Result<Self, DecodeError> {
        let (decoded, rest) = Head::take(head)?;
        let sum = match rest.len() {
            0 => None,
            SUMS => Some(compare_head(head)?.1),
            _ => {
                compare_head(head)?;
                return Err(DecodeError::Malformed(postcard::Error::DeserializeUnexpectedEnd));
            }
        };
        Ok(decoded.into_frame(body, sum))
    }

    /// Decodes a frame from a worker that sends checksums. The checksum of the head is compared before anything else,
    /// so that no changed byte is decoded.
    ///
    /// # Errors
    /// Returns the errors of [`decode`](Self::decode).
    pub fn decode_with_sum(head: &[u8], body: Bytes) -> Result<Self, DecodeError> {
        let (head, sum) = compare_head(head)?;
        match Head::take(head)? {
            (decoded, []) => Ok(decoded.into_frame(body, Some(sum))),
            _ => Err(DecodeError::Malformed(postcard::Error::DeserializeUnexpectedEnd)),
        }
    }
}

impl Head {
    /// Decodes a head, and returns the bytes after it.
    fn take(bytes: &[u8]) -> postcard::Result<(Self, &[u8])> {
        if bytes.len() <= SHORT {
            return postcard::take_from_bytes(bytes);
        }
        // INV-28
        let mut decoder = postcard::Deserializer::from_bytes(bytes);
        Ok((Budget::of(bytes.len()).decode(&mut decoder)?, decoder.finalize()?))
    }

    fn into_frame(self, body: Bytes, sum: Option<u32>) -> Frame {
        let Self { session, round, content } = self;
        let content = match content {
            ContentHead::Call { digest } => Content::Call { digest, body },
            ContentHead::Statuses { statuses, step, expired, late, lost } => {
                Content::Statuses { statuses, step, expired, late, lost }
            }
            ContentHead::Left { statuses } => Content::Left { statuses },
            ContentHead::Verdict(blame) => Content::Verdict(blame),
            ContentHead::Early { part } => Content::Early { part, body },
        };
        Frame { session, round, content, sum }
    }
}

/// Compares the checksum at the end of a head. Returns the head without checksums, and the checksum of the body.
fn compare_head(head: &[u8]) -> Result<(&[u8], u32), DecodeError> {
    let (checked, sent) = head.split_last_chunk().unwrap_or((head, &[0; 4]));
    let changed = Changed::find(checked, Some(u32::from_le_bytes(*sent)), || "the head of a message".into());
    if let Some(changed) = changed {
        return Err(DecodeError::Changed(changed));
    }
    let too_short = postcard::Error::DeserializeUnexpectedEnd;
    let (head, sum) = checked.split_last_chunk().ok_or(too_short)?;
    Ok((head, u32::from_le_bytes(*sum)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_cluster::{Fingerprint, Operation, Presence};
    use proptest::prelude::*;
    use std::panic::Location;

    #[test]
    fn frames_round_trip() {
        let call = Fingerprint::new(Operation::AllReduce, "SUM float32[2]", Location::caller());
        let mut gone = ReplicaStatus::running(3);
        (gone.presence, gone.last, gone.completed) = (Presence::Failed, Some(call.clone()), 7);
        let statuses = vec![ReplicaStatus::waiting(2, call.clone()), gone];
        let session = SessionId { name: u64::MAX, number: 3 };
        for content in [
            Content::Call { digest: 5, body: Bytes::from_static(b"data") },
            Content::Statuses {
                statuses: statuses.clone(),
                step: 4,
                expired: Some(Duration::from_millis(1500)),
                late: vec![1, 2],
                lost: Some((2, "reset".into())),
            },
            Content::Left { statuses: statuses.clone() },
            Content::Verdict(Blame::failed(1, 3, &call)),
            Content::Early { part: 2, body: Bytes::from_static(b"numbers") },
        ] {
            let frame = Frame { session, round: 9, content, sum: None };
            let (head, body) = frame.clone().encode().unwrap();
            assert_eq!(Frame::decode(&head, body).unwrap(), frame);
            let (head, body) = frame.clone().encode_with_sum(7).unwrap();
            let received = Frame { sum: Some(7), ..frame };
            assert_eq!(Frame::decode(&head, body.clone()).unwrap(), received);
            assert_eq!(Frame::decode_with_sum(&head, body).unwrap(), received);
        }
    }

    #[test]
    fn heads_of_calls_are_those_of_their_frames_and_differ_if_any_number_does() {
        let max = u64::MAX;
        let mut all = std::collections::HashSet::new();
        for (name, number, round, digest) in
            [(0, 1, 1, 0), (max, max, max, max), (1, 1, 1, 0), (0, 2, 1, 0), (0, 1, 2, 0), (0, 1, 1, 1 << 63)]
        {
            let session = SessionId { name, number };
            let (content, mut buffer) = (Content::Call { digest, body: Bytes::new() }, [0; MAX_CALL_HEAD]);
            let head = Frame { session, round, content, sum: None }.encode().unwrap().0;
            assert_eq!(Frame::encode_call_head(session, round, digest, &mut buffer).unwrap(), head);
            assert!(all.insert(head));
        }
    }

    // INV-28
    #[test]
    fn a_head_of_small_standings_does_not_take_many_times_its_bytes() {
        let left = |count: usize| {
            let statuses = vec![ReplicaStatus::running(1); count];
            let session = SessionId { name: 1, number: 1 };
            let content = Content::Left { statuses };
            Frame { session, round: 1, content, sum: None }.encode().unwrap().0
        };
        assert!(Frame::decode(&left(1_000), Bytes::new()).is_ok());
        let many = left(2_500_000);
        assert!(many.len() < 16 << 20, "{}", many.len());
        assert!(Frame::decode(&many, Bytes::new()).is_err());
    }

    // INV-104
    #[test]
    fn each_flipped_bit_of_a_frame_with_checksums_is_detected() {
        let content = Content::Call { digest: u64::MAX / 3, body: Bytes::from_static(b"some numbers") };
        let session = SessionId { name: u64::MAX / 5, number: 300 };
        let frame = Frame { session, round: 2, content, sum: None };
        let sum = crc32fast::hash(b"some numbers");
        let (head, body) = frame.encode_with_sum(sum).unwrap();
        assert_eq!(Frame::decode(&head, body.clone()).unwrap().changed(), None);
        for bit in 0..8 * (head.len() + body.len()) {
            let (mut head, mut body) = (head.to_vec(), body.to_vec());
            let at = if bit / 8 < head.len() { &mut head[bit / 8] } else { &mut body[bit / 8 - head.len()] };
            *at ^= 1 << (bit % 8);
            let is_of_body = bit / 8 >= head.len();
            let body = Bytes::from(body);
            match Frame::decode_with_sum(&head, body.clone()) {
                Ok(frame) => assert!(is_of_body && frame.changed().is_some(), "bit {bit}"),
                Err(DecodeError::Changed(_)) => assert!(!is_of_body, "bit {bit}"),
                Err(error) => panic!("bit {bit}: {error}"),
            }
            // The first message of a worker, which may send none.
            match Frame::decode(&head, body) {
                Ok(Frame { sum: None, .. }) => assert!(!is_of_body, "bit {bit}"),
                Ok(frame) => assert!(is_of_body && frame.changed().is_some(), "bit {bit}"),
                Err(_) => assert!(!is_of_body, "bit {bit}"),
            }
        }
    }

    proptest! {
        #[test]
        fn bytes_that_are_no_frame_are_an_error_or_another_frame(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            for decode in [Frame::decode, Frame::decode_with_sum] {
                if let Ok(frame) = decode(&bytes, Bytes::new()) {
                    prop_assert!(frame.encode().is_ok());
                }
            }
        }
    }
}
