//! The memory that two workers share: a ring in each direction, the sleeping threads, and the returned loans.

use super::layout::{Control, Side, TOTAL};
use super::map::Paired;
use super::memfd::{self, Place};
use super::ring::{self, CAPACITY, WrongPosition};
use crate::handshake::Offer;
use crate::identity::secret;
use std::fs::File;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// The memory that this worker shares with one other.
///
/// Each side keeps its own positions and publishes them to the other. Only one thread at a time may read, and
/// one may write, which the link ensures.
#[derive(Debug)]
pub(crate) struct Pair {
    memory: Paired,
    me: usize,
    their_pid: u32,
    read: AtomicU64,
    written: AtomicU64,
    /// Whether the socket has an event.
    socket: AtomicBool,
}

/// Memory that was created for a pair, until the other side has opened it.
#[derive(Debug)]
pub(crate) struct Offered {
    pair: Pair,
    /// The file, which stays open so that the other side can open it.
    _file: File,
    offer: Offer,
}

impl Offered {
    /// Creates the memory.
    pub fn new() -> io::Result<Self> {
        let file = memfd::create(TOTAL as u64)?;
        memfd::seal(&file)?;
        let Place { pid, descriptor, inode, .. } = memfd::place(&file)?;
        let token = secret::random().map_err(io::Error::other)?;
        let pair = Pair::of(&file, 0, 0)?;
        for (word, bytes) in pair.control().token.0.iter().zip(token.as_chunks().0) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        pair.mine().pid.0.store(pid, Ordering::Release);
        Ok(Self { pair, _file: file, offer: Offer { pid, descriptor, inode, token } })
    }

    /// Returns the data that the other side needs.
    pub fn offer(&self) -> Offer {
        self.offer
    }

    /// Returns the pair if the other side has accepted the memory, after the end of the handshake.
    pub fn accepted(self) -> Option<Arc<Pair>> {
        let Self { mut pair, .. } = self;
        pair.their_pid = pair.theirs().pid.0.load(Ordering::Acquire);
        let opens = memfd::can_open_of(pair.their_pid);
        pair.mine().opens.0.store(u32::from(opens), Ordering::Release);
        (pair.their_pid != 0).then(|| Arc::new(pair))
    }
}

impl Pair {
    /// Opens the memory that the other side has offered, and thereby accepts it.
    pub fn accept(offer: Offer) -> io::Result<Self> {
        let Offer { pid, descriptor, inode, token } = offer;
        let file = memfd::open(Place { pid, descriptor, inode, size: TOTAL as u64 }, true)?;
        let pair = Self::of(&file, 1, pid)?;
        let mut found = [0; 32];
        for (word, bytes) in pair.control().token.0.iter().zip(found.as_chunks_mut().0) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        if found != token {
            return Err(io::Error::other("it is the memory of other workers"));
        }
        pair.mine().opens.0.store(1, Ordering::Release);
        pair.mine().pid.0.store(std::process::id(), Ordering::Release);
        Ok(pair)
    }

    fn of(file: &File, me: usize, their_pid: u32) -> io::Result<Self> {
        let zero = AtomicU64::default;
        // Bytes may have arrived together with the end of the handshake.
        let socket = AtomicBool::new(true);
        Ok(Self { memory: Paired::of(file)?, me, their_pid, read: zero(), written: zero(), socket })
    }

    /// Returns the process of the other side.
    pub fn their_pid(&self) -> u32 {
        self.their_pid
    }

    /// Whether the other side can open memory of this process. The side that has connected sets this after
    /// its acceptance.
    pub fn is_open_to_them(&self) -> bool {
        self.theirs().opens.0.load(Ordering::Acquire) != 0
    }

    fn control(&self) -> &Control {
        self.memory.control()
    }

    pub(super) fn mine(&self) -> &Side {
        &self.control().sides[self.me]
    }

    pub(super) fn theirs(&self) -> &Side {
        &self.control().sides[1 - self.me]
    }

    /// Returns the number of bytes to read.
    fn readable(&self) -> Result<usize, WrongPosition> {
        ring::between(self.read.load(Ordering::Relaxed), self.theirs().written.0.load(Ordering::Acquire))
    }

    /// Returns the number of bytes that fit.
    fn room(&self) -> Result<usize, WrongPosition> {
        let read = self.theirs().read.0.load(Ordering::Acquire);
        Ok(CAPACITY - ring::between(read, self.written.load(Ordering::Relaxed))?)
    }

    /// Reads up to `into.len()` bytes.
    ///
    /// # Errors
    /// [`WrongPosition`] if the other side has written an impossible position.
    pub fn read(&self, into: &mut [u8]) -> Result<usize, WrongPosition> {
        let length = self.readable()?.min(into.len());
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
            self.mine().read.0.store(position, Ordering::Release);
        }
        Ok(length)
    }

    /// Whether to wake the other side because it waits for room and there is some. To be called after
    /// [`read`](Self::read).
    pub fn must_tell_of_room(&self) -> bool {
        // The other side sets its flag and checks again. One of the two sees what the other has written.
        fence(Ordering::SeqCst);
        let wanted = &self.theirs().wants_room.0;
        wanted.load(Ordering::Relaxed) != 0
            && self.readable().is_ok_and(|left| left <= CAPACITY / 2)
            && wanted.swap(0, Ordering::Relaxed) != 0
            && self.must_ring()
    }

    /// Writes as many bytes as fit.
    ///
    /// # Errors
    /// [`WrongPosition`] if the other side has written an impossible position.
    pub fn write(&self, slices: &[IoSlice<'_>]) -> Result<usize, WrongPosition> {
        let mut room = self.room()?;
        if room == 0 {
            self.mine().wants_room.0.store(1, Ordering::Relaxed);
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
            self.mine().written.0.store(position, Ordering::Release);
        }
        Ok(position.wrapping_sub(start) as usize)
    }

    /// Whether a byte must be sent to wake the other side. To be called after [`write`](Self::write). Returns
    /// `true` once for each sleep.
    pub fn must_ring(&self) -> bool {
        // The other side marks itself as sleeping and checks again. One of the two sees what the other has
        // written.
        fence(Ordering::SeqCst);
        let theirs = self.theirs();
        theirs.asleep.0.load(Ordering::Relaxed) > 0 && theirs.rung.0.swap(1, Ordering::SeqCst) == 0
    }

    /// Records that bytes that wake were received. For later data, the other side sends another.
    pub fn has_woken(&self) {
        self.mine().rung.0.store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Records an event of the socket.
    pub fn mind_socket(&self) {
        self.socket.store(true, Ordering::Release);
    }

    /// Whether the socket had an event since the last query.
    pub fn take_socket(&self) -> bool {
        self.socket.load(Ordering::Acquire) && self.socket.swap(false, Ordering::AcqRel)
    }

    /// Whether there is data to read, or room for queued data. Also `true` if positions are wrong.
    pub fn has_work(&self, backlog: bool) -> bool {
        self.socket.load(Ordering::Acquire) || self.readable() != Ok(0) || (backlog && self.room() != Ok(0))
    }

    /// Makes the other side send a byte when it writes. Must be followed by [`has_work`](Self::has_work), and
    /// ended by [`wake`](Self::wake).
    pub fn begin_sleep(&self) {
        self.mine().asleep.0.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Records that a thread is awake again.
    pub fn wake(&self) {
        self.mine().asleep.0.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns the number of threads of this side that sleep.
    pub fn sleepers(&self) -> u32 {
        self.mine().asleep.0.load(Ordering::SeqCst)
    }

    /// Returns a loan of the other side.
    pub fn give_back(&self, slot: usize, loan: u64) {
        if let Some(returned) = self.theirs().returned.0.get(slot) {
            // All reads of the body were made before.
            returned.store(loan, Ordering::Release);
        }
    }

    /// Returns the number of the loan that the other side has returned last, for a slot of this side.
    pub fn returned(&self, slot: usize) -> u64 {
        self.mine().returned.0.get(slot).map_or(0, |returned| returned.load(Ordering::Acquire))
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
        assert!(!first.must_ring(), "nobody sleeps");
        second.begin_sleep();
        assert!(second.has_work(false), "it looks, and does not sleep");
        write(&first, 1);
        assert_eq!([first.must_ring(), first.must_ring()], [true, false]);
        second.has_woken();
        assert_eq!((second.read(&mut [0; 10]), second.sleepers()), (Ok(2), 1));
        write(&first, 1);
        assert!(first.must_ring());
        second.wake();
        second.has_woken();
        write(&first, 1);
        assert!(!first.must_ring(), "nobody sleeps");
    }

    #[test]
    fn who_waits_for_room_is_woken_once_there_is_half_a_ring() {
        let (first, second) = pair();
        assert_eq!(write(&first, CAPACITY + 5), CAPACITY);
        assert_eq!(write(&first, 5), 0);
        first.begin_sleep();
        first.take_socket();
        assert!(!first.has_work(true), "there is none");
        let mut half = vec![0; CAPACITY / 2];
        second.read(&mut half[1..]).unwrap();
        assert!(!second.must_tell_of_room(), "so little is not worth it");
        assert!(first.has_work(true) && !first.has_work(false));
        second.read(&mut half[..1]).unwrap();
        assert_eq!([second.must_tell_of_room(), second.must_tell_of_room()], [true, false]);
        // A side that has never found the ring full does not wait for room.
        first.has_woken();
        write(&first, 5);
        second.read(&mut half).unwrap();
        assert!(!second.must_tell_of_room());
    }
}
