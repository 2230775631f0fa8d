//! Incoming connections that have not identified themselves yet.

use super::conversation::{Conversation, Trouble};
use super::listener::Listener;
use super::strangers::Strangers;
use crate::descriptors;
use crate::handshake::host::Answer;
use crate::handshake::{Hello, Host, Names, Offer, Reason, Refusal};
use crate::identity::{Access, secret};
use crate::poll;
use crate::shm::{SharedMemory, machine, pair::Pair};
use crate::stream::Stream;
use distribute_cluster::Deadline;
use distribute_cluster::places::{Guests, Place, Source, Stage};
use rustix::event::PollFd;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// The maximum number of guests at once. Each takes a few kilobytes.
const GUESTS: usize = 64;

/// The number of guests to accept before all present ones are served. It is less than the maximum, so each
/// guest is served before it may be replaced.
const TURN: usize = GUESTS / 2;

/// The timeout of a handshake.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);

/// The time that a refused guest has to receive the refusal.
const LEAVE: Duration = Duration::from_secs(1);

/// A listener that runs handshakes until a guest is refused or has shown that it belongs to the job. It never
/// blocks.
#[derive(Debug)]
pub(crate) struct Reception {
    listener: Listener,
    access: Access,
    mine: Hello,
    names: Names,
    shared_memory: SharedMemory,
    guests: Vec<Guest>,
    places: Guests,
    strangers: Strangers,
    /// The workers that were refused the last time although they have shown that they belong to the job.
    dissents: Vec<Dissent>,
    /// The deadline until which no guest is accepted, because the system refused it.
    pause: Option<Deadline>,
}

#[derive(Debug)]
struct Guest {
    conversation: Conversation,
    place: Place,
    from: SocketAddr,
    /// The reason that the guest was refused, until it was reported.
    trouble: Option<Trouble>,
    /// The worker that the guest has shown to be, if it was refused because it disagrees on the job or the
    /// cluster.
    dissenter: Option<Hello>,
    patience: Deadline,
    state: State,
}

#[derive(Debug)]
enum State {
    Talking(Box<Host>),
    /// The last words are being sent.
    Welcome(Hello, Option<Arc<Pair>>),
    Leaving,
    Gone,
}

/// A function that decides whether to accept a member of the job, which has connected from this address.
pub(crate) type Decide<'a> = dyn FnMut(&Hello, SocketAddr) -> Result<(), Refusal> + 'a;

/// A member of the job that was accepted.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub hello: Hello,
    pub from: SocketAddr,
    pub stream: Stream,
}

/// A worker that has shown that it belongs to the job, and was refused because it disagrees on the job or the
/// cluster.
#[derive(Clone, Debug)]
pub(crate) struct Dissent {
    pub hello: Hello,
    pub from: SocketAddr,
    pub refusal: Refusal,
}

impl Reception {
    pub fn new(listener: Listener, access: Access, mine: Hello, shared_memory: SharedMemory) -> Self {
        descriptors::raise();
        let (names, guests, dissents, pause) = Default::default();
        let (places, strangers) = (Guests::new(GUESTS), Strangers::default());
        Self { listener, access, mine, names, shared_memory, guests, places, strangers, dissents, pause }
    }

    /// Sets the names of workers in refusals.
    pub fn named(mut self, names: Names) -> Self {
        self.names = names;
        self
    }

    /// Returns the hello that guests are compared with.
    pub fn mine(&self) -> &Hello {
        &self.mine
    }

    /// Returns the hello that guests are compared with.
    pub fn mine_mut(&mut self) -> &mut Hello {
        &mut self.mine
    }

    /// Returns the events to wait for.
    pub fn interests(&self) -> Vec<PollFd<'_>> {
        let listener = self.pause.is_none().then(|| poll::interest(&self.listener.0, false));
        listener.into_iter().chain(self.guests.iter().map(|guest| guest.conversation.interest())).collect()
    }

    /// Serves all guests. `decide` is called once for each guest that belongs to the job, before it is
    /// accepted.
    pub fn attend(&mut self, decide: &mut Decide<'_>) -> Vec<Arrival> {
        self.dissents.clear();
        self.let_in();
        for guest in &mut self.guests {
            guest.attend(decide, &self.access, &self.names);
        }
        self.note();
        let mut arrivals = Vec::new();
        for guest in std::mem::take(&mut self.guests) {
            match guest.state {
                State::Welcome(hello, pair) if !guest.conversation.is_speaking() => {
                    let (from, stream) = (guest.from, guest.conversation.into_stream().sharing(pair));
                    arrivals.push(Arrival { hello, from, stream });
                }
                State::Gone => {}
                _ => self.guests.push(guest),
            }
        }
        arrivals
    }

    /// Records the states of the guests. Guests that were accepted or are gone free their places.
    fn note(&mut self) {
        for guest in &mut self.guests {
            if let Some(trouble) = guest.trouble.take() {
                self.strangers.tell(guest.from, &trouble);
                if let (Some(hello), Trouble::Refused(refusal)) = (guest.dissenter.take(), trouble) {
                    self.dissents.push(Dissent { hello, from: guest.from, refusal });
                }
            }
            match &guest.state {
                State::Talking(_) if guest.conversation.has_begun() => {
                    self.places.advance(guest.place, Stage::Speaking);
                }
                State::Talking(_) => {}
                State::Leaving => self.places.advance(guest.place, Stage::Leaving),
                State::Welcome(..) | State::Gone => self.places.leave(guest.place),
            }
        }
        self.strangers.look();
    }

    /// Takes the workers of the job that the last [`attend`](Self::attend) has refused, because they disagree
    /// on what all have in common.
    pub fn take_dissents(&mut self) -> Vec<Dissent> {
        std::mem::take(&mut self.dissents)
    }

    /// Returns the latest connections that were refused, with the reasons.
    pub fn refused(&self) -> Vec<String> {
        self.strangers.refused()
    }

    /// Whether a refusal is still being sent.
    pub fn is_refusing(&self) -> bool {
        self.guests.iter().any(|guest| matches!(guest.state, State::Leaving))
    }

    /// Whether a guest has begun to identify itself.
    pub fn is_talking(&self) -> bool {
        let talks =
            |guest: &Guest| matches!(guest.state, State::Talking(_)) && guest.conversation.has_begun();
        self.guests.iter().any(talks)
    }

    /// Returns the workers that were accepted, and whose acceptance is still being sent.
    pub fn welcoming(&self) -> impl Iterator<Item = usize> {
        self.guests.iter().filter_map(|guest| match &guest.state {
            State::Welcome(hello, _) => Some(hello.rank),
            _ => None,
        })
    }

    fn let_in(&mut self) {
        if self.pause.is_some_and(|pause| !pause.has_passed()) {
            return;
        }
        self.pause = None;
        // Further connections are accepted after the present guests were served.
        for _ in 0..TURN {
            match self.listener.0.accept() {
                Ok((socket, from)) => {
                    if let Err(error) = self.greet(socket, from) {
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
                    self.strangers.fail(&error);
                    self.pause = Some(Deadline::after(Duration::from_millis(100)));
                    return;
                }
            }
        }
    }

    fn greet(&mut self, socket: TcpStream, from: SocketAddr) -> io::Result<()> {
        let stream = match &self.access.tls {
            None => Stream::plain(socket)?,
            Some(tls) => Stream::tls(socket, tls.server().map_err(io::Error::other)?)?,
        };
        let nonce = secret::random().map_err(io::Error::other)?;
        let machine = match self.shared_memory {
            SharedMemory::Auto => machine::identity(&nonce),
            SharedMemory::Never => None,
        };
        let host = Host::new(self.mine.clone(), self.access.key.clone(), nonce);
        let host = host.named(self.names.clone()).shares(machine);
        let (place, goes) = self.places.enter(Source::new(from.ip()));
        if let Some(at) = self.guests.iter().position(|guest| Some(guest.place) == goes) {
            let guest = self.guests.remove(at);
            let from = guest.from;
            if let Some(trouble) = guest.make_room(self.access.tls.is_some()) {
                self.strangers.tell(from, &trouble);
            }
        }
        self.guests.push(Guest {
            conversation: Conversation::new(stream),
            place,
            from,
            trouble: None,
            dissenter: None,
            patience: Deadline::after(HANDSHAKE),
            state: State::Talking(Box::new(host)),
        });
        Ok(())
    }
}

impl Guest {
    fn attend(&mut self, decide: &mut Decide<'_>, access: &Access, names: &Names) {
        let trouble = match self.talk(decide, access, names) {
            Ok(()) if self.patience.has_passed() => {
                let text = format!("the handshake took more than {} s", HANDSHAKE.as_secs());
                Trouble::Refused(Refusal::new(Reason::Late, text))
            }
            Ok(()) => return,
            Err(trouble) => trouble,
        };
        match (trouble, &self.state) {
            (_, State::Leaving | State::Gone) => self.state = State::Gone,
            (Trouble::Broken(reason), _) => {
                self.trouble = Some(Trouble::Broken(reason));
                self.state = State::Gone;
            }
            (Trouble::Refused(refusal), _) => {
                self.trouble = Some(Trouble::Refused(refusal.clone()));
                self.conversation.say(&Host::refuse(refusal, !self.conversation.has_spoken));
                self.conversation.fall_silent();
                self.patience = Deadline::after(LEAVE);
                self.state = State::Leaving;
            }
        }
    }

    /// Removes this guest to make room for another. Returns the reason, unless it was already refused for
    /// another one.
    fn make_room(mut self, is_tls: bool) -> Option<Trouble> {
        if !matches!(self.state, State::Talking(_)) {
            return None;
        }
        let text = format!("more than {GUESTS} connections have not said who they are: try again");
        let refusal = Refusal::new(Reason::Crowded, text);
        // With TLS, the end of the connection is the refusal.
        if !is_tls {
            self.conversation.say(&Host::refuse(refusal.clone(), !self.conversation.has_spoken));
            self.conversation.fall_silent();
        }
        Some(Trouble::Refused(refusal))
    }

    fn talk(&mut self, decide: &mut Decide<'_>, access: &Access, names: &Names) -> Result<(), Trouble> {
        loop {
            self.conversation.speak()?;
            let host = match &mut self.state {
                State::Talking(host) => host,
                State::Leaving if self.conversation.forget() => return Ok(()),
                State::Leaving => return Err(Trouble::Broken(String::new())),
                State::Welcome(..) | State::Gone => return Ok(()),
            };
            let Some(words) = self.conversation.listen()? else { return Ok(()) };
            let answer = match host.hear(words) {
                Ok(answer) => answer,
                Err(refusal) => {
                    // Without a secret, a process of another user proves nothing, nor does a certificate of
                    // another task.
                    let is_of_the_job = |hello: &&Hello| {
                        access.knows_members(refusal.reason)
                            && self.conversation.vouch(access, &hello.task(names)).is_ok()
                    };
                    self.dissenter = host.dissenter().filter(is_of_the_job).cloned();
                    return Err(Trouble::Refused(refusal));
                }
            };
            match answer {
                Answer::Say(words) => self.conversation.say(&words),
                Answer::Applies(hello, offer) => {
                    self.conversation.vouch(access, &hello.task(names))?;
                    decide(&hello, self.from).map_err(Trouble::Refused)?;
                    let pair = offer.and_then(|offer| accept(hello.rank, offer));
                    self.conversation.say(&Host::welcome());
                    self.state = State::Welcome(hello, pair);
                }
            }
        }
    }
}

/// Opens the memory that a worker has offered. If that fails, the socket is used instead.
fn accept(worker: usize, offer: Offer) -> Option<Arc<Pair>> {
    match Pair::accept(offer) {
        Ok(pair) => Some(Arc::new(pair)),
        Err(error) => {
            tracing::debug!(worker, %error, "its memory cannot be shared: messages go through a socket");
            None
        }
    }
}
