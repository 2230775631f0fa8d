//! The rendezvous over sockets.

use super::attempt::CallContext;
use super::dialer::{Dialer, Failed};
use super::election::{Election, Electorate};
use super::late_join_listener::{LateJoinListener, WaitingRoom};
use super::late_join_replies::LateJoinReplies;
use super::memory::Memory;
use super::note::Note;
use super::reception::{HANDSHAKE, MemberRefusal, Reception};
use super::refusal_broadcast::RefusalBroadcast;
use super::spare_links::SpareLinks;
use super::state::{Call, NextStep, RendezvousState};
use super::{JoinError, Missing, Progress};
use crate::handshake::{Purpose, Reason, Refusal};
use crate::link::{Event, Link};
use crate::mesh::RendezvousResult;
use crate::ready;
use crate::stream::Stream;
use crate::wire::{Decoder, Frame};
use crate::{Mesh, Message, Receiver, Settings};
use distribute_cluster::{Address, Deadline, Stopwatch, World};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The interval of progress reports.
const REPORT: Duration = Duration::from_secs(1);

/// The maximum time between two checks of new connections while this process runs without interruption.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The maximum number of consecutive turns of one link.
const TURNS: usize = 64;

/// A running rendezvous: incoming connections, outgoing connections, and connections that have become links.
pub(super) struct RunningRendezvous {
    world: World,
    state: RendezvousState,
    reception: Reception,
    context: CallContext,
    dialers: Vec<Dialer>,
    links: Vec<Link>,
    /// The deadline by which each worker must send something.
    silences: Vec<(usize, Deadline)>,
    /// Events of links to workers that have already completed the rendezvous. The mesh delivers them.
    early: Vec<Event>,
    settings: Settings,
    progress: Box<dyn FnMut(&Progress) + Send>,
    /// Whether a spare returns with an error instead of waiting for a world that needs it.
    returns_spare: bool,
    /// The tasks among which the leader is elected; `None` if the first worker leads.
    electorate: Option<Electorate>,
    /// The memory of this process, if the leader is elected.
    memory: Memory,
    /// The time since the rendezvous has begun.
    started: Stopwatch,
}

/// The time since the last worker connected. Time during which this process was stopped does not count, because workers
/// may have tried to connect then.
#[derive(Debug)]
struct IdleTime {
    so_far: Duration,
    since: Stopwatch,
    /// The total time during which handshakes were running.
    talked: Duration,
}

impl Default for IdleTime {
    fn default() -> Self {
        Self { so_far: Duration::ZERO, since: Stopwatch::start(), talked: Duration::ZERO }
    }
}

impl IdleTime {
    /// Returns the time without a new worker, or zero while a handshake is running. Handshakes delay the timer for at
    /// most the duration of one, because connections from outside the job can always start another one.
    fn look(&mut self, is_talking: bool) -> Duration {
        let since = std::mem::replace(&mut self.since, Stopwatch::start()).elapsed().min(CHECK_INTERVAL);
        if is_talking && self.talked < HANDSHAKE {
            self.talked += since;
            return Duration::ZERO;
        }
        self.so_far += since;
        self.so_far
    }
}

impl RunningRendezvous {
    pub fn new(
        world: World,
        state: RendezvousState,
        reception: Reception,
        context: CallContext,
        settings: Settings,
        progress: Box<dyn FnMut(&Progress) + Send>,
    ) -> Self {
        let dialers = state.begin().map(Dialer::new).into_iter().collect();
        let (links, silences, early, memory, electorate) = Default::default();
        let returns_spare = false;
        Self {
            world,
            state,
            reception,
            context,
            dialers,
            links,
            silences,
            early,
            settings,
            progress,
            returns_spare,
            electorate,
            memory,
            started: Stopwatch::start(),
        }
    }

    /// Sets the tasks among which the leader is elected, and the memory of this process.
    pub fn elect(mut self, electorate: Electorate, memory: Memory) -> Self {
        (self.electorate, self.memory) = (Some(electorate), memory);
        self
    }

    /// Sets whether a spare returns with an error instead of waiting for a world that needs it.
    pub fn returns_spare(mut self, returns: bool) -> Self {
        self.returns_spare = returns;
        self
    }

    /// Runs the rendezvous until this worker has links to all others of its world. Returns the mesh, which delivers
    /// messages to `receiver`. While the leader of a world holds this worker's connection as that of a spare, the
    /// deadline is postponed.
    ///
    /// # Errors
    /// - [`JoinError::Spare`]: this worker is a spare, and was configured to [return](Self::returns_spare).
    /// - [`JoinError::Deadline`]: the deadline has passed. The leader first sends the list of missing workers to the
    ///   others.
    /// - Other errors, if the rendezvous can no longer succeed, for example because another process has rejected this
    ///   one.
    pub fn complete(
        mut self,
        mut deadline: Deadline,
        receiver: Arc<dyn Receiver>,
    ) -> Result<Mesh, JoinError> {
        let (mut connected, mut idle) = ((BTreeSet::new(), 0), IdleTime::default());
        let mut report = Deadline::after(REPORT);
        let mut beat = Deadline::after(self.settings.heartbeat);
        loop {
            self.advance()?;
            if let Some(member_refusal) = self.member_refusal() {
                return Err(self.abort(member_refusal));
            }
            if let Some(left) = self.state.look(self.started.elapsed()) {
                self.drop_link(left, None);
            }
            if let Some(error) = self.state.ended(self.started.elapsed()) {
                self.memory.set_unformed(self.state.unformed());
                return Err(error);
            }
            let now_connected = (self.state.members().connected(), self.state.answers());
            if connected != now_connected {
                (connected, idle) = (now_connected, IdleTime::default());
            }
            // A worker that is being accepted has no link yet, and the identity of a handshake is not known
            // yet.
            let is_welcoming = self.reception.welcoming().next().is_some();
            if !is_welcoming {
                self.state.close_with_quorum(idle.look(self.reception.is_talking()));
            }
            let missing = self.missing();
            if self.state.is_complete(&missing) && !is_welcoming {
                return self.into_mesh(receiver);
            }
            if beat.has_passed() {
                // Workers that have all their links monitor heartbeats.
                for link in &self.links {
                    // This thread is the one that polls, and does so next.
                    link.send_heartbeat();
                }
                beat = Deadline::after(self.settings.heartbeat);
                self.check_silences();
            }
            let workers = self.world.workers();
            if let Some((generation, table)) = self.state.held() {
                self.memory.set_spare_of(Some((generation, table)));
                if self.returns_spare {
                    return Err(JoinError::Spare { generation });
                }
                (deadline, report) = (Deadline::after(deadline.timeout()), Deadline::after(REPORT));
            }
            let waited = self.started.elapsed();
            if report.has_passed() {
                report = Deadline::after(REPORT);
                let progress = self.so_far(waited, &missing);
                (self.progress)(&progress);
                self.send_progress(progress);
            }
            let slice = deadline.look();
            if slice.is_zero() {
                let loopback =
                    self.state.members().addresses().iter().all(|address| address.host().is_loopback());
                // The others usually have the same deadline, and know of refusals only from the leader.
                self.send_progress(self.so_far(waited, &missing));
                let refused = self.state.refused_connections(self.reception.refused());
                let deadline = JoinError::Deadline { waited, workers, missing, loopback, refused };
                return Err(match self.electorate {
                    Some(electorate) => deadline.of_minority(electorate, self.state.had_world()),
                    None => deadline,
                });
            }
            self.wait(slice)?;
            deadline.look();
        }
    }

    /// Removes the recorded workers of the job that were rejected. Returns the first one without which no world can be
    /// formed, or `None`.
    fn member_refusal(&mut self) -> Option<MemberRefusal> {
        self.reception
            .take_member_refusals()
            .into_iter()
            .find(|member_refusal| self.state.needs(member_refusal.hello.rank))
    }

    /// Notifies all others that there will be no world because a worker was rejected, and returns the error.
    fn abort(mut self, member_refusal: MemberRefusal) -> JoinError {
        let MemberRefusal { hello, from, refusal } = member_refusal;
        let note = Note::Refused(hello.rank, from.to_string(), refusal.clone());
        let mut refusal_broadcast = RefusalBroadcast::new(self.world.workers(), hello.rank);
        while !refusal_broadcast.is_over(&self.links, self.reception.is_refusing()) {
            for link in &self.links {
                if refusal_broadcast.must_notify(link.peer()) {
                    link.send(Frame::Data(Message::new("", note.encode())));
                }
            }
            // A notified worker closes its link.
            if self.wait(refusal_broadcast.patience()).is_err() || self.advance().is_err() {
                break;
            }
            self.reception
                .take_member_refusals()
                .iter()
                .for_each(|other| refusal_broadcast.remove(other.hello.rank));
        }
        self.state.other_refused(hello.rank, from.to_string(), refusal)
    }

    /// Fails each link over which nothing was received for the time of silence, for example because the other machine
    /// is down. Running workers send heartbeats more often.
    fn check_silences(&mut self) {
        let silence = self.settings.silence;
        self.silences.retain(|(worker, _)| self.links.iter().any(|link| link.peer() == *worker));
        for link in &self.links {
            let at = self.silences.iter_mut().find(|(worker, _)| *worker == link.peer());
            match at {
                None => self.silences.push((link.peer(), Deadline::after(silence))),
                Some((_, until)) if link.take_received() => *until = Deadline::after(silence),
                Some((_, until)) => {
                    until.look();
                    if until.has_passed() {
                        link.fail(format!("it has sent nothing for {} s", silence.as_secs_f32()));
                    }
                }
            }
        }
    }

    /// Continues all handshakes and links without blocking.
    ///
    /// # Errors
    /// Returns a [`JoinError`] if the rendezvous can no longer succeed, for example because another process has
    /// rejected this one.
    fn advance(&mut self) -> Result<(), JoinError> {
        let arrivals = self.reception.advance(&mut |hello, _| self.state.decide(hello));
        for arrival in arrivals {
            // In an election, this worker may follow another one since it has accepted that one.
            if self.state.members().connected().contains(&arrival.hello.rank) {
                let led = self.state.leading_note();
                self.add_link(arrival.hello.rank, arrival.stream);
                if let (Some(note), Some(link)) = (led, self.links.last()) {
                    link.send(Frame::Data(Message::new("", note.encode())));
                }
            }
        }
        self.ask();
        self.advance_dialers()?;
        let mut events = Vec::new();
        for link in &self.links {
            // Bytes that arrive later are read the next time.
            for _ in 0..TURNS {
                if !link.poll(&mut events) {
                    break;
                }
            }
        }
        for event in events {
            let then = match &event {
                Event::Message(from, message) => self.state.receive(*from, &message.body),
                Event::Lost(worker, reason) => self.state.mark_lost(*worker, reason.clone()),
            };
            // If this rendezvous ends before the world is complete, the next one knows of it.
            self.memory.set_unformed(self.state.unformed());
            match then? {
                NextStep::Keep => self.early.push(event),
                NextStep::Call(calls) => self.dialers.extend(calls.into_iter().map(Dialer::new)),
                NextStep::Drop(worker, again) => self.drop_link(worker, again),
            }
        }
        // Workers whose acceptance could not be sent.
        for worker in (0..self.world.workers()).filter(|worker| *worker != self.world.worker()) {
            let linked = self.links.iter().any(|link| link.peer() == worker);
            if !linked && !self.reception.welcoming().any(|welcome| welcome == worker) {
                self.state.leave(worker);
            }
        }
        if let Some(learned) = self.state.election_mut().and_then(Election::take_learned) {
            self.memory.add(learned);
        }
        Ok(())
    }

    fn add_link(&mut self, worker: usize, stream: Stream) {
        self.links.push(Link::new(worker, stream, Decoder::new(self.settings.limits)));
    }

    /// Starts the calls that an election needs, and gives up those that it no longer needs.
    fn ask(&mut self) {
        let Some(asks) = self.state.asks() else { return };
        let is_same = |one: &Call, other: &Call| (one.worker, &one.address) == (other.worker, &other.address);
        self.dialers.retain(|dialer| {
            dialer.call().purpose == Purpose::Link || asks.iter().any(|(ask, _)| is_same(ask, dialer.call()))
        });
        let hurried = self.state.election_mut().map(Election::take_hurried).unwrap_or_default();
        for (ask, wait) in asks {
            match self.dialers.iter_mut().find(|dialer| is_same(&ask, dialer.call())) {
                Some(dialer) if hurried.contains(&ask.worker) => dialer.hurry(false),
                Some(dialer) if wait.is_zero() => dialer.hurry(true),
                Some(_) => {}
                None => self.dialers.push(Dialer::after(ask, wait)),
            }
        }
    }

    /// Continues all outgoing calls without blocking.
    ///
    /// # Errors
    /// Returns a [`JoinError`] if another process has rejected this one, or would get an unprotected connection.
    fn advance_dialers(&mut self) -> Result<(), JoinError> {
        let mut at = 0;
        while let Some(dialer) = self.dialers.get_mut(at) {
            match dialer.advance(&self.context) {
                Ok(None) => {
                    if let Some(refusal) = dialer.take_answer() {
                        self.state.answered(dialer.call(), &refusal);
                    }
                    if dialer.take_missed() {
                        self.state.missed(dialer.call());
                    }
                    at += 1;
                }
                Ok(Some(stream)) => {
                    let call = self.dialers.remove(at).call().clone();
                    let Some(followers) = self.state.accepted(&call) else { continue };
                    followers.into_iter().for_each(|worker| self.drop_link(worker, None));
                    self.add_link(call.worker, stream);
                }
                Err(Failed::Refused(refusal)) => {
                    let reason = refusal.to_string();
                    if let Some(error) = self.state.refused(dialer.call(), refusal, self.started.elapsed()) {
                        return Err(error);
                    }
                    dialer.postpone(reason);
                    at += 1;
                }
                Err(Failed::Policy(error)) if self.electorate.is_some() => {
                    // Another process may have told the address.
                    let refusal = Refusal::new(Reason::Other, error.to_string());
                    if self.state.refused(dialer.call(), refusal, self.started.elapsed()).is_some() {
                        return Err(error.into());
                    }
                    dialer.postpone(error.to_string());
                    at += 1;
                }
                Err(Failed::Policy(error)) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn drop_link(&mut self, worker: usize, again: Option<Call>) {
        self.links.retain(|link| link.peer() != worker);
        self.early.retain(|event| !matches!(event, Event::Message(from, _) if *from == worker));
        self.dialers.extend(again.map(Dialer::new));
    }

    fn missing(&self) -> Vec<Missing> {
        self.state.missing(self.dialers.iter().map(|dialer| (dialer.call(), dialer.last())))
    }

    fn so_far(&self, waited: Duration, missing: &[Missing]) -> Progress {
        let (workers, refused) = (self.world.workers(), self.reception.refused());
        Progress { workers, waited, missing: missing.to_vec(), refused }
    }

    /// Sends the progress to the others, if this worker is the leader.
    fn send_progress(&self, progress: Progress) {
        if self.state.leads() {
            self.broadcast(&Note::Waiting(progress));
        }
    }

    /// Sends a note over all links of this worker.
    fn broadcast(&self, note: &Note) {
        for link in &self.links {
            link.send(Frame::Data(Message::new("", note.encode())));
        }
    }

    fn wait(&self, slice: Duration) -> Result<(), JoinError> {
        let pause = self.dialers.iter().filter_map(Dialer::pause).min().unwrap_or(slice);
        let mut sockets = self.reception.interests();
        sockets.extend(self.dialers.iter().filter_map(Dialer::interest));
        ready::wait(&self.links, sockets, slice.min(pause))?;
        Ok(())
    }

    fn into_mesh(self, receiver: Arc<dyn Receiver>) -> Result<Mesh, JoinError> {
        let members = self.state.members().members();
        let is_member = |link: &Link| members.contains(&link.peer());
        let (links, spares): (Vec<_>, Vec<_>) = self.links.into_iter().partition(is_member);
        if let Some(table) = self.state.table() {
            for link in &links {
                link.send(Frame::Data(Message::new("", table.encode())));
            }
        }
        // From here on, workers are identified by their ranks in the world.
        let number = |place: usize| members.iter().position(|member| *member == place);
        let me = number(self.world.worker()).unwrap_or_default();
        let world = World::with_count(members.len(), me, self.world.count())?;
        let renumbered = |link: Link| number(link.peer()).map(|worker| link.renumbered(worker));
        let links = links.into_iter().filter_map(renumbered).collect();
        let early = self.early.into_iter().filter_map(|event| {
            Some(match event {
                Event::Message(from, message) => Event::Message(number(from)?, message),
                Event::Lost(from, reason) => Event::Lost(number(from)?, reason),
            })
        });
        let address = |place: &usize| self.state.members().addresses().get(*place);
        let host = |place: &usize| address(place).map(Address::host);
        let here = members.iter().filter(|place| host(place) == host(&self.world.worker())).count();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let crowded = here.saturating_mul(world.replicas()) > cores;
        let addresses = members.iter().filter_map(address).cloned().collect();
        let generation = self.state.members().generation();
        let waiting = Arc::<WaitingRoom>::default();
        let settings = self.settings;
        let (position, names) = (self.world.worker(), self.context.names);
        let replies =
            LateJoinReplies::new(position, names, members.clone(), generation).maximum(self.state.maximum());
        let located = |place: &usize| Some((*place, address(place)?.clone()));
        let (mut replies, mut world_of_spares, leads) = (replies, Vec::new(), self.state.leads());
        if self.electorate.is_some() {
            let leader = self.state.members().leader();
            replies = replies.elected(leader.as_ref().and_then(located));
            world_of_spares = members.iter().filter_map(located).collect();
            self.memory.add(world_of_spares.iter().cloned());
            self.memory.set_unformed(None);
            self.memory.set_apart(self.state.members().apart().clone());
            self.memory.set_spare_of(None);
        }
        let spares = if leads { spares } else { Vec::new() };
        let table = self.state.members().table();
        let spares = SpareLinks::new((generation, table), world_of_spares, settings, spares);
        let late_join_listener = LateJoinListener::new(self.reception, replies, spares, waiting.clone());
        let early = early.collect();
        let met = RendezvousResult {
            world,
            positions: members,
            addresses,
            generation,
            links,
            early,
            settings,
            crowded,
        };
        Ok(Mesh::open(met, receiver, Some((Box::new(late_join_listener), waiting)))?)
    }
}
