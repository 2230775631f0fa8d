//! The workers that are missing in a rendezvous, for reports and errors.

use super::{Call, RendezvousState};
use crate::rendezvous::Missing;

impl RendezvousState {
    /// Returns the workers that are missing, as far as this worker knows. The list is empty if this worker has all of
    /// its links. `calls` contains the connections that this worker has not made yet, each with the reason for its
    /// latest failure.
    pub fn missing<'a>(&self, calls: impl Iterator<Item = (&'a Call, Option<String>)>) -> Vec<Missing> {
        let is_located = self.is_located();
        if let (false, Some(reported)) = (is_located, &self.reported) {
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
        if self.election.is_some() && !self.has_table {
            return self.absent(called);
        }
        // Only the leader knows which other workers have joined.
        let connected = if is_located { self.members.missing() } else { Vec::new() };
        let missing: Vec<_> = called.chain(connected).collect();
        if missing.is_empty() && !is_located {
            return self.unlocated();
        }
        missing
    }

    /// Returns the leader, as a worker from which the table is missing.
    fn unlocated(&self) -> Vec<Missing> {
        let leader = self.members.leader().unwrap_or_default();
        let address = self.members.address(leader);
        let last = Some("joined, but the addresses of the others have not arrived".to_owned());
        vec![Missing { worker: leader, task: self.members.task(leader), address, last }]
    }

    /// Returns the workers that are missing in an election, before the table has arrived. A worker that leads, or that
    /// has no leader, misses all that have not connected, each with the reason for the latest failure of a call to it.
    fn absent(&self, called: impl Iterator<Item = Missing>) -> Vec<Missing> {
        if !self.leads() && self.members.leader().is_some() {
            return self.unlocated();
        }
        let mut missing = self.members.missing();
        for call in called {
            if let Some(one) = missing.iter_mut().find(|missing| missing.worker == call.worker) {
                (one.address, one.last) = (call.address, call.last.or(one.last.take()));
            }
        }
        missing
    }
}
