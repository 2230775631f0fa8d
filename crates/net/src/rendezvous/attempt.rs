//! One attempt to connect to another process: the name lookup, the connection and the handshake.

use super::handshake_stream::{HandshakeError, HandshakeStream};
use super::lookup::Lookup;
use super::reception::HANDSHAKE;
use super::state::Call;
use crate::handshake::caller::Answer;
use crate::handshake::{Caller, Hello, Host, Names, Purpose, Refusal, Words};
use crate::identity::{Access, PolicyError, secret};
use crate::poll;
use crate::shm::{SharedMemory, machine, pair::Offered};
use crate::stream::Stream;
use distribute_cluster::{Address, Deadline, Task};
use rustix::event::PollFd;
use rustix::net::{AddressFamily, sockopt};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

/// The data that all connection attempts of a process share.
#[derive(Debug)]
pub(crate) struct CallContext {
    pub hello: Hello,
    pub access: Access,
    pub names: Names,
    pub shared_memory: SharedMemory,
}

/// One non-blocking attempt to connect.
#[derive(Debug)]
pub(super) struct Attempt {
    /// The number of earlier attempts, by which one of a host name's addresses is selected.
    number: usize,
    patience: Deadline,
    state: State,
}

#[derive(Debug)]
enum State {
    Looking(Lookup),
    Connecting(TcpStream),
    Talking(Box<Handshake>),
    Over,
}

/// The handshake, and the memory that was offered in it.
#[derive(Debug)]
struct Handshake {
    handshake_stream: HandshakeStream,
    caller: Caller,
    /// The task to call.
    to: Task,
    offered: Option<Offered>,
}

/// The reason why an attempt has failed.
#[derive(Debug)]
pub(super) enum AttemptError {
    Broken(String),
    Refused(Refusal),
    Policy(PolicyError),
}

impl From<HandshakeError> for AttemptError {
    fn from(handshake_error: HandshakeError) -> Self {
        match handshake_error {
            HandshakeError::Broken(reason) => AttemptError::Broken(reason),
            HandshakeError::Refused(refusal) => AttemptError::Refused(refusal),
        }
    }
}

impl From<io::Error> for AttemptError {
    fn from(error: io::Error) -> Self {
        AttemptError::Broken(crate::link::describe_error(&error))
    }
}

impl Attempt {
    pub fn begin(call: &Call, number: usize) -> Result<Self, AttemptError> {
        let state = State::Looking(Lookup::begin(&call.address)?);
        Ok(Self { number, patience: Deadline::after(HANDSHAKE), state })
    }

    /// Returns the socket events for which to wait; `None` once the attempt is over.
    pub fn interest(&self) -> Option<PollFd<'_>> {
        match &self.state {
            State::Looking(lookup) => Some(lookup.interest()),
            State::Connecting(socket) => Some(poll::interest(socket, true)),
            State::Talking(talk) => Some(talk.handshake_stream.interest()),
            State::Over => None,
        }
    }

    /// Returns whether the name is being looked up. No second attempt begins until the lookup has ended.
    pub fn is_looking(&self) -> bool {
        matches!(self.state, State::Looking(_))
    }

    /// Continues the attempt without blocking. Returns the connection once the other side has accepted it, and `None`
    /// before.
    ///
    /// # Errors
    /// Returns the reason if the attempt has failed, for example because the other side has not answered in time. The
    /// attempt is then over.
    pub fn advance(&mut self, call: &Call, context: &CallContext) -> Result<Option<Stream>, AttemptError> {
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
                        if !context.access.allows(to.ip()) {
                            let address = call.address.to_string();
                            return Err(AttemptError::Policy(PolicyError::PlainTextOnTheNetwork { address }));
                        }
                        self.patience = Deadline::after(HANDSHAKE);
                        State::Connecting(begin(to)?)
                    }
                },
                State::Connecting(socket) => {
                    if connected(&socket)? {
                        start_handshake(socket, call, context)?
                    } else {
                        self.state = State::Connecting(socket);
                        return self.still("no answer to the connection");
                    }
                }
                State::Talking(mut talk) => match talk.advance(context) {
                    Ok(true) => {
                        let pair = talk.offered.and_then(Offered::accepted);
                        return Ok(Some(talk.handshake_stream.into_stream().with_shared_memory(pair)));
                    }
                    Ok(false) => {
                        self.state = State::Talking(talk);
                        return self.still("no answer to the handshake");
                    }
                    Err(handshake_error) => {
                        if let HandshakeError::Refused(refusal) = &handshake_error {
                            talk.handshake_stream.queue(&Host::refuse(refusal.clone(), false));
                            talk.handshake_stream.finish();
                        }
                        return Err(handshake_error.into());
                    }
                },
                State::Over => return Err(AttemptError::Broken("the attempt is over".to_owned())),
            };
        }
    }

    fn still(&self, otherwise: &str) -> Result<Option<Stream>, AttemptError> {
        if self.patience.has_passed() { Err(AttemptError::Broken(otherwise.to_owned())) } else { Ok(None) }
    }
}

/// Starts the handshake over an established connection. The hello is only queued; later steps send it.
///
/// # Errors
/// Returns [`AttemptError::Broken`] if the socket is connected to itself, or if an operation of the system or TLS
/// fails.
fn start_handshake(socket: TcpStream, call: &Call, context: &CallContext) -> Result<State, AttemptError> {
    if is_itself(&socket) {
        return Err(AttemptError::Broken("no process listens there".to_owned()));
    }
    let here = socket.local_addr()?.ip();
    let stream = match &context.access.tls {
        None => Stream::plain(socket)?,
        Some(tls) => Stream::tls(socket, tls.client()?)?,
    };
    let purpose = match &call.purpose {
        Purpose::Join { address, unformed } => {
            Purpose::Join { address: reachable(address, here), unformed: *unformed }
        }
        Purpose::Spare { address, unformed } => {
            Purpose::Spare { address: reachable(address, here), unformed: *unformed }
        }
        other => other.clone(),
    };
    let to = match &purpose {
        Purpose::Call { to, .. } => to.clone(),
        Purpose::Join { .. } | Purpose::Spare { .. } | Purpose::Link => context.names.task(call.worker),
    };
    let (generation, table) = (call.generation, call.table);
    let hello = Hello { purpose, generation, table, ..context.hello.clone() };
    let nonce = secret::random().map_err(io::Error::other)?;
    let caller = Caller::new(hello, call.worker, context.access.key.clone(), nonce);
    let caller = caller.named(context.names.clone());
    let mut handshake_stream = HandshakeStream::new(stream);
    handshake_stream.queue(&caller.first());
    Ok(State::Talking(Box::new(Handshake { handshake_stream, caller, to, offered: None })))
}

impl Handshake {
    /// Continues the handshake without blocking. Returns `true` once the other side has accepted the connection.
    ///
    /// # Errors
    /// Returns the reason if the connection is closed or has failed, or if one side rejects the other.
    fn advance(&mut self, context: &CallContext) -> Result<bool, HandshakeError> {
        loop {
            // The other side may have refused before it has read everything.
            let spoken = self.handshake_stream.flush();
            let Some(words) = self.handshake_stream.receive()? else { return spoken.map(|()| false) };
            if let (SharedMemory::Auto, Words::Challenge(_, nonce, Some(machine), _)) =
                (context.shared_memory, &words)
                && machine::identity(nonce) == Some(*machine)
            {
                self.share();
            }
            match self.caller.receive(words).map_err(HandshakeError::Refused)? {
                Answer::Send(words) => {
                    self.handshake_stream.verify_peer(&context.access, &self.to)?;
                    self.handshake_stream.queue(&words);
                }
                Answer::Welcome => return Ok(true),
            }
        }
    }

    /// Offers memory to the other side, which must be on this machine. If no memory can be created, the connection uses
    /// the socket.
    fn share(&mut self) {
        match Offered::new() {
            Ok(offered) => {
                self.caller.offer(offered.offer());
                self.offered = Some(offered);
            }
            Err(error) => {
                tracing::debug!(%error, "shared memory is not available: messages go through sockets");
            }
        }
    }
}

/// Returns an address at which others reach a worker that listens at `address`. If the worker listens on all
/// interfaces, the host is `here`, the address from which the worker has connected.
fn reachable(address: &str, here: IpAddr) -> String {
    match address.parse::<Address>() {
        Ok(listens) if listens.host().is_unspecified() => {
            SocketAddr::new(here.to_canonical(), listens.port()).to_string()
        }
        _ => address.to_owned(),
    }
}

/// Creates a socket and starts to connect it without blocking.
fn begin(to: SocketAddr) -> io::Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = crate::socket::stream(family)?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS | rustix::io::Errno::INTR) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether a socket is connected to itself. This happens if no process listens at a port and the system chose
/// the same port for the socket.
fn is_itself(socket: &TcpStream) -> bool {
    matches!((socket.local_addr(), socket.peer_addr()), (Ok(here), Ok(there)) if here == there)
}

/// Returns whether the connection is established; `false` means that the system still tries.
///
/// # Errors
/// Returns the error with which connecting has failed.
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
    fn a_socket_that_is_connected_to_itself_is_recognized() {
        let socket = crate::socket::stream(AddressFamily::INET).unwrap();
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
