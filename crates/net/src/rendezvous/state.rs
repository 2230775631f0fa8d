//! The decisions of one worker in a rendezvous about incoming and outgoing connections, until it has a link to every
//! other worker. This module contains only pure functions and values, without sockets, threads and clocks.
//!
//! `running` carries out these decisions over sockets, and the crate `distribute-simulation` does so without sockets.

use super::membership::Membership;
use super::note::Note;
use super::{JoinError, Missing, Progress, Quorum};
use crate::handshake::fields::Malformed;
use crate::handshake::{Hello, Purpose, Reason, Refusal};
use distribute_cluster::{Address, Task, World};
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
    /// Whether this worker knows the table of the world: it is the leader, or the leader has sent the table.
    located: bool,
    /// The latest progress that the leader has sent.
    reported: Option<Progress>,
    /// The generation of the last world that was complete without this worker, so that this worker is its spare; 0 if
    /// there was none.
    spare_of: u64,
    /// Whether the leader of the world `spare_of` holds the connection to this worker.
    is_held: bool,
    /// The connections that the leader has rejected, as it has reported. They are kept if the leader disconnects.
    refused: Vec<String>,
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
        let (patience, reported, spare_of, is_held, refused) = Default::default();
        let located = world.is_chief();
        Self { world, members, quorum, patience, located, reported, spare_of, is_held, refused }
    }

    /// Sets the generation of the world of which this worker is a spare; 0 if it is none.
    pub fn spare_of(mut self, generation: u64) -> Self {
        self.spare_of = generation;
        self
    }

    /// Returns the generation of the world of which this worker is a spare, if the leader of that world holds the
    /// connection.
    pub fn held(&self) -> Option<u64> {
        self.is_held.then_some(self.spare_of)
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

    /// Returns the first connection to make, which is that to the leader; `None` on the leader.
    pub fn begin(&self) -> Option<Call> {
        self.call_leader(None)
    }

    /// Returns whether this worker is the leader, and cannot form a world without `worker`: the world needs all
    /// workers, and `worker` has not connected.
    pub fn needs(&self, worker: usize) -> bool {
        let is_awaited =
            (1..self.world.workers()).contains(&worker) && !self.members.connected().contains(&worker);
        self.world.is_chief() && is_awaited && self.quorum.minimum >= self.world.workers()
    }

    /// Returns the rejected connections: those in `own`, which this worker has rejected, followed by those that the
    /// leader has reported.
    pub fn refused_connections(&self, own: Vec<String>) -> Vec<String> {
        own.into_iter().chain(self.refused.iter().cloned()).collect()
    }

    /// Returns the error of a rendezvous that fails because `worker` was rejected.
    pub fn other_refused(&self, worker: usize, address: String, refusal: Refusal) -> JoinError {
        JoinError::OtherRefused { worker, task: self.members.task(worker), address, refusal }
    }

    fn call_leader(&self, before: Option<String>) -> Option<Call> {
        let ([leader, .., _], false) = (self.members.addresses(), self.world.is_chief()) else { return None };
        let address = self.members.address(self.world.worker());
        let (purpose, generation) = match self.spare_of {
            0 => (Purpose::Join { address }, self.members.before()),
            generation => (Purpose::Spare { address }, generation),
        };
        Some(Call { worker: 0, address: leader.clone(), purpose, generation, before })
    }

    /// Returns whether this worker knows the generation of the world and the addresses of its workers.
    pub fn is_located(&self) -> bool {
        self.located
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
        if self.world.is_chief() {
            // The world is not made yet, so no worker has a message to send.
            self.members.leave(from);
            return Ok(NextStep::Drop(from, None));
        }
        if from != 0 || self.located {
            return Ok(NextStep::Keep);
        }
        match Note::decode(body) {
            Ok(Note::Waiting(progress)) => {
                self.refused.clone_from(&progress.refused);
                self.reported = Some(progress);
                Ok(NextStep::Call(Vec::new()))
            }
            Ok(Note::Table(generation, members)) => {
                if !self.members.locate(generation, members.clone()) {
                    let problem = self.misfit(generation, &members);
                    return Err(self.wrong_leader(problem));
                }
                (self.located, self.is_held) = (true, false);
                let below = members.into_iter().filter(|(place, _)| (1..self.world.worker()).contains(place));
                let call = |(worker, address)| Call {
                    worker,
                    address,
                    purpose: Purpose::Link,
                    generation,
                    before: None,
                };
                Ok(NextStep::Call(below.map(call).collect()))
            }
            Ok(Note::Spare(generation)) => {
                (self.spare_of, self.is_held, self.reported) = (generation.max(1), true, None);
                Ok(NextStep::Call(Vec::new()))
            }
            Ok(Note::Refused(worker, _, refusal)) if worker == self.world.worker() => {
                let (task, address) = (self.members.task(0), self.members.address(0));
                Err(JoinError::Refused { worker: 0, task, address, refusal })
            }
            Ok(Note::Refused(worker, address, refusal)) => Err(self.other_refused(worker, address, refusal)),
            Err(Malformed) => {
                Err(self.wrong_leader(format!("{} bytes that are no message of it", body.len())))
            }
        }
    }

    /// Returns the error for a message of the leader that this worker cannot use.
    fn wrong_leader(&self, problem: String) -> JoinError {
        JoinError::Leader { task: self.members.task(0), address: self.members.address(0), problem }
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
        if self.located && !self.world.is_chief() {
            if reason == crate::ENDED {
                return Ok(NextStep::Keep);
            }
            let (task, address) = (self.members.task(worker), self.members.address(worker));
            return Err(JoinError::Lost { worker, task, address, reason });
        }
        tracing::debug!(worker, reason, "a worker left before all had joined");
        self.members.leave(worker);
        if worker != 0 {
            return Ok(NextStep::Drop(worker, None));
        }
        (self.reported, self.is_held) = (None, false);
        Ok(NextStep::Drop(0, self.call_leader(Some(reason))))
    }

    /// Returns the workers that are missing, as far as this worker knows. The list is empty if this worker has all of
    /// its links. `calls` contains the connections that this worker has not made yet, each with the reason for its
    /// latest failure.
    pub fn missing<'a>(&self, calls: impl Iterator<Item = (&'a Call, Option<String>)>) -> Vec<Missing> {
        if let (false, Some(reported)) = (self.located, &self.reported) {
            let named =
                |missing: &Missing| Missing { task: self.members.task(missing.worker), ..missing.clone() };
            return reported.missing.iter().map(named).collect();
        }
        let called = calls.map(|(call, last)| Missing {
            worker: call.worker,
            task: self.members.task(call.worker),
            address: call.address.to_string(),
            last,
        });
        // Only the leader knows which other workers have joined.
        let connected = if self.located { self.members.missing() } else { Vec::new() };
        let missing: Vec<_> = called.chain(connected).collect();
        if missing.is_empty() && !self.located {
            let address = self.members.address(0);
            let last = Some("joined, but the addresses of the others have not arrived".to_owned());
            return vec![Missing { worker: 0, task: self.members.task(0), address, last }];
        }
        missing
    }

    /// Decides the members of the world on the leader, if the connected workers are a quorum and no other worker has
    /// connected for the time `idle`. After that no other worker is missing. If more workers have connected than the
    /// world may have, the remaining ones are its spares.
    pub fn close_with_quorum(&mut self, idle: Duration) {
        if self.members.awaits_members() && idle < self.patience.max(self.quorum.grace) {
            // Members of an earlier world have the state.
            return;
        }
        let (connected, is_first) = (self.members.connected(), self.members.before() == 0);
        let all_are_there = connected.len() == self.world.workers();
        // A leader that has just started does not know which positions the workers of the last world have.
        let are_known = !is_first || self.members.resuming() >= self.quorum.maximum;
        let spares = if are_known { BTreeSet::new() } else { self.members.spares() };
        let is_met = all_are_there || self.quorum.is_met(&connected, &spares, idle, is_first);
        if self.world.is_chief() && is_met {
            self.members.close(self.quorum.maximum);
        }
    }

    /// Returns the maximum number of workers of a world.
    pub fn maximum(&self) -> usize {
        self.quorum.maximum
    }

    /// Returns whether this worker has all of its links, given the workers that are still missing.
    pub fn is_complete(&self, missing: &[Missing]) -> bool {
        missing.is_empty() && self.located && self.members.is_closed()
    }

    /// Returns the message that the leader sends to all others when the world is complete; `None` on any other worker.
    pub fn table(&self) -> Option<Note> {
        let located = |place: usize| Some((place, self.members.addresses().get(place)?.clone()));
        let members = || self.members.members().into_iter().filter_map(located).collect();
        self.world.is_chief().then(|| Note::Table(self.members.generation(), members()))
    }

    /// Returns the error of a connection that one side has rejected.
    pub fn refused(&self, call: &Call, refusal: Refusal) -> JoinError {
        let (task, address) = (self.members.task(call.worker), call.address.to_string());
        JoinError::Refused { worker: call.worker, task, address, refusal }
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
mod tests {
    use super::*;
    use crate::handshake::Names;
    use crate::{ENDED, LEFT};
    use bytes::Bytes;

    // INV-85
    #[test]
    fn a_worker_that_was_refused_is_needed_where_it_has_not_come_and_all_have_to() {
        let addresses: Vec<Address> =
            (0..3).map(|worker| format!("10.0.0.{worker}:7").parse().unwrap()).collect();
        let at = |me: usize| {
            let members = Membership::new(me, Names::default(), addresses.clone());
            RendezvousState::new(World::new(3, me, 1).unwrap(), members)
        };
        let needs = |state: &RendezvousState| [0, 1, 2, 3].map(|worker| state.needs(worker));
        assert_eq!(needs(&at(0)), [false, true, true, false]);
        assert_eq!(needs(&at(1)), [false; 4], "the leader decides");
        let some = Quorum { minimum: 2, ..Quorum::all(3) };
        assert_eq!(needs(&at(0).quorum(some)), [false; 4], "there may be a world without it");
        let purpose = Purpose::Join { address: "10.0.0.1:7".to_owned() };
        let (job, digest) = ("a".to_owned(), [0; 32]);
        let hello = Hello { job, generation: 0, rank: 1, workers: 3, replicas: 1, digest, purpose };
        let mut leader = at(0);
        leader.decide(&hello).unwrap();
        assert_eq!(needs(&leader), [false, false, true, false], "another one has its number");
    }

    // INV-100
    #[test]
    fn a_spare_is_held_until_a_world_needs_it_or_the_training_has_ended() {
        let addresses: Vec<Address> =
            (0..4).map(|worker| format!("10.0.0.{worker}:7").parse().unwrap()).collect();
        let members = Membership::new(3, Names::default(), addresses.clone());
        let mut spare = RendezvousState::new(World::new(4, 3, 1).unwrap(), members);
        assert!(matches!(spare.begin().unwrap().purpose, Purpose::Join { .. }));
        spare.receive(0, &Note::Spare(2).encode()).unwrap();
        assert_eq!((spare.held(), spare.is_located()), (Some(2), false));
        // The leader has left to re-form the group, or is lost.
        let NextStep::Drop(0, Some(call)) = spare.mark_lost(0, LEFT.to_owned()).unwrap() else { panic!() };
        assert!(matches!(call.purpose, Purpose::Spare { .. }) && call.generation == 2);
        assert_eq!(spare.held(), None);
        spare.receive(0, &Note::Spare(3).encode()).unwrap();
        assert_eq!(spare.held(), Some(3));
        let ended = Refusal::new(Reason::Ended, "the training has ended");
        let error = spare.clone().receive(0, &Note::Refused(3, String::new(), ended).encode()).unwrap_err();
        assert!(matches!(&error, JoinError::Refused { refusal, .. } if refusal.reason == Reason::Ended));
        let world = [0, 2, 3].map(|place| (place, addresses[place].clone()));
        let then = spare.receive(0, &Note::Table(4, world.to_vec()).encode()).unwrap();
        assert!(matches!(then, NextStep::Call(calls) if calls.len() == 1 && calls[0].worker == 2));
        assert_eq!((spare.is_located(), spare.held()), (true, None));
    }

    // INV-100
    #[test]
    fn a_leader_that_has_just_started_waits_for_members_of_which_a_spare_knows() {
        let addresses: Vec<Address> =
            (0..3).map(|worker| format!("10.0.0.{worker}:7").parse().unwrap()).collect();
        let grace = Duration::from_secs(30);
        let (minimum, maximum, expected, present) = (2, 2, [0, 1].into(), BTreeSet::new());
        let quorum = Quorum { minimum, maximum, expected, present, grace };
        let members = Membership::new(0, Names::default(), addresses.clone());
        let leader = RendezvousState::new(World::new(3, 0, 1).unwrap(), members).quorum(quorum);
        let mut leader = leader.patience(2 * grace);
        let hello = |rank: usize, generation, purpose: fn(String) -> Purpose| {
            let (job, purpose) = ("a".to_owned(), purpose(addresses[rank].to_string()));
            Hello { job, generation, rank, workers: 3, replicas: 1, digest: [0; 32], purpose }
        };
        leader.decide(&hello(1, 6, |address| Purpose::Spare { address })).unwrap();
        let mut late = leader.clone();
        leader.close_with_quorum(Duration::ZERO);
        assert_eq!(leader.members().members().len(), 3, "it is not closed");
        leader.decide(&hello(2, 6, |address| Purpose::Join { address })).unwrap();
        leader.close_with_quorum(Duration::ZERO);
        assert_eq!((leader.members().members(), leader.members().generation()), (vec![0, 2], 7));
        // All members are lost, or one is busy for very long: it can supplant the new world, which is of generation 2.
        let mut all = late.clone();
        late.close_with_quorum(2 * grace - Duration::from_millis(1));
        assert!(!late.members().is_closed());
        late.close_with_quorum(2 * grace);
        assert_eq!((late.members().members(), late.members().generation()), (vec![0, 1], 2));
        all.decide(&hello(2, 0, |address| Purpose::Join { address })).unwrap();
        assert!(!all.is_complete(&[]), "nobody is missing, and the members are not chosen yet");
        all.close_with_quorum(Duration::ZERO);
        assert_eq!((all.members().members(), all.is_complete(&[])), (vec![0, 1], true));
    }

    // INV-100
    #[test]
    fn a_leader_that_has_just_started_does_not_take_a_spare_for_a_worker_that_it_expects() {
        let addresses: Vec<Address> =
            (0..5).map(|worker| format!("10.0.0.{worker}:7").parse().unwrap()).collect();
        let (expected, present) = ([0, 1, 2].into(), BTreeSet::new());
        let quorum = Quorum { minimum: 3, maximum: 3, expected, present, grace: Duration::from_secs(30) };
        let members = Membership::new(0, Names::default(), addresses.clone());
        let mut leader = RendezvousState::new(World::new(5, 0, 1).unwrap(), members).quorum(quorum);
        let hello = |rank: usize, purpose: fn(String) -> Purpose| {
            let (job, purpose) = ("a".to_owned(), purpose(addresses[rank].to_string()));
            Hello { job, generation: 6, rank, workers: 5, replicas: 1, digest: [0; 32], purpose }
        };
        // Spare 3 has taken the place of worker 1, which is a spare now.
        leader.decide(&hello(1, |address| Purpose::Spare { address })).unwrap();
        leader.decide(&hello(2, |address| Purpose::Join { address })).unwrap();
        leader.close_with_quorum(Duration::from_secs(1));
        assert!(!leader.members().is_closed(), "worker 3 may connect yet");
        leader.decide(&hello(3, |address| Purpose::Join { address })).unwrap();
        leader.close_with_quorum(Duration::ZERO);
        assert_eq!(leader.members().members(), [0, 2, 3]);
    }

    #[test]
    fn a_leader_whose_message_makes_no_world_is_an_error_and_is_not_joined_again() {
        let addresses: Vec<Address> =
            (0..3).map(|worker| format!("10.0.0.{worker}:7").parse().unwrap()).collect();
        let table = |generation, places: &[usize]| {
            let at = |place: &usize| (*place, "10.0.0.9:7".parse().unwrap());
            Note::Table(generation, places.iter().map(at).collect()).encode()
        };
        let rubbish = Bytes::from_static(b"rubbish");
        for (body, says) in [
            (rubbish, "has sent 7 bytes that are no message of it"),
            (table(5, &[0, 1]), "workers [0, 1] of 3 as generation 5, which cannot be joined by worker 2"),
            (table(5, &[0, 2, 7]), "workers [0, 2, 7] of 3"),
            (table(4, &[0, 1, 2]), "as generation 4, which cannot be joined by worker 2 after generation 4"),
        ] {
            let members = Membership::new(2, Names::default(), addresses.clone()).after(4);
            let mut state = RendezvousState::new(World::new(3, 2, 1).unwrap(), members);
            let error = state.receive(0, &body).unwrap_err();
            assert!(matches!(error, JoinError::Leader { .. }), "{error}");
            let text = error.to_string();
            assert!(
                text.starts_with("worker 0 at 10.0.0.0:7 leads this world") && text.contains(says),
                "{text}"
            );
            assert!(!state.is_located());
        }
    }

    #[test]
    fn a_leader_that_has_ended_is_done_and_one_that_has_left_waits_for_all_to_come_again() {
        let addresses: Vec<Address> =
            (0..3).map(|worker| format!("10.0.0.{worker}:7").parse().unwrap()).collect();
        for (reason, done) in [(ENDED, true), (LEFT, false), ("connection reset", false)] {
            let members = Membership::new(2, Names::default(), addresses.clone());
            let mut state = RendezvousState::new(World::new(3, 2, 1).unwrap(), members);
            let all = addresses.iter().cloned().enumerate().collect();
            let then = state.receive(0, &Note::Table(1, all).encode()).unwrap();
            assert!(
                matches!(then, NextStep::Call(calls) if calls.len() == 1),
                "worker 1 is still to be linked"
            );
            match state.mark_lost(0, reason.to_owned()) {
                Ok(then) => assert!(done && then == NextStep::Keep, "{reason}"),
                Err(error) => assert!(!done && matches!(error, JoinError::Lost { worker: 0, .. }), "{error}"),
            }
        }
    }
}
