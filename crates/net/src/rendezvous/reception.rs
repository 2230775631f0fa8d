//! Those who have connected and not yet shown who they are.

use super::conversation::{Conversation, Trouble};
use super::listener::Listener;
use crate::handshake::host::Answer;
use crate::handshake::{Hello, Host, Names, Offer, Reason, Refusal};
use crate::identity::{Access, secret};
use crate::poll;
use crate::shm::{SharedMemory, machine, pair::Pair};
use crate::stream::Stream;
use distribute_cluster::Deadline;
use distribute_log::heard;
use rustix::event::PollFd;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// How many may be here at once. Each holds a few kilobytes.
const GUESTS: usize = 64;

/// How long the handshake may take.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(5);

/// How long somebody who was refused has to hear it.
const LEAVE: Duration = Duration::from_secs(1);

/// Listens, and talks to those who come, until they are refused or have shown that they belong to the job. None of them is
/// waited for.
#[derive(Debug)]
pub(crate) struct Reception {
    listener: Listener,
    access: Access,
    mine: Hello,
    names: Names,
    shared_memory: SharedMemory,
    guests: Vec<Guest>,
    /// Until when nobody is let in, because the system refused it.
    pause: Option<Deadline>,
}

#[derive(Debug)]
struct Guest {
    conversation: Conversation,
    from: SocketAddr,
    patience: Deadline,
    state: State,
}

#[derive(Debug)]
enum State {
    Talking(Box<Host>),
    /// The last words are on the way.
    Welcome(Hello, Option<Arc<Pair>>),
    Leaving,
    Gone,
}

/// Somebody who belongs to the job and may stay.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub hello: Hello,
    pub from: SocketAddr,
    pub stream: Stream,
}

impl Reception {
    pub fn new(listener: Listener, access: Access, mine: Hello, shared_memory: SharedMemory) -> Self {
        let names = Names::default();
        Self { listener, access, mine, names, shared_memory, guests: Vec::new(), pause: None }
    }

    /// What the workers are called in refusals.
    pub fn named(mut self, names: Names) -> Self {
        self.names = names;
        self
    }

    /// What those who come are compared with.
    pub fn mine(&self) -> &Hello {
        &self.mine
    }

    /// What those who come are compared with.
    pub fn mine_mut(&mut self) -> &mut Hello {
        &mut self.mine
    }

    /// What to wait for.
    pub fn interests(&self) -> Vec<PollFd<'_>> {
        let listener = self.pause.is_none().then(|| poll::interest(&self.listener.0, false));
        listener.into_iter().chain(self.guests.iter().map(|guest| guest.conversation.interest())).collect()
    }

    /// Talks to all who are here. `decide` says who may stay, and is told of each who does, once.
    pub fn attend(&mut self, decide: &mut dyn FnMut(&Hello) -> Result<(), Refusal>) -> Vec<Arrival> {
        self.let_in();
        for guest in &mut self.guests {
            guest.attend(decide, &self.access, &self.names);
        }
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

    /// Whether somebody is here of whom it is not known yet who it is.
    pub fn is_talking(&self) -> bool {
        self.guests.iter().any(|guest| matches!(guest.state, State::Talking(_)))
    }

    /// The workers that may stay, and to whom the words that tell them so are on the way.
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
        // Those beyond have their turn after those who are here.
        for _ in 0..GUESTS {
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
                // No file descriptors, mostly. It would be ready again at once.
                Err(error) => {
                    heard(|| tracing::warn!(%error, "a connection cannot be accepted"));
                    self.pause = Some(Deadline::after(Duration::from_millis(100)));
                    return;
                }
            }
        }
    }

    fn greet(&mut self, socket: TcpStream, from: SocketAddr) -> io::Result<()> {
        if self.guests.len() >= GUESTS {
            let text = format!("{GUESTS} connections have not said who they are: try again");
            let refusal = Refusal::new(Reason::Crowded, text);
            log(from, &refusal);
            let mut conversation = Conversation::new(Stream::plain(socket)?);
            // Those who speak TLS find out by the end of the connection.
            if self.access.tls.is_none() {
                conversation.say(&Host::refuse(refusal, true));
                conversation.fall_silent();
            }
            return Ok(());
        }
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
        self.guests.push(Guest {
            conversation: Conversation::new(stream),
            from,
            patience: Deadline::after(HANDSHAKE),
            state: State::Talking(Box::new(host)),
        });
        Ok(())
    }
}

impl Guest {
    fn attend(
        &mut self,
        decide: &mut dyn FnMut(&Hello) -> Result<(), Refusal>,
        access: &Access,
        names: &Names,
    ) {
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
                heard(
                    || tracing::warn!(address = %self.from, "a connection ended before its handshake: {reason}"),
                );
                self.state = State::Gone;
            }
            (Trouble::Refused(refusal), _) => {
                log(self.from, &refusal);
                self.conversation.say(&Host::refuse(refusal, !self.conversation.has_spoken));
                self.conversation.fall_silent();
                self.patience = Deadline::after(LEAVE);
                self.state = State::Leaving;
            }
        }
    }

    fn talk(
        &mut self,
        decide: &mut dyn FnMut(&Hello) -> Result<(), Refusal>,
        access: &Access,
        names: &Names,
    ) -> Result<(), Trouble> {
        loop {
            self.conversation.speak()?;
            let host = match &mut self.state {
                State::Talking(host) => host,
                State::Leaving if self.conversation.forget() => return Ok(()),
                State::Leaving => return Err(Trouble::Broken(String::new())),
                State::Welcome(..) | State::Gone => return Ok(()),
            };
            let Some(words) = self.conversation.listen()? else { return Ok(()) };
            match host.hear(words).map_err(Trouble::Refused)? {
                Answer::Say(words) => self.conversation.say(&words),
                Answer::Applies(hello, offer) => {
                    self.conversation.vouch(access, &hello.task(names))?;
                    decide(&hello).map_err(Trouble::Refused)?;
                    let pair = offer.and_then(|offer| accept(hello.rank, offer));
                    self.conversation.say(&Host::welcome());
                    self.state = State::Welcome(hello, pair);
                }
            }
        }
    }
}

/// Opens the memory that a worker has offered. Where that fails, the socket does as well.
fn accept(worker: usize, offer: Offer) -> Option<Arc<Pair>> {
    match Pair::accept(offer) {
        Ok(pair) => Some(Arc::new(pair)),
        Err(error) => {
            tracing::debug!(worker, %error, "its memory cannot be shared: messages go through a socket");
            None
        }
    }
}

fn log(from: SocketAddr, refusal: &Refusal) {
    if refusal.reason == Reason::Early {
        // It will be let in soon.
        return tracing::debug!(address = %from, "a connection was refused for now: {refusal}");
    }
    heard(|| tracing::warn!(address = %from, "a connection was refused: {refusal}"));
}
