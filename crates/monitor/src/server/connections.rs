//! The open connections of a monitor, and the choice of one to close when a new one arrives.

use distribute_cluster::Deadline;
use distribute_cluster::admission::{GuestId, Guests, Source, Stage};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// The maximum time to wait for the threads of closed connections to exit.
const PATIENCE: Duration = Duration::from_millis(200);

/// The set of open connections of a monitor.
#[derive(Debug)]
pub(super) struct Connections {
    state: Mutex<State>,
    left: Condvar,
    /// The maximum number of threads that serve connections, including those of closed connections that have
    /// not exited yet.
    threads: usize,
}

#[derive(Debug)]
struct State {
    guests: Guests,
    streams: BTreeMap<GuestId, Arc<TcpStream>>,
    threads: usize,
}

/// A connection that remains registered until it is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    connections: Arc<Connections>,
    id: GuestId,
}

impl Connections {
    /// Creates a set of at most `max` connections.
    pub fn new(max: usize) -> Arc<Self> {
        let state = State { guests: Guests::new(max), streams: BTreeMap::new(), threads: 0 };
        Arc::new(Self { state: Mutex::new(state), left: Condvar::new(), threads: 2 * max })
    }

    /// Registers a connection. Closes another one if there would be too many. Returns `None` if all threads are busy
    /// and none exits in time.
    pub fn enter(self: &Arc<Self>, stream: &Arc<TcpStream>, from: IpAddr) -> Option<Connection> {
        let (mut state, deadline) = (self.state.lock(), Deadline::after(PATIENCE));
        while state.threads >= self.threads {
            if deadline.has_passed() {
                return None;
            }
            self.left.wait_for(&mut state, deadline.remaining());
        }
        state.threads += 1;
        let (id, goes) = state.guests.enter(Source::new(from));
        state.streams.insert(id, stream.clone());
        if let Some(stream) = goes.and_then(|goes| state.streams.remove(&goes)) {
            // The thread of the closed connection then exits.
            let _ = stream.shutdown(Shutdown::Both);
        }
        Some(Connection { connections: self.clone(), id })
    }
}

impl Connection {
    /// Records that the client has sent a request.
    pub fn has_requested(&self) {
        self.connections.state.lock().guests.advance(self.id, Stage::Speaking);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.connections.state.lock();
        state.guests.leave(self.id);
        state.streams.remove(&self.id);
        state.threads -= 1;
        drop(state);
        self.connections.left.notify_one();
    }
}
