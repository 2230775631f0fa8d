//! A process that has joined a world. It uses a `Protocol` in the same way as a `Session`, on behalf of its program.

use crate::context::Context;
use crate::guests::Guests;
use crate::joining::{Early, Joined};
use crate::network::{Arrival, Conn};
use crate::planted::Planted;
use bytes::Bytes;
use distribute_cluster::{Blame, Fingerprint, ReplicaStatus, World, fnv1a};
use distribute_collective::group::inbox::Event as Come;
use distribute_collective::group::protocol::{Action, GRACE};
use distribute_collective::group::{Content, Frame, Inbox, Protocol};
use distribute_net::handshake::{Hello, Reason, Refusal};
use distribute_net::rendezvous::late_join_replies::LateJoinReplies;
use distribute_net::rendezvous::note::Note;
use distribute_net::rendezvous::waiting::WaitingProcesses;
use distribute_net::{KnownWorkers, LEFT, Message, Receiver};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A program, which decides the next action of a worker.
pub trait Acts {
    /// Performs the next action of the program, for example a call. The worker has finished computing.
    fn act(&mut self, working: &mut Working, context: &mut Context<'_>) -> Go;

    /// Handles the result of a call, and returns the next action.
    fn decided(
        &mut self,
        working: &mut Working,
        context: &mut Context<'_>,
        made: Result<Vec<Bytes>, Arc<Blame>>,
    ) -> Go;
}

/// A worker that has joined and is working.
#[derive(Debug)]
pub struct Working {
    /// The world, with the number of workers and the rank of this worker.
    pub world: World,
    /// The generation of the world.
    pub generation: u64,
    /// The state of the current session.
    pub protocol: Protocol,
    /// The time at which the worker joined the world.
    pub since: Duration,
    /// The cluster indices of the world's workers.
    places: Vec<usize>,
    links: BTreeMap<Conn, usize>,
    /// The cluster index of the spare at the other end of each connection to one.
    spares: BTreeMap<Conn, usize>,
    guests: Guests,
    late_join_replies: LateJoinReplies,
    /// The workers that are waiting for the next world.
    waiting_processes: WaitingProcesses,
    /// The time since which each of the waiting workers, by cluster index, has been waiting.
    waits: BTreeMap<usize, Duration>,
    inbox: Inbox,
    doing: Doing,
    /// The ranks of the workers that have been lost, with the times at which they were lost.
    losses: Vec<(usize, Duration)>,
}

#[derive(Clone, Copy, Debug)]
enum Doing {
    /// The worker computes until the given time, and then acts.
    Computing(Duration),
    /// The worker waits for the others in a round until `until`. The round must be over at `end`.
    Waiting { until: Duration, end: Duration },
}

/// The way in which a worker's program ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The program has completed all of its steps.
    Done,
    /// The program has failed, for the given reason.
    Failed(String),
    /// The process is a spare, and the training has ended without it.
    Unused,
    /// No worker has a complete state, so all must restart.
    Torn,
}

/// The next action of a worker.
#[derive(Debug)]
pub enum Go {
    /// The worker continues in this world.
    On,
    /// The worker leaves this world for the next rendezvous.
    Meet,
    /// The worker exits.
    End(Ending),
}

impl Working {
    /// Creates a worker that has just joined. `before` is the inbox of the previous world if it was kept, which only a
    /// planted bug does.
    pub fn new(context: &Context<'_>, joined: Joined, before: Option<Inbox>) -> Self {
        let Joined { world, places, generation, links, spares, early, guests } = joined;
        let inbox = before.unwrap_or_else(|| Inbox::new(world.workers()));
        for (from, early) in early {
            match early {
                Early::Message(message) => inbox.deliver(from, message),
                Early::Lost(reason) => inbox.mark_lost(from, reason),
            }
        }
        let protocol = Protocol::new(world, inbox.open(fnv1a(b"none".iter().copied())));
        let doing = Doing::Computing(context.now());
        Self {
            world,
            generation,
            protocol,
            since: context.now(),
            late_join_replies: LateJoinReplies::new(
                places.get(world.worker()).copied().unwrap_or_default(),
                Default::default(),
                places.clone(),
                generation,
            )
            .maximum(context.plan.most()),
            waiting_processes: WaitingProcesses::default(),
            waits: BTreeMap::new(),
            places,
            links,
            spares,
            guests,
            inbox,
            doing,
            losses: Vec::new(),
        }
    }

    /// Returns the rank of the worker at the other end of each link.
    pub fn links(&self) -> &BTreeMap<Conn, usize> {
        &self.links
    }

    /// Returns the connections to spares.
    pub fn spares(&self) -> impl Iterator<Item = Conn> {
        self.spares.keys().copied()
    }

    /// Notifies the spares that have taken part in the rendezvous that they are spares of this world.
    pub fn welcome_spares(&mut self, context: &mut Context<'_>) {
        for conn in self.spares.keys() {
            let note = Note::Spare(self.generation);
            context.send(*conn, Arrival::Message(Message::new("", note.encode())));
        }
        self.record_spares();
    }

    /// Notifies the spares that the training has ended.
    pub fn dismiss_spares(&self, context: &mut Context<'_>) {
        for (conn, place) in &self.spares {
            let note =
                Note::Refused(*place, String::new(), Refusal::new(Reason::Ended, "the training has ended"));
            context.send(*conn, Arrival::Message(Message::new("", note.encode())));
        }
    }

    fn record_spares(&mut self) {
        self.waiting_processes.set_spares(self.spares.values().copied().collect());
    }

    /// Returns whether this worker holds the connection to a spare, and no worker waits for the next world.
    pub fn has_spare(&self) -> bool {
        !self.waiting_processes.spares().is_empty() && self.waiting_processes.count() == 0
    }

    /// Returns the cluster indices of the world's workers.
    pub fn places(&self) -> &[usize] {
        &self.places
    }

    /// Returns the number of workers that are waiting for the next world. Forgets workers that no longer wait.
    pub fn waiting(&mut self, context: &Context<'_>) -> usize {
        self.waiting_processes.look(context.now());
        let waiting = self.waiting_processes.positions();
        self.waits.retain(|place, _| waiting.contains(place));
        if context.has(Planted::SparesCounted) {
            return waiting.len();
        }
        self.waiting_processes.count()
    }

    /// Returns, for each waiting worker by cluster index, the time since which it has been waiting.
    pub fn waits(&self) -> &BTreeMap<usize, Duration> {
        &self.waits
    }

    /// Returns `true` if one of the waiting workers was in a different world that is at least as late as this one.
    pub fn is_supplanted(&self) -> bool {
        self.waiting_processes.supplant(self.generation)
    }

    /// Returns the workers that this one knows at the next rendezvous, as cluster indices. If `present` is `true`, lost
    /// workers are excluded. The worker whose rank is `leaving` has been replaced by a spare.
    pub fn known_workers(&self, present: bool, leaving: Option<usize>) -> KnownWorkers {
        let mut known = KnownWorkers {
            waiting: self.waiting_processes.positions(),
            supplanted: self.is_supplanted(),
            ..KnownWorkers::default()
        };
        for (worker, place) in self.places.iter().enumerate() {
            match self.inbox.lost(worker).as_deref() {
                Some(LEFT) => known.present.insert(*place),
                _ if leaving == Some(worker) => false,
                None => known.present.insert(*place),
                Some(_) => !present && known.lost.insert(*place),
            };
        }
        known
    }

    /// Returns the inbox, which contains the received messages.
    pub fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Opens the next session with the given name, and returns the previous session.
    pub fn open(&mut self, name: &str) -> Protocol {
        let session = self.inbox.open(fnv1a(name.bytes()));
        std::mem::replace(&mut self.protocol, Protocol::new(self.world, session))
    }

    /// Opens the session with the given name and sequence number, and returns the previous session.
    pub fn open_at(&mut self, name: &str, number: u64) -> Protocol {
        let session = self.inbox.open_at(fnv1a(name.bytes()), number);
        std::mem::replace(&mut self.protocol, Protocol::new(self.world, session))
    }

    /// Returns the sequence number of the next session with the given name.
    pub fn next_number(&self, name: &str) -> u64 {
        self.inbox.next_number(fnv1a(name.bytes()))
    }

    /// Begins to compute for the given time.
    pub fn compute(&mut self, context: &Context<'_>, time: Duration) {
        self.doing = Doing::Computing(context.now() + time);
    }

    /// Begins a call, and sends the data that `body` returns for each of the other workers.
    pub fn call(
        &mut self,
        context: &mut Context<'_>,
        step: u64,
        call: Fingerprint,
        body: impl Fn(&Frame, usize) -> Bytes,
        timeout: Duration,
    ) {
        let waiting = |replica| ReplicaStatus::waiting(replica, call.clone());
        self.protocol.begin(step, self.world.local_replicas().map(waiting).collect(), timeout);
        self.wait(context, timeout);
        if let Some(digest) = self.protocol.call() {
            for to in self.others() {
                let frame = self.protocol.frame(Content::Call { digest, body: Bytes::new() });
                let body = body(&frame, to);
                self.send(context, to, Frame { content: Content::Call { digest, body }, ..frame });
            }
        }
    }

    /// Sets the deadline of a round that has begun.
    pub fn wait(&mut self, context: &Context<'_>, timeout: Duration) {
        let until = context.now() + timeout;
        // After the timeout it may wait for the decision.
        self.doing = Doing::Waiting { until, end: until + 2 * GRACE };
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.world.worker();
        (0..self.world.workers()).filter(move |worker| *worker != me)
    }

    /// Handles an arrival over a connection.
    pub fn take(&mut self, context: &mut Context<'_>, conn: Conn, what: Arrival) {
        let Some(rank) = self.links.get(&conn).copied() else {
            match what {
                Arrival::Words(bytes) => self.answer(context, conn, &bytes),
                Arrival::Closed(_) => {
                    self.guests.mark_lost(conn);
                    self.spares.remove(&conn);
                    self.record_spares();
                }
                Arrival::Made | Arrival::Message(_) => {}
            }
            return;
        };
        match what {
            Arrival::Message(message) => self.deliver(context, rank, message),
            Arrival::Closed(reason) => {
                context.note(|| format!("loses worker {rank}: {reason}"));
                self.links.remove(&conn);
                self.losses.push((rank, context.now()));
                if !context.has(Planted::LossIgnored) {
                    self.inbox.mark_lost(rank, reason);
                }
            }
            Arrival::Made | Arrival::Words(_) => {}
        }
    }

    /// Continues the handshake of a connection that is not a link. When the handshake is complete, accepts the process
    /// at the other end as a spare, or rejects it. If the process waits for the next world, records since when.
    fn answer(&mut self, context: &mut Context<'_>, conn: Conn, bytes: &[u8]) {
        let hides = context.has(Planted::EarlyUnsaid);
        let now = context.now();
        let Self { late_join_replies, waiting_processes, losses, waits, .. } = self;
        let complete = &mut |hello: &Hello| {
            let lost = |worker: usize| !hides && losses.iter().any(|(lost, _)| *lost == worker);
            let answer = late_join_replies.answer(hello, &lost, false, waiting_processes, now);
            let is_recorded = waiting_processes.positions().contains(&hello.rank)
                && !waiting_processes.spares().contains(&hello.rank);
            if is_recorded {
                waits.entry(hello.rank).or_insert(now);
            }
            answer
        };
        if let Some(place) = self.guests.receive(context, conn, bytes, complete) {
            self.spares.insert(conn, place);
            self.record_spares();
            let note = Note::Spare(self.generation);
            context.send(conn, Arrival::Message(Message::new("", note.encode())));
        }
    }

    fn deliver(&mut self, context: &Context<'_>, rank: usize, mut message: Message) {
        if context.has(Planted::SessionFence)
            && let Ok(mut frame) = Frame::decode(&message.head, message.body.clone())
            && frame.session.name == self.protocol.session().name
            && frame.session.number < self.protocol.session().number
        {
            frame.session = self.protocol.session();
            if let Ok((head, body)) = frame.encode() {
                message = Message { head, body };
            }
        }
        self.inbox.deliver(rank, message);
    }

    /// Performs all actions that are due. Returns the next action if the worker leaves this world or exits; otherwise
    /// `None`.
    pub fn go_on(&mut self, context: &mut Context<'_>, program: &mut impl Acts) -> Option<Go> {
        self.guests.wake(context);
        loop {
            let go = match self.doing {
                Doing::Computing(until) if until > context.now() => return None,
                Doing::Computing(_) => program.act(self, context),
                Doing::Waiting { .. } => {
                    let made = self.drive(context)?;
                    program.decided(self, context, made)
                }
            };
            match go {
                Go::On => {}
                other => return Some(other),
            }
        }
    }

    /// Advances the current round, and returns its result; `None` if the round must still wait for other workers.
    fn drive(&mut self, context: &mut Context<'_>) -> Option<Result<Vec<Bytes>, Arc<Blame>>> {
        loop {
            self.hear_all(context);
            match self.protocol.next_action() {
                Action::Send(frame) => self.say(context, &frame),
                Action::End(made) => {
                    if let Doing::Waiting { end, .. } = self.doing
                        && context.now() > end
                    {
                        context.broken(format!("waited in a call that had to end at {end:?}"));
                    }
                    return Some(made);
                }
                Action::Wait(patience) => {
                    let Doing::Waiting { until, .. } = &mut self.doing else { return None };
                    if let Some(patience) = patience {
                        *until = context.now() + patience;
                    }
                    if *until > context.now() || context.has(Planted::NoDeadline) {
                        return None;
                    }
                    self.protocol.expire();
                    if context.has(Planted::NoGrace) {
                        let _ = self.protocol.next_action();
                        self.protocol.expire();
                    }
                }
            }
        }
    }

    /// Passes all received messages and all losses of workers to the current session.
    pub fn hear_all(&mut self, context: &Context<'_>) {
        loop {
            let lost = self.protocol.lost();
            let first = |rank: usize| context.has(Planted::LossFirst) && !lost[rank];
            let unheard =
                (0..self.world.workers()).find(|rank| first(*rank) && self.inbox.lost(*rank).is_some());
            let come = match unheard {
                Some(rank) => Some(Come::Lost(rank, self.inbox.lost(rank).unwrap_or_default().into())),
                None => self.inbox.poll(self.protocol.session(), lost),
            };
            match come {
                None => return,
                Some(Come::Frame(from, frame)) => {
                    let frame = match context.planted {
                        Some(planted) => planted.takes(frame, self.protocol.rounds(), self.protocol.call()),
                        None => Some(frame),
                    };
                    if let Some(frame) = frame
                        && let Err(reason) = self.protocol.receive(from, frame)
                    {
                        self.inbox.mark_lost(from, reason.to_string());
                    }
                }
                Some(Come::Lost(rank, reason)) => self.protocol.mark_lost(rank, reason),
                Some(Come::Expired) => {}
            }
        }
    }

    /// Sends a frame to all other workers.
    pub fn say(&self, context: &mut Context<'_>, frame: &Frame) {
        for to in self.others() {
            self.send(context, to, frame.clone());
        }
    }

    fn send(&self, context: &mut Context<'_>, to: usize, frame: Frame) {
        let frame = match context.planted {
            Some(planted) => planted.sends(frame),
            None => Some(frame),
        };
        let conn = self.links.iter().find(|(_, rank)| **rank == to).map(|(conn, _)| *conn);
        if let (Some(frame), Some(conn)) = (frame, conn)
            && let Ok((head, body)) = frame.encode()
        {
            context.send(conn, Arrival::Message(Message { head, body }));
        }
    }

    /// Returns the time of the next action, unless something arrives earlier.
    pub fn next(&self) -> Duration {
        let (Doing::Computing(until) | Doing::Waiting { until, .. }) = self.doing;
        self.guests.next().map_or(until, |guests| guests.min(until))
    }

    /// Extends the deadlines of the current round by `pause`, for which the process was stopped.
    pub fn shift(&mut self, pause: Duration) {
        if let Doing::Waiting { until, end } = &mut self.doing {
            (*until, *end) = (*until + pause, *end + pause);
        }
    }
}
