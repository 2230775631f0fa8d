//! A benchmark of two workers that answer each other, and that exchange 64 MiB both ways at once: as threads over
//! memory, and as two processes over TCP, TLS and shared memory. Bodies are copied into shared memory and out of it;
//! the example `exchange` measures bodies that are not copied.
//!
//! ```text
//! cargo run --release -p distribute-net --example pingpong            # all of them
//! cargo run --release -p distribute-net --example pingpong tcp
//! ```

use distribute_cluster::{Deadline, Stopwatch, World};
use distribute_net::identity::IdentityError;
use distribute_net::{
    Identity, JoinError, Listener, Message, PollOutcome, Receiver, Rendezvous, Secret, SharedMemory,
    Transport, memory,
};
use std::collections::VecDeque;
use std::error::Error;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The environment variables with the address of the first process and with the kind of link, set in the second.
const ADDRESS: &str = "DISTRIBUTE_PINGPONG";
const LINK: &str = "DISTRIBUTE_PINGPONG_LINK";

const ROUNDS: usize = 20_000;
const EXCHANGES: usize = 15;
const LARGE: usize = 64 << 20;

#[derive(Default)]
struct Inbox {
    come: Mutex<VecDeque<Message>>,
    changed: Condvar,
}

impl Receiver for Inbox {
    fn deliver(&self, _from: usize, message: Message) {
        self.come.lock().unwrap_or_else(PoisonError::into_inner).push_back(message);
        self.changed.notify_all();
    }

    fn mark_lost(&self, _from: usize, _reason: String) {}
}

impl Inbox {
    fn next(&self, transport: &dyn Transport) -> Result<Message, Box<dyn Error>> {
        let deadline = Deadline::after(Duration::from_secs(20));
        loop {
            let mut come = self.come.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(message) = come.pop_front() {
                return Ok(message);
            }
            if deadline.has_passed() {
                return Err("the other side says nothing".into());
            }
            drop(come);
            if transport.poll(Duration::from_millis(100), &|| false) == PollOutcome::Elsewhere {
                come = self.come.lock().unwrap_or_else(PoisonError::into_inner);
                if come.is_empty() {
                    let _ = self.changed.wait_timeout(come, Duration::from_millis(100));
                }
            }
        }
    }
}

/// The median and the 10th percentile. On a busy machine, the 10th percentile is less affected by other programs.
type Times = [Duration; 2];

/// Runs one worker's side of the benchmark. Returns the times of a round trip of a small message, of a round trip of a
/// page, and of an exchange of large messages.
fn play(me: usize, transport: &dyn Transport, inbox: &Inbox) -> Result<[Times; 3], Box<dyn Error>> {
    let small = Message::new(vec![1; 16], vec![2; 48]);
    let page = Message::new(vec![1; 16], vec![2; 4080]);
    let large = Message::new(vec![1; 16], vec![3; LARGE]);
    let round = |message: &Message, both: bool| -> Result<Duration, Box<dyn Error>> {
        let watch = Stopwatch::start();
        if me == 0 || both {
            transport.send(1 - me, message.clone());
        }
        inbox.next(transport)?;
        if me == 1 && !both {
            transport.send(0, message.clone());
        }
        Ok(watch.elapsed())
    };
    let quantiles = |message, both, rounds: usize| -> Result<Times, Box<dyn Error>> {
        let times: Result<Vec<_>, _> = (0..rounds).map(|_| round(message, both)).collect();
        let mut times = times?;
        times.sort();
        Ok([times[times.len() / 2], times[times.len() / 10]])
    };
    let (small, page) = (quantiles(&small, false, ROUNDS)?, quantiles(&page, false, ROUNDS)?);
    Ok([small, page, quantiles(&large, true, EXCHANGES)?])
}

fn rendezvous(
    me: usize,
    address: String,
    identity: Identity,
    link: &str,
) -> Result<Rendezvous, Box<dyn Error>> {
    let second = format!("{}:0", address.rsplit_once(':').map_or("", |(host, _)| host));
    let shared_memory = if link == "shared" { SharedMemory::Auto } else { SharedMemory::Never };
    let rendezvous = Rendezvous::new(World::new(2, me, 1)?, vec![address, second]);
    Ok(rendezvous.credentials(identity).shared_memory(shared_memory))
}

fn identity() -> Result<Identity, IdentityError> {
    Ok(Secret::from_env()?.map_or(Identity::None, Identity::Secret))
}

/// Runs the first process, which starts the second. Links are encrypted unless their address is a loopback address.
fn processes(link: &str) -> Result<[Times; 3], Box<dyn Error>> {
    let host = if link == "tls" { "0.0.0.0" } else { "127.0.0.1" };
    let listener = Listener::bind(&format!("{host}:0"))?;
    let address = format!("{host}:{}", listener.address()?.port());
    let secret = Secret::random()?;
    let mut second = Command::new(std::env::current_exe()?);
    second.env(ADDRESS, &address).env(LINK, link).env("DISTRIBUTE_SECRET", secret.to_hex());
    let mut second = second.spawn()?;
    let inbox = Arc::<Inbox>::default();
    let mesh: Result<_, JoinError> =
        rendezvous(0, address, Identity::Secret(secret), link)?.listener(listener).join(inbox.clone());
    let played = play(0, &mesh?, &inbox);
    second.wait()?;
    played
}

fn threads() -> Result<[Times; 3], Box<dyn Error>> {
    let inboxes = [Arc::<Inbox>::default(), Arc::default()];
    let receivers = inboxes.iter().map(|inbox| inbox.clone() as Arc<dyn Receiver>).collect();
    let transports = memory::transports(receivers);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| play(1, &transports[1], &inboxes[1]).map_err(|error| error.to_string()));
        let first = play(0, &transports[0], &inboxes[0])?;
        second.join().map_err(|_| "the second thread panicked")??;
        Ok(first)
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    if let Ok(address) = std::env::var(ADDRESS) {
        let inbox = Arc::<Inbox>::default();
        let mesh = rendezvous(1, address, identity()?, &std::env::var(LINK)?)?.join(inbox.clone())?;
        play(1, &mesh, &inbox)?;
        return Ok(());
    }
    println!(
        "median (first tenth) {:>18} {:>21} {:>20}",
        "64 B and back", "4 KiB and back", "64 MiB both ways"
    );
    let asked = std::env::args().nth(1);
    for name in
        ["memory", "shared", "tcp", "tls"].into_iter().filter(|name| asked.as_ref().is_none_or(|a| a == name))
    {
        let times = if name == "memory" { threads() } else { processes(name) }?;
        let [[a, b], [c, d], [e, f]] = times.map(|times| times.map(|time| time.as_secs_f64() * 1e6));
        let (e, f) = (e / 1e3, f / 1e3);
        println!("{name:20} {a:>7.1} ({b:>6.1}) µs {c:>9.1} ({d:>6.1}) µs {e:>8.1} ({f:>6.1}) ms");
    }
    Ok(())
}
