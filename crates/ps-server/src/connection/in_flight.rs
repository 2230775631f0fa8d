//! A limit on requests in flight, which bounds the use of memory.

use super::Shared;
use super::waiting::Call;
use distribute_cluster::Deadline;
use distribute_ps_tables::PushWindows;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// The maximum range of sequence numbers of changes in flight. A server remembers this number of changes of each
/// client.
pub(super) const SPAN: u64 = PushWindows::SPAN;

/// The limit on requests in flight, and the calls that contain them.
#[derive(Debug)]
pub(super) struct InFlightLimit {
    state: Mutex<State>,
    changed: Condvar,
    calls: usize,
    bytes: u64,
}

#[derive(Debug, Default)]
struct State {
    /// The sequence number of the next change.
    next: u64,
    /// The calls in flight that contain changes: the sequence number of each call's first change, and the number of its
    /// changes.
    open: BTreeMap<u64, u64>,
    calls: usize,
    bytes: u64,
    /// The number of calls admitted so far. A call's number is the number of calls admitted before it.
    entered: u64,
    /// The calls that were sent or are being sent, and whose responses have not arrived yet.
    sent: BTreeMap<u64, Weak<Call>>,
    /// A counter that is incremented when waiting threads should check again, because there may be more space, or
    /// another response to receive.
    turn: u64,
}

/// The space reserved for one call, which is released when the permit is dropped.
pub(super) struct Permit {
    shared: Arc<Shared>,
    call: u64,
    first: u64,
    changes: u64,
    bytes: u64,
}

impl InFlightLimit {
    /// Creates a limit of `calls` calls and `bytes` bytes in flight.
    pub fn new(calls: usize, bytes: u64) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), calls, bytes }
    }

    /// Waits until a call is within the limit.
    ///
    /// While waiting, this receives the responses to earlier calls and keeps them for their callers. Some of these
    /// calls may be the current thread's own, so that the wait would never end otherwise.
    ///
    /// # Errors
    /// Returns a description of the calls in flight if the deadline passes.
    pub fn enter(
        shared: &Arc<Shared>,
        changes: u64,
        bytes: u64,
        mut deadline: Deadline,
    ) -> Result<Permit, String> {
        let in_flight = &shared.in_flight;
        loop {
            let (sent, turn) = {
                let mut state = in_flight.state.lock();
                let Some(full) = state.full(in_flight, changes, bytes) else {
                    let (call, first) = (state.entered, state.next);
                    state.enter(changes, bytes);
                    return Ok(Permit { shared: shared.clone(), call, first, changes, bytes });
                };
                if deadline.look().is_zero() {
                    // Another thread must check the calls that this thread has checked.
                    in_flight.turn(state);
                    return Err(format!(
                        "there is no room for it while {full} are in flight; wait for their answers first"
                    ));
                }
                (state.sent.values().filter_map(Weak::upgrade).collect::<Vec<_>>(), state.turn)
            };
            // Called without the lock, which the end of a call takes.
            let collected = sent.iter().any(|call| call.collect(deadline));
            drop(sent);
            // The time that this took counts against the deadline, but must not be taken for a suspension of
            // the process.
            deadline = Deadline::after(deadline.remaining());
            if collected {
                continue;
            }
            let mut state = in_flight.state.lock();
            if state.turn == turn {
                in_flight.changed.wait_for(&mut state, deadline.look());
            }
        }
    }

    /// Records that the call with number `permit` is about to be sent. From then on, other threads may receive its
    /// response to make space.
    pub fn sent(&self, permit: u64, call: &Arc<Call>) {
        let mut state = self.state.lock();
        state.sent.insert(permit, Arc::downgrade(call));
        self.turn(state);
    }

    /// Returns all calls without a response, in the order in which they were admitted.
    pub fn in_progress(&self) -> Vec<Arc<Call>> {
        self.state.lock().sent.values().filter_map(Weak::upgrade).collect()
    }

    /// Wakes all threads that wait for space.
    fn turn(&self, mut state: MutexGuard<'_, State>) {
        state.turn += 1;
        drop(state);
        self.changed.notify_all();
    }
}

impl State {
    /// Returns a description of the calls in flight if another call would exceed a limit; otherwise `None`.
    fn full(&self, in_flight: &InFlightLimit, changes: u64, bytes: u64) -> Option<String> {
        let oldest = self.open.keys().next().copied().unwrap_or(self.next);
        if self.calls >= in_flight.calls {
            Some(format!("{} requests", self.calls))
        } else if self.bytes > 0 && self.bytes.saturating_add(bytes) > in_flight.bytes {
            Some(format!("{} bytes", self.bytes))
        } else if self.next + changes - oldest > SPAN {
            Some(format!("changes from number {oldest} to {}", self.next))
        } else {
            None
        }
    }

    fn enter(&mut self, changes: u64, bytes: u64) {
        if changes > 0 {
            self.open.insert(self.next, changes);
        }
        self.next += changes;
        self.entered += 1;
        self.calls += 1;
        self.bytes += bytes;
    }

    fn leave(&mut self, first: u64, changes: u64, bytes: u64) {
        if changes > 0 {
            self.open.remove(&first);
        }
        self.calls -= 1;
        self.bytes -= bytes;
    }
}

impl Permit {
    /// Returns the number of the call: the number of calls that were admitted before it.
    pub fn call(&self) -> u64 {
        self.call
    }

    /// Returns the number of changes in the call.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the sequence number of the call's first change.
    pub fn first(&self) -> u64 {
        self.first
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let in_flight = &self.shared.in_flight;
        let mut state = in_flight.state.lock();
        state.sent.remove(&self.call);
        state.leave(self.first, self.changes, self.bytes);
        in_flight.turn(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_so_many_calls_bytes_and_numbers() {
        let in_flight = InFlightLimit::new(3, 100);
        let mut state = State::default();
        // A request that is larger than the limit is sent alone.
        assert_eq!(state.full(&in_flight, 1, 1000), None);
        state.enter(1, 1000);
        assert_eq!(state.full(&in_flight, 1, 1).unwrap(), "1000 bytes");
        state.leave(0, 1, 1000);
        state.enter(2, 60);
        assert_eq!(state.full(&in_flight, 0, 41).unwrap(), "60 bytes");
        state.enter(0, 40);
        state.enter(0, 0);
        assert_eq!(state.full(&in_flight, 0, 0).unwrap(), "3 requests");
        state.leave(0, 0, 0);
        state.leave(0, 0, 40);
        // INV-52: numbers 1 and 2 are in flight, and a number that is 1024 above 1 must wait.
        state.enter(1022, 0);
        assert_eq!(state.full(&in_flight, 0, 0), None);
        assert_eq!(state.full(&in_flight, 1, 0).unwrap(), "changes from number 1 to 1025");
        state.leave(1, 2, 60);
        assert_eq!(state.full(&in_flight, 1, 0), None);
        assert_eq!(state.full(&in_flight, 3, 0).unwrap(), "changes from number 3 to 1025");
    }
}
