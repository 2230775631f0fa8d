//! A relay on the link between two workers, with which the link can be broken.

use crate::recovery::program::Task;
use distribute_testing::Port;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The minimum number of bytes, read at once, in which a bit is flipped. Reads of this size are part of a large
/// message.
const LARGE: usize = 16 << 10;

/// Calls `work` on a separate thread for each worker. Worker 1 connects to worker 0 through a relay.
pub fn through_relay<T: Send>(workers: usize, work: impl Fn(&Task, &Relay) -> T + Sync) -> Vec<T> {
    let port = Port::reserve();
    let relay = Relay::to(port.address());
    let task = |worker| {
        let mut task = Task { sockets: true, ..Task::new(worker, workers, port.number()) };
        if worker == 1 {
            task.addresses[0] = relay.address.to_string();
        }
        task
    };
    std::thread::scope(|scope| {
        let (relay, task, work) = (&relay, &task, &work);
        let all: Vec<_> =
            (0..workers).map(|worker| scope.spawn(move || work(&task(worker), relay))).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A relay that forwards messages to an address, and the responses back.
pub struct Relay {
    pub address: SocketAddr,
    open: Arc<Mutex<Vec<Pair>>>,
    /// The number of bits that remain to be flipped.
    flips: Arc<AtomicUsize>,
}

/// The two sides of a connection through the relay.
pub struct Pair {
    sides: [TcpStream; 2],
    /// Whether messages from each side are dropped.
    silent: [Arc<AtomicBool>; 2],
    flips: Arc<AtomicUsize>,
}

impl Relay {
    /// Creates a relay to an address. It closes connections while no process listens there.
    pub fn to(address: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap();
        let relay = Self { address: own, open: Arc::default(), flips: Arc::default() };
        let (open, flips) = (relay.open.clone(), relay.flips.clone());
        std::thread::spawn(move || {
            for one in listener.incoming().map_while(Result::ok) {
                let Ok(other) = TcpStream::connect(address) else { continue };
                let pair = Pair { flips: flips.clone(), ..Pair::new([one, other]) };
                pair.pass_on();
                open.lock().unwrap().push(pair);
            }
        });
        relay
    }

    /// Closes all connections. Connections that are made later are forwarded.
    pub fn close(&self) {
        self.open.lock().unwrap().drain(..).for_each(|pair| pair.close());
    }

    /// Flips a bit in each of the next `number` large messages.
    pub fn flip_bits(&self, number: usize) {
        self.flips.store(number, Ordering::SeqCst);
    }

    /// Drops all further messages of existing connections without closing them. Connections that are made later are
    /// forwarded.
    pub fn fall_silent(&self) {
        self.lose(&[0, 1]);
    }

    /// Drops all further messages from the side that has connected to the relay.
    pub fn fall_silent_one_way(&self) {
        self.lose(&[0]);
    }

    fn lose(&self, sides: &[usize]) {
        let open = self.open.lock().unwrap();
        let silent = open.iter().flat_map(|pair| sides.iter().map(|side| &pair.silent[*side]));
        silent.for_each(|silent| silent.store(true, Ordering::SeqCst));
    }
}

/// Subtracts one from the number unless it is 0. Returns whether it was not 0.
fn take_one(number: &AtomicUsize) -> bool {
    number.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |number| number.checked_sub(1)).is_ok()
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.close();
    }
}

impl Pair {
    pub fn new(sides: [TcpStream; 2]) -> Self {
        Self { sides, silent: Default::default(), flips: Arc::default() }
    }

    /// Drops all further messages without closing the connection.
    pub fn fall_silent(&self) {
        self.silent.iter().for_each(|silent| silent.store(true, Ordering::SeqCst));
    }

    /// Starts to forward messages.
    pub fn pass_on(&self) {
        for side in [0, 1] {
            let [mut from, mut to] = [side, 1 - side].map(|side| self.sides[side].try_clone().unwrap());
            to.set_nodelay(true).unwrap();
            let (silent, flips) = (self.silent[side].clone(), self.flips.clone());
            std::thread::spawn(move || {
                let mut bytes = vec![0; 1 << 16];
                loop {
                    match from.read(&mut bytes) {
                        Ok(0) | Err(_) => break,
                        // As if it got lost on the way.
                        Ok(_) if silent.load(Ordering::SeqCst) => {}
                        Ok(some) if some >= LARGE && take_one(&flips) => {
                            bytes[some / 2] ^= 4;
                            if to.write_all(&bytes[..some]).is_err() {
                                break;
                            }
                        }
                        Ok(some) if to.write_all(&bytes[..some]).is_err() => break,
                        Ok(_) => {}
                    }
                }
                if !silent.load(Ordering::SeqCst) {
                    let _ = to.shutdown(Shutdown::Write);
                }
            });
        }
    }

    /// Closes both sides.
    pub fn close(&self) {
        self.sides.iter().for_each(|side| drop(side.shutdown(Shutdown::Both)));
    }
}
