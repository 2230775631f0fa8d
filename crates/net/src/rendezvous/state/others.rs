//! The knowledge of a worker about the other processes in an election, besides their answers: what they claim, which of
//! them it does not follow, and to which of them it cannot link.

use super::RendezvousState;
use crate::handshake::UnformedWorld;
use crate::rendezvous::JoinError;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The time after which a worker asks a process again that it had followed and has left.
const LEFT_FOR: Duration = Duration::from_secs(60);

/// The time for which a worker tries to link to all others of its world. It is longer than it takes to notice that one
/// of them is lost.
const LINKING: Duration = Duration::from_secs(10);

/// The knowledge about the other processes.
#[derive(Clone, Debug, Default)]
pub(super) struct Others {
    /// The generation that each process claims that has asked this one.
    claims: BTreeMap<usize, u64>,
    /// The processes that have accepted this one when it had enough followers.
    declined: BTreeSet<usize>,
    /// The leader that this worker has left, and the time.
    left: Option<(usize, Duration)>,
    /// The workers of the world to which this one has linked.
    linked: BTreeSet<usize>,
    /// The time at which this worker had the table of a world first.
    located: Option<Duration>,
}

impl Others {
    /// Records that a process has asked this one, and the generation that it claims.
    pub fn asks(&mut self, position: usize, generation: u64) {
        self.claims.insert(position, generation);
    }

    /// Returns whether a process that has asked this one claims a later generation.
    pub fn is_later(&self, position: usize, than: u64) -> bool {
        self.claims.get(&position).is_some_and(|generation| *generation > than)
    }

    /// Records that this worker does not follow a process that has accepted it.
    pub fn decline(&mut self, position: usize) {
        self.declined.insert(position);
    }

    /// Records that this worker has left its leader.
    pub fn leave(&mut self, leader: usize, now: Duration) {
        self.left = Some((leader, now));
    }

    /// Returns whether this worker has left the process at this position, which it therefore does not follow or lead.
    pub fn is_left(&self, position: usize, now: Duration) -> bool {
        self.left.is_some_and(|(left, since)| left == position && now.saturating_sub(since) < LEFT_FOR)
    }

    /// Records that a worker of the world has accepted a link.
    pub fn link(&mut self, position: usize) {
        self.linked.insert(position);
    }
}

impl RendezvousState {
    /// Returns whether this worker was a member or a spare of a world.
    pub(in crate::rendezvous) fn had_world(&self) -> bool {
        self.members.before().max(self.spare_of) > 0
    }

    /// Returns whether this worker leads enough processes in an election for a world.
    pub(super) fn has_enough(&self) -> bool {
        self.election.is_some()
            && self.leads()
            && self.members.connected().len() >= self.quorum.minimum.max(self.quorum.maximum)
    }

    /// Returns whether this worker, which has enough followers, does not ask a process that would lead it.
    pub(super) fn is_declined(&self, worker: usize) -> bool {
        self.has_enough()
            && self.others.declined.contains(&worker)
            && !self.others.is_later(worker, self.members.latest())
    }

    /// Returns the processes whose answers an elected leader with enough followers needs, because one of them may be in
    /// a later world. There is none if fewer processes than a world needs could be in one.
    pub(super) fn unheard(&self) -> BTreeSet<usize> {
        let Some(election) = self.election.as_ref().filter(|_| self.has_enough()) else {
            return BTreeSet::new();
        };
        if self.world.workers() - self.members.continuing() < self.quorum.minimum {
            return BTreeSet::new();
        }
        let is_unknown = |position: &usize| {
            !self.others.claims.contains_key(position) && !self.others.is_left(*position, self.now)
        };
        election.unheard(&self.members.connected()).into_iter().filter(is_unknown).collect()
    }

    /// Records the worker to which this one could not link for some time.
    pub(super) fn look_for_links(&mut self) {
        if self.election.is_none() || !self.has_table {
            self.others.located = None;
            return;
        }
        let since = *self.others.located.get_or_insert(self.now);
        if let (true, Some(unreached), Some(world)) =
            (self.now.saturating_sub(since) >= LINKING, self.unlinked(), self.members.unformed())
        {
            self.members.set_unformed(Some(UnformedWorld { unreached: Some(unreached), ..world }));
        }
    }

    /// Returns the first worker of the world to which this one has no link.
    fn unlinked(&self) -> Option<usize> {
        let (me, leader, connected) = (self.world.worker(), self.members.leader(), self.members.connected());
        let is_linked = |place: &usize| connected.contains(place) || self.others.linked.contains(place);
        let mut others = self.members.members().into_iter();
        others.find(|place| *place != me && Some(*place) != leader && !is_linked(place))
    }

    /// Returns the error of a worker that could not link to another one of its world for some time.
    pub(super) fn unreached(&self) -> Option<JoinError> {
        let worker = self.members.unformed().filter(|_| self.has_table)?.unreached?;
        let (task, address) = (self.members.task(worker), self.members.address(worker));
        let reason = format!("there was no link to it for {} s", LINKING.as_secs());
        Some(JoinError::Lost { worker, task, address, reason })
    }
}

#[cfg(test)]
mod tests;
