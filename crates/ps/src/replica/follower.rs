//! The changes of a server on their way to the one that follows it.

use super::message::Change;
use distribute_cluster::Deadline;
use distribute_params::{Refusal, RefusalKind};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a call waits for the follower. Its caller may wait less long, and asks again.
const PATIENCE: Duration = Duration::from_secs(60);

/// About so many bytes of changes are sent at once.
const AT_ONCE: usize = 16 << 20;

/// What has not arrived at the follower yet, and those that wait for it.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    state: Mutex<Underway>,
    changed: Condvar,
}

/// Changes that were made, and which the follower is not known to have.
#[derive(Debug, Default)]
pub(super) struct Underway {
    /// The life of this server; 0 until its state is that of the newer one of itself and its follower.
    pub life: u64,
    /// The number of the first of the changes: all before have arrived.
    pub first: u64,
    pub changes: VecDeque<Change>,
    /// Why nothing arrives, if it does not.
    pub trouble: Option<String>,
    /// Whether the server ends.
    pub over: bool,
}

impl Underway {
    pub fn next(&self) -> u64 {
        self.first + self.changes.len() as u64
    }

    /// All before a number have arrived.
    pub fn arrived(&mut self, before: u64) {
        let count = before.saturating_sub(self.first).min(self.changes.len() as u64);
        self.changes.drain(..count as usize);
        self.first += count;
    }

    /// The first changes, about as many as go in one message.
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
    /// Waits until this server knows what it has.
    pub fn await_ready(&self) -> Result<(), Refusal> {
        self.wait(
            |state| state.life > 0,
            "this server does not know yet whether its follower has more than it has",
        )
    }

    /// A change was made: it is sent after all that were added before.
    pub fn add(&self, change: Change) {
        self.lock().changes.push_back(change);
        self.changed.notify_all();
    }

    /// Waits until the follower has all that was added so far.
    pub fn await_arrived(&self) -> Result<(), Refusal> {
        let (life, next) = {
            let state = self.lock();
            (state.life, state.next())
        };
        let what = "the change was made, but is on this server alone";
        self.wait(|state| state.life != life || state.first >= next, what)
    }

    fn wait(&self, is: impl Fn(&Underway) -> bool, what: &str) -> Result<(), Refusal> {
        let mut deadline = Deadline::after(PATIENCE);
        let mut state = self.lock();
        while !is(&state) {
            let slice = deadline.look();
            if slice.is_zero() || state.over {
                let why = state.trouble.as_deref().unwrap_or("it does not answer");
                let text = format!(
                    "{what}, and has waited {PATIENCE:?} for the server that follows it: {why}; see that one's log"
                );
                return Err(Refusal::new(RefusalKind::Busy, text));
            }
            state = self.changed.wait_timeout(state, slice).unwrap_or_else(PoisonError::into_inner).0;
            deadline.look();
        }
        Ok(())
    }

    /// Waits for changes, or until something else has happened, or for a while.
    pub(super) fn await_changes(&self, patience: Duration) -> MutexGuard<'_, Underway> {
        let idle = |state: &mut Underway| state.changes.is_empty() && !state.over;
        let waited = self.changed.wait_timeout_while(self.lock(), patience, idle);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits for a while, and says whether the server ends.
    pub(super) fn pause(&self, patience: Duration) -> bool {
        let waited = self.changed.wait_timeout_while(self.lock(), patience, |state| !state.over);
        waited.unwrap_or_else(PoisonError::into_inner).0.over
    }

    pub(super) fn update(&self, update: impl FnOnce(&mut Underway)) {
        update(&mut self.lock());
        self.changed.notify_all();
    }

    pub fn end(&self) {
        self.update(|state| state.over = true);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Underway> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
