//! A queue of events in virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

/// Events in the order of their times. Events with the same time happen in the order of insertion.
#[derive(Debug)]
pub struct Agenda<E> {
    now: Duration,
    next: u64,
    all: BTreeMap<(Duration, u64), E>,
}

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Self { now: Duration::ZERO, next: 0, all: BTreeMap::new() }
    }
}

impl<E> Agenda<E> {
    /// Returns the time of the last event, since the beginning.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Inserts an event. An event in the past happens now.
    pub fn at(&mut self, time: Duration, event: E) {
        self.all.insert((time.max(self.now), self.next), event);
        self.next += 1;
    }

    /// Removes the next event, and advances the time to it.
    pub fn pop(&mut self) -> Option<E> {
        let ((time, _), event) = self.all.pop_first()?;
        self.now = time;
        Some(event)
    }
}
