//! Connecting to a worker that may not be there yet.

use super::conversation::{Conversation, Trouble};
use super::reception::HANDSHAKE;
use crate::handshake::caller::Answer;
use crate::handshake::{Caller, Hello, Purpose, Reason, Refusal, Words};
use crate::identity::tls::Tls;
use crate::identity::{PolicyError, policy, secret};
use crate::poll;
use crate::shm::{SharedMemory, machine, pair::Offered};
use crate::stream::Stream;
use distribute_cluster::Deadline;
use ring::hmac;
use rustix::event::PollFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// How long to wait before the second attempt. Each next wait is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(10);

/// The longest wait between two attempts.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// What all dials of a worker have in common.
#[derive(Debug)]
pub(super) struct Calling {
    pub hello: Hello,
    pub key: Option<hmac::Key>,
    pub tls: Option<Tls>,
    /// Whether plain text may leave this machine.
    pub plain_text_allowed: bool,
    pub shared_memory: SharedMemory,
}

/// Connects to a worker, again and again until it is there.
#[derive(Debug)]
pub(super) struct Dial {
    pub worker: usize,
    pub address: String,
    purpose: Purpose,
    state: State,
    wait: Duration,
    attempts: usize,
    /// What came of the last attempt.
    pub last: Option<String>,
}

#[derive(Debug)]
enum State {
    Waiting(Deadline),
    Connecting(TcpStream, Deadline),
    Talking(Box<Talk>, Deadline),
}

/// The handshake, and the memory that has been offered in it.
#[derive(Debug)]
struct Talk {
    conversation: Conversation,
    caller: Caller,
    offered: Option<Offered>,
}

/// Why there will be no connection.
#[derive(Debug)]
pub(super) enum Failed {
    Refused(Refusal),
    Policy(PolicyError),
}

impl Dial {
    pub fn new(worker: usize, address: String, purpose: Purpose) -> Self {
        let state = State::Waiting(Deadline::after(Duration::ZERO));
        Self { worker, address, purpose, state, wait: FIRST_WAIT, attempts: 0, last: None }
    }

    /// What to wait for, if something can come.
    pub fn interest(&self) -> Option<PollFd<'_>> {
        match &self.state {
            State::Waiting(_) => None,
            State::Connecting(socket, _) => Some(poll::interest(socket, true)),
            State::Talking(talk, _) => Some(talk.conversation.interest()),
        }
    }

    /// When to go on although nothing has come.
    pub fn pause(&self) -> Option<Duration> {
        match &self.state {
            State::Waiting(until) => Some(until.remaining()),
            _ => None,
        }
    }

    /// Goes on as far as possible at once. Gives the connection once the other side has said welcome.
    pub fn attend(&mut self, calling: &Calling) -> Result<Option<Stream>, Failed> {
        loop {
            let next = match &mut self.state {
                State::Waiting(until) if until.has_passed() => self.connect(calling),
                State::Waiting(_) => return Ok(None),
                State::Connecting(socket, patience) => {
                    let patience = *patience;
                    match connected(socket) {
                        Ok(false) if patience.has_passed() => {
                            Err(Trouble::Broken("no answer to the connection".to_owned()))
                        }
                        Ok(false) => return Ok(None),
                        Ok(true) => self.greet(calling),
                        Err(error) => Err(Trouble::Broken(crate::link::text(&error))),
                    }
                }
                State::Talking(talk, patience) => match talk.go_on(calling.shared_memory) {
                    Ok(false) if patience.has_passed() => {
                        Err(Trouble::Broken("no answer to the handshake".to_owned()))
                    }
                    Ok(false) => return Ok(None),
                    Ok(true) => {
                        let State::Talking(talk, _) = self.rest() else { return Ok(None) };
                        let pair = talk.offered.and_then(Offered::accepted);
                        return Ok(Some(talk.conversation.into_stream().sharing(pair)));
                    }
                    Err(trouble) => {
                        if let Trouble::Refused(refusal) = &trouble {
                            talk.conversation.say(&crate::handshake::Host::refuse(refusal.clone(), false));
                            talk.conversation.fall_silent();
                        }
                        Err(trouble)
                    }
                },
            };
            match next {
                Ok(state) => self.state = state,
                Err(Trouble::Broken(reason)) => {
                    self.rest();
                    self.last = Some(reason);
                }
                Err(Trouble::Refused(refusal)) => match refusal.reason {
                    Reason::Crowded | Reason::Late | Reason::Replaced => {
                        self.rest();
                        self.last = Some(refusal.to_string());
                    }
                    _ => return Err(Failed::Refused(refusal)),
                },
            }
            if let State::Waiting(_) = self.state
                && let Some(policy) = self.forbidden(calling)
            {
                return Err(Failed::Policy(policy));
            }
        }
    }

    /// Waits for the next attempt. Gives what was.
    fn rest(&mut self) -> State {
        let wait = self.wait;
        self.wait = (2 * wait).min(LONGEST_WAIT);
        std::mem::replace(&mut self.state, State::Waiting(Deadline::after(wait)))
    }

    fn forbidden(&self, calling: &Calling) -> Option<PolicyError> {
        let plain = calling.tls.is_none() && !calling.plain_text_allowed;
        (plain && self.last.as_deref() == Some(FORBIDDEN))
            .then(|| PolicyError::PlainTextOnTheNetwork { address: self.address.clone() })
    }

    fn connect(&mut self, calling: &Calling) -> Result<State, Trouble> {
        let broken = |error: io::Error| Trouble::Broken(crate::link::text(&error));
        let all: Vec<SocketAddr> = self.address.to_socket_addrs().map_err(broken)?.collect();
        if all.is_empty() {
            return Err(Trouble::Broken("the name has no address".to_owned()));
        }
        let to = all[self.attempts % all.len()];
        self.attempts += 1;
        if calling.tls.is_none() && !calling.plain_text_allowed && !is_loopback(to.ip()) {
            return Err(Trouble::Broken(FORBIDDEN.to_owned()));
        }
        let socket = begin(to).map_err(broken)?;
        Ok(State::Connecting(socket, Deadline::after(HANDSHAKE)))
    }

    fn greet(&mut self, calling: &Calling) -> Result<State, Trouble> {
        let broken = |error: io::Error| Trouble::Broken(crate::link::text(&error));
        let State::Connecting(socket, _) = self.rest() else {
            return Err(Trouble::Broken("not connected".to_owned()));
        };
        if is_itself(&socket) {
            return Err(Trouble::Broken("nobody listens there".to_owned()));
        }
        let here = socket.local_addr().map_err(broken)?.ip();
        let stream = match &calling.tls {
            None => Stream::plain(socket).map_err(broken)?,
            Some(tls) => {
                let connection = tls.client().map_err(|error| broken(io::Error::other(error)))?;
                Stream::tls(socket, connection).map_err(broken)?
            }
        };
        let purpose = match &self.purpose {
            Purpose::Join { address } => Purpose::Join { address: reachable(address, here) },
            Purpose::Link => Purpose::Link,
        };
        let hello = Hello { purpose, ..calling.hello.clone() };
        let nonce = secret::random().map_err(|error| broken(io::Error::other(error)))?;
        let caller = Caller::new(hello, self.worker, calling.key.clone(), nonce);
        let mut conversation = Conversation::new(stream);
        conversation.say(&caller.first());
        let talk = Talk { conversation, caller, offered: None };
        Ok(State::Talking(Box::new(talk), Deadline::after(HANDSHAKE)))
    }
}

const FORBIDDEN: &str = "plain text may not leave this machine";

impl Talk {
    /// Goes on as far as possible at once. Says whether the other side has said welcome.
    fn go_on(&mut self, shared_memory: SharedMemory) -> Result<bool, Trouble> {
        loop {
            // It may have refused before it has read everything.
            let spoken = self.conversation.speak();
            let Some(words) = self.conversation.listen()? else { return spoken.map(|()| false) };
            if let (SharedMemory::Auto, Words::Challenge(_, nonce, Some(machine), _)) =
                (shared_memory, &words)
                && machine::identity(nonce) == Some(*machine)
            {
                self.share();
            }
            match self.caller.hear(words).map_err(Trouble::Refused)? {
                Answer::Say(words) => self.conversation.say(&words),
                Answer::Welcome => return Ok(true),
            }
        }
    }

    /// Offers memory, since the other side is on this machine.
    fn share(&mut self) {
        match Offered::new() {
            Ok(offered) => {
                self.caller.offer(offered.offer());
                self.offered = Some(offered);
            }
            Err(error) => tracing::debug!(%error, "there is no memory to share: messages go through sockets"),
        }
    }
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// An address at which others reach a worker that listens on all addresses: the one that it has connected from.
fn reachable(address: &str, here: IpAddr) -> String {
    let unspecified = policy::host(address).parse().is_ok_and(|ip: IpAddr| ip.is_unspecified());
    match address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()) {
        Some(port) if unspecified => SocketAddr::new(here.to_canonical(), port).to_string(),
        _ => address.to_owned(),
    }
}

/// Begins to connect.
fn begin(to: SocketAddr) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS | rustix::io::Errno::INTR) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}

/// Whether a socket is connected to itself: the system gave it the very port, as its own, that nobody listens at.
fn is_itself(socket: &TcpStream) -> bool {
    matches!((socket.local_addr(), socket.peer_addr()), (Ok(here), Ok(there)) if here == there)
}

/// Whether the connection has been made.
fn connected(socket: &TcpStream) -> io::Result<bool> {
    let mut sockets = [poll::interest(socket, true)];
    poll::wait(&mut sockets, Duration::ZERO)?;
    if !poll::is_ready(&sockets[0]) {
        return Ok(false);
    }
    sockopt::socket_error(socket)??;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_connected_to_itself_is_known() {
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let socket = TcpStream::from(socket);
        rustix::net::connect(&socket, &socket.local_addr().unwrap()).unwrap();
        assert!(is_itself(&socket));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!is_itself(&TcpStream::connect(listener.local_addr().unwrap()).unwrap()));
    }

    #[test]
    fn who_listens_on_all_addresses_is_reached_at_the_one_that_it_connects_from() {
        let here = IpAddr::from([10, 0, 0, 7]);
        assert_eq!(reachable("0.0.0.0:2222", here), "10.0.0.7:2222");
        assert_eq!(reachable("[::]:2222", here), "10.0.0.7:2222");
        assert_eq!(reachable("worker-1:2222", here), "worker-1:2222");
        assert_eq!(reachable("10.0.0.9:2222", here), "10.0.0.9:2222");
    }
}
