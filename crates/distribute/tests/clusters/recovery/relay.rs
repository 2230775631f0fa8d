//! A link between two workers that can break: their messages pass through this relay.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A relay that forwards messages to its address, and the answers.
pub struct Relay {
    pub address: SocketAddr,
    open: Arc<Mutex<Vec<Pair>>>,
}

/// Both sides of a connection.
struct Pair {
    sides: [TcpStream; 2],
    /// Whether messages from this side are dropped.
    silent: [Arc<AtomicBool>; 2],
}

impl Relay {
    /// Creates a relay to this address. It closes connections while no process listens there.
    pub fn to(address: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Self { address: listener.local_addr().unwrap(), open: Arc::default() };
        let open = relay.open.clone();
        std::thread::spawn(move || {
            for one in listener.incoming().map_while(Result::ok) {
                let Ok(other) = TcpStream::connect(address) else { continue };
                let pair = Pair { sides: [one, other], silent: Default::default() };
                pair.pass_on();
                open.lock().unwrap().push(pair);
            }
        });
        relay
    }

    /// Closes all connections. New connections are forwarded.
    pub fn close(&self) {
        self.open.lock().unwrap().drain(..).for_each(|pair| pair.close());
    }

    /// Drops all further messages of existing connections without closing them. New connections are forwarded.
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

impl Drop for Relay {
    fn drop(&mut self) {
        self.close();
    }
}

impl Pair {
    fn pass_on(&self) {
        for side in [0, 1] {
            let [mut from, mut to] = [side, 1 - side].map(|side| self.sides[side].try_clone().unwrap());
            to.set_nodelay(true).unwrap();
            let silent = self.silent[side].clone();
            std::thread::spawn(move || {
                let mut bytes = vec![0; 1 << 16];
                loop {
                    match from.read(&mut bytes) {
                        Ok(0) | Err(_) => break,
                        // As if it got lost on the way.
                        Ok(_) if silent.load(Ordering::SeqCst) => {}
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

    fn close(&self) {
        self.sides.iter().for_each(|side| drop(side.shutdown(Shutdown::Both)));
    }
}
