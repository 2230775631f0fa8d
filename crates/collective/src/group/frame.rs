//! The messages between workers, and their encoding as bytes.

use bytes::Bytes;
use distribute_cluster::bounded::{Budget, SHORT};
use distribute_cluster::{Blame, ReplicaStatus};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The session to which a frame belongs. It is equal on all workers, because it consists of names and counts that are
/// equal on all workers.
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
    /// The statuses of the worker's replicas. They are sent if calls differ, if this worker has aborted the call, if a
    /// worker has left or is lost, or if the deadline has passed.
    Statuses {
        /// One status for each replica of the worker.
        statuses: Vec<ReplicaStatus>,
        /// The current step of the worker. In a session between steps, it may differ between workers.
        step: u64,
        /// The time that the worker has waited, if its deadline has passed.
        expired: Option<Duration>,
        /// The workers from which nothing had been received before the deadline.
        late: Vec<usize>,
        /// The index of a worker that became unreachable without making the call, and the reason.
        lost: Option<(usize, String)>,
    },
    /// All replicas of the worker have returned, so that it makes no more calls in this session.
    Left {
        /// One status for each replica of the worker.
        statuses: Vec<ReplicaStatus>,
    },
    /// The reason why the call did not complete, decided by one worker because others may have received different
    /// statuses.
    Verdict(Blame),
    /// A vector for a future call. The frame's round is the last one before the call.
    Early {
        /// The index of the vector among the worker's vectors of the call.
        part: u64,
        /// The complete vector, or the range of it that the receiver sums.
        body: Bytes,
    },
}

/// A frame without its data.
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
        lost: Option<(usize, String)>,
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
    /// Returns the minimum size in bytes of the frame while it is queued.
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

    /// Encodes the frame as a head and a body. Transports keep them separate, so that data is never copied.
    ///
    /// # Errors
    /// Returns an error if the head cannot be serialized.
    pub fn encode(self) -> postcard::Result<(Bytes, Bytes)> {
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
        Ok((postcard::to_allocvec(&head)?.into(), body))
    }

    /// Decodes a frame.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a valid frame.
    pub fn decode(head: &[u8], body: Bytes) -> postcard::Result<Self> {
        let Head { session, round, content } = if head.len() <= SHORT {
            postcard::from_bytes(head)?
        } else {
            // INV-28
            Budget::of(head.len()).decode(&mut postcard::Deserializer::from_bytes(head))?
        };
        let content = match content {
            ContentHead::Call { digest } => Content::Call { digest, body },
            ContentHead::Statuses { statuses, step, expired, late, lost } => {
                Content::Statuses { statuses, step, expired, late, lost }
            }
            ContentHead::Left { statuses } => Content::Left { statuses },
            ContentHead::Verdict(blame) => Content::Verdict(blame),
            ContentHead::Early { part } => Content::Early { part, body },
        };
        Ok(Self { session, round, content })
    }
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
                lost: Some((2, "reset".to_owned())),
            },
            Content::Left { statuses: statuses.clone() },
            Content::Verdict(Blame::failed(1, 3, &call)),
            Content::Early { part: 2, body: Bytes::from_static(b"numbers") },
        ] {
            let frame = Frame { session, round: 9, content };
            let (head, body) = frame.clone().encode().unwrap();
            assert_eq!(Frame::decode(&head, body).unwrap(), frame);
        }
    }

    // INV-28
    #[test]
    fn a_head_of_small_standings_does_not_take_many_times_its_bytes() {
        let left = |count: usize| {
            let statuses = vec![ReplicaStatus::running(1); count];
            let session = SessionId { name: 1, number: 1 };
            Frame { session, round: 1, content: Content::Left { statuses } }.encode().unwrap().0
        };
        assert!(Frame::decode(&left(1_000), Bytes::new()).is_ok());
        let many = left(2_500_000);
        assert!(many.len() < 16 << 20, "{}", many.len());
        assert!(Frame::decode(&many, Bytes::new()).is_err());
    }

    proptest! {
        #[test]
        fn bytes_that_are_no_frame_are_an_error_or_another_frame(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            if let Ok(frame) = Frame::decode(&bytes, Bytes::new()) {
                prop_assert!(frame.encode().is_ok());
            }
        }
    }
}
