//! The work of one worker.

use crate::call::ClosureId;
use std::collections::{BTreeSet, VecDeque};

/// The state of one worker.
#[derive(Debug, Default)]
pub(super) struct Worker {
    /// Whether the worker is connected.
    pub is_there: bool,
    /// The closures of the worker. It runs the first one.
    pub had: VecDeque<ClosureId>,
    /// The number of executions that had ended on all workers when the current closure began.
    pub began_at: u64,
    /// The average duration of its closures.
    pub pace: Pace,
    /// The closures that the worker was asked, or is to be asked, to return.
    asked_back: BTreeSet<ClosureId>,
    to_return: Vec<ClosureId>,
    to_cancel: Vec<ClosureId>,
}

/// The moving average of the duration of closures.
#[derive(Debug, Default)]
pub(super) struct Pace(Option<u64>);

impl Worker {
    /// Returns the number of waiting closures that the worker was not asked to return.
    pub fn waiting(&self) -> usize {
        self.had.iter().skip(1).filter(|id| !self.asked_back.contains(id)).count()
    }

    /// Asks the worker to return the later half of its waiting closures.
    pub fn ask_back(&mut self) {
        let count = self.waiting().div_ceil(2);
        let waiting = self.had.iter().skip(1).rev().filter(|id| !self.asked_back.contains(id));
        let back: Vec<_> = waiting.take(count).copied().collect();
        self.asked_back.extend(&back);
        self.to_return.extend(back);
    }

    /// Cancels the running closure, and asks for the others. These are cancelled as well, because the worker
    /// may begin them before it receives the request.
    pub fn cancel(&mut self) {
        self.to_cancel.extend(&self.had);
        while self.waiting() > 0 {
            self.ask_back();
        }
    }

    /// Assigns a closure to the worker. `ended` is the number of executions that have ended.
    pub fn give(&mut self, closure: ClosureId, ended: u64) {
        if self.had.is_empty() {
            self.began_at = ended;
        }
        self.had.push_back(closure);
    }

    /// Removes a closure from the worker. Returns whether the worker had it.
    pub fn give_up(&mut self, closure: ClosureId) -> bool {
        self.asked_back.remove(&closure);
        let at = self.had.iter().position(|id| *id == closure);
        at.and_then(|at| self.had.remove(at)).is_some()
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
    /// Adds the duration of an execution.
    pub fn add(&mut self, micros: u64) {
        self.0 = Some(self.0.map_or(micros, |mean| (7 * mean).saturating_add(micros) / 8));
    }

    /// Returns whether closures are so short that the round trip to the worker matters.
    pub fn is_quick(&self) -> bool {
        self.0.is_some_and(|micros| micros < 2000)
    }
}
