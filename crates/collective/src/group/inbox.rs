//! The frames received from other workers, until they are taken.

use super::{Frame, SessionId};
use crate::sync::{Mutex, MutexGuard, Signal, lock};
use distribute_cluster::Deadline;
use distribute_files::memory;
use distribute_net::{Drive, Message, Receiver, Transport};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The largest number of frames of one worker that wait in the sessions of a name. A worker that sends more is
/// disconnected: it does not run this program.
const MOST_FRAMES: usize = 512;

/// The largest number of names of sessions.
const MOST_NAMES: usize = 1024;

/// The share of the free memory of this process that frames may take: half.
const SHARE: usize = 2;

/// The time to wait while another thread moves bytes. That ends as soon as the thread has its own.
const TURN: Duration = Duration::from_millis(1);

/// The frames received from other workers, by session, until they are taken.
///
/// A worker that is ahead may send frames of a session that this one has not opened yet; they are kept. Frames of past
/// sessions are dropped. A worker is ahead by one round at most, so of each name an inbox holds no more than what the
/// others send in two rounds. If all frames that wait take more than half of the memory, the worker that has sent most
/// of them is lost.
#[derive(Clone)]
pub struct Inbox(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Signal,
}

struct State {
    /// The reason why each worker is unreachable, if it is.
    lost: Vec<Option<String>>,
    names: HashMap<u64, Sessions>,
    /// The size of the frames of each worker.
    waiting: Vec<usize>,
    /// The number of bytes that all of them may take.
    most: usize,
}

/// The sessions of one name.
#[derive(Default)]
struct Sessions {
    /// The number of the session opened last.
    current: u64,
    /// The frames of that session and of later ones.
    come: VecDeque<(usize, Frame)>,
}

/// An event that an inbox reports to a session.
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
        static MOST: OnceLock<usize> = OnceLock::new();
        Self::with_room(workers, *MOST.get_or_init(|| memory().map_or(usize::MAX, |bytes| bytes / SHARE)))
    }

    /// Creates an inbox for frames of this total size.
    fn with_room(workers: usize, most: usize) -> Self {
        let state =
            State { lost: vec![None; workers], names: HashMap::new(), waiting: vec![0; workers], most };
        Self(Arc::new(Shared { state: Mutex::new(state), changed: Signal::new() }))
    }

    /// Resets the inbox for a re-formed world: no worker is lost, no frame has arrived, no session is open.
    pub(super) fn renew(&self) {
        let mut state = lock(&self.0.state);
        let (workers, most) = (state.lost.len(), state.most);
        let empty =
            State { lost: vec![None; workers], names: HashMap::new(), waiting: vec![0; workers], most };
        let old = std::mem::replace(&mut *state, empty);
        drop(state);
        // Without the lock: frames may hold large buffers.
        drop(old);
    }

    /// Adds a frame received from a worker.
    pub fn add(&self, from: usize, frame: Frame) {
        let mut state = lock(&self.0.state);
        if !matches!(state.lost.get(from), Some(None)) {
            // It has sent too much before.
            return;
        }
        let name = frame.session.name;
        if state.names.len() >= MOST_NAMES && !state.names.contains_key(&name) {
            return self.lose_now(state, from, "it opens sessions that nobody else has".into());
        }
        let sessions = state.names.entry(name).or_default();
        if frame.session.number < sessions.current {
            return;
        }
        let is_full = |all: &VecDeque<(usize, Frame)>| {
            all.len() >= MOST_FRAMES
                && all.iter().filter(|(worker, _)| *worker == from).count() >= MOST_FRAMES
        };
        if is_full(&sessions.come) {
            return self.lose_now(
                state,
                from,
                format!("it has sent {MOST_FRAMES} messages that nobody takes"),
            );
        }
        let weight = frame.weight();
        sessions.come.push_back((from, frame));
        state.waiting[from] = state.waiting[from].saturating_add(weight);
        let refused = state.overflow();
        self.0.changed.notify(&mut *state);
        drop(state);
        // Without the lock: frames may hold large buffers.
        drop(refused);
    }

    /// Records that a worker has become unreachable. Only the first reason is kept.
    pub fn lose(&self, worker: usize, reason: impl Into<String>) {
        self.lose_now(lock(&self.0.state), worker, reason.into());
    }

    fn lose_now(&self, mut state: MutexGuard<'_, State>, worker: usize, reason: String) {
        if let Some(lost @ None) = state.lost.get_mut(worker) {
            *lost = Some(reason);
            self.0.changed.notify(&mut *state);
        }
    }

    /// Returns the reason why a worker can't be reached any more, if so.
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

    /// Opens a session of a name by its number, where there was none of that number or a later one. What came for
    /// earlier ones is dropped.
    pub fn open_at(&self, name: u64, number: u64) -> SessionId {
        // Dropped without the lock: frames may hold large buffers.
        let _earlier: VecDeque<_>;
        let mut state = lock(&self.0.state);
        let sessions = state.names.entry(name).or_default();
        sessions.current = number;
        let (kept, earlier): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut sessions.come).into_iter().partition(|(_, f)| f.session.number >= number);
        sessions.come = kept;
        earlier.iter().for_each(|(from, frame)| state.release(*from, frame));
        _earlier = earlier;
        drop(state);
        SessionId { name, number }
    }

    /// Waits for the next event of a session, and moves bytes if the transport has to be polled. `known` says for
    /// each worker whether its loss has already been reported.
    pub fn next(
        &self,
        session: SessionId,
        known: &[bool],
        deadline: &mut Deadline,
        transport: &dyn Transport,
    ) -> Event {
        loop {
            if let Some(event) = self.poll(session, known) {
                return event;
            }
            if deadline.has_passed() {
                return Event::Expired;
            }
            let drive = transport.drive(deadline.look(), &|| lock(&self.0.state).has(session, known));
            deadline.look();
            let turn = &mut Deadline::after(TURN);
            let deadline = match drive {
                Drive::Delivered | Drive::Nothing => continue,
                Drive::Elsewhere => turn,
                Drive::Never => &mut *deadline,
            };
            let mut state = lock(&self.0.state);
            if let Some(event) = state.take(session, known) {
                return event;
            }
            state = self.0.changed.wait(state, deadline);
            drop(state);
        }
    }

    /// The next event of a session, if there is one already.
    pub fn poll(&self, session: SessionId, known: &[bool]) -> Option<Event> {
        lock(&self.0.state).take(session, known)
    }
}

impl Receiver for Inbox {
    fn deliver(&self, from: usize, message: Message) {
        match Frame::decode(&message.head, message.body) {
            Ok(frame) => self.add(from, frame),
            Err(error) => self.lose(from, format!("its message cannot be read: {error}")),
        }
    }

    fn lose(&self, worker: usize, reason: String) {
        Inbox::lose(self, worker, reason);
    }
}

impl State {
    /// A frame of a worker waits no more.
    fn release(&mut self, from: usize, frame: &Frame) {
        if let Some(waiting) = self.waiting.get_mut(from) {
            *waiting = waiting.saturating_sub(frame.weight());
        }
    }

    /// Disconnects the worker whose frames take most, if frames take more than they may, and returns its frames,
    /// which are dropped.
    fn overflow(&mut self) -> Vec<(usize, Frame)> {
        // INV-28
        let sum = self.waiting.iter().fold(0, |sum: usize, waiting| sum.saturating_add(*waiting));
        let most = self.waiting.iter().enumerate().max_by_key(|(_, waiting)| **waiting);
        let Some((worker, bytes)) = most.filter(|_| sum > self.most).map(|(worker, bytes)| (worker, *bytes))
        else {
            return Vec::new();
        };
        if let Some(lost @ None) = self.lost.get_mut(worker) {
            *lost = Some(format!(
                "it has sent {bytes} bytes that nobody takes, and half of the memory, {} bytes, is what such messages may take",
                self.most
            ));
        }
        self.waiting[worker] = 0;
        let mut refused = Vec::new();
        for sessions in self.names.values_mut() {
            let (theirs, kept): (VecDeque<_>, VecDeque<_>) =
                std::mem::take(&mut sessions.come).into_iter().partition(|(from, _)| *from == worker);
            sessions.come = kept;
            refused.extend(theirs);
        }
        refused
    }

    /// Whether [`take`](Self::take) would give something.
    fn has(&self, session: SessionId, known: &[bool]) -> bool {
        let come = self.names.get(&session.name).map(|sessions| &sessions.come);
        come.is_some_and(|come| come.iter().any(|(_, frame)| frame.session == session))
            || self.lost.iter().zip(known).any(|(reason, known)| reason.is_some() && !known)
    }

    fn take(&mut self, session: SessionId, known: &[bool]) -> Option<Event> {
        if let Some(sessions) = self.names.get_mut(&session.name)
            && let Some(at) = sessions.come.iter().position(|(_, frame)| frame.session == session)
        {
            let (from, frame) = sessions.come.remove(at)?;
            self.release(from, &frame);
            return Some(Event::Frame(from, frame));
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
pub(super) mod tests {
    use super::super::Said;
    use super::*;

    /// The transport of these tests, which moves nothing.
    #[derive(Debug)]
    pub(in super::super) struct Still;

    impl Transport for Still {
        fn send(&self, _to: usize, _message: Message) {}
        fn drive(&self, _patience: Duration, _is_there: &dyn Fn() -> bool) -> Drive {
            Drive::Never
        }
        fn close(&self) {}
    }

    fn frame(session: SessionId, round: u64) -> Frame {
        Frame { session, round, said: Said::Left { standings: Vec::new() } }
    }

    #[test]
    fn frames_of_sessions_that_are_over_are_dropped_and_of_later_ones_kept() {
        let inbox = Inbox::new(2);
        let (none, mut now) = ([false; 2], Deadline::after(Duration::ZERO));
        let first = inbox.open(7);
        let second = SessionId { number: first.number + 1, ..first };
        inbox.add(1, frame(second, 1));
        inbox.add(1, frame(first, 1));
        inbox.add(1, frame(first, 2));
        assert_eq!(inbox.next(first, &none, &mut now, &Still), Event::Frame(1, frame(first, 1)));
        assert_eq!(inbox.open(7), second);
        inbox.add(1, frame(first, 3));
        assert_eq!(inbox.next(second, &none, &mut now, &Still), Event::Frame(1, frame(second, 1)));
        assert_eq!(inbox.next(second, &none, &mut now, &Still), Event::Expired);
        assert_eq!(inbox.open(8).number, 1);
    }

    #[test]
    fn a_loss_is_told_after_what_came_before_it_and_once() {
        let inbox = Inbox::new(3);
        let mut now = Deadline::after(Duration::ZERO);
        let session = inbox.open(1);
        inbox.add(2, frame(session, 1));
        inbox.lose(2, "connection reset");
        inbox.lose(2, "again");
        assert_eq!(inbox.next(session, &[false; 3], &mut now, &Still), Event::Frame(2, frame(session, 1)));
        assert_eq!(
            inbox.next(session, &[false; 3], &mut now, &Still),
            Event::Lost(2, "connection reset".into())
        );
        assert_eq!(inbox.next(session, &[false, false, true], &mut now, &Still), Event::Expired);
    }

    #[test]
    fn a_worker_that_sends_what_nobody_takes_is_lost_and_no_memory_with_it() {
        let inbox = Inbox::new(3);
        let session = inbox.open(1);
        for round in 0..1_000 {
            inbox.add(1, frame(SessionId { name: round, number: 1 }, 1));
            inbox.add(2, frame(session, round));
        }
        assert_eq!(inbox.lost(1), None);
        assert!(inbox.lost(2).unwrap().contains("512 messages that nobody takes"));
        for name in 0..100 {
            inbox.add(1, frame(SessionId { name: 5_000 + name, number: 1 }, 1));
        }
        assert!(inbox.lost(1).unwrap().contains("sessions that nobody else has"));
        assert!(format!("{inbox:?}").contains("1536 frames"), "{inbox:?}");
    }

    // INV-28
    #[test]
    fn frames_that_nobody_takes_have_so_many_bytes_and_the_worker_that_sends_most_is_lost() {
        let inbox = Inbox::with_room(3, 10 << 20);
        let large = |name: u64, bytes: usize| Frame {
            session: SessionId { name, number: 1 },
            round: 1,
            said: Said::Early { part: 0, body: vec![0; bytes].into() },
        };
        let waiting = || lock(&inbox.0.state).waiting.clone();
        let open = inbox.open(7);
        inbox.add(2, large(7, 1 << 20));
        // Few frames, of sessions that nobody opens.
        for name in 100..200 {
            inbox.add(1, large(name, 1 << 20));
        }
        let why = inbox.lost(1).unwrap();
        assert!(why.starts_with("it has sent ") && why.contains("bytes that nobody takes"), "{why}");
        assert_eq!(waiting()[1], 0);
        assert!(format!("{inbox:?}").contains(" 1 frames"), "{inbox:?}");
        // The other one is there, and what has been taken counts no more.
        for _ in 0..100 {
            assert!(matches!(inbox.poll(open, &[false; 3]), Some(Event::Frame(2, _))));
            inbox.add(2, large(7, 9 << 20));
        }
        assert_eq!(inbox.lost(2), None);
        // Nor does what an opened session has left behind.
        inbox.open(7);
        assert_eq!(waiting(), [0, 0, 0]);
        inbox.add(2, large(7, 1 << 20));
        inbox.renew();
        assert_eq!((waiting(), inbox.lost(1)), (vec![0, 0, 0], None));
    }
}
