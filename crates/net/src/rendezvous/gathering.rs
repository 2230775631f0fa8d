//! The rendezvous over sockets.

use super::attempt::Calling;
use super::dial::{Dial, Failed};
use super::door::{Door, WaitingRoom};
use super::meeting::{Call, Meeting, Then};
use super::note::Note;
use super::parting::Parting;
use super::reception::{Dissent, HANDSHAKE, Reception};
use super::{JoinError, Missing, Progress};
use crate::link::{Event, Link};
use crate::mesh::Met;
use crate::ready;
use crate::wire::{Decoder, Frame};
use crate::{Mesh, Message, Receiver, Settings};
use distribute_cluster::{Address, Deadline, Stopwatch, World};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The interval of progress reports.
const REPORT: Duration = Duration::from_secs(1);

/// The longest time between two checks of new connections, unless the process was stopped.
const LOOK: Duration = Duration::from_millis(250);

/// The maximum number of turns of one link before the others have theirs.
const TURNS: usize = 64;

/// A running rendezvous: incoming and outgoing connections, and those that are links already.
pub(super) struct Gathering {
    world: World,
    meeting: Meeting,
    reception: Reception,
    calling: Calling,
    dials: Vec<Dial>,
    links: Vec<Link>,
    /// The deadline of each link for the next message.
    silences: Vec<(usize, Deadline)>,
    /// The messages that were sent by workers which have all their links.
    early: Vec<Event>,
    settings: Settings,
    progress: Box<dyn FnMut(&Progress) + Send>,
}

/// The time since the last worker connected. Time in which this process was stopped does not count, because
/// others may have connected in that time.
#[derive(Debug)]
struct Quiet {
    so_far: Duration,
    since: Stopwatch,
    /// The time for which a handshake was running.
    talked: Duration,
}

impl Default for Quiet {
    fn default() -> Self {
        Self { so_far: Duration::ZERO, since: Stopwatch::start(), talked: Duration::ZERO }
    }
}

impl Quiet {
    /// Returns the time without a new worker, or zero while a handshake is running. The timer pauses for at
    /// most the duration of one handshake, because connections from outside the job can always start another.
    fn look(&mut self, is_talking: bool) -> Duration {
        let since = std::mem::replace(&mut self.since, Stopwatch::start()).elapsed().min(LOOK);
        if is_talking && self.talked < HANDSHAKE {
            self.talked += since;
            return Duration::ZERO;
        }
        self.so_far += since;
        self.so_far
    }
}

impl Gathering {
    pub fn new(
        world: World,
        meeting: Meeting,
        reception: Reception,
        calling: Calling,
        settings: Settings,
        progress: Box<dyn FnMut(&Progress) + Send>,
    ) -> Self {
        let dials = meeting.begin().map(Dial::new).into_iter().collect();
        let (links, silences, early) = Default::default();
        Self { world, meeting, reception, calling, dials, links, silences, early, settings, progress }
    }

    /// Continues until this worker has its links to all others.
    pub fn complete(
        mut self,
        mut deadline: Deadline,
        receiver: Arc<dyn Receiver>,
    ) -> Result<Mesh, JoinError> {
        let waited = Stopwatch::start();
        let (mut come, mut quiet) = (BTreeSet::new(), Quiet::default());
        let mut report = Deadline::after(REPORT);
        let mut beat = Deadline::after(self.settings.heartbeat);
        loop {
            self.attend()?;
            if let Some(dissent) = self.dissent() {
                return Err(self.part(dissent));
            }
            if come != self.meeting.members().come() {
                (come, quiet) = (self.meeting.members().come(), Quiet::default());
            }
            // A worker that is being accepted has no link yet, and the identity of a handshake is not known
            // yet.
            let is_welcoming = self.reception.welcoming().next().is_some();
            if !is_welcoming {
                self.meeting.make_do(quiet.look(self.reception.is_talking()));
            }
            let missing = self.missing();
            if self.meeting.is_complete(&missing) && !is_welcoming {
                return self.into_mesh(receiver);
            }
            if beat.has_passed() {
                // Workers that have all their links monitor heartbeats.
                self.links.iter().for_each(Link::beat);
                beat = Deadline::after(self.settings.heartbeat);
                self.listen_for_silence();
            }
            let workers = self.world.workers();
            if report.has_passed() {
                report = Deadline::after(REPORT);
                let progress = self.so_far(waited.elapsed(), &missing);
                (self.progress)(&progress);
                self.tell_others(progress);
            }
            let slice = deadline.look();
            if slice.is_zero() {
                let loopback =
                    self.meeting.members().addresses().iter().all(|address| address.host().is_loopback());
                let waited = waited.elapsed();
                // The others usually have the same deadline, and know of refusals only from the leader.
                self.tell_others(self.so_far(waited, &missing));
                let refused = self.meeting.refused_connections(self.reception.refused());
                return Err(JoinError::Deadline { waited, workers, missing, loopback, refused });
            }
            self.wait(slice)?;
            deadline.look();
        }
    }

    /// Returns a worker of the job that was refused, if there can be no world without it.
    fn dissent(&mut self) -> Option<Dissent> {
        self.reception.take_dissents().into_iter().find(|dissent| self.meeting.needs(dissent.hello.rank))
    }

    /// Notifies all others that there will be no world, because a worker was refused, and returns the error.
    fn part(mut self, dissent: Dissent) -> JoinError {
        let Dissent { hello, from, refusal } = dissent;
        let note = Note::Refused(hello.rank, from.to_string(), refusal.clone());
        let mut parting = Parting::new(self.world.workers(), hello.rank);
        while !parting.is_over(&self.links, self.reception.is_refusing()) {
            for link in &self.links {
                if parting.tells(link.peer()) {
                    link.send(Frame::Data(Message::new("", note.encode())));
                }
            }
            // A notified worker closes its link.
            if self.wait(parting.patience()).is_err() || self.attend().is_err() {
                break;
            }
            self.reception.take_dissents().iter().for_each(|other| parting.leave_out(other.hello.rank));
        }
        self.meeting.other_refused(hello.rank, from.to_string(), refusal)
    }

    /// Fails links that have received nothing for too long, for example from a machine that has vanished. All
    /// linked workers send heartbeats.
    fn listen_for_silence(&mut self) {
        let silence = self.settings.silence;
        self.silences.retain(|(worker, _)| self.links.iter().any(|link| link.peer() == *worker));
        for link in &self.links {
            let at = self.silences.iter_mut().find(|(worker, _)| *worker == link.peer());
            match at {
                None => self.silences.push((link.peer(), Deadline::after(silence))),
                Some((_, until)) if link.was_heard() => *until = Deadline::after(silence),
                Some((_, until)) => {
                    until.look();
                    if until.has_passed() {
                        link.doom(format!("nothing has come from it for {} s", silence.as_secs_f32()));
                    }
                }
            }
        }
    }

    /// Serves all connections without blocking.
    fn attend(&mut self) -> Result<(), JoinError> {
        let arrivals = self.reception.attend(&mut |hello, _| self.meeting.decide(hello));
        for arrival in arrivals {
            self.links.push(Link::new(
                arrival.hello.rank,
                arrival.stream,
                Decoder::new(self.settings.limits),
            ));
        }
        let mut at = 0;
        while let Some(dial) = self.dials.get_mut(at) {
            match dial.attend(&self.calling) {
                Ok(None) => at += 1,
                Ok(Some(stream)) => {
                    let worker = self.dials.remove(at).call().worker;
                    self.links.push(Link::new(worker, stream, Decoder::new(self.settings.limits)));
                }
                Err(Failed::Refused(refusal)) => return Err(self.meeting.refused(dial.call(), refusal)),
                Err(Failed::Policy(error)) => return Err(error.into()),
            }
        }
        let mut events = Vec::new();
        for link in &self.links {
            // Bytes that arrive later are read the next time.
            for _ in 0..TURNS {
                if !link.turn(&mut events) {
                    break;
                }
            }
        }
        for event in events {
            let then = match &event {
                Event::Message(from, message) => self.meeting.hear(*from, &message.body)?,
                Event::Lost(worker, reason) => self.meeting.lose(*worker, reason.clone())?,
            };
            match then {
                Then::Keep => self.early.push(event),
                Then::Call(calls) => self.dials.extend(calls.into_iter().map(Dial::new)),
                Then::Drop(worker, again) => self.drop_link(worker, again),
            }
        }
        // Workers whose acceptance could not be sent.
        for worker in self.world.worker() + 1..self.world.workers() {
            let linked = self.links.iter().any(|link| link.peer() == worker);
            if !linked && !self.reception.welcoming().any(|welcome| welcome == worker) {
                self.meeting.leave(worker);
            }
        }
        Ok(())
    }

    fn drop_link(&mut self, worker: usize, again: Option<Call>) {
        self.links.retain(|link| link.peer() != worker);
        self.early.retain(|event| !matches!(event, Event::Message(from, _) if *from == worker));
        self.dials.extend(again.map(Dial::new));
    }

    fn missing(&self) -> Vec<Missing> {
        self.meeting.missing(self.dials.iter().map(|dial| (dial.call(), dial.last())))
    }

    fn so_far(&self, waited: Duration, missing: &[Missing]) -> Progress {
        let (workers, refused) = (self.world.workers(), self.reception.refused());
        Progress { workers, waited, missing: missing.to_vec(), refused }
    }

    /// Sends the progress to the others, if this worker leads.
    fn tell_others(&self, progress: Progress) {
        if self.world.is_chief() {
            self.tell(&Note::Waiting(progress));
        }
    }

    /// Sends a note to all that have joined.
    fn tell(&self, note: &Note) {
        for link in &self.links {
            link.send(Frame::Data(Message::new("", note.encode())));
        }
    }

    fn wait(&self, slice: Duration) -> Result<(), JoinError> {
        let pause = self.dials.iter().filter_map(Dial::pause).min().unwrap_or(slice);
        let mut sockets = self.reception.interests();
        sockets.extend(self.dials.iter().filter_map(Dial::interest));
        ready::wait(&self.links, sockets, slice.min(pause))?;
        Ok(())
    }

    fn into_mesh(self, receiver: Arc<dyn Receiver>) -> Result<Mesh, JoinError> {
        if let Some(table) = self.meeting.table() {
            self.tell(&table);
        }
        let members = self.meeting.members().members();
        // From here on, workers are identified by their ranks in the world.
        let number = |place: usize| members.iter().position(|member| *member == place);
        let me = number(self.world.worker()).unwrap_or_default();
        let world = World::new(members.len(), me, self.world.replicas())?;
        let renumbered = |link: Link| number(link.peer()).map(|worker| link.renumbered(worker));
        let links = self.links.into_iter().filter_map(renumbered).collect();
        let early = self.early.into_iter().filter_map(|event| {
            Some(match event {
                Event::Message(from, message) => Event::Message(number(from)?, message),
                Event::Lost(from, reason) => Event::Lost(number(from)?, reason),
            })
        });
        let address = |place: &usize| self.meeting.members().addresses().get(*place);
        let host = |place: &usize| address(place).map(Address::host);
        let here = members.iter().filter(|place| host(place) == host(&self.world.worker())).count();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let crowded = here.saturating_mul(world.replicas()) > cores;
        let addresses = members.iter().filter_map(address).cloned().collect();
        let generation = self.meeting.members().generation();
        let waiting = Arc::<WaitingRoom>::default();
        let door = Door::new(self.reception, self.calling.names, members.clone(), waiting.clone());
        let early = early.collect();
        let settings = self.settings;
        let met = Met { world, places: members, addresses, generation, links, early, settings, crowded };
        Ok(Mesh::open(met, receiver, Some((Box::new(door), waiting)))?)
    }
}
