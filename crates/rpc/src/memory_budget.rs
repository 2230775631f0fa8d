//! The limits on unanswered calls: their number on each connection, and their bytes on the server. This module only
//! counts: it does no I/O, and never waits.

// - INV-28: a caller of a server has a limited number of unanswered calls. The unanswered calls of all its callers
//   take at most half of the memory, and no caller with several calls more than it leaves for others. A call that
//   exceeds this is answered with an error and not kept. Tests: `rpc/src/memory_budget.rs`, `rpc/tests/it/failures.rs`,
//   `rpc/tests/it/calls.rs`, `net/tests/it/endpoint.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The default share of the memory of the machine or container that unanswered calls may occupy is 1 divided by this
/// number.
pub(crate) const MEMORY_DIVISOR: usize = 2;

/// The memory of a server for the unanswered calls of all its connections: its maximum size, and the size in use.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    max: usize,
    taken: AtomicUsize,
}

/// The number and size of the unanswered calls of one connection.
#[derive(Debug)]
pub(crate) struct OpenCalls {
    budget: Arc<MemoryBudget>,
    /// The maximum number of calls.
    max: usize,
    count: AtomicUsize,
    bytes: AtomicUsize,
}

/// The space reserved for one call, which is released when this is dropped.
#[derive(Debug)]
pub(crate) struct CallPermit {
    calls: Arc<OpenCalls>,
    bytes: usize,
}

/// The reason why a call cannot be accepted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// The connection has the maximum number of calls.
    Calls,
    /// There is not enough memory for the call.
    Bytes {
        /// The number of bytes that the calls of this connection occupy.
        own: usize,
        /// The number of bytes that the calls of all connections occupy.
        taken: usize,
        /// The maximum number of bytes for all connections.
        max: usize,
    },
}

impl MemoryBudget {
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, taken: AtomicUsize::new(0) })
    }

    /// Reserves `bytes` bytes for a call of a connection whose other calls occupy `own` bytes.
    ///
    /// Returns [`NoRoom::Bytes`] if the call does not fit, or if the connection's calls, including this one, would
    /// occupy more bytes than would then be free. The second limit does not apply if `own` is 0, because a call longer
    /// than half of the budget would always fail.
    fn take(&self, own: usize, bytes: usize) -> Result<(), NoRoom> {
        let taken = |taken: usize| {
            let left = self.max.saturating_sub(taken).checked_sub(bytes)?;
            let fits = own == 0 || own.checked_add(bytes)? <= left;
            fits.then(|| taken + bytes)
        };
        self.taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, taken)
            .map(drop)
            .map_err(|taken| NoRoom::Bytes { own, taken, max: self.max })
    }
}

impl OpenCalls {
    /// Creates the state of a connection that has no calls yet. It may have at most `max` unanswered calls.
    pub fn new(budget: Arc<MemoryBudget>, max: usize) -> Arc<Self> {
        Arc::new(Self { budget, max, count: AtomicUsize::new(0), bytes: AtomicUsize::new(0) })
    }

    /// Returns the maximum number of unanswered calls of the connection.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Reserves space for a call of `bytes` bytes. Only one thread at a time may use this method for a connection.
    ///
    /// # Errors
    /// - [`NoRoom::Calls`]: the connection has the maximum number of calls.
    /// - [`NoRoom::Bytes`]: there is not enough memory for the call.
    pub fn enter(self: &Arc<Self>, bytes: usize) -> Result<CallPermit, NoRoom> {
        self.count()?;
        self.budget.take(self.bytes.load(Ordering::Acquire), bytes)?;
        Ok(self.hold(bytes))
    }

    /// Counts a call that is rejected for lack of memory, until the rejection is sent.
    ///
    /// # Errors
    /// - [`NoRoom::Calls`]: the connection has the maximum number of calls.
    pub fn enter_refused(self: &Arc<Self>) -> Result<CallPermit, NoRoom> {
        self.count().map(|()| self.hold(0))
    }

    fn count(&self) -> Result<(), NoRoom> {
        if self.count.load(Ordering::Acquire) < self.max { Ok(()) } else { Err(NoRoom::Calls) }
    }

    fn hold(self: &Arc<Self>, bytes: usize) -> CallPermit {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
        CallPermit { calls: self.clone(), bytes }
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        self.calls.count.fetch_sub(1, Ordering::AcqRel);
        self.calls.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        self.calls.budget.taken.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // INV-28
    #[test]
    fn calls_take_no_more_than_the_room_and_each_connection_leaves_as_much_for_others() {
        let budget = MemoryBudget::new(1000);
        let [one, other, third] = [(); 3].map(|()| OpenCalls::new(budget.clone(), 100));
        let mut permits: Vec<_> = (0..5).map(|_| one.enter(100).unwrap()).collect();
        assert_eq!(one.enter(100).unwrap_err(), NoRoom::Bytes { own: 500, taken: 500, max: 1000 });
        // There is always room for the refusal.
        drop(one.enter_refused().unwrap());
        permits.push(other.enter(100).unwrap());
        permits.push(other.enter(100).unwrap());
        assert!(matches!(other.enter(150), Err(NoRoom::Bytes { own: 200, taken: 700, .. })));
        // The first call of a connection may take all that is left.
        let last = third.enter(300).unwrap();
        assert!(matches!(third.enter(1), Err(NoRoom::Bytes { own: 300, taken: 1000, .. })));
        assert!(matches!(OpenCalls::new(budget.clone(), 1).enter(1), Err(NoRoom::Bytes { .. })));
        assert!(matches!(one.enter(usize::MAX), Err(NoRoom::Bytes { .. })));
        drop(permits);
        assert!(one.enter(700).is_ok());
        drop(last);
        assert_eq!(budget.taken.load(Ordering::Acquire), 0);
        assert!(one.enter(1000).is_ok() && one.enter(1001).is_err());
    }

    // INV-28
    #[test]
    fn a_connection_with_several_calls_has_no_more_than_it_leaves() {
        for first in 1..=100 {
            for second in 1..=100 {
                let calls = OpenCalls::new(MemoryBudget::new(100), 2);
                let _permit = calls.enter(first).unwrap();
                let own = first + second;
                assert_eq!(calls.enter(second).is_ok(), own <= 50, "{first} and {second} of 100");
            }
        }
    }

    #[test]
    fn a_connection_has_so_many_calls_at_once() {
        let calls = OpenCalls::new(MemoryBudget::new(10), 2);
        let permits = [(); 2].map(|()| calls.enter(0).unwrap());
        assert_eq!(calls.enter(0).unwrap_err(), NoRoom::Calls);
        assert_eq!(calls.enter_refused().unwrap_err(), NoRoom::Calls);
        drop(permits);
        assert!(calls.enter(0).is_ok());
    }
}
