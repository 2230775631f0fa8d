//! A round of a repeated call in which the calls of all workers arrive at once, through memory that they share.

// - **INV-116** A round by an exchange is one that a `Protocol` would complete: all workers have made the same call of
//   the same round, and nothing else was received before or with them. It leaves the protocol in the same state.
//   Otherwise the round continues in the protocol with what has arrived. Tests: `group/protocol/tests.rs`,
//   `collective/tests/it/repeated.rs`, `net/src/shm/short.rs`.

use super::frame::MAX_CALL_HEAD;
use super::protocol::Protocol;
use super::session::State;
use super::{Content, Frame, Session};
use bytes::Bytes;
use distribute_cluster::flight_recorder::Ticket;
use distribute_cluster::{Fingerprint, ReplicaStatus};
use std::time::Duration;

/// The outcome of an attempt to make a round by an exchange.
pub(super) enum Attempt {
    /// No attempt was made, because workers do not share memory, or because this worker has to process something else.
    Unsent,
    /// The call was sent to all other workers. Contains the data of those that have made the same call, by rank.
    Sent(Vec<Option<Bytes>>),
    /// The round is complete. Contains the data of all workers, by rank; this worker's own entry is empty.
    Complete(Vec<Bytes>),
}

impl Session {
    /// Attempts to make the next round by one exchange with all other workers, and records the call if it is complete.
    /// `record` contains the record of the call if this is a later round of it, and the time at which the round begins.
    pub(super) fn exchange(
        &self,
        state: &mut State,
        record: (Option<Ticket>, Duration),
        part: Option<&str>,
        statuses: &[ReplicaStatus],
        mut body: impl FnMut(usize) -> Bytes,
        timeout: Duration,
    ) -> Attempt {
        let (group, transport) = (self.group(), &*self.group().transport);
        let is_possible = transport.shares_memory()
            && self.is_of_this_world()
            && !group.requires_checksums()
            && !timeout.is_zero();
        if !is_possible || self.has_event(state) {
            return Attempt::Unsent;
        }
        let (session, round) = (state.protocol.session(), state.protocol.rounds() + 1);
        let Some((call, detail, digest)) = state.protocol.repeatable_call(statuses, part) else {
            return Attempt::Unsent;
        };
        let mut buffer = [0; MAX_CALL_HEAD];
        let Ok(head) = Frame::encode_call_head(session, round, digest, &mut buffer) else {
            return Attempt::Unsent;
        };
        transport.extend_shutdown_wait(timeout);
        let (me, workers) = (self.world().worker(), self.world().workers());
        let mut bodies: Vec<_> = (0..workers).map(|worker| (worker != me).then(|| body(worker))).collect();
        let last = transport.exchange(head, &mut bodies);
        if bodies.iter().flatten().count() + 1 < workers {
            return Attempt::Sent(bodies);
        }
        let (operation, at, continues) = (call.operation, call.at.clone(), call.continues);
        let call = Fingerprint { operation, detail: detail.clone(), at, continues };
        let completed = statuses.first().map_or(0, |status| status.completed);
        let number = completed.saturating_add(u64::from(!continues));
        state.call = Some(group.recorder.record(self.step(), number, call, record, last));
        state.protocol.pass_round();
        Attempt::Complete(bodies.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// Returns whether the inbox contains an event of this session.
    fn has_event(&self, state: &mut State) -> bool {
        let (inbox, events) = (&self.group().inbox, self.group().inbox.events());
        if state.seen_events != events {
            if inbox.has_event(state.protocol.session(), state.protocol.lost()) {
                return true;
            }
            state.seen_events = events;
        }
        false
    }

    /// Passes the data that has arrived in an exchange to the round that has begun.
    pub(super) fn receive_calls(&self, protocol: &mut Protocol, received: Vec<Option<Bytes>>) {
        let Some(digest) = protocol.call() else { return };
        for (worker, body) in received.into_iter().enumerate() {
            if let Some(body) = body {
                // A call of the current round is never refused.
                let _ = protocol.receive(worker, protocol.frame(Content::Call { digest, body }));
            }
        }
    }
}
