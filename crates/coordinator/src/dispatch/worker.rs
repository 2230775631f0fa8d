//! The closures that are assigned to one worker.

use crate::call::ClosureId;
use std::collections::{BTreeSet, VecDeque};

/// The closures that are assigned to one worker, and the messages to send to it.
#[derive(Debug, Default)]
pub(super) struct Worker {
    pub is_connected: bool,
    /// The assigned closures, of which the worker runs the first.
    pub assigned: VecDeque<ClosureId>,
    /// The sum over all workers of the executions that had ended when the current closure began.
    pub began_at: u64,
    /// The average duration of the worker's closures.
    pub pace: Pace,
    /// The closures that the worker must return, even if the request was not sent yet.
    reclaimed: BTreeSet<ClosureId>,
    to_return: Vec<ClosureId>,
    to_cancel: Vec<ClosureId>,
}

/// The moving average of the duration of closures, in microseconds.
#[derive(Debug, Default)]
pub(super) struct Pace(Option<u64>);

impl Worker {
    /// Returns the number of closures that wait on the worker and need not be returned.
    pub fn waiting(&self) -> usize {
        self.assigned.iter().skip(1).filter(|id| !self.reclaimed.contains(id)).count()
    }

    /// Takes back the later half of the closures that wait on the worker.
    pub fn reclaim(&mut self) {
        let count = self.waiting().div_ceil(2);
        let waiting = self.assigned.iter().skip(1).rev().filter(|id| !self.reclaimed.contains(id));
        let back: Vec<_> = waiting.take(count).copied().collect();
        self.reclaimed.extend(&back);
        self.to_return.extend(back);
    }

    /// Cancels the running closure, and takes back the others. These are cancelled as well, because the worker may
    /// begin them before it receives the request to return them.
    pub fn cancel(&mut self) {
        self.to_cancel.extend(&self.assigned);
        while self.waiting() > 0 {
            self.reclaim();
        }
    }

    /// Assigns a closure to the worker. `ended` is the sum over all workers of the executions that have
    /// ended.
    pub fn assign(&mut self, closure: ClosureId, ended: u64) {
        if self.assigned.is_empty() {
            self.began_at = ended;
        }
        self.assigned.push_back(closure);
    }

    /// Removes a closure from the worker. Returns whether the closure was assigned to the worker.
    pub fn unassign(&mut self, closure: ClosureId) -> bool {
        self.reclaimed.remove(&closure);
        let at = self.assigned.iter().position(|id| *id == closure);
        at.and_then(|at| self.assigned.remove(at)).is_some()
    }

    pub fn has_messages(&self) -> bool {
        !self.to_return.is_empty() || !self.to_cancel.is_empty()
    }

    pub fn take_returning(&mut self) -> std::vec::Drain<'_, ClosureId> {
        self.to_return.drain(..)
    }

    pub fn take_cancelled(&mut self) -> std::vec::Drain<'_, ClosureId> {
        self.to_cancel.drain(..)
    }
}

impl Pace {
    /// Adds the duration of an execution, in microseconds, to the average.
    pub fn add(&mut self, micros: u64) {
        self.0 = Some(self.0.map_or(micros, |mean| (7 * mean).saturating_add(micros) / 8));
    }

    /// Returns whether closures are so short that the time for a message to the worker matters.
    pub fn is_quick(&self) -> bool {
        self.0.is_some_and(|micros| micros < 2000)
    }
}
