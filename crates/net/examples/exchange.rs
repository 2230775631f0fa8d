//! A benchmark of two processes of one machine that exchange bodies through shared memory.
//!
//! Each process writes its body, sends it, and reads the other's body, "copied" or "by reference". In "sum" they add up
//! their vectors in regions of shared memory, each process one half.
//!
//! ```text
//! cargo run --release -p distribute-net --example exchange            # all sizes
//! cargo run --release -p distribute-net --example exchange 1048576    # these
//! ```

use bytes::Bytes;
use distribute_cluster::{Deadline, Stopwatch, World};
use distribute_net::{Listener, Mesh, Message, PollOutcome, Receiver, Region, Rendezvous, Transport};
use std::error::Error;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The environment variable with the address of the first process, set in the second.
const ADDRESS: &str = "DISTRIBUTE_EXCHANGE";

const SIZES: [usize; 8] = [1 << 10, 4 << 10, 8 << 10, 16 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[derive(Default)]
struct Inbox(Mutex<Vec<Message>>);

impl Receiver for Inbox {
    fn deliver(&self, _from: usize, message: Message) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(0, message);
    }

    fn mark_lost(&self, _from: usize, _reason: String) {}
}

struct Worker {
    me: usize,
    mesh: Mesh,
    inbox: Arc<Inbox>,
}

impl Worker {
    fn join(me: usize, address: String, listener: Option<Listener>) -> Result<Self> {
        let inbox = Arc::<Inbox>::default();
        let rendezvous = Rendezvous::new(World::new(2, me, 1)?, vec![address, "127.0.0.1:0".to_owned()]);
        let rendezvous = match listener {
            Some(listener) => rendezvous.listener(listener),
            None => rendezvous,
        };
        let mesh = rendezvous.join(inbox.clone())?;
        Ok(Self { me, mesh, inbox })
    }

    fn send(&self, body: Bytes) {
        self.mesh.send(1 - self.me, Message::new(vec![1; 16], body));
    }

    fn receive(&self) -> Result<Bytes> {
        let deadline = Deadline::after(Duration::from_secs(20));
        loop {
            if let Some(message) = self.inbox.0.lock().unwrap_or_else(PoisonError::into_inner).pop() {
                return Ok(message.body);
            }
            if deadline.has_passed() {
                return Err("the other side says nothing".into());
            }
            if self.mesh.poll(Duration::from_millis(100), &|| false) == PollOutcome::Elsewhere {
                std::thread::yield_now();
            }
        }
    }

    fn region(&self, length: usize) -> Result<Region> {
        self.mesh.memory(length).ok_or_else(|| "these processes share no memory".into())
    }

    /// Fills a body with `round`, sends it, and returns the sum of the words of the other worker's body.
    fn exchange(&self, length: usize, round: u8, by_reference: bool, own: &mut [u8]) -> Result<u64> {
        own.fill(round);
        if by_reference {
            let mut region = self.region(length)?;
            region.write(0, own);
            self.send(region.freeze());
        } else {
            self.send(Bytes::copy_from_slice(own));
        }
        let theirs = self.receive()?;
        Ok(theirs.as_chunks().0.iter().fold(0_u64, |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word))))
    }

    /// Adds up the vectors of both workers in place. Each worker sums one half, and sends the sum to the other.
    fn sum(&self, mut values: Region) -> Result<[Bytes; 2]> {
        let second = values.split_off(values.len() / 2);
        let (mut mine, theirs) = if self.me == 0 { (values, second) } else { (second, values) };
        self.send(theirs.freeze());
        let other = self.receive()?;
        for (mine, other) in mine.as_chunks_mut().0.iter_mut().zip(other.as_chunks().0) {
            *mine = (f32::from_ne_bytes(*mine) + f32::from_ne_bytes(*other)).to_ne_bytes();
        }
        drop(other);
        let mine = mine.freeze();
        self.send(mine.clone());
        Ok([mine, self.receive()?])
    }

    fn play(&self) -> Result<()> {
        if self.me == 0 {
            println!("{:>10} {:>14} {:>14} {:>14}", "bytes", "copied", "by reference", "sum");
        }
        let asked: Vec<usize> =
            std::env::args().skip(1).map(|length| length.parse()).collect::<std::result::Result<_, _>>()?;
        for length in if asked.is_empty() { SIZES.to_vec() } else { asked } {
            let rounds = ((256 << 20) / length.max(1)).clamp(15, 5_000);
            let mut own = vec![0; length];
            let mut medians = Vec::new();
            for way in 0..3 {
                let mut times = Vec::new();
                for round in 0..rounds {
                    let mut values = (way == 2).then(|| self.region(length)).transpose()?;
                    if let Some(values) = &mut values {
                        values.as_chunks_mut().0.fill(1_f32.to_ne_bytes());
                    }
                    // Both begin at once.
                    self.send(Bytes::new());
                    self.receive()?;
                    let watch = Stopwatch::start();
                    match values {
                        Some(values) => {
                            let sums = std::hint::black_box(self.sum(values)?);
                            if sums.iter().any(|sum| !sum.ends_with(&2_f32.to_ne_bytes())) {
                                return Err("the sum is wrong".into());
                            }
                        }
                        None => {
                            let found = self.exchange(length, round as u8, way == 1, &mut own)?;
                            let expected =
                                u64::from_ne_bytes([round as u8; 8]).wrapping_mul(length as u64 / 8);
                            if found != expected {
                                return Err("what came is not what was sent".into());
                            }
                        }
                    }
                    times.push(watch.elapsed());
                }
                times.sort();
                medians.push(times[times.len() / 2].as_secs_f64() * 1e6);
            }
            if let (0, [a, b, c]) = (self.me, &medians[..]) {
                println!("{length:>10} {a:>11.1} µs {b:>11.1} µs {c:>11.1} µs");
            }
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    if let Ok(address) = std::env::var(ADDRESS) {
        return Worker::join(1, address, None)?.play();
    }
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.address()?.to_string();
    let mut second = Command::new(std::env::current_exe()?)
        .args(std::env::args().skip(1))
        .env(ADDRESS, &address)
        .spawn()?;
    let played = Worker::join(0, address, Some(listener))?.play();
    second.wait()?;
    played
}
