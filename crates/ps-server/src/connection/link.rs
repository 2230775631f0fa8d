//! The network connection to a server, which is replaced when it is lost.

use distribute_cluster::{Deadline, Task};
use distribute_rpc::{CallError, Client, ClientBuilder};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// A network connection that is established on demand. If several threads need it, one of them connects while the
/// others wait.
pub(super) struct Link {
    clients: ClientBuilder,
    to: Task,
    /// Whether a lost connection is replaced.
    reconnects: bool,
    state: Mutex<State>,
    changed: Condvar,
}

enum State {
    Down,
    /// A thread is connecting. It gives up at the deadline of its own request.
    Connecting,
    Up(Arc<Client>),
}

/// The reason why there is no connection.
#[derive(Debug)]
pub(super) enum ConnectFailure {
    /// The deadline has passed. The text is the result of the last attempt.
    TimedOut(String),
    /// A retry would not help. The text is the reason.
    Refused(String),
}

impl Link {
    pub fn new(clients: ClientBuilder, to: Task, reconnects: bool) -> Self {
        Self { clients, to, reconnects, state: Mutex::new(State::Down), changed: Condvar::new() }
    }

    /// Returns the current connection, or establishes one if there is none or it is `lost`. If another thread is
    /// connecting, waits for that thread.
    ///
    /// # Errors
    /// - [`ConnectFailure::TimedOut`]: the deadline has passed.
    /// - [`ConnectFailure::Refused`]: a retry would not help, or a connection was lost that must not be replaced.
    pub fn client(
        &self,
        mut deadline: Deadline,
        lost: Option<&Arc<Client>>,
    ) -> Result<Arc<Client>, ConnectFailure> {
        let mut state = self.state.lock();
        loop {
            match &*state {
                State::Up(client) if !lost.is_some_and(|lost| Arc::ptr_eq(lost, client)) => {
                    return Ok(client.clone());
                }
                State::Connecting => {
                    let slice = deadline.look();
                    if slice.is_zero() {
                        return Err(ConnectFailure::TimedOut(
                            "the connection was being established".to_owned(),
                        ));
                    }
                    self.changed.wait_for(&mut state, slice);
                    deadline.look();
                }
                State::Up(_) if !self.reconnects => {
                    return Err(ConnectFailure::Refused("the connection was lost".to_owned()));
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

    /// Closes the current connection, unless a thread is connecting.
    pub fn close(&self) {
        let mut state = self.state.lock();
        let before = match &*state {
            State::Up(_) => std::mem::replace(&mut *state, State::Down),
            State::Down | State::Connecting => return,
        };
        drop(state);
        // Closing it may take a while, so this happens without the lock.
        drop(before);
    }

    fn connect(&self, deadline: Deadline) -> Result<Arc<Client>, ConnectFailure> {
        let timeout = deadline.remaining();
        let connected = self.clients.connect(&self.to, timeout).map(Arc::new);
        connected.map_err(|error: CallError| {
            if deadline.has_passed() {
                ConnectFailure::TimedOut(error.to_string())
            } else {
                ConnectFailure::Refused(error.to_string())
            }
        })
    }
}
