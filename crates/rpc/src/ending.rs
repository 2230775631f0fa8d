//! The end of a server.

use crate::connection::Inbox;
use distribute_cluster::places::Source;
use distribute_cluster::{Deadline, Task};
use distribute_net::endpoint::Alarm;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;

/// The cause of a server's end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// This process called [`Server::stop`](crate::Server::stop).
    Stopped,
    /// The leading task of the cluster called [`Client::stop_server`](crate::Client::stop_server).
    Chief(Task),
    /// The server was dropped.
    Dropped,
    /// No task of another job was connected for this long: see
    /// [`ServerBuilder::lease`](crate::ServerBuilder::lease).
    Left(Duration),
    /// The server failed, for this reason.
    Broken(String),
}

/// The end of a server, and its open connections.
#[derive(Debug)]
pub(crate) struct Ending {
    state: Mutex<State>,
    changed: Condvar,
    alarm: Alarm,
}

#[derive(Debug, Default)]
struct State {
    end: Option<End>,
    connections: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    inbox: Arc<Inbox>,
    source: Source,
    /// Whether the connection extends the server's lease.
    keeps: bool,
}

impl Ending {
    pub fn new(alarm: Alarm) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), changed: Condvar::new(), alarm })
    }

    /// Ends the server. Only the first cause is kept.
    pub fn end(&self, end: End) {
        let mut state = self.state.lock();
        state.end.get_or_insert(end);
        state.connections.iter().for_each(|connection| connection.inbox.stop());
        self.alarm.ring();
        self.changed.notify_all();
    }

    pub fn has_ended(&self) -> bool {
        self.state.lock().end.is_some()
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        self.state.lock().connections.len()
    }

    /// Whether any connection extends the server's lease.
    pub fn is_kept(&self) -> bool {
        self.state.lock().connections.iter().any(|connection| connection.keeps)
    }

    /// Returns the sources of the connections.
    pub fn sources(&self) -> Vec<Source> {
        self.state.lock().connections.iter().map(|connection| connection.source.clone()).collect()
    }

    /// Adds a connection. It is closed at once if the server has ended.
    pub fn enter(&self, inbox: &Arc<Inbox>, source: Source, keeps: bool) {
        let mut state = self.state.lock();
        state.connections.push(Connection { inbox: inbox.clone(), source, keeps });
        if state.end.is_some() {
            inbox.stop();
        }
    }

    /// Removes a connection.
    pub fn leave(&self, inbox: &Arc<Inbox>) {
        self.state.lock().connections.retain(|other| !Arc::ptr_eq(&other.inbox, inbox));
        self.changed.notify_all();
    }

    /// Waits for the end. Returns `None` if the server has not ended within this time.
    pub fn wait(&self, timeout: Duration) -> Option<End> {
        self.until(timeout, |state| state.end.clone())
    }

    /// Waits until all connections are closed. Returns `false` if some are not.
    pub fn wait_for_connections(&self, timeout: Duration) -> bool {
        self.until(timeout, |state| state.connections.is_empty().then_some(())).is_some()
    }

    fn until<T>(&self, timeout: Duration, is: impl Fn(&State) -> Option<T>) -> Option<T> {
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
