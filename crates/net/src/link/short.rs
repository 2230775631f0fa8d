//! Short messages of a link whose workers share memory.

use super::{Link, State};
use crate::Message;
use crate::shm::arena::Arena;
use crate::shm::short::MAX_HEAD;
use bytes::Bytes;
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The result of an attempt to receive a short message.
#[derive(Debug, PartialEq)]
pub(crate) enum ShortReceipt {
    /// The next message was a short one with the expected head. It was received, and this is its body.
    Received(Bytes),
    /// No message has arrived.
    Nothing,
    /// Another message has arrived, or the link needs a turn for another reason. Nothing was received.
    Other,
}

impl Link {
    /// Sends a short message. Returns `false` if it must be sent as any other message, because it is too long, because
    /// there is no room for it, or because the link has failed or is closing. If it was sent, call
    /// [`wake_peer`](Self::wake_peer) soon afterwards.
    pub fn send_short(&self, head: &[u8], body: &Bytes, arena: Option<&Arc<Arena>>) -> bool {
        let Some(pair) = self.pair.as_ref().filter(|_| head.len() <= MAX_HEAD) else { return false };
        let mut state = self.state.lock();
        // Messages that wait for room in the ring come first.
        if self.loss_is_reported() || state.closing || state.broken.is_some() || !state.queue.is_empty() {
            return false;
        }
        match pair.has_room_for_short() {
            Ok(true) => {}
            Ok(false) => return false,
            Err(error) => {
                state.broken = Some(error.to_string());
                self.failing.store(true, Ordering::Release);
                return false;
            }
        }
        match self.lend(body, arena) {
            Some(reference) => pair.write_short(head, &reference.encode(), true),
            None => pair.write_short(head, body, false),
        }
    }

    /// Wakes the other worker if it sleeps.
    pub fn wake_peer(&self) {
        if self.pair.as_ref().is_some_and(|pair| pair.must_wake()) {
            // This never fails.
            let _ = self.state.lock().stream.wake();
        }
    }

    /// Receives the next message if it is a short one with this head and no bytes of the ring follow it. Only the
    /// thread that polls may call this, after it has delivered everything that it has received.
    pub fn take_short_with(&self, head: &[u8]) -> ShortReceipt {
        let Some(pair) = self.pair.as_ref().filter(|_| !self.loss_is_reported()) else {
            return ShortReceipt::Other;
        };
        let arrived = match pair.short() {
            // With what follows, the sender may have withdrawn the message, so a turn delivers both.
            Ok(Some(arrived)) if arrived.has_head(head) && pair.readable() == Ok(0) => arrived,
            Ok(None) if pair.readable() == Ok(0) && !pair.has_short() => return ShortReceipt::Nothing,
            // An error is reported by the next turn.
            _ => return ShortReceipt::Other,
        };
        let mut body = arrived.body();
        if arrived.is_reference() {
            match self.state.lock().resolve(&body) {
                Ok(resolved) => body = resolved,
                Err(_) => return ShortReceipt::Other,
            }
        }
        arrived.finish();
        self.note_received();
        ShortReceipt::Received(body)
    }

    /// Receives the next message if it is a short one.
    ///
    /// # Errors
    /// Returns the reason for the disconnect if the other worker has written something impossible.
    pub(super) fn take_short(&self, state: &mut MutexGuard<'_, State>) -> Result<Option<Message>, String> {
        let Some(pair) = &self.pair else { return Ok(None) };
        let arrived = match pair.short() {
            Ok(Some(arrived)) => arrived,
            Ok(None) => return Ok(None),
            Err(error) => return Err(self.refuse(state, &error)),
        };
        let (head, mut body) = (arrived.head(), arrived.body());
        if arrived.is_reference() {
            body = state.resolve(&body).map_err(|error| self.refuse(state, &error))?;
        }
        arrived.finish();
        state.moved = true;
        self.note_received();
        Ok(Some(Message { head, body }))
    }
}
