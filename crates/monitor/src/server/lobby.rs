//! The connections of a monitor, and which of them is closed for a new one.

use distribute_cluster::Deadline;
use distribute_cluster::places::{Guests, Place, Source, Stage};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// The time to wait for the threads of closed connections to exit.
const PATIENCE: Duration = Duration::from_millis(200);

/// The connections.
#[derive(Debug)]
pub(super) struct Lobby {
    state: Mutex<State>,
    left: Condvar,
    /// The maximum number of threads that serve connections, including those of closed connections that have
    /// not exited yet.
    threads: usize,
}

#[derive(Debug)]
struct State {
    guests: Guests,
    streams: BTreeMap<Place, Arc<TcpStream>>,
    threads: usize,
}

/// A registered connection, until this is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    lobby: Arc<Lobby>,
    place: Place,
}

impl Lobby {
    /// Creates a lobby for this number of connections.
    pub fn new(most: usize) -> Arc<Self> {
        let state = State { guests: Guests::new(most), streams: BTreeMap::new(), threads: 0 };
        Arc::new(Self { state: Mutex::new(state), left: Condvar::new(), threads: 2 * most })
    }

    /// Registers a connection, and closes another one if necessary. `None` if all threads are busy and none exits.
    pub fn enter(self: &Arc<Self>, stream: &Arc<TcpStream>, from: IpAddr) -> Option<Seat> {
        let (mut state, deadline) = (self.state.lock(), Deadline::after(PATIENCE));
        while state.threads >= self.threads {
            if deadline.has_passed() {
                return None;
            }
            self.left.wait_for(&mut state, deadline.remaining());
        }
        state.threads += 1;
        let (place, goes) = state.guests.enter(Source::new(from));
        state.streams.insert(place, stream.clone());
        if let Some(stream) = goes.and_then(|goes| state.streams.remove(&goes)) {
            // The thread of the closed connection then exits.
            let _ = stream.shutdown(Shutdown::Both);
        }
        Some(Seat { lobby: self.clone(), place })
    }
}

impl Seat {
    /// Records that the client has sent a request.
    pub fn has_asked(&self) {
        self.lobby.state.lock().guests.advance(self.place, Stage::Speaking);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.lobby.state.lock();
        state.guests.leave(self.place);
        state.streams.remove(&self.place);
        state.threads -= 1;
        drop(state);
        self.lobby.left.notify_one();
    }
}
