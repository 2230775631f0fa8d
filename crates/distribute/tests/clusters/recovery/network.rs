//! Relays to all tasks of a cluster, with which the network between two groups of tasks can be interrupted.

use crate::recovery::relay::Pair;
use distribute_net::handshake::{HandshakeDecoder, Words};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The maximum duration of a read of the first message of a connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// The network between the tasks of a cluster. Each task is reached through a relay, which learns the calling task from
/// the first message of a connection.
pub struct Network {
    /// The address at which each task is reached.
    pub addresses: Vec<SocketAddr>,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The tasks that are cut off from the others.
    group: BTreeSet<usize>,
    /// The tasks at both ends of each connection.
    pairs: Vec<(usize, usize, Pair)>,
    /// Connections that lead to the other side.
    lost: Vec<TcpStream>,
}

impl State {
    fn is_cut(&self, from: usize, to: usize) -> bool {
        self.group.contains(&from) != self.group.contains(&to)
    }
}

impl Network {
    /// Creates a network of tasks that listen at these addresses.
    pub fn to(tasks: &[SocketAddr]) -> Self {
        let state = Arc::<Mutex<State>>::default();
        let relay = |(to, task): (usize, &SocketAddr)| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let (address, task, state) = (listener.local_addr().unwrap(), *task, state.clone());
            std::thread::spawn(move || {
                for one in listener.incoming().map_while(Result::ok) {
                    let state = state.clone();
                    std::thread::spawn(move || pass(one, to, task, &state));
                }
            });
            address
        };
        Self { addresses: tasks.iter().enumerate().map(relay).collect(), state }
    }

    /// Forwards all messages again. Connections that have lost messages are closed.
    pub fn heal(&self) {
        let mut state = self.state.lock().unwrap();
        let group = std::mem::take(&mut state.group);
        let is_cut = |from: &usize, to: &usize| group.contains(from) != group.contains(to);
        state.pairs.iter().filter(|(from, to, _)| is_cut(from, to)).for_each(|(.., pair)| pair.close());
        state.lost.clear();
    }

    /// Drops all messages between the tasks in `group` and the others from now on. No connection is closed.
    pub fn cut(&self, group: &[usize]) {
        let mut state = self.state.lock().unwrap();
        state.group = group.iter().copied().collect();
        let crossing = state.pairs.iter().filter(|(from, to, _)| state.is_cut(*from, *to));
        crossing.for_each(|(.., pair)| pair.fall_silent());
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.state.lock().unwrap().pairs.drain(..).for_each(|(.., pair)| pair.close());
    }
}

/// Forwards a connection to the task `to`, which listens at an address. Does nothing if the caller sends no valid
/// message, or if no process listens there.
fn pass(mut one: TcpStream, to: usize, task: SocketAddr, state: &Mutex<State>) {
    let Some((from, first)) = caller(&mut one) else { return };
    let mut state = state.lock().unwrap();
    if state.is_cut(from, to) {
        return state.lost.push(one);
    }
    let Ok(mut other) = TcpStream::connect(task) else { return };
    if other.write_all(&first).is_ok() {
        let pair = Pair::new([one, other]);
        pair.pass_on();
        state.pairs.push((from, to, pair));
    }
}

/// Reads the first message of a connection. Returns the position of the task that has sent it, and all bytes so far.
fn caller(one: &mut TcpStream) -> Option<(usize, Vec<u8>)> {
    one.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut decoder, mut bytes) = (HandshakeDecoder::default(), Vec::new());
    loop {
        let buffer = decoder.buffer();
        let read = one.read(buffer).ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(&buffer[..read]);
        if let Some(words) = decoder.advance(read).ok()? {
            let Words::Hello(hello, ..) = words else { return None };
            one.set_read_timeout(None).unwrap();
            return Some((hello.rank, bytes));
        }
    }
}
