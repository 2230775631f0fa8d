//! The closures that have not ended, and the queue of those that are not assigned to a worker.

use crate::call::{Call, ClosureId};
use std::collections::{BTreeMap, BTreeSet};

/// The closures that have not ended.
#[derive(Debug, Default)]
pub(super) struct Closures {
    next: u64,
    all: BTreeMap<ClosureId, Closure>,
    /// The closures without a worker, oldest first. A requeued closure returns to its old position.
    queue: BTreeSet<ClosureId>,
}

#[derive(Debug)]
struct Closure {
    call: Call,
    /// The number of times that a worker disconnected while it ran the closure.
    losses: u32,
    /// The number of times that a parameter server did not answer during the closure.
    server_failures: u32,
}

impl Closures {
    pub fn add(&mut self, call: Call) -> ClosureId {
        let id = ClosureId(self.next);
        self.next += 1;
        self.all.insert(id, Closure { call, losses: 0, server_failures: 0 });
        self.queue.insert(id);
        id
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Returns the queued closures, oldest first.
    pub fn queue(&self) -> impl Iterator<Item = (ClosureId, &Call)> {
        self.queue.iter().filter_map(|id| Some((*id, &self.all.get(id)?.call)))
    }

    pub fn call(&self, id: ClosureId) -> Option<&Call> {
        Some(&self.all.get(&id)?.call)
    }

    /// Removes a closure from the queue, and returns its call.
    pub fn start(&mut self, id: ClosureId) -> Option<Call> {
        self.queue.remove(&id);
        self.call(id).cloned()
    }

    /// Returns a closure to the queue, because no worker runs it any longer.
    pub fn requeue(&mut self, id: ClosureId) {
        if self.all.contains_key(&id) {
            self.queue.insert(id);
        }
    }

    /// Records that the closure's worker has disconnected, and returns how often this has happened.
    pub fn count_loss(&mut self, id: ClosureId) -> u32 {
        self.all.get_mut(&id).map_or(0, |closure| {
            closure.losses += 1;
            closure.losses
        })
    }

    /// Records that a parameter server did not answer, and returns how often this has happened.
    pub fn server_failed(&mut self, id: ClosureId) -> u32 {
        self.all.get_mut(&id).map_or(0, |closure| {
            closure.server_failures += 1;
            closure.server_failures
        })
    }

    pub fn end(&mut self, id: ClosureId) -> Option<Call> {
        self.queue.remove(&id);
        Some(self.all.remove(&id)?.call)
    }

    /// Returns the oldest closure that has not ended. If all have ended, returns the next closure that will be
    /// scheduled.
    pub fn floor(&self) -> ClosureId {
        self.all.keys().next().copied().unwrap_or(ClosureId(self.next))
    }
}
