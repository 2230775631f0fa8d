//! Incoming connections (*guests*) whose handshake is not complete yet.

use super::handshake_stream::{HandshakeError, HandshakeStream};
use super::listener::Listener;
use super::refused_connections::RefusedConnections;
use crate::descriptors;
use crate::handshake::host::Answer;
use crate::handshake::{Hello, Host, Names, Offer, Reason, Refusal};
use crate::identity::{Access, secret};
use crate::poll;
use crate::shm::{SharedMemory, machine, pair::Pair};
use crate::stream::Stream;
use distribute_cluster::Deadline;
use distribute_cluster::admission::{GuestId, Guests, Source, Stage};
use rustix::event::PollFd;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of simultaneous guests. Each takes a few kilobytes.
const MAX_GUESTS: usize = 64;

/// The number of guests to accept before all current ones are served. It is less than the maximum, so that a guest is
/// served before another may replace it.
const MAX_ACCEPTS: usize = MAX_GUESTS / 2;

/// The timeout of a handshake.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);

/// The time for which a rejected guest can receive the refusal.
const REFUSAL_TIME: Duration = Duration::from_secs(1);

/// A listener that performs the handshake with each guest, until the guest is accepted or rejected. It never blocks.
#[derive(Debug)]
pub(crate) struct Reception {
    listener: Listener,
    access: Access,
    mine: Hello,
    names: Names,
    shared_memory: SharedMemory,
    guests: Vec<Guest>,
    admission: Guests,
    refused_connections: RefusedConnections,
    /// The workers of the job that were rejected in the last call of [`advance`](Self::advance).
    member_refusals: Vec<MemberRefusal>,
    /// The end of a pause in accepting guests, after accepting one has failed.
    pause: Option<Deadline>,
}

#[derive(Debug)]
struct Guest {
    handshake_stream: HandshakeStream,
    place: GuestId,
    from: SocketAddr,
    /// The reason why the handshake has failed, until it is logged.
    handshake_error: Option<HandshakeError>,
    /// The hello of a guest that belongs to the job, if it was rejected because it disagrees on the job or the cluster.
    refused_member: Option<Hello>,
    patience: Deadline,
    state: State,
}

#[derive(Debug)]
enum State {
    Talking(Box<Host>),
    /// The guest is accepted, and the last handshake message is being sent.
    Welcome(Hello, Option<Arc<Pair>>),
    Leaving,
    Gone,
}

/// A function that decides whether to accept a member of the job that has connected from the given address.
pub(crate) type Decide<'a> = dyn FnMut(&Hello, SocketAddr) -> Result<(), Refusal> + 'a;

/// A member of the job that was accepted and has been notified.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub hello: Hello,
    pub from: SocketAddr,
    pub stream: Stream,
}

/// A worker of the job that was rejected because it disagrees on the job or the cluster.
#[derive(Clone, Debug)]
pub(crate) struct MemberRefusal {
    pub hello: Hello,
    pub from: SocketAddr,
    pub refusal: Refusal,
}

impl Reception {
    pub fn new(listener: Listener, access: Access, mine: Hello, shared_memory: SharedMemory) -> Self {
        descriptors::raise();
        let (names, guests, member_refusals, pause) = Default::default();
        let (admission, refused_connections) = (Guests::new(MAX_GUESTS), RefusedConnections::default());
        Self {
            listener,
            access,
            mine,
            names,
            shared_memory,
            guests,
            admission,
            refused_connections,
            member_refusals,
            pause,
        }
    }

    /// Sets the names of workers for the texts of refusals.
    pub fn named(mut self, names: Names) -> Self {
        self.names = names;
        self
    }

    /// Returns this worker's hello, with which guests are compared, so that the caller can change it.
    pub fn mine_mut(&mut self) -> &mut Hello {
        &mut self.mine
    }

    /// Returns the socket events for which to wait.
    pub fn interests(&self) -> Vec<PollFd<'_>> {
        let listener = self.pause.is_none().then(|| poll::interest(&self.listener.0, false));
        listener
            .into_iter()
            .chain(self.guests.iter().map(|guest| guest.handshake_stream.interest()))
            .collect()
    }

    /// Accepts new guests, and continues the handshakes of all guests. `decide` is called once for each guest that
    /// belongs to the job, before it is accepted. Returns the accepted guests that have been notified.
    pub fn advance(&mut self, decide: &mut Decide<'_>) -> Vec<Accepted> {
        self.member_refusals.clear();
        self.accept_all();
        for guest in &mut self.guests {
            guest.advance(decide, &self.access, &self.names);
        }
        self.note();
        let mut arrivals = Vec::new();
        for guest in std::mem::take(&mut self.guests) {
            match guest.state {
                State::Welcome(hello, pair) if !guest.handshake_stream.is_sending() => {
                    let (from, stream) =
                        (guest.from, guest.handshake_stream.into_stream().with_shared_memory(pair));
                    arrivals.push(Accepted { hello, from, stream });
                }
                State::Gone => {}
                _ => self.guests.push(guest),
            }
        }
        arrivals
    }

    /// Logs failed handshakes, and records the workers of the job that were rejected. Guests that were accepted or have
    /// disconnected no longer count.
    fn note(&mut self) {
        for guest in &mut self.guests {
            if let Some(handshake_error) = guest.handshake_error.take() {
                self.refused_connections.log(guest.from, &handshake_error);
                if let (Some(hello), HandshakeError::Refused(refusal)) =
                    (guest.refused_member.take(), handshake_error)
                {
                    self.member_refusals.push(MemberRefusal { hello, from: guest.from, refusal });
                }
            }
            match &guest.state {
                State::Talking(_) if guest.handshake_stream.has_begun() => {
                    self.admission.advance(guest.place, Stage::Speaking);
                }
                State::Talking(_) => {}
                State::Leaving => self.admission.advance(guest.place, Stage::Leaving),
                State::Welcome(..) | State::Gone => self.admission.leave(guest.place),
            }
        }
        self.refused_connections.look();
    }

    /// Removes and returns the workers of the job that the last call of [`advance`](Self::advance) has rejected because
    /// they disagree on data that must be the same on all workers.
    pub fn take_member_refusals(&mut self) -> Vec<MemberRefusal> {
        std::mem::take(&mut self.member_refusals)
    }

    /// Returns the latest connections that were rejected, as texts with address and reason.
    pub fn refused(&self) -> Vec<String> {
        self.refused_connections.refused()
    }

    /// Returns whether a refusal is still being sent.
    pub fn is_refusing(&self) -> bool {
        self.guests.iter().any(|guest| matches!(guest.state, State::Leaving))
    }

    /// Returns whether a guest has begun to identify itself.
    pub fn is_talking(&self) -> bool {
        let talks =
            |guest: &Guest| matches!(guest.state, State::Talking(_)) && guest.handshake_stream.has_begun();
        self.guests.iter().any(talks)
    }

    /// Returns the positions of the accepted workers to which the last handshake message is still being sent.
    pub fn welcoming(&self) -> impl Iterator<Item = usize> {
        self.guests.iter().filter_map(|guest| match &guest.state {
            State::Welcome(hello, _) => Some(hello.rank),
            _ => None,
        })
    }

    fn accept_all(&mut self) {
        if self.pause.is_some_and(|pause| !pause.has_passed()) {
            return;
        }
        self.pause = None;
        // Further connections are accepted after the present guests were served.
        for _ in 0..MAX_ACCEPTS {
            match self.listener.0.accept() {
                Ok((socket, from)) => {
                    if let Err(error) = self.start_handshake(socket, from) {
                        tracing::debug!(%from, %error, "a connection broke at once");
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                    ) => {}
                // Usually, there are no file descriptors left. The listener would be ready again at once.
                Err(error) => {
                    self.refused_connections.fail(&error);
                    self.pause = Some(Deadline::after(Duration::from_millis(100)));
                    return;
                }
            }
        }
    }

    fn start_handshake(&mut self, socket: TcpStream, from: SocketAddr) -> io::Result<()> {
        let stream = match &self.access.tls {
            None => Stream::plain(socket)?,
            Some(tls) => Stream::tls(socket, tls.server()?)?,
        };
        let nonce = secret::random().map_err(io::Error::other)?;
        let machine = match self.shared_memory {
            SharedMemory::Auto => machine::identity(&nonce),
            SharedMemory::Never => None,
        };
        let host = Host::new(self.mine.clone(), self.access.key.clone(), nonce);
        let host = host.named(self.names.clone()).machine(machine);
        let (place, goes) = self.admission.enter(Source::new(from.ip()));
        if let Some(at) = self.guests.iter().position(|guest| Some(guest.place) == goes) {
            let guest = self.guests.remove(at);
            let from = guest.from;
            if let Some(handshake_error) = guest.evict(self.access.tls.is_some()) {
                self.refused_connections.log(from, &handshake_error);
            }
        }
        self.guests.push(Guest {
            handshake_stream: HandshakeStream::new(stream),
            place,
            from,
            handshake_error: None,
            refused_member: None,
            patience: Deadline::after(HANDSHAKE),
            state: State::Talking(Box::new(host)),
        });
        Ok(())
    }
}

impl Guest {
    fn advance(&mut self, decide: &mut Decide<'_>, access: &Access, names: &Names) {
        let handshake_error = match self.talk(decide, access, names) {
            Ok(()) if self.patience.has_passed() => {
                let text = format!("the handshake took more than {} s", HANDSHAKE.as_secs());
                HandshakeError::Refused(Refusal::new(Reason::Late, text))
            }
            Ok(()) => return,
            Err(handshake_error) => handshake_error,
        };
        match (handshake_error, &self.state) {
            (_, State::Leaving | State::Gone) => self.state = State::Gone,
            (HandshakeError::Broken(reason), _) => {
                self.handshake_error = Some(HandshakeError::Broken(reason));
                self.state = State::Gone;
            }
            (HandshakeError::Refused(refusal), _) => {
                self.handshake_error = Some(HandshakeError::Refused(refusal.clone()));
                self.handshake_stream.queue(&Host::refuse(refusal, !self.handshake_stream.has_sent));
                self.handshake_stream.finish();
                self.patience = Deadline::after(REFUSAL_TIME);
                self.state = State::Leaving;
            }
        }
    }

    /// Closes this guest's connection to make room for another guest. Without TLS, a refusal is sent first. Returns the
    /// reason, unless the guest was already rejected for a different reason.
    fn evict(mut self, is_tls: bool) -> Option<HandshakeError> {
        if !matches!(self.state, State::Talking(_)) {
            return None;
        }
        let text = format!("more than {MAX_GUESTS} connections have not authenticated yet: try again");
        let refusal = Refusal::new(Reason::Crowded, text);
        // With TLS, the end of the connection is the refusal.
        if !is_tls {
            self.handshake_stream.queue(&Host::refuse(refusal.clone(), !self.handshake_stream.has_sent));
            self.handshake_stream.finish();
        }
        Some(HandshakeError::Refused(refusal))
    }

    fn talk(
        &mut self,
        decide: &mut Decide<'_>,
        access: &Access,
        names: &Names,
    ) -> Result<(), HandshakeError> {
        loop {
            self.handshake_stream.flush()?;
            let host = match &mut self.state {
                State::Talking(host) => host,
                State::Leaving if self.handshake_stream.discard_received() => return Ok(()),
                State::Leaving => return Err(HandshakeError::Broken(String::new())),
                State::Welcome(..) | State::Gone => return Ok(()),
            };
            let Some(words) = self.handshake_stream.receive()? else { return Ok(()) };
            let answer = match host.receive(words) {
                Ok(answer) => answer,
                Err(refusal) => {
                    // Without a secret, a process of another user proves nothing, nor does a certificate of
                    // another task.
                    let is_of_the_job = |hello: &&Hello| {
                        access.knows_members(refusal.reason)
                            && self.handshake_stream.verify_peer(access, &hello.task(names)).is_ok()
                    };
                    self.refused_member = host.refused_member().filter(is_of_the_job).cloned();
                    return Err(HandshakeError::Refused(refusal));
                }
            };
            match answer {
                Answer::Send(words) => self.handshake_stream.queue(&words),
                Answer::Applies(hello, offer) => {
                    self.handshake_stream.verify_peer(access, &hello.task(names))?;
                    decide(&hello, self.from).map_err(HandshakeError::Refused)?;
                    let pair = offer.and_then(|offer| accept(hello.rank, offer));
                    self.handshake_stream.queue(&Host::welcome());
                    self.state = State::Welcome(hello, pair);
                }
            }
        }
    }
}

/// Opens the memory that a worker has offered. Returns `None` if that fails, so that the link uses the socket.
fn accept(worker: usize, offer: Offer) -> Option<Arc<Pair>> {
    match Pair::accept(offer) {
        Ok(pair) => Some(Arc::new(pair)),
        Err(error) => {
            tracing::debug!(
                worker, %error,
                "its shared memory cannot be opened: messages go through a socket"
            );
            None
        }
    }
}
