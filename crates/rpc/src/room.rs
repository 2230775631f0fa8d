//! The room that calls without an answer take: their number on each connection, and their bytes on the
//! server. Pure: no connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The divisor of this process's memory that gives the maximum for calls without an answer.
pub(crate) const SHARE: usize = 2;

/// The bytes that the calls of all connections of a server take while they have no answer.
#[derive(Debug)]
pub(crate) struct Room {
    most: usize,
    taken: AtomicUsize,
}

/// The calls of one connection without an answer.
#[derive(Debug)]
pub(crate) struct OpenCalls {
    room: Arc<Room>,
    /// The maximum number of calls.
    most: usize,
    count: AtomicUsize,
    bytes: AtomicUsize,
}

/// The room of one call, which is freed when this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    calls: Arc<OpenCalls>,
    bytes: usize,
}

/// The reason that there is no room for a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// The connection has the maximum number of calls.
    Calls,
    /// Other calls take the memory.
    Bytes {
        /// The bytes that the calls of this connection take.
        own: usize,
        /// The bytes that the calls of all connections take.
        taken: usize,
        /// The maximum of these bytes.
        most: usize,
    },
}

impl Room {
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: AtomicUsize::new(0) })
    }

    /// Takes room for a call of a connection whose calls take `own` bytes. The connection gets at most as
    /// much as it leaves for others, except that its first call may take all that is left.
    fn take(&self, own: usize, bytes: usize) -> Result<(), NoRoom> {
        let taken = |taken: usize| {
            let fits = own.checked_add(bytes)? <= self.most.saturating_sub(taken);
            fits.then(|| taken + bytes)
        };
        self.taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, taken)
            .map(drop)
            .map_err(|taken| NoRoom::Bytes { own, taken, most: self.most })
    }
}

impl OpenCalls {
    /// Creates a connection without calls, which may have at most `most` at once.
    pub fn new(room: Arc<Room>, most: usize) -> Arc<Self> {
        Arc::new(Self { room, most, count: AtomicUsize::new(0), bytes: AtomicUsize::new(0) })
    }

    /// Returns the maximum number of calls.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Takes room for a call of `bytes` bytes. The calls of one connection must be entered in sequence.
    ///
    /// # Errors
    /// - [`NoRoom::Calls`]: the connection has the maximum number of calls.
    /// - [`NoRoom::Bytes`]: other calls take the memory.
    pub fn enter(self: &Arc<Self>, bytes: usize) -> Result<Held, NoRoom> {
        self.count()?;
        self.room.take(self.bytes.load(Ordering::Acquire), bytes)?;
        Ok(self.hold(bytes))
    }

    /// Takes room for a call without its bytes, because it is refused.
    ///
    /// # Errors
    /// [`NoRoom::Calls`] if the connection has the maximum number of calls.
    pub fn enter_refused(self: &Arc<Self>) -> Result<Held, NoRoom> {
        self.count().map(|()| self.hold(0))
    }

    fn count(&self) -> Result<(), NoRoom> {
        if self.count.load(Ordering::Acquire) < self.most { Ok(()) } else { Err(NoRoom::Calls) }
    }

    fn hold(self: &Arc<Self>, bytes: usize) -> Held {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
        Held { calls: self.clone(), bytes }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.calls.count.fetch_sub(1, Ordering::AcqRel);
        self.calls.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        self.calls.room.taken.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // INV-28
    #[test]
    fn calls_take_no_more_than_the_room_and_each_connection_leaves_as_much_for_others() {
        let room = Room::new(1000);
        let [one, other, third] = [(); 3].map(|()| OpenCalls::new(room.clone(), 100));
        let mut held: Vec<_> = (0..5).map(|_| one.enter(100).unwrap()).collect();
        assert_eq!(one.enter(100).unwrap_err(), NoRoom::Bytes { own: 500, taken: 500, most: 1000 });
        // There is always room for the refusal.
        drop(one.enter_refused().unwrap());
        held.push(other.enter(100).unwrap());
        held.push(other.enter(100).unwrap());
        assert!(matches!(other.enter(150), Err(NoRoom::Bytes { own: 200, taken: 700, .. })));
        // The first call of a connection may take all that is left.
        let last = third.enter(300).unwrap();
        assert!(matches!(third.enter(1), Err(NoRoom::Bytes { own: 300, taken: 1000, .. })));
        assert!(matches!(OpenCalls::new(room.clone(), 1).enter(1), Err(NoRoom::Bytes { .. })));
        assert!(matches!(one.enter(usize::MAX), Err(NoRoom::Bytes { .. })));
        drop(held);
        assert!(one.enter(700).is_ok());
        drop(last);
        assert_eq!(room.taken.load(Ordering::Acquire), 0);
        assert!(one.enter(1000).is_ok() && one.enter(1001).is_err());
    }

    #[test]
    fn a_connection_has_so_many_calls_at_once() {
        let calls = OpenCalls::new(Room::new(10), 2);
        let held = [(); 2].map(|()| calls.enter(0).unwrap());
        assert_eq!(calls.enter(0).unwrap_err(), NoRoom::Calls);
        assert_eq!(calls.enter_refused().unwrap_err(), NoRoom::Calls);
        drop(held);
        assert!(calls.enter(0).is_ok());
    }
}
