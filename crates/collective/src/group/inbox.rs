//! The frames received from other workers, until they are taken.

use super::{Frame, SessionId};
use crate::sync::{Mutex, Signal, lock};
use distribute_cluster::Deadline;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// The frames received from other workers, by session, until they are taken.
///
/// A worker that is ahead may send frames of a session that this one has not opened yet; they are kept. Frames of past
/// sessions are dropped. A worker is ahead by one round at most, so of each name an inbox holds no more than what the others
/// send in two rounds.
#[derive(Clone)]
pub struct Inbox(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Signal,
}

struct State {
    /// For each worker, why it is unreachable, if it is.
    lost: Vec<Option<String>>,
    names: HashMap<u64, Sessions>,
}

/// The sessions of one name.
#[derive(Default)]
struct Sessions {
    /// The number of the session opened last.
    current: u64,
    /// The frames of that session and of later ones.
    come: VecDeque<(usize, Frame)>,
}

/// What an inbox reports to a session.
#[derive(Debug, PartialEq)]
pub enum Event {
    /// A frame from a worker.
    Frame(usize, Frame),
    /// A worker has become unreachable, and all of its frames have been taken.
    Lost(usize, String),
    /// The deadline has passed.
    Expired,
}

impl Inbox {
    /// An empty inbox, for frames from `workers` workers.
    pub fn new(workers: usize) -> Self {
        let state = State { lost: vec![None; workers], names: HashMap::new() };
        Self(Arc::new(Shared { state: Mutex::new(state), changed: Signal::new() }))
    }

    /// Adds a frame received from a worker.
    pub fn deliver(&self, from: usize, frame: Frame) {
        let mut state = lock(&self.0.state);
        let sessions = state.names.entry(frame.session.name).or_default();
        if frame.session.number >= sessions.current {
            sessions.come.push_back((from, frame));
            self.0.changed.notify(&mut *state);
        }
    }

    /// Records that a worker has become unreachable. Only the first reason is kept.
    pub fn lose(&self, worker: usize, reason: impl Into<String>) {
        let mut state = lock(&self.0.state);
        if let Some(lost @ None) = state.lost.get_mut(worker) {
            *lost = Some(reason.into());
            self.0.changed.notify(&mut *state);
        }
    }

    /// Why a worker can't be reached any more, if so.
    pub fn lost(&self, worker: usize) -> Option<String> {
        lock(&self.0.state).lost.get(worker).cloned().flatten()
    }

    /// The number that the next session of a name has.
    pub fn next_number(&self, name: u64) -> u64 {
        lock(&self.0.state).names.get(&name).map_or(1, |sessions| sessions.current.saturating_add(1))
    }

    /// Opens the next session of a name. Frames of earlier ones are dropped.
    pub fn open(&self, name: u64) -> SessionId {
        self.open_at(name, self.next_number(name))
    }

    /// Opens a session of a name by its number, where there was none of that number or a later one. What came for earlier ones
    /// is dropped.
    pub fn open_at(&self, name: u64, number: u64) -> SessionId {
        // Dropped without the lock: frames may hold large buffers.
        let _earlier: VecDeque<_>;
        let mut state = lock(&self.0.state);
        let sessions = state.names.entry(name).or_default();
        sessions.current = number;
        let (kept, earlier) =
            std::mem::take(&mut sessions.come).into_iter().partition(|(_, f)| f.session.number >= number);
        sessions.come = kept;
        _earlier = earlier;
        drop(state);
        SessionId { name, number }
    }

    /// Waits for the next event of a session. `known` tells for each worker whether its loss has already been reported.
    pub fn next(&self, session: SessionId, known: &[bool], deadline: &mut Deadline) -> Event {
        let mut state = lock(&self.0.state);
        loop {
            if let Some(event) = state.take(session, known) {
                return event;
            }
            if deadline.has_passed() {
                return Event::Expired;
            }
            state = self.0.changed.wait(state, deadline);
        }
    }

    /// The next event of a session, if there is one already.
    pub fn poll(&self, session: SessionId, known: &[bool]) -> Option<Event> {
        lock(&self.0.state).take(session, known)
    }
}

impl State {
    fn take(&mut self, session: SessionId, known: &[bool]) -> Option<Event> {
        if let Some(sessions) = self.names.get_mut(&session.name)
            && let Some(at) = sessions.come.iter().position(|(_, frame)| frame.session == session)
        {
            return sessions.come.remove(at).map(|(from, frame)| Event::Frame(from, frame));
        }
        let mut lost = self.lost.iter().zip(known).enumerate();
        lost.find_map(|(worker, (reason, known))| match reason {
            Some(reason) if !known => Some(Event::Lost(worker, reason.clone())),
            _ => None,
        })
    }
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = lock(&self.0.state);
        let waiting: usize = state.names.values().map(|sessions| sessions.come.len()).sum();
        write!(f, "Inbox({} workers, {waiting} frames)", state.lost.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Said;
    use super::*;
    use std::time::Duration;

    fn frame(session: SessionId, round: u64) -> Frame {
        Frame { session, round, said: Said::Left { standings: Vec::new() } }
    }

    #[test]
    fn frames_of_sessions_that_are_over_are_dropped_and_of_later_ones_kept() {
        let inbox = Inbox::new(2);
        let (none, mut now) = ([false; 2], Deadline::after(Duration::ZERO));
        let first = inbox.open(7);
        let second = SessionId { number: first.number + 1, ..first };
        inbox.deliver(1, frame(second, 1));
        inbox.deliver(1, frame(first, 1));
        inbox.deliver(1, frame(first, 2));
        assert_eq!(inbox.next(first, &none, &mut now), Event::Frame(1, frame(first, 1)));
        assert_eq!(inbox.open(7), second);
        inbox.deliver(1, frame(first, 3));
        assert_eq!(inbox.next(second, &none, &mut now), Event::Frame(1, frame(second, 1)));
        assert_eq!(inbox.next(second, &none, &mut now), Event::Expired);
        assert_eq!(inbox.open(8).number, 1);
    }

    #[test]
    fn a_loss_is_told_after_what_came_before_it_and_once() {
        let inbox = Inbox::new(3);
        let mut now = Deadline::after(Duration::ZERO);
        let session = inbox.open(1);
        inbox.deliver(2, frame(session, 1));
        inbox.lose(2, "connection reset");
        inbox.lose(2, "again");
        assert_eq!(inbox.next(session, &[false; 3], &mut now), Event::Frame(2, frame(session, 1)));
        assert_eq!(inbox.next(session, &[false; 3], &mut now), Event::Lost(2, "connection reset".into()));
        assert_eq!(inbox.next(session, &[false, false, true], &mut now), Event::Expired);
    }
}
