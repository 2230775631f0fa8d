//! The leader that a process follows in an election.

use super::{Call, NextStep, RendezvousState};
use crate::handshake::{Hello, Purpose, Reason, Refusal};
use crate::rendezvous::election::Precedence;
use crate::rendezvous::note::Note;
use crate::rendezvous::{JoinError, Progress};
use distribute_cluster::{Address, Task};
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of reports, one a second, after which a process leaves a leader that too few have joined for one that
/// precedes it. A leader with enough processes usually begins a world earlier.
const UNFORMED: u32 = 10;

/// The number of such reports after which the process leaves the leader for any other one.
const STUCK: u32 = 60;

/// The number of times that a process is sent to a leader that misses it before a follower leads that process itself.
/// It asks at least every half second.
const OFTEN: u32 = 8;

/// The time after which a spare that knows no leader leads.
const UNLED: Duration = Duration::from_secs(5);

/// The leader that a process follows.
#[derive(Clone, Debug, Default)]
pub(super) struct Following {
    /// The address at which the leader has accepted this process.
    at: Option<Address>,
    /// The precedence of the leader; `None` if it has not been received yet.
    precedence: Option<Precedence>,
    /// The number of successive reports of the leader that too few processes have connected.
    lacking: u32,
    /// The processes that lead others and that this one asks, because the leader cannot begin a world.
    rivals: BTreeMap<usize, Precedence>,
    /// The number of times that each process was sent to the leader, which it cannot reach.
    turned_away: BTreeMap<usize, u32>,
    /// The task of a process for which this one leaves the leader.
    leaves_for: Option<Task>,
}

impl Following {
    /// Processes a report of the leader, which needs `minimum` processes.
    pub fn hear(&mut self, progress: &Progress, minimum: usize) {
        if progress.workers.saturating_sub(progress.missing.len()) < minimum {
            self.lacking = self.lacking.saturating_add(1);
        } else {
            (self.lacking, self.rivals, self.turned_away) = Default::default();
        }
    }

    /// Records the generation of the last world of the leader, which is at the given position.
    pub fn is_led(&mut self, generation: u64, position: usize) {
        self.precedence = Some(Precedence::new(generation, position));
    }

    /// Returns the generation of the last world of the leader, if it has been received; 0 if there was none.
    pub fn generation(&self) -> Option<u64> {
        self.precedence.map(Precedence::generation)
    }

    /// Records that the process at this position was sent to the leader, which misses it. Returns whether to leave the
    /// leader, which too few have joined, and lead that process.
    fn turn_away(&mut self, position: usize) -> bool {
        if self.lacking < UNFORMED {
            return false;
        }
        let times = self.turned_away.entry(position).or_default();
        *times += 1;
        *times >= OFTEN
    }

    /// Returns whether to leave the leader for another process that leads.
    fn prefers(&self, other: Precedence) -> bool {
        let precedes = self.precedence.is_some_and(|leader| other < leader);
        self.lacking >= STUCK || (self.lacking >= UNFORMED && precedes)
    }
}

impl RendezvousState {
    /// Returns whether this worker follows an elected leader, without the table of a world.
    fn follows(&self) -> bool {
        !self.leads() && self.members.leader().is_some()
    }

    /// Returns the connections by which this worker takes part in an election, each with the time to wait before its
    /// first attempt. Others that were made for that purpose are not needed any more. Returns `None` if the first
    /// worker leads.
    pub fn asks(&self) -> Option<Vec<(Call, Duration)>> {
        let election = self.election.as_ref()?;
        let (follows, is_settled) = (self.follows(), self.has_table || self.is_held);
        let is_asked = |worker: usize| {
            if follows {
                !is_settled && self.following.rivals.contains_key(&worker)
            } else {
                !self.is_declined(worker) && !self.others.is_left(worker, self.now)
            }
        };
        let unheard = self.unheard();
        let connected = self.members.connected();
        let candidates = election.candidates(&connected).filter(|(worker, ..)| is_asked(*worker));
        let asked = candidates.map(|(worker, address, wait)| {
            let (purpose, generation, table) = self.purpose();
            let (address, before) = (address.clone(), self.before.clone());
            let wait = if unheard.contains(&worker) { Duration::ZERO } else { wait };
            (Call { worker, address, purpose, generation, table, before }, wait)
        });
        Some(asked.collect())
    }

    /// Processes a connection that another worker has accepted. Returns the workers whose links must be closed before;
    /// `None` if the new one must be closed instead, because this worker already follows another leader.
    pub fn accepted(&mut self, call: &Call) -> Option<Vec<usize>> {
        if call.purpose == Purpose::Link {
            self.others.link(call.worker);
        }
        if self.election.is_none() || call.purpose == Purpose::Link {
            return Some(Vec::new());
        }
        if self.has_enough() && !self.others.is_later(call.worker, self.members.latest()) {
            // That one joins this one.
            self.others.decline(call.worker);
            return None;
        }
        let is_rival = self.following.rivals.contains_key(&call.worker);
        if self.has_table || (self.follows() && (self.is_held || !is_rival)) {
            return None;
        }
        let left: Vec<_> = match self.members.leader().filter(|_| self.follows()) {
            Some(leader) => vec![leader],
            None => {
                self.members.connected().into_iter().filter(|worker| *worker != self.world.worker()).collect()
            }
        };
        self.members.follow(Some(call.worker));
        self.reported = None;
        self.following = Following { at: Some(call.address.clone()), ..Following::default() };
        Some(left)
    }

    /// Processes the refusal of a process that is asked again later, as an answer to the call.
    pub fn answered(&mut self, call: &Call, refusal: &Refusal) {
        let Some(election) = self.election.as_mut().filter(|_| call.purpose != Purpose::Link) else { return };
        election.hear(call, refusal);
        if let Some((position, address)) = refusal.leader.as_deref() {
            election.learn(*position, address);
            election.suspect(*position);
        }
        if refusal.generation > 0 {
            // A process that was in no world may have missed that the training has ended.
            election.hear_other(call.worker);
        }
        // A process that follows another one is in no world, or its leader answers.
        let in_world = if refusal.reason == Reason::Busy { refusal.generation } else { 0 };
        self.later = self.later.max(in_world);
        self.answers += u64::from(in_world > self.members.latest());
    }

    /// Processes an attempt to reach a process that has failed, so that it is repeated.
    pub fn missed(&mut self, call: &Call) {
        if let Some(election) = self.election.as_mut().filter(|_| call.purpose != Purpose::Link) {
            election.miss(call);
        }
    }

    /// Returns the number of answers of processes that still are in a later world than all that have connected. After
    /// each of them, the time without a new worker begins again.
    pub fn answers(&self) -> u64 {
        self.answers
    }

    /// Returns whether a process that has not connected was in a later world than all that have.
    pub(super) fn knows_later(&self) -> bool {
        self.later > self.members.latest() && self.members.connected().len() < self.world.workers()
    }

    /// Returns the error of a process that cannot link to another one, or to which another one has answered that the
    /// training has ended; `None` if there is no such answer, or if others may answer otherwise yet. `now` is the
    /// time since this worker has begun.
    pub fn ended(&self, now: Duration) -> Option<JoinError> {
        if let Some(error) = self.unreached() {
            return Some(error);
        }
        let is_alone = self.members.connected().len() == 1;
        let (call, refusal) = self.election.as_ref()?.ended(now, is_alone)?;
        let (task, address) = (self.members.task(call.worker), call.address.to_string());
        Some(JoinError::Refused { worker: call.worker, task, address, refusal: refusal.clone() })
    }

    /// Returns the note that an elected leader sends to a process that it has accepted; `None` on any other worker.
    pub fn leading_note(&self) -> Option<Note> {
        (self.election.is_some() && self.leads()).then(|| Note::Leads(self.members.before()))
    }

    /// Lets this worker lead if it is a spare that has known no leader for some time: all workers are lost, and no
    /// process that has just started answers. `now` is the time since this worker has begun. Returns the leader if this
    /// worker has left it for a process that cannot reach it. The link to it must be closed.
    pub fn look(&mut self, now: Duration) -> Option<usize> {
        self.now = now;
        self.look_for_links();
        let is_unled = self.election.is_some() && self.spare_of > 0 && self.members.leader().is_none();
        self.unled_since = is_unled.then(|| self.unled_since.unwrap_or(now));
        if self.unled_since.is_some_and(|since| now.saturating_sub(since) >= UNLED) {
            self.unled_since = None;
            self.members.lead_as_spare(self.spare_of, self.spare_table);
        }
        let leader = self.members.leader().filter(|_| self.follows() && !self.has_table && !self.is_held);
        let (task, leader) = self.following.leaves_for.take().zip(leader)?;
        let reason = format!("too few have joined it, and {task} cannot reach it");
        self.others.leave(leader, now);
        self.lose_leader(reason);
        if !self.leads() {
            // A spare leads at once.
            self.members.lead_as_spare(self.spare_of, self.spare_table);
        }
        Some(leader)
    }

    /// Leads again after the leader was lost, unless this worker is a spare.
    pub(super) fn lose_leader(&mut self, reason: String) {
        (self.reported, self.is_held, self.following) = (None, false, Following::default());
        self.members.follow(self.own_leader());
        self.before = Some(reason);
    }

    /// Leaves an elected leader that has sent a wrong message. It is asked again later, after the others.
    ///
    /// # Errors
    /// Returns `error` if no process is left that could lead this one.
    pub(super) fn distrust(&mut self, leader: usize, error: JoinError) -> Result<NextStep, JoinError> {
        let at = self.following.at.clone();
        let (Some(election), Some(address)) = (&mut self.election, at) else { return Err(error) };
        let (purpose, generation, table, before) = (Purpose::Link, 0, 0, None);
        let call = Call { worker: leader, address, purpose, generation, table, before };
        if election.distrust(&call, Refusal::new(Reason::Protocol, error.to_string())) {
            return Err(error);
        }
        self.lose_leader(error.to_string());
        Ok(NextStep::Drop(leader, None))
    }

    /// Checks that this worker leads the one that has sent a hello, if the leader is elected. Also records its address.
    ///
    /// # Errors
    /// Returns the refusal to send to a worker that precedes this one, or that must connect to another one.
    pub(super) fn precede(&mut self, hello: &Hello) -> Result<(), Refusal> {
        let (follows, has_enough) = (self.follows(), self.has_enough());
        let (Some(election), Purpose::Join { address, .. } | Purpose::Spare { address, .. }) =
            (&mut self.election, &hello.purpose)
        else {
            return Ok(());
        };
        if let Ok(address) = address.parse() {
            election.learn(hello.rank, &address);
        }
        let me = self.world.worker();
        let (mine, theirs) = (self.members.task(me), self.members.task(hello.rank));
        let own = Precedence::new(self.members.before(), me);
        match self.members.leader() {
            Some(leader) if follows => {
                if let (Some(other), false) = (Precedence::of(hello), self.has_table || self.is_held)
                    && hello.rank != leader
                    && (self.spare_of > 0 || other < own)
                    && self.following.prefers(other)
                {
                    self.following.rivals.insert(hello.rank, other);
                    election.hurry(hello.rank);
                    let text =
                        format!("too few have joined {}: {mine} asks {theirs}", self.members.task(leader));
                    return Err(Refusal::new(Reason::Early, text));
                }
                // With this one, those that the leader misses are enough.
                let would_do = self.reported.as_ref().is_some_and(|reported| {
                    let is_missed = reported.missing.iter().any(|missing| missing.worker == hello.rank);
                    is_missed && reported.missing.len() + 1 >= self.quorum.minimum
                });
                if would_do && self.following.turn_away(hello.rank) {
                    self.following.leaves_for = Some(theirs);
                }
                let text = format!("{mine} follows {}: join that one", self.members.task(leader));
                let world = self.members.before().max(self.following.generation().unwrap_or_default());
                Err(match self.following.at.clone() {
                    Some(address) => Refusal::elsewhere(text, leader, address, world),
                    None => Refusal::new(Reason::Early, text),
                })
            }
            None => {
                // Spares without a leader do not call each other all the time.
                if Precedence::of(hello).is_some() {
                    election.hurry(hello.rank);
                }
                Err(Refusal::new(
                    Reason::Early,
                    format!("{mine} is a spare without a leader, and leads nobody"),
                ))
            }
            Some(_) if self.others.is_left(hello.rank, self.now) => {
                let text = format!("{mine} has left {theirs}, because too few had joined it");
                Err(Refusal::new(Reason::Early, text))
            }
            Some(_) => {
                self.others.asks(hello.rank, hello.generation);
                // With enough followers, it leads all that know of no later world.
                if has_enough && hello.generation <= self.members.latest() {
                    return Ok(());
                }
                let precedes = match Precedence::of(hello) {
                    Some(theirs) => self.spare_of > 0 || theirs < own,
                    None => self.spare_of > 0 && hello.rank < me,
                };
                if hello.rank != me && precedes {
                    election.hurry(hello.rank);
                    let text = format!("{theirs} precedes {mine}, which connects to it");
                    return Err(Refusal::new(Reason::Early, text));
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
