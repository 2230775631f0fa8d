//! The memory that two workers share: a ring in each direction, counts of sleeping threads, and returned loans.

use super::layout::{Control, Side, TOTAL};
use super::map::Paired;
use super::memfd::{self, Location};
use super::ring::{self, CAPACITY, WrongPosition};
use super::short::Counts;
use crate::handshake::Offer;
use crate::identity::secret;
use std::fs::File;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// The memory that this worker shares with one other worker.
///
/// Each side keeps its own positions and publishes them to the other side. The link ensures that at most one thread
/// reads and at most one thread writes.
#[derive(Debug)]
pub(crate) struct Pair {
    memory: Paired,
    me: usize,
    peer_pid: u32,
    read: AtomicU64,
    written: AtomicU64,
    /// The position up to which the other side had read when this was last checked.
    seen_read: AtomicU64,
    /// The numbers of short messages.
    pub(super) short: Counts,
    /// Whether the socket had an event since the last call of [`Pair::take_socket_event`].
    socket: AtomicBool,
}

/// Memory that was created for a pair and offered to the other side.
#[derive(Debug)]
pub(crate) struct Offered {
    pair: Pair,
    /// The file, which stays open so that the other side can open it.
    _file: File,
    offer: Offer,
}

impl Offered {
    /// Creates memory to offer, which no other process has opened yet.
    pub fn new() -> io::Result<Self> {
        let file = memfd::create(TOTAL as u64)?;
        memfd::seal(&file)?;
        let Location { pid, descriptor, inode, .. } = memfd::location(&file)?;
        let token = secret::random().map_err(io::Error::other)?;
        let pair = Pair::of(&file, 0, 0)?;
        for (word, bytes) in pair.control().token.0.iter().zip(token.as_chunks().0) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        pair.own_side().pid.0.store(pid, Ordering::Release);
        Ok(Self { pair, _file: file, offer: Offer { pid, descriptor, inode, token } })
    }

    /// Returns the data that the other side needs to open the memory.
    pub fn offer(&self) -> Offer {
        self.offer
    }

    /// Returns the pair, or `None` if the other side has not opened the memory. Call this after the handshake.
    pub fn accepted(self) -> Option<Arc<Pair>> {
        let Self { mut pair, .. } = self;
        pair.peer_pid = pair.peer_side().pid.0.load(Ordering::Acquire);
        let opens = memfd::can_open_of(pair.peer_pid);
        pair.own_side().opens.0.store(u32::from(opens), Ordering::Release);
        (pair.peer_pid != 0).then(|| Arc::new(pair))
    }
}

impl Pair {
    /// Opens the memory that the other side has offered, and thereby accepts it.
    ///
    /// # Errors
    /// Returns an I/O error if the memory cannot be opened, or is not the offered one.
    pub fn accept(offer: Offer) -> io::Result<Self> {
        let Offer { pid, descriptor, inode, token } = offer;
        let file = memfd::open(Location { pid, descriptor, inode, size: TOTAL as u64 }, true)?;
        let pair = Self::of(&file, 1, pid)?;
        let mut found = [0; 32];
        for (word, bytes) in pair.control().token.0.iter().zip(found.as_chunks_mut().0) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        if found != token {
            return Err(io::Error::other("it is the memory of other workers"));
        }
        pair.own_side().opens.0.store(1, Ordering::Release);
        pair.own_side().pid.0.store(std::process::id(), Ordering::Release);
        Ok(pair)
    }

    fn of(file: &File, me: usize, peer_pid: u32) -> io::Result<Self> {
        let zero = AtomicU64::default;
        // Bytes may have arrived together with the end of the handshake.
        let socket = AtomicBool::new(true);
        let (read, written, seen_read, short) = (zero(), zero(), zero(), Counts::default());
        Ok(Self { memory: Paired::of(file)?, me, peer_pid, read, written, seen_read, short, socket })
    }

    /// Returns the id of the other side's process.
    pub fn peer_pid(&self) -> u32 {
        self.peer_pid
    }

    /// Returns whether the other side can open the memory of this process. The result may be `false` at first, because
    /// a side that has connected learns only after the handshake whether its offer was accepted.
    pub fn is_readable_by_peer(&self) -> bool {
        self.peer_side().opens.0.load(Ordering::Acquire) != 0
    }

    fn control(&self) -> &Control {
        self.memory.control()
    }

    pub(super) fn own_side(&self) -> &Side {
        &self.control().sides[self.me]
    }

    pub(super) fn peer_side(&self) -> &Side {
        &self.control().sides[1 - self.me]
    }

    /// Returns the position up to which this side has read the other side's ring, and that up to which it was written.
    pub(super) fn peer_ring(&self) -> [u64; 2] {
        [self.read.load(Ordering::Relaxed), self.peer_side().written.0.load(Ordering::Acquire)]
    }

    /// Returns the position up to which this side has written its ring.
    pub(super) fn own_written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that can be read from the other side's ring.
    ///
    /// # Errors
    /// Returns [`WrongPosition`] if the other side has written an impossible position.
    pub fn readable(&self) -> Result<usize, WrongPosition> {
        let [read, written] = self.peer_ring();
        ring::between(read, written)
    }

    /// Returns the number of bytes that can be written into this side's ring.
    ///
    /// # Errors
    /// Returns [`WrongPosition`] if the other side has written an impossible position.
    fn room(&self) -> Result<usize, WrongPosition> {
        let read = self.peer_side().read.0.load(Ordering::Acquire);
        let room = CAPACITY - ring::between(read, self.written.load(Ordering::Relaxed))?;
        // Any thread may call this. The store releases the room to the thread that writes.
        self.seen_read.store(read, Ordering::Release);
        Ok(room)
    }

    /// Returns whether `length` bytes can be written, according to the position of the other side that was seen last.
    fn has_room_for(&self, length: usize) -> bool {
        let (read, written) = (self.seen_read.load(Ordering::Acquire), self.written.load(Ordering::Relaxed));
        ring::between(read, written).is_ok_and(|unread| length <= CAPACITY - unread)
    }

    /// Reads up to `into.len()` bytes that precede the next short message, and returns their number.
    ///
    /// # Errors
    /// Returns [`WrongPosition`] if the other side has written an impossible position.
    pub fn read(&self, into: &mut [u8]) -> Result<usize, WrongPosition> {
        // In this order: if bytes after a short message can be read, so can the message.
        let readable = self.readable()?;
        let length =
            self.bytes_before_short()?.map_or(readable, |before| before.min(readable)).min(into.len());
        if length > 0 {
            let position = self.read.load(Ordering::Relaxed);
            let mut rest = &mut into[..length];
            for piece in ring::pieces(position, length) {
                let (now, later) = rest.split_at_mut(piece.len());
                self.memory.take(1 - self.me, piece.start, now);
                rest = later;
            }
            let position = position.wrapping_add(length as u64);
            self.read.store(position, Ordering::Relaxed);
            self.own_side().read.0.store(position, Ordering::Release);
        }
        Ok(length)
    }

    /// Returns whether to send a byte that wakes the other side, because it waits for space in its ring and at least
    /// half of the ring is free. Returns `true` once for each such wait. Call this after [`read`](Self::read).
    pub fn must_notify_room(&self) -> bool {
        // The other side sets its flag and checks again. One of the two sees what the other has written.
        fence(Ordering::SeqCst);
        let wanted = &self.peer_side().wants_room.0;
        wanted.load(Ordering::Relaxed) != 0
            && self.readable().is_ok_and(|left| left <= CAPACITY / 2)
            && wanted.swap(0, Ordering::Relaxed) != 0
            && self.must_wake()
    }

    /// Writes the bytes that fit into the ring, and returns their number.
    ///
    /// # Errors
    /// Returns [`WrongPosition`] if the other side has written an impossible position.
    pub fn write(&self, slices: &[IoSlice<'_>]) -> Result<usize, WrongPosition> {
        let length = slices.iter().map(|slice| slice.len()).sum();
        // Reading the other side's position takes as long as sending the bytes, so the last known position is used
        // if it leaves room.
        let has_room = self.has_room_for(length);
        let mut room = if has_room { length } else { self.room()? };
        if room == 0 && length > 0 {
            self.own_side().wants_room.0.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            room = self.room()?;
        }
        let start = self.written.load(Ordering::Relaxed);
        let mut position = start;
        for slice in slices {
            let mut rest = &slice[..slice.len().min(room)];
            room -= rest.len();
            for piece in ring::pieces(position, rest.len()) {
                let (now, later) = rest.split_at(piece.len());
                self.memory.put(self.me, piece.start, now);
                position = position.wrapping_add(now.len() as u64);
                rest = later;
            }
        }
        if position != start {
            self.written.store(position, Ordering::Relaxed);
            self.own_side().written.0.store(position, Ordering::Release);
        }
        if has_room {
            // The position is read again while the other side reads the bytes.
            self.room()?;
        }
        Ok(position.wrapping_sub(start) as usize)
    }

    /// Returns whether to send a byte that wakes the other side, because it sleeps. Returns `true` once for each sleep.
    /// Call this after [`write`](Self::write).
    pub fn must_wake(&self) -> bool {
        // The other side marks itself as sleeping and checks again. One of the two sees what the other has
        // written.
        fence(Ordering::SeqCst);
        let theirs = self.peer_side();
        theirs.asleep.0.load(Ordering::Relaxed) > 0 && theirs.wake_sent.0.swap(1, Ordering::SeqCst) == 0
    }

    /// Records that a wake-up byte was received, so that the other side sends another one for later data.
    pub fn record_wake(&self) {
        self.own_side().wake_sent.0.store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Records an event of the socket.
    pub fn mark_socket_event(&self) {
        self.socket.store(true, Ordering::Release);
    }

    /// Returns whether the socket had an event since the last call.
    pub fn take_socket_event(&self) -> bool {
        self.socket.load(Ordering::Acquire) && self.socket.swap(false, Ordering::AcqRel)
    }

    /// Returns whether the link needs a turn: there is data or a short message to read, space for queued data
    /// if `backlog` is `true`, an event of the socket, or an impossible position.
    pub fn has_work(&self, backlog: bool) -> bool {
        self.socket.load(Ordering::Acquire)
            || self.has_short()
            || self.readable() != Ok(0)
            || (backlog && self.room() != Ok(0))
    }

    /// Announces that a thread is about to sleep, so that the other side sends a wake-up byte when it has written data
    /// or made room. Call [`has_work`](Self::has_work) before sleeping, because work may have arrived in the meantime,
    /// and [`wake`](Self::wake) afterwards.
    pub fn begin_sleep(&self) {
        self.own_side().asleep.0.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Records that a thread is awake again.
    pub fn wake(&self) {
        self.own_side().asleep.0.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns the number of threads of this side that sleep.
    pub fn sleepers(&self) -> u32 {
        self.own_side().asleep.0.load(Ordering::SeqCst)
    }

    /// Returns a loan to the other side, which may then reuse the memory.
    pub fn return_loan(&self, slot: usize, loan: u64) {
        if let Some(returned) = self.peer_side().returned.0.get(slot) {
            // All reads of the body were made before.
            returned.store(loan, Ordering::Release);
        }
    }

    /// Returns the id of the loan that the other side has returned last for a slot of this side; 0 if there was none.
    pub fn returned(&self, slot: usize) -> u64 {
        self.own_side().returned.0.get(slot).map_or(0, |returned| returned.load(Ordering::Acquire))
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Creates both sides of a pair in one process.
    pub(crate) fn pair() -> (Arc<Pair>, Arc<Pair>) {
        let offered = Offered::new().unwrap();
        let second = Pair::accept(offered.offer()).unwrap();
        (offered.accepted().unwrap(), Arc::new(second))
    }

    fn write(pair: &Pair, length: usize) -> usize {
        pair.write(&[IoSlice::new(&vec![1; length])]).unwrap()
    }

    #[test]
    fn who_sleeps_is_woken_once_and_again_after_it_has_looked() {
        let (first, second) = pair();
        write(&first, 1);
        assert!(!first.must_wake(), "nobody sleeps");
        second.begin_sleep();
        assert!(second.has_work(false), "it looks, and does not sleep");
        write(&first, 1);
        assert_eq!([first.must_wake(), first.must_wake()], [true, false]);
        second.record_wake();
        assert_eq!((second.read(&mut [0; 10]), second.sleepers()), (Ok(2), 1));
        write(&first, 1);
        assert!(first.must_wake());
        second.wake();
        second.record_wake();
        write(&first, 1);
        assert!(!first.must_wake(), "nobody sleeps");
    }

    #[test]
    fn who_waits_for_room_is_woken_once_there_is_half_a_ring() {
        let (first, second) = pair();
        assert_eq!(write(&first, CAPACITY + 5), CAPACITY);
        assert_eq!(write(&first, 5), 0);
        first.begin_sleep();
        first.take_socket_event();
        assert!(!first.has_work(true), "there is none");
        let mut half = vec![0; CAPACITY / 2];
        second.read(&mut half[1..]).unwrap();
        assert!(!second.must_notify_room(), "so little is not worth it");
        assert!(first.has_work(true) && !first.has_work(false));
        second.read(&mut half[..1]).unwrap();
        assert_eq!([second.must_notify_room(), second.must_notify_room()], [true, false]);
        // A side that has never found the ring full does not wait for room.
        first.record_wake();
        write(&first, 5);
        second.read(&mut half).unwrap();
        assert!(!second.must_notify_room());
    }
}
