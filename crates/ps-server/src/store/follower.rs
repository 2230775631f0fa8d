//! [`Follower`]: the changes that a server's follower has not received yet.

use crate::log::Record;
use distribute_cluster::{Deadline, Stopwatch};
use distribute_ps_tables::{Copies, Refusal, RefusalKind};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::time::Duration;

/// The maximum time for which a call waits for the follower. Its client may time out earlier and retry.
const PATIENCE: Duration = Duration::from_secs(60);

/// The approximate maximum size in bytes of the changes in one request.
const AT_ONCE: usize = 16 << 20;

/// A change, and its number in the server's log; 0 without a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub record: Record,
    pub log: u64,
}

/// The changes that the follower may not have received, and the threads that wait until it has.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    state: Mutex<Pending>,
    changed: Condvar,
}

/// The state of the replication to the follower: the changes that it may not have received, its copy, and the
/// connection.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    /// The number of this server's life; 0 until the server has begun one, with its own state or its follower's.
    pub life: u64,
    /// The number of the first of these changes. The follower has received all earlier ones.
    pub first: u64,
    pub changes: VecDeque<Change>,
    /// Whether the follower has a complete copy of this server, apart from these changes.
    pub is_copied: bool,
    /// The number of the current connection to the follower.
    pub connection: u64,
    pub lost: Option<String>,
    /// The random number of the follower's process that has last requested its copy.
    pub asked: Option<u64>,
    /// The reason why changes do not reach the follower, if they do not.
    pub last_error: Option<String>,
    /// Whether the server is stopping.
    pub over: bool,
}

impl Pending {
    pub fn next(&self) -> u64 {
        self.first + self.changes.len() as u64
    }

    /// Returns whether the follower has a complete copy, with all changes before number `next`.
    pub fn has(&self, next: u64) -> bool {
        self.is_copied && self.first >= next
    }

    /// Records that the follower has received all changes before number `before`.
    pub fn arrived(&mut self, before: u64) {
        let count = before.saturating_sub(self.first).min(self.changes.len() as u64);
        self.changes.drain(..count as usize);
        self.first += count;
    }

    /// Returns the first changes, up to about the maximum size of one request, but at least one if there are any.
    pub fn next_batch(&self) -> Vec<Change> {
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
    /// Waits until this server has begun its life, so that it can execute requests.
    ///
    /// # Errors
    /// - [`RefusalKind::Busy`]: the follower has not been reached within a minute, or the server is stopping.
    pub fn await_ready(&self) -> Result<(), Refusal> {
        self.wait(
            |state| state.life > 0,
            "this server has started, and does not know yet whether its follower has a newer state",
        )
    }

    /// Adds a change, which is sent after all earlier ones.
    pub fn add(&self, change: Change) {
        self.state.lock().changes.push_back(change);
        self.changed.notify_all();
    }

    /// Waits until the follower has a complete copy with all changes that were added so far.
    ///
    /// # Errors
    /// - [`RefusalKind::Busy`]: this takes longer than a minute, or the server is stopping.
    pub fn await_arrived(&self) -> Result<(), Refusal> {
        let next = self.state.lock().next();
        let what = "the change was applied, but only on this server";
        self.wait(|state| state.has(next), what)
    }

    /// Returns whether there are one or two copies of this server's tables. This is unknown while the server is
    /// starting.
    pub fn copies(&self) -> Copies {
        let state = self.state.lock();
        match (state.life, state.is_copied) {
            (0, _) => Copies::Starting,
            (_, false) => Copies::Alone,
            (_, true) => Copies::Two,
        }
    }

    fn wait(&self, is: impl Fn(&Pending) -> bool, what: &str) -> Result<(), Refusal> {
        let (mut deadline, waited) = (Deadline::after(PATIENCE), Stopwatch::start());
        let mut state = self.state.lock();
        while !is(&state) {
            let slice = deadline.look();
            if slice.is_zero() || state.over {
                let why = state.last_error.as_deref().unwrap_or("it does not answer");
                let (seconds, stops) =
                    (waited.elapsed().as_secs_f64(), if state.over { "is stopping and " } else { "" });
                let text = format!(
                    "{what}; the server {stops}has waited {seconds:.1} s for its follower: {why}; see the follower's log"
                );
                return Err(Refusal::new(RefusalKind::Busy, text));
            }
            self.changed.wait_for(&mut state, slice);
            deadline.look();
        }
        Ok(())
    }

    /// Waits at most `patience` for changes, for the loss of the connection, or for the server to stop.
    pub(crate) fn await_changes(&self, patience: Duration) -> MutexGuard<'_, Pending> {
        let idle = |state: &mut Pending| state.changes.is_empty() && state.lost.is_none() && !state.over;
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, idle, patience);
        state
    }

    /// Waits at most `patience` until the server is stopping. Returns whether it is.
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

    /// Records that a connection was lost, so that the follower's copy may be lost as well. Does nothing if there is a
    /// newer connection.
    pub(crate) fn disconnected(&self, connection: u64, reason: &str) {
        self.update(|state| {
            if state.connection == connection {
                state.is_copied = false;
                state.lost = Some(reason.to_owned());
            }
        });
    }

    pub(crate) fn update(&self, update: impl FnOnce(&mut Pending)) {
        update(&mut self.state.lock());
        self.changed.notify_all();
    }

    pub fn end(&self) {
        self.update(|state| state.over = true);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Pending> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_testing::watched;

    #[test]
    fn a_wait_that_ends_with_the_server_reports_the_time_that_it_took() {
        watched(|| {
            let follower = Follower::default();
            follower.end();
            for (refused, what) in [
                (follower.await_ready(), "this server has started, and does not know yet"),
                (follower.wait(|_| false, "the change was applied"), "the change was applied"),
            ] {
                let refusal = refused.unwrap_err();
                assert_eq!(refusal.kind, RefusalKind::Busy);
                let text = refusal.text;
                assert!(text.starts_with(what) && !text.contains("60"), "{text}");
                assert!(text.contains("; the server is stopping and has waited 0."), "{text}");
                assert!(
                    text.ends_with(" s for its follower: it does not answer; see the follower's log"),
                    "{text}"
                );
            }
        });
    }
}
