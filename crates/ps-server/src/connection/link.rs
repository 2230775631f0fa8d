//! The current connection to a server.

use distribute_cluster::{Deadline, Task};
use distribute_rpc::{CallError, Client, ClientBuilder};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// A connection that is established on demand, by one thread for all.
pub(super) struct Link {
    clients: ClientBuilder,
    to: Task,
    state: Mutex<State>,
    changed: Condvar,
}

enum State {
    Down,
    /// A thread is connecting, until the deadline of its own request.
    Connecting,
    Up(Arc<Client>),
}

/// The reason why there is no connection.
#[derive(Debug)]
pub(super) enum NoLink {
    /// The deadline has passed; with the result of the last attempt.
    Late(String),
    /// A retry would not help.
    Refused(String),
}

impl Link {
    pub fn new(clients: ClientBuilder, to: Task) -> Self {
        Self { clients, to, state: Mutex::new(State::Down), changed: Condvar::new() }
    }

    /// Returns the connection, but not the one that was `lost`.
    pub fn client(&self, mut deadline: Deadline, lost: Option<&Arc<Client>>) -> Result<Arc<Client>, NoLink> {
        let mut state = self.state.lock();
        loop {
            match &*state {
                State::Up(client) if !lost.is_some_and(|lost| Arc::ptr_eq(lost, client)) => {
                    return Ok(client.clone());
                }
                State::Connecting => {
                    let slice = deadline.look();
                    if slice.is_zero() {
                        return Err(NoLink::Late("it was being connected to".to_owned()));
                    }
                    self.changed.wait_for(&mut state, slice);
                    deadline.look();
                }
                State::Down | State::Up(_) => break,
            }
        }
        let before = std::mem::replace(&mut *state, State::Connecting);
        drop(state);
        // Closing it may take a while, so this happens without the lock.
        drop(before);
        let client = self.connect(deadline);
        *self.state.lock() = client.as_ref().map_or(State::Down, |client| State::Up(client.clone()));
        self.changed.notify_all();
        client
    }

    fn connect(&self, deadline: Deadline) -> Result<Arc<Client>, NoLink> {
        let timeout = deadline.remaining();
        let connected = self.clients.connect(&self.to, timeout).map(Arc::new);
        connected.map_err(|error: CallError| {
            if deadline.has_passed() {
                NoLink::Late(error.to_string())
            } else {
                NoLink::Refused(error.to_string())
            }
        })
    }
}
