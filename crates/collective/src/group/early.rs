//! Vectors that are sent before the call in which they are used, such as gradients that are sent while the backward
//! pass is still running.
//!
//! Messages from one worker to another keep their order. When all workers have agreed on a call, everything that they
//! sent before the call has therefore arrived, without a separate round.

use super::checksums::{BodySums, Changed};
use super::schedule::GRAIN;
use super::{Content, Frame, Group, SessionId};
use bytes::Bytes;
use distribute_cluster::World;
use distribute_tensor::partition::chunk;
use std::ops::Range;

/// The constant that distinguishes the session ids of early vectors from those of calls.
const EARLY_MARK: u64 = 0x6168_6561_6420_6f66;

/// The size in bytes of the widest number type. Ranges of bytes begin at multiples of this size.
const WIDEST: usize = 8;

/// A sender of vectors before the next call of a session.
///
/// In a group of two, each worker sends complete vectors to the other. In a larger group, a worker receives only the
/// [range](early_range) of every vector that it sums.
#[derive(Clone, Debug)]
pub struct EarlySend {
    group: Group,
    /// The session of early vectors. It is separate from the session of the call.
    session: SessionId,
    call: u64,
}

/// The receiver of early vectors. Received pieces stay in the inbox until the call that uses them.
#[derive(Debug)]
pub(super) struct EarlyReceiver {
    session: SessionId,
}

/// An early vector, or a range of it, received from another worker.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) from: usize,
    pub(super) part: usize,
    pub(super) body: Bytes,
    /// The mismatch of the checksums, if the piece has arrived changed.
    pub(super) changed: Option<Changed>,
}

/// Returns the range of a vector of `len` bytes that `worker` receives from all others, because it sums this range.
pub fn early_range(world: World, worker: usize, len: usize) -> Range<usize> {
    if world.workers() == 2 {
        return 0..len;
    }
    chunk(len, world.workers(), GRAIN * WIDEST, worker)
}

impl EarlySend {
    /// Creates a sender of vectors for the call that follows round `call` of a session.
    pub(super) fn new(group: Group, session: SessionId, call: u64) -> Self {
        Self { group, session: early_session(session), call }
    }

    /// Returns the number of rounds before the call, by which
    /// [`GroupCall::receive_early`](super::GroupCall::receive_early) finds the vectors. All workers that have made the
    /// same calls in this session have the same number.
    pub fn call(&self) -> u64 {
        self.call
    }

    /// Sends a vector to the workers that do not [share memory](distribute_net::Transport::is_near) with this one. With
    /// more than two workers, each receives only its [range](early_range). Call this as early as possible, because the
    /// transfer takes time. `part` is the index of the vector among this worker's vectors of the call.
    pub fn send_far(&self, part: usize, vector: &Bytes) {
        self.send_far_pieces(part, |worker| self.piece(worker, vector));
    }

    /// Sends a vector to the workers that share memory with this one. With more than two workers, each receives only
    /// its [range](early_range). Call this only when the vector is needed, because sending it earlier would disturb
    /// these workers. `part` is the index of the vector among this worker's vectors of the call.
    pub fn send_near(&self, part: usize, vector: &Bytes) {
        self.send_near_pieces(part, |worker| self.piece(worker, vector));
    }

    /// Equivalent to [`send_far`](Self::send_far), except that `piece` returns the bytes for each worker.
    pub fn send_far_pieces(&self, part: usize, piece: impl Fn(usize) -> Bytes) {
        self.send(part, piece, false);
    }

    /// Equivalent to [`send_near`](Self::send_near), except that `piece` returns the bytes for each worker.
    pub fn send_near_pieces(&self, part: usize, piece: impl Fn(usize) -> Bytes) {
        self.send(part, piece, true);
    }

    fn piece(&self, worker: usize, vector: &Bytes) -> Bytes {
        vector.slice(early_range(self.group.world(), worker, vector.len()))
    }

    fn send(&self, part: usize, piece: impl Fn(usize) -> Bytes, near: bool) {
        let (Self { group, session, call }, sums) = (self, &mut BodySums::default());
        for worker in group.others().filter(|worker| group.transport.is_near(*worker) == near) {
            let content = Content::Early { part: part as u64, body: piece(worker) };
            group.send(worker, Frame { session: *session, round: *call, content, sum: None }, sums);
        }
    }
}

fn early_session(session: SessionId) -> SessionId {
    SessionId { name: session.name ^ EARLY_MARK, ..session }
}

impl EarlyReceiver {
    /// Creates a receiver for a session. Early vectors of previous sessions, whose calls have failed, are dropped.
    pub(super) fn new(group: &Group, session: SessionId) -> Self {
        let early_session = early_session(session);
        Self { session: group.inbox.open_at(early_session.name, early_session.number) }
    }

    /// Takes the pieces for the given call. Pieces for earlier calls are dropped. Those for later calls stay in the
    /// inbox, which limits how many a worker may have there.
    // INV-28
    pub(super) fn take(&self, group: &Group, call: u64) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for (from, frame) in group.inbox.take_until(self.session, call) {
            if frame.round != call {
                continue;
            }
            let changed = frame.changed();
            if let Content::Early { part, body } = frame.content {
                let part = usize::try_from(part).unwrap_or(usize::MAX);
                pieces.push(Piece { from, part, body, changed });
            }
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::super::Inbox;
    use super::super::inbox::tests::Still;
    use super::*;
    use std::sync::Arc;

    fn receiver() -> (Group, EarlyReceiver, SessionId) {
        let world = World::new(2, 0, 1).unwrap();
        let group = Group::new(world, Arc::new(Still), Inbox::new(2));
        let session = SessionId { name: 7, number: 1 };
        let receiver = EarlyReceiver::new(&group, session);
        (group, receiver, early_session(session))
    }

    fn piece(session: SessionId, round: u64, part: u64) -> Frame {
        Frame {
            session,
            round,
            content: Content::Early { part, body: Bytes::from_static(b"numbers") },
            sum: None,
        }
    }

    #[test]
    fn pieces_are_taken_by_their_call_and_later_ones_are_kept() {
        let (group, receiver, session) = receiver();
        for (round, part) in [(1, 0), (3, 0), (2, 1), (2, 0)] {
            group.inbox.add(1, piece(session, round, part));
        }
        let parts = |call| receiver.take(&group, call).iter().map(|piece| piece.part).collect::<Vec<_>>();
        assert_eq!(parts(2), [1, 0]);
        assert_eq!((parts(2), parts(3)), (vec![], vec![0]));
        assert!(format!("{:?}", group.inbox).contains(" 0 frames"), "{:?}", group.inbox);
    }

    // INV-28
    #[test]
    fn a_worker_that_sends_for_calls_that_nobody_makes_is_lost_and_what_it_sent_has_a_limit() {
        let (group, receiver, session) = receiver();
        for call in 0..2_000 {
            group.inbox.add(1, piece(session, u64::MAX, call));
            receiver.take(&group, call);
        }
        let why = group.inbox.lost(1).unwrap();
        assert!(why.contains("512 messages that no session receives"), "{why}");
        assert!(format!("{:?}", group.inbox).contains(" 512 frames"), "{:?}", group.inbox);
    }
}
