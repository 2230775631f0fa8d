//! Vectors that are sent before the call in which they are used, such as gradients while backward still runs.
//!
//! Messages from one worker to another keep their order. So once all workers have agreed on a call, what they have sent
//! before it has arrived, and needs no round of its own.

use super::inbox::Event;
use super::schedule::GRAIN;
use super::{Frame, Group, Said, SessionId};
use crate::sync::{Mutex, lock};
use bytes::Bytes;
use distribute_cluster::World;
use distribute_tensor::partition::chunk;
use std::ops::Range;

/// The mark by which frames of vectors differ from those of the session's calls.
const BESIDE: u64 = 0x6168_6561_6420_6f66;

/// The bytes of the widest number: ranges of bytes begin where numbers of any width do.
const WIDEST: usize = 8;

/// A sender of vectors before the next call of a session.
///
/// Two workers send each other complete vectors. If there are more, each gets the [range](early_range) of every vector
/// that it sums.
#[derive(Clone, Debug)]
pub struct EarlySend {
    group: Group,
    /// The session of early sends, next to that of the call.
    session: SessionId,
    call: u64,
}

/// The pieces of vectors that have been received, until their call.
#[derive(Debug)]
pub(super) struct Received {
    session: SessionId,
    pieces: Mutex<Vec<Piece>>,
}

/// A piece of a vector that a worker has sent.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) from: usize,
    call: u64,
    pub(super) part: usize,
    pub(super) body: Bytes,
}

/// Returns which bytes of a vector a worker gets from all others.
pub fn early_range(world: World, worker: usize, len: usize) -> Range<usize> {
    if world.workers() == 2 {
        return 0..len;
    }
    chunk(len, world.workers(), GRAIN * WIDEST, worker)
}

impl EarlySend {
    /// Creates a sender of vectors before the call of this number in a session.
    pub(super) fn new(group: Group, session: SessionId, call: u64) -> Self {
        Self { group, session: beside(session), call }
    }

    /// Returns the number of the call: the same on all workers that have made the same calls in this session.
    pub fn call(&self) -> u64 {
        self.call
    }

    /// Sends a vector to the workers to which sending takes time: those that don't
    /// [share memory](distribute_net::Transport::is_near) with this one. `part` is its number among this worker's
    /// vectors of the call.
    pub fn send_far(&self, part: usize, vector: &Bytes) {
        self.send_far_pieces(part, |worker| self.piece(worker, vector));
    }

    /// Sends a vector to the other workers, for which an early message would only be a disturbance.
    pub fn send_near(&self, part: usize, vector: &Bytes) {
        self.send_near_pieces(part, |worker| self.piece(worker, vector));
    }

    /// Like [`send_far`](Self::send_far), where `piece` says what each worker gets.
    pub fn send_far_pieces(&self, part: usize, piece: impl Fn(usize) -> Bytes) {
        self.send(part, piece, false);
    }

    /// Like [`send_near`](Self::send_near), where `piece` says what each worker gets.
    pub fn send_near_pieces(&self, part: usize, piece: impl Fn(usize) -> Bytes) {
        self.send(part, piece, true);
    }

    fn piece(&self, worker: usize, vector: &Bytes) -> Bytes {
        vector.slice(early_range(self.group.world(), worker, vector.len()))
    }

    fn send(&self, part: usize, piece: impl Fn(usize) -> Bytes, near: bool) {
        let Self { group, session, call } = self;
        for worker in group.others().filter(|worker| group.transport.is_near(*worker) == near) {
            let said = Said::Early { part: part as u64, body: piece(worker) };
            group.send(worker, Frame { session: *session, round: *call, said });
        }
    }
}

fn beside(session: SessionId) -> SessionId {
    SessionId { name: session.name ^ BESIDE, ..session }
}

impl Received {
    /// Receives what comes next to this session. What has come next to earlier ones, whose calls have failed, is
    /// dropped.
    pub(super) fn new(group: &Group, session: SessionId) -> Self {
        let beside = beside(session);
        Self { session: group.inbox.open_at(beside.name, beside.number), pieces: Mutex::default() }
    }

    /// Takes the pieces of a call. Those of earlier ones are dropped.
    pub(super) fn take(&self, group: &Group, call: u64) -> Vec<Piece> {
        let losses_are_known = vec![true; group.world().workers()];
        let mut pieces = lock(&self.pieces);
        while let Some(event) = group.inbox.poll(self.session, &losses_are_known) {
            if let Event::Frame(from, Frame { round: call, said: Said::Early { part, body }, .. }) = event {
                pieces.push(Piece { from, call, part: usize::try_from(part).unwrap_or(usize::MAX), body });
            }
        }
        let (later, now) = std::mem::take(&mut *pieces).into_iter().partition(|piece| piece.call > call);
        *pieces = later;
        now.into_iter().filter(|piece: &Piece| piece.call == call).collect()
    }
}
