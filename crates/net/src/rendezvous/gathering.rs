//! The meeting itself.

use super::attempt::Calling;
use super::dial::{Dial, Failed};
use super::membership::Membership;
use super::note::Note;
use super::reception::Reception;
use super::{JoinError, Missing, Progress};
use crate::handshake::Purpose;
use crate::link::{Event, Link};
use crate::ready;
use crate::wire::{Decoder, Frame, Limits};
use crate::{Mesh, Message, Receiver, Settings};
use distribute_cluster::{Address, Deadline, Stopwatch, World};
use std::sync::Arc;
use std::time::Duration;

/// How often progress is told.
const REPORT: Duration = Duration::from_secs(1);

/// How much one link may take before the others.
const TURNS: usize = 64;

/// A rendezvous under way: connections that come, that are made, and those that are links already.
pub(super) struct Gathering {
    world: World,
    members: Membership,
    reception: Reception,
    calling: Calling,
    dials: Vec<Dial>,
    links: Vec<Link>,
    /// What those that have all their links have sent already.
    early: Vec<Event>,
    /// Whether the leader has told where all are.
    located: bool,
    /// What the leader has told last.
    told: Option<Progress>,
    limits: Limits,
    settings: Settings,
    progress: Box<dyn FnMut(&Progress) + Send>,
}

impl Gathering {
    pub fn new(
        world: World,
        members: Membership,
        reception: Reception,
        calling: Calling,
        limits: Limits,
        settings: Settings,
        progress: Box<dyn FnMut(&Progress) + Send>,
    ) -> Self {
        let (dials, links, early) = (Vec::new(), Vec::new(), Vec::new());
        let (located, told) = (world.is_chief(), None);
        let mut gathering = Self {
            world,
            members,
            reception,
            calling,
            dials,
            links,
            early,
            located,
            told,
            limits,
            settings,
            progress,
        };
        gathering.dial_leader();
        gathering
    }

    /// Goes on until this worker has its links to all others.
    pub fn complete(
        mut self,
        mut deadline: Deadline,
        receiver: Arc<dyn Receiver>,
    ) -> Result<Mesh, JoinError> {
        let waited = Stopwatch::start();
        let mut report = Deadline::after(REPORT);
        let mut beat = Deadline::after(self.settings.heartbeat);
        loop {
            self.attend()?;
            let missing = self.missing();
            if missing.is_empty() && self.located {
                return self.into_mesh(receiver);
            }
            if beat.has_passed() {
                // Those that have all their links listen for them.
                self.links.iter().for_each(Link::beat);
                beat = Deadline::after(self.settings.heartbeat);
            }
            let workers = self.world.workers();
            if report.has_passed() {
                report = Deadline::after(REPORT);
                let progress = Progress { workers, waited: waited.elapsed(), missing: missing.clone() };
                (self.progress)(&progress);
                if self.world.is_chief() {
                    self.tell(&Note::Waiting(progress));
                }
            }
            let slice = deadline.look();
            if slice.is_zero() {
                let loopback = self.members.addresses().iter().all(|address| address.host().is_loopback());
                return Err(JoinError::Deadline { waited: waited.elapsed(), workers, missing, loopback });
            }
            self.wait(slice)?;
            deadline.look();
        }
    }

    /// Talks to all, as far as it goes at once.
    fn attend(&mut self) -> Result<(), JoinError> {
        let members = &mut self.members;
        let arrivals = self.reception.attend(&mut |hello| {
            members.decide(hello)?;
            members.enter(hello);
            Ok(())
        });
        for arrival in arrivals {
            self.links.push(Link::new(arrival.hello.rank, arrival.stream, Decoder::new(self.limits)));
        }
        let mut at = 0;
        while let Some(dial) = self.dials.get_mut(at) {
            let (worker, address) = (dial.worker(), dial.address().to_string());
            match dial.attend(&self.calling) {
                Ok(None) => at += 1,
                Ok(Some(stream)) => {
                    self.dials.remove(at);
                    self.links.push(Link::new(worker, stream, Decoder::new(self.limits)));
                }
                Err(Failed::Refused(refusal)) => {
                    let task = self.members.task(worker);
                    return Err(JoinError::Refused { worker, task, address, refusal });
                }
                Err(Failed::Policy(error)) => return Err(error.into()),
            }
        }
        let mut events = Vec::new();
        for link in &self.links {
            // What has not come by then is there the next time.
            for _ in 0..TURNS {
                if !link.turn(&mut events) {
                    break;
                }
            }
        }
        for event in events {
            match event {
                Event::Message(from, message) => self.hear(from, message)?,
                Event::Lost(worker, reason) => self.lose(worker, reason)?,
            }
        }
        // Those to whom the welcome could not be said.
        for worker in self.world.worker() + 1..self.world.workers() {
            let linked = self.links.iter().any(|link| link.peer() == worker);
            if !linked && !self.reception.is_welcoming(worker) {
                self.members.leave(worker);
            }
        }
        Ok(())
    }

    fn hear(&mut self, from: usize, message: Message) -> Result<(), JoinError> {
        if from == 0 && !self.located {
            match Note::decode(&message.body) {
                Ok(Note::Waiting(progress)) => self.told = Some(progress),
                Ok(Note::Table(addresses)) if addresses.len() == self.world.workers() => {
                    self.located = true;
                    self.members.locate(addresses);
                    let all = self.members.addresses().iter().enumerate();
                    let below = all.skip(1).take(self.world.worker() - 1);
                    self.dials.extend(
                        below.map(|(worker, address)| Dial::new(worker, address.clone(), Purpose::Link)),
                    );
                }
                _ => return self.lose(0, "its list of workers cannot be read".to_owned()),
            }
        } else if self.world.is_chief() {
            // Nobody knows yet that there is a world.
            self.drop_link(from);
        } else {
            self.early.push(Event::Message(from, message));
        }
        Ok(())
    }

    /// Before the leader has told where all are, a worker that is lost may come again.
    fn lose(&mut self, worker: usize, reason: String) -> Result<(), JoinError> {
        if self.located && !self.world.is_chief() {
            // It had all its links, and has ended in order since.
            if reason == crate::ENDED {
                self.early.push(Event::Lost(worker, reason));
                return Ok(());
            }
            let address = self.members.address(worker);
            let task = self.members.task(worker);
            return Err(JoinError::Lost { worker, task, address, reason });
        }
        tracing::debug!(worker, reason, "a worker left before all had joined");
        self.drop_link(worker);
        if worker == 0 {
            self.told = None;
            self.dial_leader();
            if let Some(dial) = self.dials.first_mut() {
                dial.note(reason);
            }
        }
        Ok(())
    }

    fn drop_link(&mut self, worker: usize) {
        self.links.retain(|link| link.peer() != worker);
        self.early.retain(|event| !matches!(event, Event::Message(from, _) if *from == worker));
        self.members.leave(worker);
    }

    fn dial_leader(&mut self) {
        if let (false, [leader, .., _]) = (self.world.is_chief(), self.members.addresses()) {
            let own = self.members.address(self.world.worker());
            self.dials.push(Dial::new(0, leader.clone(), Purpose::Join { address: own }));
        }
    }

    /// Who is missing, as far as this worker knows.
    fn missing(&self) -> Vec<Missing> {
        if let (false, Some(told)) = (self.located, &self.told) {
            let named =
                |missing: &Missing| Missing { task: self.members.task(missing.worker), ..missing.clone() };
            return told.missing.iter().map(named).collect();
        }
        let dialed = self.dials.iter().map(|dial| Missing {
            worker: dial.worker(),
            task: self.members.task(dial.worker()),
            address: dial.address().to_string(),
            last: dial.last(),
        });
        // Without the leader, a worker can't know who else is there.
        let come = if self.located { self.members.missing() } else { Vec::new() };
        let missing: Vec<_> = dialed.chain(come).collect();
        if missing.is_empty() && !self.located {
            let address = self.members.address(0);
            let last = Some("joined, and it has not said yet where the others are".to_owned());
            return vec![Missing { worker: 0, task: self.members.task(0), address, last }];
        }
        missing
    }

    /// Tells all that have joined.
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
        let world = self.world;
        if world.is_chief() {
            self.tell(&Note::Table(self.members.addresses().to_vec()));
        }
        let host = |worker: usize| self.members.addresses().get(worker).map(Address::host);
        let here = (0..world.workers()).filter(|worker| host(*worker) == host(world.worker())).count();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let crowded = here.saturating_mul(world.replicas()) > cores;
        let reception = Box::new(self.reception);
        Ok(Mesh::new(world, self.links, self.early, receiver, self.settings, crowded, Some(reception))?)
    }
}
