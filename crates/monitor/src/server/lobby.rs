//! The connections of a monitor, and which of them goes when others come.

use distribute_cluster::Deadline;
use distribute_cluster::places::{Guests, Place, Source, Stage};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// The time to wait for threads to end whose connections are over.
const PATIENCE: Duration = Duration::from_millis(200);

/// The connections.
#[derive(Debug)]
pub(super) struct Lobby {
    state: Mutex<State>,
    left: Condvar,
    /// The greatest number of threads that serve them, those included that are about to notice that they are over.
    threads: usize,
}

#[derive(Debug)]
struct State {
    guests: Guests,
    streams: BTreeMap<Place, Arc<TcpStream>>,
    threads: usize,
}

/// One who is connected, until this is dropped.
#[derive(Debug)]
pub(super) struct Seat {
    lobby: Arc<Lobby>,
    place: Place,
}

impl Lobby {
    /// Room for so many.
    pub fn new(most: usize) -> Arc<Self> {
        let state = State { guests: Guests::new(most), streams: BTreeMap::new(), threads: 0 };
        Arc::new(Self { state: Mutex::new(state), left: Condvar::new(), threads: 2 * most })
    }

    /// Lets one in, for whom another one may have to go: its connection ends. `None` where there are threads enough, and none ends.
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
            // Its thread notices.
            let _ = stream.shutdown(Shutdown::Both);
        }
        Some(Seat { lobby: self.clone(), place })
    }
}

impl Seat {
    /// It has asked for something.
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
