//! A relay on the link between two workers, with which the link can be broken.

use crate::recovery::program::Task;
use distribute_testing::Port;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// The minimum number of bytes, read at once, in which a bit is flipped. Reads of this size are part of a large
/// message.
const LARGE: usize = 16 << 10;

/// The maximum time for which a message is held. Tests fail sooner.
const LONGEST: Duration = Duration::from_secs(300);

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
    answer: Arc<Answer>,
}

/// A large message to the side that has connected, in which a bit is flipped after an answer to it has passed.
#[derive(Default)]
struct Answer {
    /// The number of bytes of the answer that have not passed yet; `None` if no bit is flipped.
    left: Mutex<Option<usize>>,
    passed: Condvar,
}

impl Answer {
    /// Records bytes from the side that has connected.
    fn pass(&self, bytes: usize) {
        if let Some(left) = &mut *self.left.lock().unwrap() {
            *left = left.saturating_sub(bytes);
            self.passed.notify_all();
        }
    }

    /// Waits until the answer has passed. Returns `true` if a bit is to be flipped, once.
    fn wait(&self) -> bool {
        let left = self.left.lock().unwrap();
        let is_left = |left: &mut Option<usize>| left.is_some_and(|left| left > 0);
        let (mut left, _) = self.passed.wait_timeout_while(left, LONGEST, is_left).unwrap();
        left.take().is_some()
    }
}

/// The two sides of a connection through the relay.
pub struct Pair {
    sides: [TcpStream; 2],
    /// Whether messages from each side are dropped.
    silent: [Arc<AtomicBool>; 2],
    flips: Arc<AtomicUsize>,
    answer: Arc<Answer>,
}

impl Relay {
    /// Creates a relay to an address. It closes connections while no process listens there.
    pub fn to(address: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap();
        let relay =
            Self { address: own, open: Arc::default(), flips: Arc::default(), answer: Arc::default() };
        let (open, flips, answer) = (relay.open.clone(), relay.flips.clone(), relay.answer.clone());
        std::thread::spawn(move || {
            for one in listener.incoming().map_while(Result::ok) {
                let Ok(other) = TcpStream::connect(address) else { continue };
                let (flips, answer) = (flips.clone(), answer.clone());
                let pair = Pair { flips, answer, ..Pair::new([one, other]) };
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

    /// Flips a bit in the next large message to the side that has connected to the relay, which is held until that side
    /// has sent `bytes` more bytes.
    pub fn flip_after_answer(&self, bytes: usize) {
        *self.answer.left.lock().unwrap() = Some(bytes);
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
        Self { sides, silent: Default::default(), flips: Arc::default(), answer: Arc::default() }
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
            let answer = self.answer.clone();
            std::thread::spawn(move || {
                let mut bytes = vec![0; 1 << 16];
                loop {
                    match from.read(&mut bytes) {
                        Ok(0) | Err(_) => break,
                        // As if it got lost on the way.
                        Ok(_) if silent.load(Ordering::SeqCst) => {}
                        Ok(some) if some >= LARGE && (take_one(&flips) || side == 1 && answer.wait()) => {
                            bytes[some / 2] ^= 4;
                            if to.write_all(&bytes[..some]).is_err() {
                                break;
                            }
                        }
                        Ok(some) if to.write_all(&bytes[..some]).is_err() => break,
                        Ok(some) if side == 0 => answer.pass(some),
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
