//! The end of a server: its cause, and the connections to close.

use crate::connection::Inbox;
use distribute_cluster::admission::Source;
use distribute_cluster::{Deadline, Task};
use distribute_net::endpoint::AcceptorWaker;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;

/// The cause of a server's end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShutdownReason {
    /// This process called [`Server::stop`](crate::Server::stop) or [`Stopper::stop`](crate::Stopper::stop).
    Stopped,
    /// The leading task of the cluster called [`Client::stop_server`](crate::Client::stop_server).
    Chief(Task),
    /// The server was dropped.
    Dropped,
    /// No task of a different job was connected for this time: see
    /// [`ServerBuilder::lease`](crate::ServerBuilder::lease).
    Left(Duration),
    /// The server failed, for the given reason.
    Broken(String),
}

/// The state that ends a server: the cause of its end, and its open connections.
#[derive(Debug)]
pub(crate) struct Shutdown {
    state: Mutex<State>,
    changed: Condvar,
    waker: AcceptorWaker,
}

#[derive(Debug, Default)]
struct State {
    end: Option<ShutdownReason>,
    connections: Vec<Connection>,
    /// Log messages about closed connections whose callers did not follow the protocol, until they are logged.
    violations: Vec<String>,
}

#[derive(Debug)]
struct Connection {
    inbox: Arc<Inbox>,
    source: Source,
    /// Whether the connection extends the server's lease.
    extends_lease: bool,
}

impl Shutdown {
    pub fn new(waker: AcceptorWaker) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), changed: Condvar::new(), waker })
    }

    /// Ends the server. Only the first cause is kept.
    pub fn end(&self, end: ShutdownReason) {
        let mut state = self.state.lock();
        state.end.get_or_insert(end);
        state.connections.iter().for_each(|connection| connection.inbox.stop());
        self.waker.wake();
        self.changed.notify_all();
    }

    pub fn has_ended(&self) -> bool {
        self.state.lock().end.is_some()
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.state.lock().connections.len()
    }

    /// Returns whether any connection extends the server's lease.
    pub fn is_leased(&self) -> bool {
        self.state.lock().connections.iter().any(|connection| connection.extends_lease)
    }

    /// Returns the source of each open connection.
    pub fn sources(&self) -> Vec<Source> {
        self.state.lock().connections.iter().map(|connection| connection.source.clone()).collect()
    }

    /// Adds a connection. If the server has ended, the connection is closed immediately.
    pub fn enter(&self, inbox: &Arc<Inbox>, source: Source, extends_lease: bool) {
        let mut state = self.state.lock();
        state.connections.push(Connection { inbox: inbox.clone(), source, extends_lease });
        if state.end.is_some() {
            inbox.stop();
        }
    }

    /// Removes a connection. `violation` is a log message, given if the connection was closed because its caller did
    /// not follow the protocol.
    pub fn leave(&self, inbox: &Arc<Inbox>, violation: Option<String>) {
        let mut state = self.state.lock();
        state.connections.retain(|other| !Arc::ptr_eq(&other.inbox, inbox));
        state.violations.extend(violation);
        drop(state);
        self.changed.notify_all();
    }

    /// Removes and returns the log messages about callers that did not follow the protocol.
    pub fn take_violations(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().violations)
    }

    /// Waits for the end. Returns `None` if the server has not ended within `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<ShutdownReason> {
        self.wait_until(timeout, |state| state.end.clone())
    }

    /// Waits until all connections are closed. Returns `false` if some are still open after `timeout`.
    pub fn wait_for_connections(&self, timeout: Duration) -> bool {
        self.wait_until(timeout, |state| state.connections.is_empty().then_some(())).is_some()
    }

    fn wait_until<T>(&self, timeout: Duration, is: impl Fn(&State) -> Option<T>) -> Option<T> {
        let mut deadline = Deadline::after(timeout);
        let mut state = self.state.lock();
        loop {
            if let Some(value) = is(&state) {
                return Some(value);
            }
            let slice = deadline.look();
            if slice.is_zero() {
                return None;
            }
            self.changed.wait_for(&mut state, slice);
            deadline.look();
        }
    }
}
