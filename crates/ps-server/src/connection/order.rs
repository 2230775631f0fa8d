//! The order of requests: they are sent in the order in which they were started, also over a new connection
//! after one was lost.

use super::Shared;
use super::link::NoLink;
use super::waiting::Call;
use distribute_cluster::Deadline;
use distribute_ps_tables::ChannelError;
use distribute_rpc::{CallError, Client};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// The right to send, and the connection over which all requests in flight were sent.
#[derive(Default)]
pub(super) struct Order {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Whether a thread is sending. The lock is not held during that time.
    busy: bool,
    over: Option<Arc<Client>>,
}

/// A guard during which no other thread sends.
struct Turn<'a>(&'a Order);

impl Order {
    /// Sends a request over a connection other than the `lost` one. Over a new connection, all earlier requests
    /// are sent first. Does nothing if another thread has already sent the request.
    pub fn send(
        shared: &Shared,
        call: &Call,
        deadline: Deadline,
        lost: Option<&Arc<Client>>,
    ) -> Result<(), ChannelError> {
        let late = |reason: &str| call.late(reason.to_owned());
        let turn = shared.order.turn(deadline).ok_or_else(|| late("other requests were being sent"))?;
        let mut lost = lost.cloned();
        while !call.is_sent(lost.as_ref()) {
            let client = shared.link.client(deadline, lost.as_ref()).map_err(|error| match error {
                NoLink::Late(reason) => call.late(reason),
                NoLink::Refused(reason) => call.unreachable(reason),
            })?;
            let is_new = !turn.0.state.lock().over.as_ref().is_some_and(|over| Arc::ptr_eq(over, &client));
            let sent = if is_new {
                // INV-58: requests that were sent over the previous connection, and have no response, come
                // first.
                shared.flow.under_way().iter().try_for_each(|earlier| earlier.send_over(&client, deadline))
            } else {
                call.send_over(&client, deadline)
            };
            match sent {
                Ok(()) => turn.0.state.lock().over = Some(client),
                Err(CallError::Lost { .. }) => lost = Some(client),
                Err(error) => return Err(call.failed(error)),
            }
        }
        Ok(())
    }

    /// Waits until no thread is sending; `None` at the deadline.
    fn turn(&self, mut deadline: Deadline) -> Option<Turn<'_>> {
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
        Some(Turn(self))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.state.lock().busy = false;
        self.0.changed.notify_one();
    }
}
