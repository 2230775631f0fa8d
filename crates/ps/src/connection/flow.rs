//! How much is under way: no more than was agreed, so that nothing grows without a bound.

use super::Shared;
use super::waiting::Call;
use distribute_cluster::Deadline;
use distribute_params::PushWindows;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// The number of a change that is under way is less than this above that of any other one: as many as a server remembers.
pub(super) const SPAN: u64 = PushWindows::SPAN;

/// Counts what is under way.
#[derive(Debug)]
pub(super) struct Flow {
    state: Mutex<State>,
    changed: Condvar,
    calls: usize,
    bytes: u64,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the next change.
    next: u64,
    /// The numbers of the first changes of calls that are under way.
    open: BTreeMap<u64, u64>,
    calls: usize,
    bytes: u64,
    /// How many calls have had room, which numbers them.
    entered: u64,
    /// Those that were sent, and whose answers nobody has seen yet.
    sent: BTreeMap<u64, Weak<Call>>,
    /// Another number where there may be room, or a call to be looked at.
    turn: u64,
}

/// The room of one call, given back when this is dropped.
pub(super) struct Permit {
    shared: Arc<Shared>,
    call: u64,
    first: u64,
    changes: u64,
    bytes: u64,
}

impl Flow {
    /// Up to so many calls and bytes.
    pub fn new(calls: usize, bytes: u64) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), calls, bytes }
    }

    /// Waits for room; at the deadline it says for what.
    ///
    /// Where there is none, it takes the answers to earlier calls, and keeps them for those that will ask: they may be of this very
    /// thread, which would wait for itself.
    pub fn enter(
        shared: &Arc<Shared>,
        changes: u64,
        bytes: u64,
        mut deadline: Deadline,
    ) -> Result<Permit, String> {
        let flow = &shared.flow;
        loop {
            let (sent, turn) = {
                let mut state = flow.state.lock();
                let Some(full) = state.full(flow, changes, bytes) else {
                    let (call, first) = (state.entered, state.next);
                    state.enter(changes, bytes);
                    return Ok(Permit { shared: shared.clone(), call, first, changes, bytes });
                };
                if deadline.look().is_zero() {
                    // The calls that this thread has looked at are another one's to look at.
                    flow.turn(state);
                    return Err(format!(
                        "there is no room for it while {full} are under way; wait for their answers first"
                    ));
                }
                (state.sent.values().filter_map(Weak::upgrade).collect::<Vec<_>>(), state.turn)
            };
            // Without the lock, which the end of a call takes.
            let collected = sent.iter().any(|call| call.collect(deadline));
            drop(sent);
            // The time that it took counts: to a look it would be a suspension.
            deadline = Deadline::after(deadline.remaining());
            if collected {
                continue;
            }
            let mut state = flow.state.lock();
            if state.turn == turn {
                flow.changed.wait_for(&mut state, deadline.look());
            }
        }
    }

    /// The call of a permit was sent: from here on, who needs room may take its answer.
    pub fn sent(&self, permit: u64, call: &Arc<Call>) {
        let mut state = self.state.lock();
        state.sent.insert(permit, Arc::downgrade(call));
        self.turn(state);
    }

    /// All calls that have no answer yet, in the order in which they have had room.
    pub fn under_way(&self) -> Vec<Arc<Call>> {
        self.state.lock().sent.values().filter_map(Weak::upgrade).collect()
    }

    /// Lets all that wait for room look again.
    fn turn(&self, mut state: MutexGuard<'_, State>) {
        state.turn += 1;
        drop(state);
        self.changed.notify_all();
    }
}

impl State {
    /// What there is too much of for this call; `None` if there is room.
    fn full(&self, flow: &Flow, changes: u64, bytes: u64) -> Option<String> {
        let oldest = self.open.keys().next().copied().unwrap_or(self.next);
        if self.calls >= flow.calls {
            Some(format!("{} requests", self.calls))
        } else if self.bytes > 0 && self.bytes.saturating_add(bytes) > flow.bytes {
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
    /// Its number among all that have had room.
    pub fn call(&self) -> u64 {
        self.call
    }

    /// Returns the number of its changes.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// The number of the first change.
    pub fn first(&self) -> u64 {
        self.first
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let flow = &self.shared.flow;
        let mut state = flow.state.lock();
        state.sent.remove(&self.call);
        state.leave(self.first, self.changes, self.bytes);
        flow.turn(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_so_many_calls_bytes_and_numbers() {
        let flow = Flow::new(3, 100);
        let mut state = State::default();
        // What is larger than all room goes alone.
        assert_eq!(state.full(&flow, 1, 1000), None);
        state.enter(1, 1000);
        assert_eq!(state.full(&flow, 1, 1).unwrap(), "1000 bytes");
        state.leave(0, 1, 1000);
        state.enter(2, 60);
        assert_eq!(state.full(&flow, 0, 41).unwrap(), "60 bytes");
        state.enter(0, 40);
        state.enter(0, 0);
        assert_eq!(state.full(&flow, 0, 0).unwrap(), "3 requests");
        state.leave(0, 0, 0);
        state.leave(0, 0, 40);
        // INV-52: numbers 1 and 2 are under way, and what is 1024 above 1 has to wait.
        state.enter(1022, 0);
        assert_eq!(state.full(&flow, 0, 0), None);
        assert_eq!(state.full(&flow, 1, 0).unwrap(), "changes from number 1 to 1025");
        state.leave(1, 2, 60);
        assert_eq!(state.full(&flow, 1, 0), None);
        assert_eq!(state.full(&flow, 3, 0).unwrap(), "changes from number 3 to 1025");
    }
}
