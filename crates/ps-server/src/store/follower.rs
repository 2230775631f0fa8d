//! The changes of a server in flight to its follower.

use crate::log::Record;
use distribute_cluster::Deadline;
use distribute_ps_tables::{Copies, Refusal, RefusalKind};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::time::Duration;

/// The time that a call waits for the follower. Its client may time out earlier, and retries.
const PATIENCE: Duration = Duration::from_secs(60);

/// The approximate number of bytes of changes that are sent at once.
const AT_ONCE: usize = 16 << 20;

/// A change, and its number in the log of its server; 0 without a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub record: Record,
    pub log: u64,
}

/// The changes that have not arrived at the follower yet, and the threads that wait for them.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    state: Mutex<Underway>,
    changed: Condvar,
}

/// Changes that were made, and that the follower may not have.
#[derive(Debug, Default)]
pub(crate) struct Underway {
    /// The life of this server; 0 until it has the newer state of its own and its follower's.
    pub life: u64,
    /// The number of the first of the changes: all earlier ones have arrived.
    pub first: u64,
    pub changes: VecDeque<Change>,
    /// Whether the follower has a complete copy of this server, except these changes.
    pub is_copied: bool,
    /// The number of the connection to the follower, and the reason if it is lost.
    pub connection: u64,
    pub lost: Option<String>,
    /// The run of the follower that has last requested its copy.
    pub asked: Option<u64>,
    /// The reason why no change arrives, if there is a problem.
    pub trouble: Option<String>,
    /// Whether the server is stopping.
    pub over: bool,
}

impl Underway {
    pub fn next(&self) -> u64 {
        self.first + self.changes.len() as u64
    }

    /// Returns whether the follower has a complete copy, with all changes before a number.
    pub fn has(&self, next: u64) -> bool {
        self.is_copied && self.first >= next
    }

    /// Records that all changes before a number have arrived.
    pub fn arrived(&mut self, before: u64) {
        let count = before.saturating_sub(self.first).min(self.changes.len() as u64);
        self.changes.drain(..count as usize);
        self.first += count;
    }

    /// Returns the first changes, approximately the amount that fits in one message.
    pub fn some(&self) -> Vec<Change> {
        let mut bytes = 0;
        let fits = |change: &&Change| {
            let before = bytes;
            bytes += change.record.bytes() as usize;
            before == 0 || bytes <= AT_ONCE
        };
        self.changes.iter().take_while(fits).cloned().collect()
    }
}

impl Follower {
    /// Waits until this server has its state.
    pub fn await_ready(&self) -> Result<(), Refusal> {
        self.wait(
            |state| state.life > 0,
            "this server has started, and does not know yet whether its follower has more than it has",
        )
    }

    /// Adds a change, which is sent after all earlier ones.
    pub fn add(&self, change: Change) {
        self.state.lock().changes.push_back(change);
        self.changed.notify_all();
    }

    /// Waits until the follower has a complete copy with all changes that were added so far.
    pub fn await_arrived(&self) -> Result<(), Refusal> {
        let next = self.state.lock().next();
        let what = "the change was made, but is on this server alone";
        self.wait(|state| state.has(next), what)
    }

    /// Returns the number of copies of this server's tables.
    pub fn copies(&self) -> Copies {
        let state = self.state.lock();
        match (state.life, state.is_copied) {
            (0, _) => Copies::Starting,
            (_, false) => Copies::Alone,
            (_, true) => Copies::Two,
        }
    }

    fn wait(&self, is: impl Fn(&Underway) -> bool, what: &str) -> Result<(), Refusal> {
        let mut deadline = Deadline::after(PATIENCE);
        let mut state = self.state.lock();
        while !is(&state) {
            let slice = deadline.look();
            if slice.is_zero() || state.over {
                let why = state.trouble.as_deref().unwrap_or("it does not answer");
                let text = format!(
                    "{what}, and has waited {PATIENCE:?} for the server that follows it: {why}; see that one's log"
                );
                return Err(Refusal::new(RefusalKind::Busy, text));
            }
            self.changed.wait_for(&mut state, slice);
            deadline.look();
        }
        Ok(())
    }

    /// Waits for changes, for the loss of the connection, or for a while.
    pub(crate) fn await_changes(&self, patience: Duration) -> MutexGuard<'_, Underway> {
        let idle = |state: &mut Underway| state.changes.is_empty() && state.lost.is_none() && !state.over;
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, idle, patience);
        state
    }

    /// Waits for a while, and returns whether the server is stopping.
    pub(crate) fn pause(&self, patience: Duration) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, |state| !state.over, patience);
        state.over
    }

    /// Records a new connection to the follower, and returns its number.
    pub(crate) fn connected(&self) -> u64 {
        let mut state = self.state.lock();
        state.connection += 1;
        state.lost = None;
        state.connection
    }

    /// Records that a connection is lost: the follower's copy may be lost as well.
    pub(crate) fn disconnected(&self, connection: u64, reason: &str) {
        self.update(|state| {
            if state.connection == connection {
                state.is_copied = false;
                state.lost = Some(reason.to_owned());
            }
        });
    }

    pub(crate) fn update(&self, update: impl FnOnce(&mut Underway)) {
        update(&mut self.state.lock());
        self.changed.notify_all();
    }

    pub fn end(&self) {
        self.update(|state| state.over = true);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Underway> {
        self.state.lock()
    }
}
