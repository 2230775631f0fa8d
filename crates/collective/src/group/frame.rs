//! What one worker tells another, as bytes.

use bytes::Bytes;
use distribute_cluster::{Blame, Standing};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Which session a frame belongs to: equal on all workers, since it is made of names and counts that are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionId {
    /// The digest of what the sessions are for: of a strategy, or of a run that was given a name.
    pub name: u64,
    /// How many sessions of this name there have been, with this one.
    pub number: u64,
}

/// What one worker tells another in a round of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// Which session.
    pub session: SessionId,
    /// The number of the round in the session, from 1.
    pub round: u64,
    /// What is told.
    pub said: Said,
}

/// What a worker says in a round.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// All its replicas make this call.
    Call {
        /// [`Fingerprint::digest`](distribute_cluster::Fingerprint::digest) of the call.
        digest: u64,
        /// Data, to be used only if all make the same call.
        body: Bytes,
    },
    /// Where each of its replicas stands: they differ among themselves or from those of other workers, or the deadline
    /// has passed.
    Stand {
        /// One for each replica of the worker.
        standings: Vec<Standing>,
        /// How long it has waited, where its deadline has passed.
        expired: Option<Duration>,
    },
    /// Its replicas are all gone: it makes no more calls in this session.
    Left {
        /// One for each replica of the worker.
        standings: Vec<Standing>,
    },
    /// Why the call did not complete, where workers might judge by different standings.
    Verdict(Blame),
}

/// The part of a frame that is not data.
#[derive(Serialize, Deserialize)]
struct Head {
    session: SessionId,
    round: u64,
    said: SaidHead,
}

#[derive(Serialize, Deserialize)]
enum SaidHead {
    Call { digest: u64 },
    Stand { standings: Vec<Standing>, expired: Option<Duration> },
    Left { standings: Vec<Standing> },
    Verdict(Blame),
}

impl Frame {
    /// The frame as a head and a body. A transport keeps them apart, so that data is never copied.
    ///
    /// # Errors
    /// What cannot be written, such as a standing of more than the memory there is.
    pub fn encode(self) -> postcard::Result<(Bytes, Bytes)> {
        let (said, body) = match self.said {
            Said::Call { digest, body } => (SaidHead::Call { digest }, body),
            Said::Stand { standings, expired } => (SaidHead::Stand { standings, expired }, Bytes::new()),
            Said::Left { standings } => (SaidHead::Left { standings }, Bytes::new()),
            Said::Verdict(blame) => (SaidHead::Verdict(blame), Bytes::new()),
        };
        let head = Head { session: self.session, round: self.round, said };
        Ok((postcard::to_allocvec(&head)?.into(), body))
    }

    /// The frame of these bytes.
    ///
    /// # Errors
    /// Bytes that are no frame.
    pub fn decode(head: &[u8], body: Bytes) -> postcard::Result<Self> {
        let Head { session, round, said } = postcard::from_bytes(head)?;
        let said = match said {
            SaidHead::Call { digest } => Said::Call { digest, body },
            SaidHead::Stand { standings, expired } => Said::Stand { standings, expired },
            SaidHead::Left { standings } => Said::Left { standings },
            SaidHead::Verdict(blame) => Said::Verdict(blame),
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
            Said::Stand { standings: standings.clone(), expired: Some(Duration::from_millis(1500)) },
            Said::Left { standings: standings.clone() },
            Said::Verdict(Blame::failed(1, 3, &call)),
        ] {
            let frame = Frame { session, round: 9, said };
            let (head, body) = frame.clone().encode().unwrap();
            assert_eq!(Frame::decode(&head, body).unwrap(), frame);
        }
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
