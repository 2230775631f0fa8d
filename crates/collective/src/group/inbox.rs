//! The inbox of a worker: received frames, stored until a session takes them.

// - INV-28: frames that a worker has received and not consumed take at most half of the memory; beyond that, the
//   worker that has sent most of them is lost. Early vectors of later calls are included. Tests:
//   `collective/src/group/inbox.rs`, `collective/src/group/early.rs`.

use super::frame::DecodeError;
use super::{Frame, Loss, SessionId};
use crate::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, Signal, lock};
use distribute_cluster::Deadline;
use distribute_files::memory;
use distribute_net::{Message, PollOutcome, Receiver, Transport};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The maximum number of frames from one worker that wait in the sessions of one name. A worker that sends more is not
/// running the same program, and is disconnected.
const MAX_FRAMES: usize = 512;

/// The maximum number of different session names.
const MAX_NAMES: usize = 1024;

/// The maximum share of the memory of the machine or container for frames in the inbox is 1 divided by this number.
const MEMORY_FRACTION: usize = 2;

/// The maximum time to wait while another thread polls the transport. That thread stops polling once it has received
/// its own frame.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The frames received from other workers, stored by session until they are taken.
///
/// Another worker may send frames of a session that this worker has not opened yet; they are kept. Frames of past
/// sessions are dropped. A worker that sends more frames than a correct program is disconnected. If all stored frames
/// occupy more than half of the memory, the worker whose frames occupy the most is disconnected, and its frames are
/// dropped.
#[derive(Clone)]
pub struct Inbox(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Signal,
    /// The number of frames and losses that were added since the start.
    events: AtomicU64,
    /// Whether each worker has sent a message with checksums. All of its later messages must then have them.
    has_sums: Box<[AtomicBool]>,
}

struct State {
    /// The reason why each worker is unreachable; `None` for a worker that is reachable.
    lost: Vec<Option<Loss>>,
    /// The sessions by their name, which is a digest. Even if all collide, there are only [`MAX_NAMES`].
    names: FxHashMap<u64, Sessions>,
    /// The total size in bytes of the stored frames of each worker.
    waiting: Vec<usize>,
    /// The maximum total size in bytes of the stored frames.
    most: usize,
}

/// The sessions of one name: their count, and the frames of the latest ones.
#[derive(Default)]
struct Sessions {
    /// The number of the session that was opened last.
    current: u64,
    /// The frames of the session that was opened last, and of later sessions.
    frames: VecDeque<(usize, Frame)>,
}

/// An event for which a session waits.
#[derive(Debug, PartialEq)]
pub enum Event {
    /// A frame from a worker.
    Frame(usize, Frame),
    /// A worker is unreachable, and all of its frames for the session have been taken.
    Lost(usize, Loss),
    /// The deadline has passed.
    Expired,
}

impl Inbox {
    /// Creates an empty inbox, for frames from `workers` workers.
    pub fn new(workers: usize) -> Self {
        static MAX: OnceLock<usize> = OnceLock::new();
        Self::with_capacity(
            workers,
            *MAX.get_or_init(|| memory().map_or(usize::MAX, |bytes| bytes / MEMORY_FRACTION)),
        )
    }

    /// Creates an inbox for frames of at most `most` bytes in total.
    fn with_capacity(workers: usize, most: usize) -> Self {
        let has_sums = (0..workers).map(|_| AtomicBool::new(false)).collect();
        let state = Mutex::new(State::new(workers, most));
        Self(Arc::new(Shared { state, changed: Signal::new(), events: AtomicU64::new(0), has_sums }))
    }

    /// Resets the inbox for the new world of a re-formed group: no worker is lost, no frame is stored, and no session
    /// is open.
    pub(super) fn reset(&self) {
        let mut state = lock(&self.0.state);
        let empty = State::new(state.lost.len(), state.most);
        let old = std::mem::replace(&mut *state, empty);
        self.0.has_sums.iter().for_each(|has_sums| has_sums.store(false, Ordering::Relaxed));
        drop(state);
        // Without the lock: frames may hold large buffers.
        drop(old);
    }

    /// Adds a frame received from a worker. A frame of a past session or of a disconnected worker is dropped.
    ///
    /// The worker is disconnected if it has too many frames, or if the frame would add too many session names. If all
    /// stored frames are too large, the worker whose frames occupy the most is disconnected, even if it is not `from`.
    pub fn add(&self, from: usize, frame: Frame) {
        let mut state = lock(&self.0.state);
        if !matches!(state.lost.get(from), Some(None)) {
            // The worker is already lost.
            return;
        }
        let name = frame.session.name;
        if state.names.len() >= MAX_NAMES && !state.names.contains_key(&name) {
            return self.disconnect(state, from, "it opens sessions that no other worker has".into());
        }
        let sessions = state.names.entry(name).or_default();
        if frame.session.number < sessions.current {
            return;
        }
        let is_full = |all: &VecDeque<(usize, Frame)>| {
            all.len() >= MAX_FRAMES && all.iter().filter(|(worker, _)| *worker == from).count() >= MAX_FRAMES
        };
        if is_full(&sessions.frames) {
            return self.disconnect(
                state,
                from,
                format!("it has sent {MAX_FRAMES} messages that no session receives").into(),
            );
        }
        let memory_size = frame.memory_size();
        sessions.frames.push_back((from, frame));
        state.waiting[from] = state.waiting[from].saturating_add(memory_size);
        let refused = state.overflow();
        self.notify(&mut state);
        drop(state);
        // Without the lock: frames may hold large buffers.
        drop(refused);
    }

    /// Records that a worker has become unreachable. Only the first reason is kept.
    pub fn mark_lost(&self, worker: usize, reason: impl Into<Loss>) {
        self.disconnect(lock(&self.0.state), worker, reason.into());
    }

    fn disconnect(&self, mut state: MutexGuard<'_, State>, worker: usize, reason: Loss) {
        if let Some(lost @ None) = state.lost.get_mut(worker) {
            *lost = Some(reason);
            self.notify(&mut state);
        }
    }

    fn notify(&self, state: &mut MutexGuard<'_, State>) {
        self.0.events.fetch_add(1, Ordering::Release);
        self.0.changed.notify(&mut **state);
    }

    /// Returns the number of frames and losses that were added since the start. While it is unchanged, no session has
    /// an event that it did not have before. Reading it needs no lock.
    pub(super) fn events(&self) -> u64 {
        self.0.events.load(Ordering::Acquire)
    }

    /// Returns whether [`poll`](Self::poll) would return an event.
    pub(super) fn has_event(&self, session: SessionId, lost_seen: &[bool]) -> bool {
        lock(&self.0.state).has_event(session, lost_seen)
    }

    /// Returns the reason why a worker is unreachable; `None` if it is reachable.
    pub fn lost(&self, worker: usize) -> Option<String> {
        lock(&self.0.state).lost.get(worker).and_then(Option::as_ref).map(Loss::to_string)
    }

    /// Returns the sequence number of the next session with this name.
    pub fn next_number(&self, name: u64) -> u64 {
        lock(&self.0.state).names.get(&name).map_or(1, |sessions| sessions.current.saturating_add(1))
    }

    /// Opens the next session with this name. Frames of earlier sessions with the name are dropped.
    pub fn open(&self, name: u64) -> SessionId {
        self.open_at(name, self.next_number(name))
    }

    /// Opens the session with this name and number. No session with this number or a later one may have been opened
    /// before. Frames of earlier sessions are dropped.
    pub fn open_at(&self, name: u64, number: u64) -> SessionId {
        // Dropped without the lock: frames may hold large buffers.
        let _earlier: VecDeque<_>;
        let mut state = lock(&self.0.state);
        let sessions = state.names.entry(name).or_default();
        sessions.current = number;
        let (kept, earlier): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut sessions.frames).into_iter().partition(|(_, f)| f.session.number >= number);
        sessions.frames = kept;
        earlier.iter().for_each(|(from, frame)| state.release(*from, frame));
        _earlier = earlier;
        drop(state);
        SessionId { name, number }
    }

    /// Waits for the next event of a session. Returns [`Event::Expired`] once `deadline` has passed. The wait polls the
    /// transport if no other thread does. `lost_seen` contains, for each worker, whether its loss was already returned.
    pub fn next(
        &self,
        session: SessionId,
        lost_seen: &[bool],
        deadline: &mut Deadline,
        transport: &dyn Transport,
    ) -> Event {
        loop {
            let patience = deadline.look();
            if patience.is_zero() {
                return self.poll(session, lost_seen).unwrap_or(Event::Expired);
            }
            let outcome = transport.poll(patience, &|| lock(&self.0.state).has_event(session, lost_seen));
            if outcome == PollOutcome::Delivered {
                if let Some(event) = self.poll(session, lost_seen) {
                    return event;
                }
                continue;
            }
            deadline.look();
            let mut turn;
            let deadline = match outcome {
                PollOutcome::Delivered | PollOutcome::Nothing => continue,
                PollOutcome::Elsewhere => {
                    turn = Deadline::after(POLL_INTERVAL);
                    &mut turn
                }
                PollOutcome::Never => &mut *deadline,
            };
            let mut state = lock(&self.0.state);
            if let Some(event) = state.take(session, lost_seen) {
                return event;
            }
            state = self.0.changed.wait(state, deadline);
            drop(state);
        }
    }

    /// Returns the next event of a session without waiting; `None` if there is none yet.
    pub fn poll(&self, session: SessionId, lost_seen: &[bool]) -> Option<Event> {
        lock(&self.0.state).take(session, lost_seen)
    }

    /// Removes and returns all frames of a session up to and including a round, without waiting. Those of later rounds
    /// remain.
    pub(super) fn take_until(&self, session: SessionId, round: u64) -> Vec<(usize, Frame)> {
        let mut state = lock(&self.0.state);
        let Some(sessions) = state.names.get_mut(&session.name) else { return Vec::new() };
        let (mut taken, mut at) = (Vec::new(), 0);
        while let Some((_, frame)) = sessions.frames.get(at) {
            if frame.session == session && frame.round <= round {
                taken.extend(sessions.frames.remove(at));
            } else {
                at += 1;
            }
        }
        taken.iter().for_each(|(from, frame)| state.release(*from, frame));
        taken
    }
}

impl Receiver for Inbox {
    fn deliver(&self, from: usize, message: Message) {
        // INV-104
        let has_sums = self.0.has_sums.get(from);
        let is_set = has_sums.is_some_and(|has_sums| has_sums.load(Ordering::Relaxed));
        let decode = if is_set { Frame::decode_with_sum } else { Frame::decode };
        match decode(&message.head, message.body) {
            Ok(frame) => {
                if frame.sum.is_some() {
                    has_sums.iter().for_each(|has_sums| has_sums.store(true, Ordering::Relaxed));
                }
                self.add(from, frame);
            }
            // The session that reports the loss fills in the receiver.
            Err(DecodeError::Changed(changed)) => self.mark_lost(from, changed.between(from, from)),
            Err(error) => self.mark_lost(from, format!("its message cannot be read: {error}")),
        }
    }

    fn mark_lost(&self, worker: usize, reason: String) {
        Inbox::mark_lost(self, worker, reason);
    }
}

impl State {
    fn new(workers: usize, most: usize) -> Self {
        Self { lost: vec![None; workers], names: FxHashMap::default(), waiting: vec![0; workers], most }
    }

    /// Subtracts the size of a removed frame from its worker's total.
    fn release(&mut self, from: usize, frame: &Frame) {
        if let Some(waiting) = self.waiting.get_mut(from) {
            *waiting = waiting.saturating_sub(frame.memory_size());
        }
    }

    /// Marks the worker whose frames occupy the most memory as lost, if all stored frames exceed the limit. Returns the
    /// removed frames, which the caller must drop after releasing the lock.
    fn overflow(&mut self) -> Vec<(usize, Frame)> {
        // INV-28
        let sum = self.waiting.iter().fold(0, |sum: usize, waiting| sum.saturating_add(*waiting));
        let most = self.waiting.iter().enumerate().max_by_key(|(_, waiting)| **waiting);
        let Some((worker, bytes)) = most.filter(|_| sum > self.most).map(|(worker, bytes)| (worker, *bytes))
        else {
            return Vec::new();
        };
        if let Some(lost @ None) = self.lost.get_mut(worker) {
            let reason = format!(
                "it has sent {bytes} bytes that no session receives; the limit is {} bytes, half of the \
                 memory",
                self.most
            );
            *lost = Some(reason.into());
        }
        self.waiting[worker] = 0;
        let mut refused = Vec::new();
        for sessions in self.names.values_mut() {
            let (theirs, kept): (VecDeque<_>, VecDeque<_>) =
                std::mem::take(&mut sessions.frames).into_iter().partition(|(from, _)| *from == worker);
            sessions.frames = kept;
            refused.extend(theirs);
        }
        refused
    }

    /// Returns whether [`take`](Self::take) would return an event.
    fn has_event(&self, session: SessionId, lost_seen: &[bool]) -> bool {
        let frames = self.names.get(&session.name).map(|sessions| &sessions.frames);
        frames.is_some_and(|frames| frames.iter().any(|(_, frame)| frame.session == session))
            || self.lost.iter().zip(lost_seen).any(|(reason, lost_seen)| reason.is_some() && !lost_seen)
    }

    fn take(&mut self, session: SessionId, lost_seen: &[bool]) -> Option<Event> {
        if let Some(sessions) = self.names.get_mut(&session.name)
            && let Some(at) = sessions.frames.iter().position(|(_, frame)| frame.session == session)
        {
            let (from, frame) = sessions.frames.remove(at)?;
            self.release(from, &frame);
            return Some(Event::Frame(from, frame));
        }
        let mut lost = self.lost.iter().zip(lost_seen).enumerate();
        lost.find_map(|(worker, (reason, lost_seen))| match reason {
            Some(reason) if !lost_seen => Some(Event::Lost(worker, reason.clone())),
            _ => None,
        })
    }
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = lock(&self.0.state);
        let waiting: usize = state.names.values().map(|sessions| sessions.frames.len()).sum();
        write!(f, "Inbox({} workers, {waiting} frames)", state.lost.len())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::Content;
    use super::*;

    /// The transport of these tests, which transfers nothing.
    #[derive(Debug)]
    pub(in super::super) struct Still;

    impl Transport for Still {
        fn send(&self, _to: usize, _message: Message) {}
        fn poll(&self, _patience: Duration, _is_there: &dyn Fn() -> bool) -> PollOutcome {
            PollOutcome::Never
        }
        fn close(&self) {}
    }

    fn frame(session: SessionId, round: u64) -> Frame {
        Frame { session, round, content: Content::Left { statuses: Vec::new() }, sum: None }
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
    fn a_loss_is_reported_once_after_earlier_frames() {
        let inbox = Inbox::new(3);
        let mut now = Deadline::after(Duration::ZERO);
        let session = inbox.open(1);
        inbox.add(2, frame(session, 1));
        inbox.mark_lost(2, "connection reset");
        inbox.mark_lost(2, "again");
        assert_eq!(inbox.next(session, &[false; 3], &mut now, &Still), Event::Frame(2, frame(session, 1)));
        assert_eq!(
            inbox.next(session, &[false; 3], &mut now, &Still),
            Event::Lost(2, "connection reset".into())
        );
        assert_eq!(inbox.next(session, &[false, false, true], &mut now, &Still), Event::Expired);
    }

    #[test]
    fn a_worker_that_sends_unused_frames_is_lost_without_leaking_memory() {
        let inbox = Inbox::new(3);
        let session = inbox.open(1);
        for round in 0..1_000 {
            inbox.add(1, frame(SessionId { name: round, number: 1 }, 1));
            inbox.add(2, frame(session, round));
        }
        assert_eq!(inbox.lost(1), None);
        assert!(inbox.lost(2).unwrap().contains("512 messages that no session receives"));
        for name in 0..100 {
            inbox.add(1, frame(SessionId { name: 5_000 + name, number: 1 }, 1));
        }
        assert!(inbox.lost(1).unwrap().contains("sessions that no other worker has"));
        assert!(format!("{inbox:?}").contains("1536 frames"), "{inbox:?}");
    }

    // INV-28
    #[test]
    fn bytes_of_unused_frames_are_limited_and_the_worker_with_most_is_lost() {
        let inbox = Inbox::with_capacity(3, 10 << 20);
        let large = |name: u64, bytes: usize| Frame {
            session: SessionId { name, number: 1 },
            round: 1,
            content: Content::Early { part: 0, body: vec![0; bytes].into() },
            sum: None,
        };
        let waiting = || lock(&inbox.0.state).waiting.clone();
        let open = inbox.open(7);
        inbox.add(2, large(7, 1 << 20));
        // Few frames, of sessions that are never opened.
        for name in 100..200 {
            inbox.add(1, large(name, 1 << 20));
        }
        let why = inbox.lost(1).unwrap();
        assert!(why.starts_with("it has sent ") && why.contains("bytes that no session receives"), "{why}");
        assert_eq!(waiting()[1], 0);
        assert!(format!("{inbox:?}").contains(" 1 frames"), "{inbox:?}");
        // The other worker is still connected, and frames that were taken no longer count.
        for _ in 0..100 {
            assert!(matches!(inbox.poll(open, &[false; 3]), Some(Event::Frame(2, _))));
            inbox.add(2, large(7, 9 << 20));
        }
        assert_eq!(inbox.lost(2), None);
        // Frames of a session no longer count once the session is opened.
        inbox.open(7);
        assert_eq!(waiting(), [0, 0, 0]);
        inbox.add(2, large(7, 1 << 20));
        inbox.reset();
        assert_eq!((waiting(), inbox.lost(1)), (vec![0, 0, 0], None));
    }
}
