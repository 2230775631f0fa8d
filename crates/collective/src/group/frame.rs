//! The messages between workers, and their encoding as bytes.

use bytes::Bytes;
use distribute_cluster::bounded::{Budget, SHORT};
use distribute_cluster::{Blame, Standing};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The session that a frame belongs to. Equal on all workers, because it is made of names and counts that are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionId {
    /// The digest of the name of these sessions, which says what they are for.
    pub name: u64,
    /// The number of sessions of this name that have been opened, including this one.
    pub number: u64,
}

/// A message from one worker to another in a round of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// The session.
    pub session: SessionId,
    /// The number of the round in the session, from 1.
    pub round: u64,
    /// The content of the message.
    pub said: Said,
}

/// The message of a worker in a round.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// All replicas of the worker make this call.
    Call {
        /// [`Fingerprint::digest`](distribute_cluster::Fingerprint::digest) of the call.
        digest: u64,
        /// The data of the call, to be used only if all workers make it.
        body: Bytes,
    },
    /// The standing of each of its replicas, because they differ from each other or from those of other workers, or the
    /// deadline has passed.
    Standings {
        /// One for each replica of the worker.
        standings: Vec<Standing>,
        /// The number of the step there. Between steps, workers may have made different numbers of them.
        step: u64,
        /// The time that the worker has waited, if its deadline has passed.
        expired: Option<Duration>,
        /// The workers of which nothing had been heard by then.
        late: Vec<usize>,
        /// A worker that this one has lost before it made the call, and how.
        lost: Option<(usize, String)>,
    },
    /// All replicas of the worker are gone; it makes no more calls in this session.
    Left {
        /// One for each replica of the worker.
        standings: Vec<Standing>,
    },
    /// The reason why the call did not complete, decided by one worker because others may have received different
    /// standings.
    Verdict(Blame),
    /// A vector of a call that is still to come; `round` is that before the call.
    Early {
        /// The number of the worker's vector.
        part: u64,
        /// The numbers, or those that the receiver adds up.
        body: Bytes,
    },
}

/// A frame without its data.
#[derive(Serialize, Deserialize)]
struct Head {
    session: SessionId,
    round: u64,
    said: SaidHead,
}

#[derive(Serialize, Deserialize)]
enum SaidHead {
    Call {
        digest: u64,
    },
    Standings {
        standings: Vec<Standing>,
        step: u64,
        expired: Option<Duration>,
        late: Vec<usize>,
        lost: Option<(usize, String)>,
    },
    Left {
        standings: Vec<Standing>,
    },
    Verdict(Blame),
    Early {
        part: u64,
    },
}

impl Frame {
    /// The least number of bytes that it takes while it waits.
    pub fn weight(&self) -> usize {
        let standings = |all: &[Standing]| size_of_val(all);
        size_of::<Self>()
            + match &self.said {
                Said::Call { body, .. } | Said::Early { body, .. } => body.len(),
                Said::Standings { standings: all, late, .. } => standings(all) + size_of_val(&late[..]),
                Said::Left { standings: all } => standings(all),
                Said::Verdict(_) => size_of::<Blame>(),
            }
    }

    /// Encodes the frame as a head and a body, which transports keep apart so that data is never copied.
    ///
    /// # Errors
    /// If the head cannot be serialized.
    pub fn encode(self) -> postcard::Result<(Bytes, Bytes)> {
        let (said, body) = match self.said {
            Said::Call { digest, body } => (SaidHead::Call { digest }, body),
            Said::Standings { standings, step, expired, late, lost } => {
                (SaidHead::Standings { standings, step, expired, late, lost }, Bytes::new())
            }
            Said::Left { standings } => (SaidHead::Left { standings }, Bytes::new()),
            Said::Verdict(blame) => (SaidHead::Verdict(blame), Bytes::new()),
            Said::Early { part, body } => (SaidHead::Early { part }, body),
        };
        let head = Head { session: self.session, round: self.round, said };
        Ok((postcard::to_allocvec(&head)?.into(), body))
    }

    /// Decodes a frame.
    ///
    /// # Errors
    /// If the bytes are not a frame.
    pub fn decode(head: &[u8], body: Bytes) -> postcard::Result<Self> {
        let Head { session, round, said } = if head.len() <= SHORT {
            postcard::from_bytes(head)?
        } else {
            // INV-28
            Budget::of(head.len()).decode(&mut postcard::Deserializer::from_bytes(head))?
        };
        let said = match said {
            SaidHead::Call { digest } => Said::Call { digest, body },
            SaidHead::Standings { standings, step, expired, late, lost } => {
                Said::Standings { standings, step, expired, late, lost }
            }
            SaidHead::Left { standings } => Said::Left { standings },
            SaidHead::Verdict(blame) => Said::Verdict(blame),
            SaidHead::Early { part } => Said::Early { part, body },
        };
        Ok(Self { session, round, said })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_cluster::{Fingerprint, Operation, Presence};
    use proptest::prelude::*;
    use std::panic::Location;

    #[test]
    fn frames_come_back_from_their_bytes() {
        let call = Fingerprint::new(Operation::AllReduce, "SUM float32[2]", Location::caller());
        let mut gone = Standing::running(3);
        (gone.presence, gone.last, gone.completed) = (Presence::Failed, Some(call.clone()), 7);
        let standings = vec![Standing::waiting(2, call.clone()), gone];
        let session = SessionId { name: u64::MAX, number: 3 };
        for said in [
            Said::Call { digest: 5, body: Bytes::from_static(b"data") },
            Said::Standings {
                standings: standings.clone(),
                step: 4,
                expired: Some(Duration::from_millis(1500)),
                late: vec![1, 2],
                lost: Some((2, "reset".to_owned())),
            },
            Said::Left { standings: standings.clone() },
            Said::Verdict(Blame::failed(1, 3, &call)),
            Said::Early { part: 2, body: Bytes::from_static(b"numbers") },
        ] {
            let frame = Frame { session, round: 9, said };
            let (head, body) = frame.clone().encode().unwrap();
            assert_eq!(Frame::decode(&head, body).unwrap(), frame);
        }
    }

    // INV-28
    #[test]
    fn a_head_of_small_standings_does_not_take_many_times_its_bytes() {
        let left = |count: usize| {
            let standings = vec![Standing::running(1); count];
            let session = SessionId { name: 1, number: 1 };
            Frame { session, round: 1, said: Said::Left { standings } }.encode().unwrap().0
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
