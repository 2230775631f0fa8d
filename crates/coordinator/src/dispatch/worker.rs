//! What one worker has been given.

use crate::call::ClosureId;
use std::collections::{BTreeSet, VecDeque};

/// One worker.
#[derive(Debug, Default)]
pub(super) struct Worker {
    /// Whether it is there.
    pub is_there: bool,
    /// The closures that it has. It runs the first one.
    pub had: VecDeque<ClosureId>,
    /// How many closures had ended, on whichever worker, when it began the one that it runs.
    pub began_at: u64,
    /// How long its closures run.
    pub pace: Pace,
    /// Those that it was asked, or is to be asked, to give back.
    asked_back: BTreeSet<ClosureId>,
    to_return: Vec<ClosureId>,
    to_cancel: Vec<ClosureId>,
}

/// How long closures run on the average, the later ones counting more.
#[derive(Debug, Default)]
pub(super) struct Pace(Option<u64>);

impl Worker {
    /// How many closures wait that it was not asked to give back.
    pub fn waiting(&self) -> usize {
        self.had.iter().skip(1).filter(|id| !self.asked_back.contains(id)).count()
    }

    /// Asks for the later half of those that wait.
    pub fn ask_back(&mut self) {
        let count = self.waiting().div_ceil(2);
        let waiting = self.had.iter().skip(1).rev().filter(|id| !self.asked_back.contains(id));
        let back: Vec<_> = waiting.take(count).copied().collect();
        self.asked_back.extend(&back);
        self.to_return.extend(back);
    }

    /// Cancels what it runs, and asks for the others. They are cancelled, too: it may begin them before it is asked.
    pub fn cancel(&mut self) {
        self.to_cancel.extend(&self.had);
        while self.waiting() > 0 {
            self.ask_back();
        }
    }

    /// It gets one more, when so many have ended.
    pub fn give(&mut self, closure: ClosureId, ended: u64) {
        if self.had.is_empty() {
            self.began_at = ended;
        }
        self.had.push_back(closure);
    }

    /// It has no more to do with this one. Says whether it had.
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
    /// One has run for so long.
    pub fn add(&mut self, micros: u64) {
        self.0 = Some(self.0.map_or(micros, |mean| (7 * mean).saturating_add(micros) / 8));
    }

    /// Whether closures are over so soon that the way to the worker counts.
    pub fn is_quick(&self) -> bool {
        self.0.is_some_and(|micros| micros < 2000)
    }
}
