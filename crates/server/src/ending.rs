//! When a server ends, and who has ended it.

use crate::connection::Inbox;
use distribute_cluster::places::Source;
use distribute_cluster::{Deadline, Task};
use distribute_net::endpoint::Alarm;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::Duration;

/// Who has ended a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// This process, by [`Server::stop`](crate::Server::stop).
    Stopped,
    /// The task that leads the cluster, by [`Client::stop_server`](crate::Client::stop_server).
    Chief(Task),
    /// The server was dropped.
    Dropped,
    /// For so long no task of another job was connected: see [`ServerBuilder::lease`](crate::ServerBuilder::lease).
    Left(Duration),
    /// It could not go on.
    Broken(String),
}

/// Whether a server has ended, and its connections.
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
    /// Whether it keeps the server's lease.
    keeps: bool,
}

impl Ending {
    pub fn new(alarm: Alarm) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), changed: Condvar::new(), alarm })
    }

    /// Ends the server; the first end counts.
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

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.state.lock().connections.len()
    }

    /// Whether there is a connection that keeps the server's lease.
    pub fn is_kept(&self) -> bool {
        self.state.lock().connections.iter().any(|connection| connection.keeps)
    }

    /// From where the connections come.
    pub fn sources(&self) -> Vec<Source> {
        self.state.lock().connections.iter().map(|connection| connection.source.clone()).collect()
    }

    /// A connection begins. One that comes with the end ends at once.
    pub fn enter(&self, inbox: &Arc<Inbox>, source: Source, keeps: bool) {
        let mut state = self.state.lock();
        state.connections.push(Connection { inbox: inbox.clone(), source, keeps });
        if state.end.is_some() {
            inbox.stop();
        }
    }

    /// A connection is over.
    pub fn leave(&self, inbox: &Arc<Inbox>) {
        self.state.lock().connections.retain(|other| !Arc::ptr_eq(&other.inbox, inbox));
        self.changed.notify_all();
    }

    /// Waits for the end; `None` if it has not come in this time.
    pub fn wait(&self, timeout: Duration) -> Option<End> {
        self.until(timeout, |state| state.end.clone())
    }

    /// Waits until all connections are over. Says whether they are.
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
