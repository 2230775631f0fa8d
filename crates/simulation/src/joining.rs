//! A process that joins its world. It uses a `RendezvousState` in the same way as `distribute_net` does in a real
//! rendezvous.

mod outgoing;

use crate::context::Context;
use crate::guests::{Guests, HANDSHAKE};
use crate::network::{Arrival, Conn};
use crate::planted::Planted;
use distribute_cluster::{Address, World};
use distribute_net::handshake::{Hello, Purpose, UnformedWorld};
use distribute_net::rendezvous::election::Election;
use distribute_net::rendezvous::membership::{Apart, Membership};
use distribute_net::rendezvous::note::Note;
use distribute_net::rendezvous::state::{NextStep, RendezvousState};
use distribute_net::{JoinError, Message, Progress, Quorum};
use outgoing::{Outgoing, State};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A number that is greater than that of processes.
const PROCESSES: u64 = 1 << 16;

/// The interval of progress reports.
const REPORT: Duration = Duration::from_secs(1);

/// A worker that is joining a world.
#[derive(Debug)]
pub struct Joining {
    world: World,
    hello: Hello,
    meeting: RendezvousState,
    /// The time for which the leader waits for more workers after enough have joined; `None` if it is unlimited.
    grace: Option<Duration>,
    /// The workers that have joined, and the time at which this set last changed.
    come: (BTreeSet<usize>, Duration),
    answers: u64,
    /// The time at which to check again whether enough workers have joined.
    look: Option<Duration>,
    began: Duration,
    deadline: Duration,
    /// The time that this worker waits in all.
    patience: Duration,
    /// The generation of the world of which this worker is a spare, or 0 if it is none, and the id of its table.
    spare_of: (u64, u64),
    report: Duration,
    outgoing: Vec<Outgoing>,
    guests: Guests,
    links: BTreeMap<Conn, usize>,
    early: Vec<(usize, Early)>,
    /// The election of the leader before this process has taken part in it; `None` if the first worker leads.
    election: Option<Election>,
    /// The time before which this process asks no other; `None` if it has passed.
    silent_until: Option<Duration>,
    /// The number of workers that form a world.
    quorum: Quorum,
    /// The leader to which this process was sent last.
    sent_to: Option<usize>,
    /// The generation that this worker has created as the leader; `None` if it has not created one.
    made: Option<u64>,
}

/// An arrival over a link that is kept for the worker's next state.
#[derive(Debug)]
pub enum Early {
    /// A message from another worker.
    Message(Message),
    /// The loss of the worker at the other end, with the reason.
    Lost(String),
}

/// The result of joining.
#[derive(Debug)]
pub struct Joined {
    /// The world, with the number of workers and the rank of this worker.
    pub world: World,
    /// The cluster indices of the world's workers.
    pub places: Vec<usize>,
    /// The generation of the world.
    pub generation: u64,
    /// The id of the world's table.
    pub table_id: u64,
    /// The rank of the worker at the other end of each connection.
    pub links: BTreeMap<Conn, usize>,
    /// The cluster index of the spare at the other end of each connection that is not a link of this world.
    pub spares: BTreeMap<Conn, usize>,
    /// Arrivals over the links that have not been handled yet.
    pub early: Vec<(usize, Early)>,
    /// The handshakes that are still in progress with processes that connected too late to join.
    pub guests: Guests,
    /// The cluster index and address of each worker; empty if the first worker leads.
    pub table: Vec<(usize, Address)>,
    /// The cluster index and address of the leader, if it was elected.
    pub leader: Option<(usize, Address)>,
}

impl Joining {
    /// Creates a worker that begins to take part in a rendezvous. `addresses` are the addresses of all workers, and
    /// `deadline` is the time at which this worker gives up. `unformed` is a world of which it knows that it was never
    /// complete.
    pub fn new(
        context: &Context<'_>,
        world: World,
        hello: Hello,
        addresses: &[String],
        quorum: Quorum,
        deadline: Duration,
        unformed: Option<UnformedWorld>,
    ) -> Self {
        let addresses: Vec<Address> = addresses.iter().filter_map(|address| address.parse().ok()).collect();
        let election = context.plan.electorate().map(|_| {
            let election = Election::new(world.worker(), addresses.clone(), BTreeMap::new());
            match quorum.present.first() {
                Some(first) => election.with_likely([*first].into()),
                None => election,
            }
        });
        // No process sends two tables at the same time.
        let table = context.now().as_nanos() as u64 * PROCESSES + context.pid as u64 + 1;
        let members = Membership::new(world.worker(), Default::default(), addresses);
        let members = members.after(hello.generation).table_id(table);
        let grace = (quorum.grace < Duration::MAX).then_some(quorum.grace);
        let now = context.now();
        let patience = deadline.saturating_sub(now);
        let mut meeting = RendezvousState::new(world, members).quorum(quorum.clone()).patience(patience / 2);
        meeting = meeting.after_unformed(unformed);
        if let Some(election) = &election {
            meeting = meeting.elect(election.clone());
        }
        let outgoing = meeting.begin().into_iter().map(|call| Outgoing::new(call, now)).collect();
        let guests = Guests::new(Hello { purpose: Purpose::Link, ..hello.clone() });
        Self {
            world,
            hello,
            meeting,
            grace,
            come: (BTreeSet::new(), now),
            answers: 0,
            look: None,
            began: now,
            deadline,
            patience,
            spare_of: (0, 0),
            report: now + REPORT,
            outgoing,
            guests,
            links: BTreeMap::new(),
            early: Vec::new(),
            election,
            silent_until: None,
            quorum,
            sent_to: None,
            made: None,
        }
    }

    /// Makes this worker a spare of the world of this generation and table, which connects to the leader at the given
    /// time.
    pub fn be_spare(&mut self, (generation, table): (u64, u64), at: Duration) {
        self.spare_of = (generation, table);
        self.silent_until = Some(at);
        self.meeting = self.meeting.clone().spare_of(generation, table);
        if let Some(election) = self.election.clone() {
            let likely = (0..self.world.workers()).collect();
            self.meeting = self.meeting.clone().elect(election.with_likely(likely));
        }
        self.outgoing = self.meeting.begin().into_iter().map(|call| Outgoing::new(call, at)).collect();
    }

    /// Returns the generation of the world of which this worker is a spare, or 0 if it is none, and the id of its
    /// table.
    pub fn spare_of(&self) -> (u64, u64) {
        self.spare_of
    }

    /// Handles an arrival over a connection.
    ///
    /// # Errors
    /// Returns the reason why the worker cannot join.
    pub fn take(&mut self, context: &mut Context<'_>, conn: Conn, what: Arrival) -> Result<(), JoinError> {
        if let Some(rank) = self.links.get(&conn).copied() {
            return self.take_from_link(context, conn, rank, what);
        }
        if let Some(at) = self.outgoing.iter().position(|outgoing| outgoing.state.conn() == Some(conn)) {
            return self.take_answer(context, at, conn, what);
        }
        match what {
            Arrival::Words(bytes) => {
                let Self { guests, meeting, links, .. } = self;
                let planted = context.planted;
                let decide = &mut |hello: &Hello| match planted {
                    Some(planted) => meeting.decide(&planted.meets(hello.clone(), meeting.members())),
                    None => meeting.decide(hello),
                };
                if let Some(rank) = guests.receive(context, conn, &bytes, decide) {
                    links.insert(conn, rank);
                    if let Some(note) = meeting.leading_note() {
                        context.send(conn, Arrival::Message(Message::new("", note.encode())));
                    }
                }
            }
            Arrival::Closed(_) => self.guests.mark_lost(conn),
            Arrival::Made | Arrival::Message(_) => {}
        }
        Ok(())
    }

    /// Handles a note that the leader sent before it became unreachable.
    ///
    /// # Errors
    /// Returns the reason why the worker cannot join.
    pub fn is_told(&mut self, context: &Context<'_>, note: &Note) -> Result<(), JoinError> {
        if let NextStep::Call(calls) = self.meeting.receive(0, &note.encode())? {
            // The leader has sent it, and is not called any more.
            let now = context.now();
            self.outgoing = calls.into_iter().map(|call| Outgoing::new(call, now)).collect();
        }
        Ok(())
    }

    fn take_from_link(
        &mut self,
        context: &mut Context<'_>,
        conn: Conn,
        rank: usize,
        what: Arrival,
    ) -> Result<(), JoinError> {
        let then = match &what {
            Arrival::Message(message) => self.meeting.receive(rank, &message.body),
            Arrival::Closed(reason) => {
                context.note(|| format!("loses worker {rank}: {reason}"));
                self.links.remove(&conn);
                if self.meeting.held().is_some() {
                    self.deadline = context.now() + self.patience;
                }
                self.meeting.mark_lost(rank, reason.clone())
            }
            Arrival::Made | Arrival::Words(_) => return Ok(()),
        };
        match (then?, what) {
            (NextStep::Keep, Arrival::Message(message)) => self.early.push((rank, Early::Message(message))),
            (NextStep::Keep, Arrival::Closed(reason)) => self.early.push((rank, Early::Lost(reason))),
            (NextStep::Keep, _) => {}
            (NextStep::Call(calls), _) => {
                let now = context.now();
                self.outgoing.extend(calls.into_iter().map(|call| Outgoing::new(call, now)));
            }
            (NextStep::Drop(worker, again), _) => {
                self.close_link(context, worker);
                let now = context.now();
                self.outgoing.extend(again.map(|call| Outgoing::new(call, now)));
            }
        }
        Ok(())
    }

    /// Performs all actions that are due. Returns `true` if the world is complete.
    ///
    /// # Errors
    /// Returns the reason why the worker cannot join.
    pub fn go_on(&mut self, context: &mut Context<'_>) -> Result<bool, JoinError> {
        let now = context.now();
        self.guests.wake(context);
        if let Some(left) = self.meeting.look(now) {
            self.close_link(context, left);
        }
        self.ask(context);
        for Outgoing { call, retries, state, is_first } in &mut self.outgoing {
            match state {
                _ if state.until() > now => {}
                State::Waiting(_) => {
                    *is_first = false;
                    let (host, port) = place(&call.address.to_string());
                    let conn =
                        context.network.connect(context.agenda, context.pid, self.world.worker(), host, port);
                    *state = State::Connecting(conn, now + HANDSHAKE);
                }
                State::Connecting(conn, _) | State::Talking(conn, ..) => {
                    let conn = *conn;
                    *state = State::Waiting(now + retries.broken("no answer".to_owned()));
                    self.meeting.missed(call);
                    context.close(conn, "it closed its connection");
                }
            }
        }
        if let Some(held) = self.meeting.held() {
            let is_new = self.spare_of.0 == 0 && self.hello.generation == 0;
            self.spare_of = held;
            self.report = now + REPORT;
            return if is_new { Err(JoinError::Spare { generation: held.0 }) } else { Ok(false) };
        }
        if let Some(error) = self.meeting.ended(now) {
            return Err(error);
        }
        self.close_with_quorum(context, now);
        let calls =
            self.outgoing.iter().map(|outgoing| (&outgoing.call, outgoing.retries.last().map(str::to_owned)));
        let missing = self.meeting.missing(calls);
        let too_early =
            context.planted.is_some_and(|planted| planted.completes(self.world.worker(), missing.len()));
        if too_early || self.meeting.is_complete(&missing) {
            if let Some(table) = self.meeting.table() {
                let table = match context.planted {
                    Some(planted) => planted.makes(table, self.meeting.members()),
                    None => table,
                };
                if let Note::Table(generation, ..) = &table {
                    self.made = Some(*generation);
                    context.leads(*generation);
                }
                let members = self.meeting.members().members();
                for (conn, _) in self.links.iter().filter(|(_, place)| members.contains(place)) {
                    context.send(*conn, Arrival::Message(Message::new("", table.encode())));
                }
            }
            return Ok(true);
        }
        if self.report <= now {
            self.report = now + REPORT;
            let progress = Progress {
                workers: self.world.workers(),
                waited: now - self.began,
                missing: missing.clone(),
                refused: Vec::new(),
            };
            context.note(|| progress.to_string());
            if self.meeting.leads() {
                self.tell(context, &Note::Waiting(progress));
            }
        }
        if self.deadline <= now {
            let (waited, workers) = (now - self.began, self.world.workers());
            let refused = Vec::new();
            return Err(JoinError::Deadline { waited, workers, missing, loopback: false, refused });
        }
        Ok(false)
    }

    /// Completes the world with the workers that have joined, if there are enough and no other has joined for long
    /// enough. Otherwise sets the time of the next attempt.
    fn close_with_quorum(&mut self, context: &Context<'_>, now: Duration) {
        let come = self.meeting.members().connected();
        if come != self.come.0 || self.answers != self.meeting.answers() {
            (self.come, self.answers) = ((come, now), self.meeting.answers());
        }
        let quiet = if self.guests.are_talking() { Duration::ZERO } else { now - self.come.1 };
        if context.has(Planted::SparesCountTwice) {
            let spares = self.meeting.members().spares().len();
            let fewer = Quorum { minimum: self.quorum.minimum.saturating_sub(spares), ..self.quorum.clone() };
            self.meeting = self.meeting.clone().quorum(fewer);
        }
        self.meeting.close_with_quorum(quiet);
        let enough = self.grace.map(|grace| self.come.1 + grace);
        self.look = enough.filter(|look| *look > now && self.meeting.leads());
    }

    fn tell(&self, context: &mut Context<'_>, note: &Note) {
        for conn in self.links.keys() {
            context.send(*conn, Arrival::Message(Message::new("", note.encode())));
        }
    }

    /// Returns the generation that this worker has created as the leader, or otherwise the generation that it has
    /// received.
    fn generation(&self) -> u64 {
        self.made.unwrap_or(self.meeting.members().generation())
    }

    /// Returns the generation of the world; `None` if this worker has not received it. The leader always returns its
    /// generation, which may still change until the world is complete.
    pub fn told(&self) -> Option<u64> {
        self.meeting.is_located().then(|| self.generation())
    }

    /// Returns the cluster index of the worker at the other end of each connection that is already a link.
    pub fn links(&self) -> &BTreeMap<Conn, usize> {
        &self.links
    }

    /// Returns the world of which this worker knows that it was never complete.
    pub fn unformed(&self) -> Option<UnformedWorld> {
        self.meeting.unformed()
    }

    /// Returns the pairs of workers that could not link to each other, as far as this worker knows.
    pub fn apart(&self) -> Apart {
        self.meeting.members().apart().clone()
    }

    /// Sets the pairs of workers that could not link to each other, as this worker knows from its last rendezvous.
    pub fn set_apart(&mut self, apart: Apart) {
        self.meeting = self.meeting.clone().after_apart(apart);
    }

    /// Returns the cluster index of the leader, which may be this worker; `None` if it knows none.
    pub fn leader(&self) -> Option<usize> {
        self.meeting.members().leader()
    }

    /// Returns the time at which this worker gives up.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Returns the time at which this worker began to join.
    pub fn began(&self) -> Duration {
        self.began
    }

    /// Returns the time of the next action, unless something arrives earlier. Returns `None` on a spare whose
    /// connection the leader holds.
    pub fn next(&self) -> Option<Duration> {
        if self.meeting.held().is_some() {
            return None;
        }
        let outgoing = self.outgoing.iter().map(|outgoing| outgoing.state.until()).min();
        let asks = self.silent_until.filter(|_| self.election.is_some());
        let soonest =
            self.look.map_or(self.deadline.min(self.report), |look| look.min(self.deadline).min(self.report));
        Some(outgoing.into_iter().chain(asks).chain(self.guests.next()).fold(soonest, Duration::min))
    }

    /// Extends the deadline and the wait for more workers by `pause`, for which the process was stopped.
    pub fn shift(&mut self, pause: Duration) {
        self.deadline += pause;
        self.come.1 += pause;
    }

    /// Converts the state to the result of joining. The world must be complete.
    pub fn into_joined(self) -> Joined {
        let (generation, table_id) = (self.generation(), self.meeting.members().table());
        let places = self.meeting.members().members();
        // From here on, workers have their ranks in the world.
        let number = |place: usize| places.iter().position(|member| *member == place);
        let me = number(self.world.worker()).unwrap_or_default();
        let world = World::new(places.len(), me, self.world.replicas()).unwrap_or(self.world);
        let (links, spares): (Vec<_>, Vec<_>) =
            self.links.into_iter().partition(|(_, place)| number(*place).is_some());
        let links = links.into_iter().filter_map(|(conn, place)| Some((conn, number(place)?)));
        let early = self.early.into_iter().filter_map(|(place, early)| Some((number(place)?, early)));
        let (links, early) = (links.collect(), early.collect());
        let spares = spares.into_iter().collect();
        let address = |place: usize| Some((place, self.meeting.members().addresses().get(place)?.clone()));
        let (mut table, mut leader) = (Vec::new(), None);
        if self.election.is_some() {
            leader = self.meeting.members().leader().and_then(address);
            table = places.iter().filter_map(|place| address(*place)).collect();
        }
        Joined {
            world,
            generation,
            table_id,
            links,
            spares,
            early,
            guests: self.guests,
            places,
            table,
            leader,
        }
    }
}

/// Returns the address of a port on the host of this worker.
pub fn address(rank: usize, port: u16) -> String {
    format!("10.0.0.{rank}:{port}")
}

/// Splits an address into the host and the port. Each is 0 if it is malformed.
fn place(address: &str) -> (usize, u16) {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "0"));
    let host = host.rsplit('.').next().and_then(|host| host.parse().ok()).unwrap_or(0);
    (host, port.parse().unwrap_or(0))
}
