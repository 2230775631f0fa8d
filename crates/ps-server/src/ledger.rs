//! A record of the changes that were applied for each client.

use distribute_cluster::Deadline;
use distribute_ps_tables::{Admission, ClientPushes, Error, PushWindows, Refusal, RefusalKind};
use parking_lot::{Condvar, Mutex};
use std::time::Duration;

/// The maximum number of clients that are recorded, each of which takes about 300 bytes. The record of another client
/// replaces that of the least recently active one.
const CLIENTS: usize = 65_536;

/// The maximum time for which a repeated change waits for its first attempt to complete.
const PATIENCE: Duration = Duration::from_secs(20);

/// The decision whether a received change is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The change is new.
    Apply,
    /// The change was already applied by an earlier attempt.
    Applied,
}

/// A record of the changes of all clients: a [`PushWindows`] for several threads.
#[derive(Debug)]
pub(crate) struct Ledger {
    windows: Mutex<PushWindows>,
    changed: Condvar,
}

impl Default for Ledger {
    fn default() -> Self {
        Self { windows: Mutex::new(PushWindows::new(CLIENTS)), changed: Condvar::new() }
    }
}

impl Ledger {
    /// Decides whether a change is applied. Waits if an earlier attempt is in progress.
    ///
    /// # Errors
    /// - [`RefusalKind::Busy`]: the earlier attempt is still in progress after 20 seconds, or there are too many
    ///   clients.
    /// - [`RefusalKind::Expired`]: there is no longer a record of whether the change was applied.
    pub fn begin(&self, client: u64, sequence: u64) -> Result<Decision, Refusal> {
        let mut deadline = Deadline::after(PATIENCE);
        let mut windows = self.windows.lock();
        loop {
            match windows.begin(client, sequence)? {
                Admission::Apply => return Ok(Decision::Apply),
                Admission::Applied => return Ok(Decision::Applied),
                Admission::InProgress => {}
            }
            let slice = deadline.look();
            if slice.is_zero() {
                let text = format!(
                    "change {sequence} of client {client:x} has been in progress for {PATIENCE:?} in an \
                     earlier attempt; retry it later"
                );
                return Err(Refusal::new(RefusalKind::Busy, text));
            }
            self.changed.wait_for(&mut windows, slice);
            deadline.look();
        }
    }

    /// Records the result of a change for which [`begin`](Self::begin) returned [`Decision::Apply`].
    pub fn done(&self, client: u64, sequence: u64, applied: bool) {
        self.windows.lock().done(client, sequence, applied);
        self.changed.notify_all();
    }

    /// Records the result of a change that was read from a log or received from another server.
    pub fn record(&self, client: u64, sequence: u64, applied: bool) {
        self.windows.lock().record(client, sequence, applied);
    }

    /// Returns whether the changes of a client are recorded, or were recorded and may have been discarded.
    pub fn may_remember(&self, client: u64) -> bool {
        self.windows.lock().may_remember(client)
    }

    /// Returns the records of all clients, for saving.
    pub fn clients(&self) -> Vec<ClientPushes> {
        self.windows.lock().clients().collect()
    }

    /// Restores the record of a client, and replaces an existing one.
    pub fn restore(&self, pushes: &ClientPushes) -> Result<(), Error> {
        self.windows.lock().restore(pushes)
    }

    /// Replaces all records. After an error, the existing ones remain.
    pub fn replace(&self, clients: &[ClientPushes]) -> Result<(), Error> {
        let mut windows = PushWindows::new(CLIENTS);
        clients.iter().try_for_each(|client| windows.restore(client))?;
        *self.windows.lock() = windows;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_testing::watched;
    use std::sync::Arc;

    // INV-52
    #[test]
    fn a_change_that_comes_again_waits_for_the_first_one() {
        watched(|| {
            for (first_is_made, then) in [(true, Decision::Applied), (false, Decision::Apply)] {
                let ledger = Arc::new(Ledger::default());
                assert_eq!(ledger.begin(1, 7).unwrap(), Decision::Apply);
                let again = ledger.clone();
                let again = std::thread::spawn(move || again.begin(1, 7).unwrap());
                assert_eq!(ledger.begin(1, 8).unwrap(), Decision::Apply);
                ledger.done(1, 7, first_is_made);
                assert_eq!(again.join().unwrap(), then);
            }
        });
    }
}
