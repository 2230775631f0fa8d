//! The order of requests: they are sent in the order in which they were started, even if a connection is lost and
//! replaced.

// - **INV-58** Requests of one thread reach a server in the order in which they were started, even if the
//   connection is lost: unanswered requests are sent over a new one in their original order. Tests:
//   `ps-server/src/connection/tests.rs`.

use super::Shared;
use super::link::ConnectFailure;
use super::waiting::Call;
use distribute_cluster::Deadline;
use distribute_ps_tables::ChannelError;
use distribute_rpc::{CallError, Client};
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};

/// The lock of the sending thread, and the connection over which all requests in flight were sent.
#[derive(Default)]
pub(super) struct SendOrder {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Whether a thread is sending. It does not hold the mutex while it sends.
    busy: bool,
    /// The connection of the latest request. It is not kept open by this reference.
    current: Weak<Client>,
}

/// A guard that prevents other threads from sending until it is dropped.
struct SendTurn<'a>(&'a SendOrder);

impl SendOrder {
    /// Sends a request over a connection other than `lost`. Over a new connection, all earlier requests without a
    /// response are sent first. Does nothing if another thread has already sent the request. If only this request
    /// cannot be sent, stores the error as its response and returns `Ok`.
    ///
    /// # Errors
    /// Returns a [`ChannelError`] if the deadline has passed, if there is no connection, or if sending another request
    /// has failed.
    pub fn send(
        shared: &Shared,
        call: &Call,
        deadline: Deadline,
        lost: Option<&Arc<Client>>,
    ) -> Result<(), ChannelError> {
        let late = |reason: &str| call.timed_out(reason.to_owned());
        let turn = shared.order.turn(deadline).ok_or_else(|| late("other requests were being sent"))?;
        let mut lost = lost.cloned();
        while !call.is_sent(lost.as_ref()) {
            let client = shared.link.client(deadline, lost.as_ref()).map_err(|error| match error {
                ConnectFailure::TimedOut(reason) => call.timed_out(reason),
                ConnectFailure::Refused(reason) => call.unreachable(reason),
            })?;
            let same = Arc::downgrade(&client);
            let is_new = !turn.0.state.lock().current.ptr_eq(&same);
            let sent = if is_new {
                // INV-58: requests that were sent over the previous connection, and have no response, come
                // first.
                shared
                    .in_flight
                    .in_progress()
                    .iter()
                    .try_for_each(|earlier| earlier.send_over(&client, deadline))
            } else {
                call.send_over(&client, deadline)
            };
            match sent {
                Ok(()) => turn.0.state.lock().current = same,
                Err(CallError::Lost { .. }) => lost = Some(client),
                Err(error) => return Err(call.failed(error)),
            }
        }
        Ok(())
    }

    /// Waits until no other thread is sending, and keeps others from sending until the returned guard is dropped.
    /// Returns `None` if the deadline passes first.
    fn turn(&self, mut deadline: Deadline) -> Option<SendTurn<'_>> {
        let mut state = self.state.lock();
        while state.busy {
            let slice = deadline.look();
            if slice.is_zero() {
                return None;
            }
            self.changed.wait_for(&mut state, slice);
            deadline.look();
        }
        state.busy = true;
        Some(SendTurn(self))
    }
}

impl Drop for SendTurn<'_> {
    fn drop(&mut self) {
        self.0.state.lock().busy = false;
        self.0.changed.notify_one();
    }
}
