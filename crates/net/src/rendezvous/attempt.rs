//! One attempt to connect to another process: the name lookup, the connection, the handshake.

use super::conversation::{Conversation, Trouble};
use super::lookup::Lookup;
use super::meeting::Call;
use super::reception::HANDSHAKE;
use crate::handshake::caller::Answer;
use crate::handshake::{Caller, Hello, Host, Names, Purpose, Refusal, Words};
use crate::identity::{Access, PolicyError, secret};
use crate::poll;
use crate::shm::{SharedMemory, machine, pair::Offered};
use crate::stream::Stream;
use distribute_cluster::{Address, Deadline, Task};
use rustix::event::PollFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

/// The data that all attempts of a process share.
#[derive(Debug)]
pub(crate) struct Calling {
    pub hello: Hello,
    pub access: Access,
    pub names: Names,
    pub shared_memory: SharedMemory,
}

/// One attempt. It never blocks.
#[derive(Debug)]
pub(super) struct Attempt {
    /// The number of the attempt, which selects one of a name's addresses.
    number: usize,
    patience: Deadline,
    state: State,
}

#[derive(Debug)]
enum State {
    Looking(Lookup),
    Connecting(TcpStream),
    Talking(Box<Talk>),
    Over,
}

/// The handshake, and the memory that was offered in it.
#[derive(Debug)]
struct Talk {
    conversation: Conversation,
    caller: Caller,
    /// The task to call.
    to: Task,
    offered: Option<Offered>,
}

/// The reason that an attempt has failed.
#[derive(Debug)]
pub(super) enum Failure {
    Broken(String),
    Refused(Refusal),
    Policy(PolicyError),
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Broken(reason) => Failure::Broken(reason),
            Trouble::Refused(refusal) => Failure::Refused(refusal),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Broken(crate::link::text(&error))
    }
}

impl Attempt {
    pub fn begin(call: &Call, number: usize) -> Result<Self, Failure> {
        let state = State::Looking(Lookup::begin(&call.address)?);
        Ok(Self { number, patience: Deadline::after(HANDSHAKE), state })
    }

    /// Returns the events to wait for.
    pub fn interest(&self) -> Option<PollFd<'_>> {
        match &self.state {
            State::Looking(lookup) => Some(lookup.interest()),
            State::Connecting(socket) => Some(poll::interest(socket, true)),
            State::Talking(talk) => Some(talk.conversation.interest()),
            State::Over => None,
        }
    }

    /// Whether the name is being looked up. There is no second attempt until the lookup has ended.
    pub fn is_looking(&self) -> bool {
        matches!(self.state, State::Looking(_))
    }

    /// Continues without blocking. Returns the connection once the other side has accepted it.
    pub fn attend(&mut self, call: &Call, calling: &Calling) -> Result<Option<Stream>, Failure> {
        loop {
            self.state = match std::mem::replace(&mut self.state, State::Over) {
                State::Looking(lookup) => match lookup.take() {
                    None => {
                        self.state = State::Looking(lookup);
                        return Ok(None);
                    }
                    Some(found) => {
                        let found = found?;
                        let to = found[self.number % found.len()];
                        if !calling.access.allows(to.ip()) {
                            let address = call.address.to_string();
                            return Err(Failure::Policy(PolicyError::PlainTextOnTheNetwork { address }));
                        }
                        self.patience = Deadline::after(HANDSHAKE);
                        State::Connecting(begin(to)?)
                    }
                },
                State::Connecting(socket) => {
                    if connected(&socket)? {
                        greet(socket, call, calling)?
                    } else {
                        self.state = State::Connecting(socket);
                        return self.still("no answer to the connection");
                    }
                }
                State::Talking(mut talk) => match talk.go_on(calling) {
                    Ok(true) => {
                        let pair = talk.offered.and_then(Offered::accepted);
                        return Ok(Some(talk.conversation.into_stream().sharing(pair)));
                    }
                    Ok(false) => {
                        self.state = State::Talking(talk);
                        return self.still("no answer to the handshake");
                    }
                    Err(trouble) => {
                        if let Trouble::Refused(refusal) = &trouble {
                            talk.conversation.say(&Host::refuse(refusal.clone(), false));
                            talk.conversation.fall_silent();
                        }
                        return Err(trouble.into());
                    }
                },
                State::Over => return Err(Failure::Broken("the attempt is over".to_owned())),
            };
        }
    }

    fn still(&self, otherwise: &str) -> Result<Option<Stream>, Failure> {
        if self.patience.has_passed() { Err(Failure::Broken(otherwise.to_owned())) } else { Ok(None) }
    }
}

/// Sends the hello over an established connection.
fn greet(socket: TcpStream, call: &Call, calling: &Calling) -> Result<State, Failure> {
    if is_itself(&socket) {
        return Err(Failure::Broken("nobody listens there".to_owned()));
    }
    let here = socket.local_addr()?.ip();
    let stream = match &calling.access.tls {
        None => Stream::plain(socket)?,
        Some(tls) => Stream::tls(socket, tls.client().map_err(io::Error::other)?)?,
    };
    let purpose = match &call.purpose {
        Purpose::Join { address } => Purpose::Join { address: reachable(address, here) },
        other => other.clone(),
    };
    let to = match &purpose {
        Purpose::Call { to, .. } => to.clone(),
        Purpose::Join { .. } | Purpose::Link => calling.names.of(call.worker),
    };
    let hello = Hello { purpose, generation: call.generation, ..calling.hello.clone() };
    let nonce = secret::random().map_err(io::Error::other)?;
    let caller = Caller::new(hello, call.worker, calling.access.key.clone(), nonce);
    let caller = caller.named(calling.names.clone());
    let mut conversation = Conversation::new(stream);
    conversation.say(&caller.first());
    Ok(State::Talking(Box::new(Talk { conversation, caller, to, offered: None })))
}

impl Talk {
    /// Continues without blocking. Returns `true` once the other side has accepted the connection.
    fn go_on(&mut self, calling: &Calling) -> Result<bool, Trouble> {
        loop {
            // The other side may have refused before it has read everything.
            let spoken = self.conversation.speak();
            let Some(words) = self.conversation.listen()? else { return spoken.map(|()| false) };
            if let (SharedMemory::Auto, Words::Challenge(_, nonce, Some(machine), _)) =
                (calling.shared_memory, &words)
                && machine::identity(nonce) == Some(*machine)
            {
                self.share();
            }
            match self.caller.hear(words).map_err(Trouble::Refused)? {
                Answer::Say(words) => {
                    self.conversation.vouch(&calling.access, &self.to)?;
                    self.conversation.say(&words);
                }
                Answer::Welcome => return Ok(true),
            }
        }
    }

    /// Offers memory, because the other side is on this machine.
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

/// Returns an address at which others reach a worker. For one that listens on all addresses, this is the
/// address that it has connected from.
fn reachable(address: &str, here: IpAddr) -> String {
    match address.parse::<Address>() {
        Ok(listens) if listens.host().is_unspecified() => {
            SocketAddr::new(here.to_canonical(), listens.port()).to_string()
        }
        _ => address.to_owned(),
    }
}

/// Starts to connect.
fn begin(to: SocketAddr) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)?;
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS | rustix::io::Errno::INTR) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}

/// Whether a socket is connected to itself. This happens if no process listens at a port and the system chose
/// the same port for the socket.
fn is_itself(socket: &TcpStream) -> bool {
    matches!((socket.local_addr(), socket.peer_addr()), (Ok(here), Ok(there)) if here == there)
}

/// Whether the connection was established.
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
