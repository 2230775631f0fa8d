//! Requests are sent in the order in which they were started, also over a connection that takes the place of one that was lost.

use super::Shared;
use super::link::NoLink;
use super::waiting::Call;
use distribute_cluster::Deadline;
use distribute_params::ChannelError;
use distribute_server::{CallError, Client};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// Who sends now, and over which connection all requests have been sent that are under way.
#[derive(Default)]
pub(super) struct Order {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Whether a thread is sending. The lock is not held meanwhile.
    busy: bool,
    over: Option<Arc<Client>>,
}

/// Nobody else sends until this is dropped.
struct Turn<'a>(&'a Order);

impl Order {
    /// Sends a request, over another connection than one that was lost; over a new one behind all that were started before. Where another
    /// thread has done so meanwhile, there is nothing to be done.
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
                // INV-58: what was sent over the one before, and has no answer, comes first.
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

    /// Waits until nobody sends; `None` at the deadline.
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
