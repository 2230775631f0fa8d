//! A queue of events in virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

/// A queue of events in the order of their times. Events with the same time are handled in the order of insertion.
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
    /// Returns the current virtual time: the time of the last event that was removed.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Inserts an event. If `time` is in the past, the event is scheduled for the current time.
    pub fn at(&mut self, time: Duration, event: E) {
        self.all.insert((time.max(self.now), self.next), event);
        self.next += 1;
    }

    /// Removes the next event, and advances the virtual time to the time of this event. Returns `None` if the queue is
    /// empty.
    pub fn pop(&mut self) -> Option<E> {
        let ((time, _), event) = self.all.pop_first()?;
        self.now = time;
        Some(event)
    }
}
