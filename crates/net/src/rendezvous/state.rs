//! The decisions of one worker in a rendezvous about incoming and outgoing connections, until it has a link to every
//! other worker. This module contains only pure functions and values, without sockets, threads and clocks.
//!
//! `running` carries out these decisions over sockets, and the crate `distribute-simulation` does so without sockets.

mod following;
mod missing;
mod others;

use super::election::Election;
use super::membership::{Apart, Membership};
use super::note::Note;
use super::quorum::PRESENT_GRACE;
use super::{JoinError, Missing, Progress, Quorum};
use crate::handshake::fields::Malformed;
use crate::handshake::{Hello, Purpose, Reason, Refusal, UnformedWorld};
use distribute_cluster::{Address, Task, World};
use following::Following;
use others::Others;
use std::collections::BTreeSet;
use std::time::Duration;

/// One worker's state in a rendezvous.
#[derive(Clone, Debug)]
pub struct RendezvousState {
    world: World,
    members: Membership,
    quorum: Quorum,
    /// The time for which a leader that has just started waits for members of the world that a spare knows of.
    patience: Duration,
    /// The election of the leader; `None` if the first worker leads.
    election: Option<Election>,
    /// Whether the leader has sent the table of the world.
    has_table: bool,
    /// The latest progress that the leader has sent.
    reported: Option<Progress>,
    /// The generation of the last world that was complete without this worker, so that this worker is its spare; 0 if
    /// there was none.
    spare_of: u64,
    /// The id of the table of that world; 0 if it is unknown.
    spare_table: u64,
    /// Whether the leader of the world `spare_of` holds the connection to this worker.
    is_held: bool,
    /// The connections that the leader has rejected, as it has reported. They are kept if the leader disconnects.
    refused: Vec<String>,
    /// The reason why the last leader was lost, if this worker has followed one in an election.
    before: Option<String>,
    /// The elected leader that this worker follows.
    following: Following,
    /// The knowledge about the other processes in an election.
    others: Others,
    /// The latest generation of a world in which a process still is that has answered in an election.
    later: u64,
    /// The number of such answers from a later world than this worker's.
    answers: u64,
    /// The time since which this spare knows no leader, measured since it has begun; `None` if it knows one.
    unled_since: Option<Duration>,
    /// The time of the latest [`look`](Self::look), measured since this worker has begun.
    now: Duration,
}

/// A connection that this worker must make to another one, with retries until that worker is running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The position of the worker in the cluster; 0 for a task that belongs to no world.
    pub worker: usize,
    /// The address of the worker.
    pub address: Address,
    /// The purpose of the connection.
    pub purpose: Purpose,
    /// The generation to [send](crate::handshake::Hello::generation) in the hello.
    pub generation: u64,
    /// The id of a table to [send](crate::handshake::Hello::table) in the hello.
    pub table: u64,
    /// The reason why an earlier link to the worker has failed, if there was one.
    pub before: Option<String>,
}

/// The next step after an event of a link, as decided by [`RendezvousState`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Connect to the given workers.
    Call(Vec<Call>),
    /// Keep the event for the mesh, because the sender has already completed its rendezvous.
    Keep,
    /// Close the link to the worker, if it still exists, and discard everything received from it. The worker may
    /// connect again. If this worker must make the connection, the second field is the call.
    Drop(usize, Option<Call>),
}

impl RendezvousState {
    /// Creates the state before any worker has connected. `members` is the membership of worker `world.worker()`.
    pub fn new(world: World, members: Membership) -> Self {
        let quorum = Quorum::all(world.workers());
        let (patience, election, has_table, reported) = Default::default();
        let (spare_of, spare_table, is_held, refused, before, following) = Default::default();
        let (others, later, answers, unled_since, now) = Default::default();
        Self {
            world,
            members,
            quorum,
            patience,
            election,
            has_table,
            reported,
            spare_of,
            spare_table,
            is_held,
            refused,
            before,
            following,
            others,
            later,
            answers,
            unled_since,
            now,
        }
    }

    /// Elects the leader. Call this after [`spare_of`](Self::spare_of). By default, the first worker leads.
    pub fn elect(mut self, election: Election) -> Self {
        self.election = Some(election);
        let leader = self.own_leader();
        self.members = self.members.elected(leader);
        self
    }

    /// Returns the leader before any other is known in an election: this worker, unless it is a spare.
    fn own_leader(&self) -> Option<usize> {
        (self.spare_of == 0).then(|| self.world.worker())
    }

    /// Returns the election of the leader, so that its results can be stored; `None` if the first worker leads.
    pub fn election_mut(&mut self) -> Option<&mut Election> {
        self.election.as_mut()
    }

    /// Returns whether this worker leads.
    pub fn leads(&self) -> bool {
        self.members.leads()
    }

    /// Sets the world of which this worker is a spare: its generation, or 0 if this worker is none, and the id of its
    /// table, or 0 if it is unknown.
    pub fn spare_of(mut self, generation: u64, table: u64) -> Self {
        (self.spare_of, self.spare_table) = (generation, table);
        self
    }

    /// Sets the world of which this worker knows that it was never complete.
    pub fn after_unformed(mut self, world: Option<UnformedWorld>) -> Self {
        self.members.set_unformed(world);
        self
    }

    /// Sets the pairs of workers that could not link to each other, as this worker knows from its last rendezvous.
    pub fn after_apart(mut self, apart: Apart) -> Self {
        self.members.set_apart(apart);
        self
    }

    /// Returns the world of which this worker knows that it was never complete. If this worker has received a table, it
    /// is the world of the table, unless this worker [gets all of its links](Self::is_complete).
    pub fn unformed(&self) -> Option<UnformedWorld> {
        self.members.unformed()
    }

    /// Returns the generation of the world of which this worker is a spare, and the id of its table, if the leader of
    /// that world holds the connection.
    pub fn held(&self) -> Option<(u64, u64)> {
        self.is_held.then_some((self.spare_of, self.spare_table))
    }

    /// Sets the number of workers that form a world. The default is all workers. Only the leader uses this setting.
    pub fn quorum(mut self, quorum: Quorum) -> Self {
        self.quorum = quorum;
        self
    }

    /// Sets the time for which a leader that has just started waits for members of the world that a spare knows of. The
    /// time should be less than that for which spares wait for a leader; if it is less than the [grace](Quorum::grace),
    /// the grace applies.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Returns the first connection to make, which is that to the leader; `None` on the leader, and in an election.
    pub fn begin(&self) -> Option<Call> {
        self.call_leader(None)
    }

    /// Returns whether this worker is the leader, and cannot form a world without `worker`: the world needs all
    /// workers, and `worker` has not connected.
    pub fn needs(&self, worker: usize) -> bool {
        let is_awaited =
            (1..self.world.workers()).contains(&worker) && !self.members.connected().contains(&worker);
        self.leads() && is_awaited && self.quorum.minimum >= self.world.workers()
    }

    /// Returns the rejected connections: those in `own`, which this worker has rejected, followed by those that the
    /// leader has reported, and the processes that have rejected this one in an election.
    pub fn refused_connections(&self, own: Vec<String>) -> Vec<String> {
        let by_others = self.election.iter().flat_map(Election::refusals);
        own.into_iter().chain(self.refused.iter().cloned()).chain(by_others).collect()
    }

    /// Returns the error of a rendezvous that fails because `worker` was rejected.
    pub fn other_refused(&self, worker: usize, address: String, refusal: Refusal) -> JoinError {
        JoinError::OtherRefused { worker, task: self.members.task(worker), address, refusal }
    }

    fn call_leader(&self, before: Option<String>) -> Option<Call> {
        let ([leader, .., _], None, false) = (self.members.addresses(), &self.election, self.leads()) else {
            return None;
        };
        let (purpose, generation, table) = self.purpose();
        Some(Call { worker: 0, address: leader.clone(), purpose, generation, table, before })
    }

    /// Returns the purpose with which this worker connects to a leader, the generation that it claims, and the id of
    /// the table of the world of which it is a spare.
    fn purpose(&self) -> (Purpose, u64, u64) {
        let (address, unformed) = (self.members.address(self.world.worker()), self.members.unformed());
        match self.spare_of {
            0 => (Purpose::Join { address, unformed }, self.members.before(), 0),
            generation => (Purpose::Spare { address, unformed }, generation, self.spare_table),
        }
    }

    /// Returns whether this worker knows the generation of the world and the addresses of its workers.
    pub fn is_located(&self) -> bool {
        self.has_table || self.leads()
    }

    /// Returns the workers that take part in the rendezvous, and their addresses.
    pub fn members(&self) -> &Membership {
        &self.members
    }

    /// Decides whether to accept a worker that belongs to the job, and records it if so.
    ///
    /// # Errors
    /// Returns the refusal to send to a worker that is not accepted.
    pub fn decide(&mut self, hello: &Hello) -> Result<(), Refusal> {
        self.precede(hello)?;
        self.members.decide(hello)?;
        self.members.connect(hello);
        Ok(())
    }

    /// Removes a worker that was accepted but could not be notified. It may connect again.
    pub fn leave(&mut self, worker: usize) {
        self.members.leave(worker);
    }

    /// Processes a message of a link. On the leader, the link is dropped, because workers send nothing before the world
    /// is complete.
    ///
    /// # Errors
    /// - [`JoinError::OtherRefused`]: there will be no world, because the leader has rejected a worker.
    /// - [`JoinError::Refused`]: the leader has rejected this worker, for example because the training has ended.
    /// - [`JoinError::Leader`]: the message of the leader is malformed, or lists workers that do not form a world with
    ///   this one.
    pub fn receive(&mut self, from: usize, body: &[u8]) -> Result<NextStep, JoinError> {
        match self.receive_note(from, body) {
            Err(error @ JoinError::Leader { .. }) if self.election.is_some() => self.distrust(from, error),
            result => result,
        }
    }

    fn receive_note(&mut self, from: usize, body: &[u8]) -> Result<NextStep, JoinError> {
        if self.leads() {
            // The world is not made yet, so no worker has a message to send.
            self.members.leave(from);
            return Ok(NextStep::Drop(from, None));
        }
        if Some(from) != self.members.leader() || self.has_table {
            return Ok(NextStep::Keep);
        }
        match Note::decode(body) {
            Ok(Note::Waiting(progress)) => {
                self.refused.clone_from(&progress.refused);
                self.following.hear(&progress, self.quorum.minimum);
                self.reported = Some(progress);
                Ok(NextStep::Call(Vec::new()))
            }
            Ok(Note::Table(generation, table, members)) => {
                if !self.members.locate(generation, table, members.clone()) {
                    let problem = self.misfit(generation, &members);
                    return Err(self.wrong_leader(problem));
                }
                (self.has_table, self.is_held) = (true, false);
                // It is not complete until this worker has all links.
                let latest = self.following.generation();
                let unreached = None;
                self.members.set_unformed(latest.map(|latest| UnformedWorld {
                    generation,
                    table,
                    latest,
                    unreached,
                }));
                if let Some(election) = &mut self.election {
                    election.learn_world(&members);
                }
                let me = self.world.worker();
                let below = members.into_iter().filter(|(place, _)| *place < me && *place != from);
                let call = |(worker, address)| Call {
                    worker,
                    address,
                    purpose: Purpose::Link,
                    generation,
                    table,
                    before: None,
                };
                Ok(NextStep::Call(below.map(call).collect()))
            }
            Ok(Note::Spare(generation, table, members)) => {
                if let Some(election) = &mut self.election {
                    election.learn_world(&members);
                    election.goes_on();
                }
                (self.spare_of, self.spare_table) = (generation.max(1), table);
                (self.is_held, self.reported) = (true, None);
                // That is of another world, which may have the same generation.
                self.members.set_unformed(None);
                Ok(NextStep::Call(Vec::new()))
            }
            Ok(Note::Refused(worker, _, refusal)) if worker == self.world.worker() => {
                let (task, address) = (self.members.task(from), self.members.address(from));
                Err(JoinError::Refused { worker: from, task, address, refusal })
            }
            Ok(Note::Refused(worker, address, refusal)) => Err(self.other_refused(worker, address, refusal)),
            Ok(Note::Leads(generation)) if self.election.is_some() => {
                self.following.is_led(generation, from);
                if let Some(election) = self.election.as_mut().filter(|_| generation > 0) {
                    election.goes_on();
                }
                Ok(NextStep::Call(Vec::new()))
            }
            Ok(Note::Leads(_)) | Err(Malformed) => {
                Err(self.wrong_leader(format!("{} bytes that are no message of it", body.len())))
            }
        }
    }

    /// Returns the error for a message of the leader that this worker cannot use.
    fn wrong_leader(&self, problem: String) -> JoinError {
        let leader = self.members.leader().unwrap_or_default();
        JoinError::Leader { task: self.members.task(leader), address: self.members.address(leader), problem }
    }

    /// Describes a table of a world that does not fit this worker.
    fn misfit(&self, generation: u64, members: &[(usize, Address)]) -> String {
        let (places, me) = (members.iter().map(|(place, _)| *place), self.world.worker());
        format!(
            "workers {:?} of {} as generation {generation}, which cannot be joined by worker {me} after generation {}",
            places.collect::<Vec<_>>(),
            self.world.workers(),
            self.members.before()
        )
    }

    /// Processes a worker's disconnect. The worker may connect again, unless the leader has sent the table of the
    /// world.
    ///
    /// # Errors
    /// - [`JoinError::Lost`]: this worker has received the table, and the other worker did not exit gracefully. A
    ///   worker that has left to re-form the group is also lost: it waits for this worker in the new rendezvous.
    pub fn mark_lost(&mut self, worker: usize, reason: String) -> Result<NextStep, JoinError> {
        if self.has_table && self.members.members().contains(&worker) {
            if reason == crate::ENDED {
                return Ok(NextStep::Keep);
            }
            let (task, address) = (self.members.task(worker), self.members.address(worker));
            return Err(JoinError::Lost { worker, task, address, reason });
        }
        tracing::debug!(worker, reason, "a worker left before all had joined");
        self.members.leave(worker);
        if Some(worker) != self.members.leader() {
            return Ok(NextStep::Drop(worker, None));
        }
        if self.election.is_some() {
            self.lose_leader(reason);
            return Ok(NextStep::Drop(worker, None));
        }
        (self.reported, self.is_held) = (None, false);
        Ok(NextStep::Drop(0, self.call_leader(Some(reason))))
    }

    /// Decides the members of the world on the leader, if the connected workers are a quorum and no other worker has
    /// connected for the time `idle`. After that no other worker is missing. If more workers have connected than the
    /// world may have, the remaining ones are its spares.
    pub fn close_with_quorum(&mut self, idle: Duration) {
        // Members of a later world have the state.
        let is_awaited = self.members.awaits_members() || self.knows_later();
        if is_awaited && idle < self.patience.max(self.quorum.grace) {
            return;
        }
        // Processes that were in no world do not begin the training again after it has ended.
        let may_be_over = self.election.as_ref().is_some_and(Election::has_ended);
        if may_be_over && self.members.latest() == 0 {
            return;
        }
        let (connected, is_first) = (self.members.connected(), self.members.before() == 0);
        let all_are_there = connected.len() == self.world.workers();
        // A process that has not answered yet may be in a later world, or take the place of one that cannot link.
        let is_replaceable = connected.len() > self.quorum.maximum;
        let is_apart = self.members.has_pair_apart() && !is_replaceable && !all_are_there;
        if (is_apart || !self.unheard().is_empty()) && idle < PRESENT_GRACE.min(self.quorum.grace) {
            return;
        }
        // A leader that has just started does not know which positions the workers of the last world have.
        let are_known = !is_first || self.members.resuming() >= self.quorum.maximum;
        let spares = if are_known { BTreeSet::new() } else { self.members.spares() };
        let is_met = all_are_there || self.quorum.is_met(&connected, &spares, idle, is_first);
        if self.leads() && is_met {
            self.members.close(self.quorum.maximum);
        }
    }

    /// Returns the maximum number of workers of a world.
    pub fn maximum(&self) -> usize {
        self.quorum.maximum
    }

    /// Returns whether this worker has all of its links, given the workers that are still missing.
    pub fn is_complete(&self, missing: &[Missing]) -> bool {
        missing.is_empty() && self.is_located() && self.members.is_closed()
    }

    /// Returns the message that the leader sends to all others when the world is complete; `None` on any other worker.
    pub fn table(&self) -> Option<Note> {
        let located = |place: usize| Some((place, self.members.addresses().get(place)?.clone()));
        let members = || self.members.members().into_iter().filter_map(located).collect();
        self.leads().then(|| Note::Table(self.members.generation(), self.members.table(), members()))
    }

    /// Returns the error of a connection that one side has rejected, if a repetition would change nothing. Returns
    /// `None` if the connection must be retried nevertheless: in an election, a wrong answer of one process among
    /// others ends nothing, because it may be from a process that does not belong to the job, or to an earlier run of
    /// it, or that others do not follow. `now` is the time since this worker has begun.
    pub fn refused(&mut self, call: &Call, refusal: Refusal, now: Duration) -> Option<JoinError> {
        if let (Some(election), true) = (&mut self.election, refusal.reason == Reason::Ended) {
            election.hear_ended(call, refusal.clone(), now);
        }
        let is_certain = refusal.reason.is_certain() || call.purpose == Purpose::Link;
        // With enough followers, this worker can begin a world of its own.
        let followers = self.members.connected();
        let followers = if followers.len() < self.quorum.minimum { followers } else { BTreeSet::new() };
        if let (Some(election), false) = (&mut self.election, is_certain)
            && !election.refuse(call, refusal.clone(), &followers)
        {
            return None;
        }
        let (worker, address) = (call.worker, call.address.to_string());
        let task = self.members.task(worker);
        if self.election.is_some() && call.purpose == Purpose::Link && refusal.reason == Reason::Generation {
            // That one has the table of a later world. This one still has the state that it has.
            return Some(JoinError::Lost { worker, task, address, reason: refusal.to_string() });
        }
        Some(JoinError::Refused { worker, task, address, refusal })
    }
}

/// Returns the refusal for a process that connects to a complete world. `lost` is `true` if the worker at the process's
/// position is disconnected. `mine` is the task of this worker, and `theirs` that of the process.
pub fn latecomer(mine: &Task, theirs: &Task, lost: bool) -> Refusal {
    if lost {
        let text = format!("{mine} has lost {theirs}, and accepts another one when the group re-forms");
        return Refusal::new(Reason::Early, text);
    }
    let text = format!("the world is complete, and has a {theirs} already: {mine} accepts no other");
    Refusal::new(Reason::Complete, text)
}

#[cfg(test)]
mod tests;
