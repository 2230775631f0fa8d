//! The leader that a worker follows in an election.

use super::{Call, RendezvousState};
use crate::handshake::Purpose;
use crate::rendezvous::note::Note;
use distribute_cluster::Address;

impl RendezvousState {
    /// Processes a connection that another worker has accepted. Returns the workers whose links must be closed before;
    /// `None` if the new one must be closed instead, because this worker already follows another leader.
    pub fn accepted(&mut self, call: &Call) -> Option<Vec<usize>> {
        if self.election.is_none() || call.purpose == Purpose::Link {
            return Some(Vec::new());
        }
        let rises = self.better == Some(call.worker) && !self.is_held;
        if self.has_table || (self.follows() && !rises) {
            return None;
        }
        let is_other = |worker: &usize| *worker != self.world.worker() && *worker != call.worker;
        let connected = self.members.connected().into_iter().chain(self.members.leader());
        let closed = connected.filter(is_other).collect();
        self.members.follow(Some(call.worker));
        (self.leader_at, self.leader_precedence, self.better) = (Some(call.address.clone()), None, None);
        self.reported = None;
        Some(closed)
    }

    /// Returns whether this worker follows an elected leader.
    pub(super) fn follows(&self) -> bool {
        !self.leads() && self.members.leader().is_some()
    }

    /// Returns the note that an elected leader sends to each worker that it has accepted, so that the worker can follow
    /// another one that precedes the leader; `None` if the first worker leads.
    pub fn precedence(&self) -> Option<Note> {
        self.election.as_ref().map(|_| Note::Leads(self.members.before()))
    }

    /// Records that a process has sent this one to the leader that it follows.
    pub fn sent_elsewhere(&mut self, position: usize, address: &Address) {
        if let Some(election) = &mut self.election {
            election.learn(position, address);
            election.suspect(position);
        }
    }
}
