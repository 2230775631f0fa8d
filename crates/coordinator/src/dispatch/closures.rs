//! The closures that have not ended, and the queue of those that run nowhere.

use crate::call::{Call, ClosureId};
use std::collections::{BTreeMap, BTreeSet};

/// The closures that have not ended.
#[derive(Debug, Default)]
pub(super) struct Closures {
    next: u64,
    all: BTreeMap<ClosureId, Closure>,
    /// Those that run nowhere, the oldest first: one that is put back stands where it stood.
    queue: BTreeSet<ClosureId>,
}

#[derive(Debug)]
struct Closure {
    call: Call,
    /// How many workers were lost that ran it.
    losses: u32,
    /// How often a parameter server did not answer it.
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

    /// Those of the queue, the oldest first.
    pub fn queue(&self) -> impl Iterator<Item = (ClosureId, &Call)> {
        self.queue.iter().filter_map(|id| Some((*id, &self.all.get(id)?.call)))
    }

    pub fn call(&self, id: ClosureId) -> Option<&Call> {
        Some(&self.all.get(&id)?.call)
    }

    /// Takes one out of the queue.
    pub fn start(&mut self, id: ClosureId) -> Option<Call> {
        self.queue.remove(&id);
        self.call(id).cloned()
    }

    /// Puts one back that runs nowhere any more.
    pub fn put_back(&mut self, id: ClosureId) {
        if self.all.contains_key(&id) {
            self.queue.insert(id);
        }
    }

    /// Its worker was lost; says how many were.
    pub fn lost(&mut self, id: ClosureId) -> u32 {
        self.all.get_mut(&id).map_or(0, |closure| {
            closure.losses += 1;
            closure.losses
        })
    }

    /// A parameter server did not answer it; says how often.
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

    /// All before it have ended.
    pub fn floor(&self) -> ClosureId {
        self.all.keys().next().copied().unwrap_or(ClosureId(self.next))
    }
}
