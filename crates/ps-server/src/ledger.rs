//! The changes that clients have already made.

use distribute_cluster::Deadline;
use distribute_ps_tables::{Admission, ClientPushes, Error, PushWindows, Refusal, RefusalKind};
use parking_lot::{Condvar, Mutex};
use std::time::Duration;

/// The number of clients that are remembered, with about 300 bytes each. If there are more, the least recently
/// active one is forgotten.
const CLIENTS: usize = 65_536;

/// The time that a repeated change waits for the first attempt, if that is still in progress.
const PATIENCE: Duration = Duration::from_secs(20);

/// The decision about a received change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The change is new.
    Apply,
    /// The change was made by an earlier attempt.
    Applied,
}

/// The changes of all clients: a [`PushWindows`] for use by several threads.
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
    /// Decides about a change. If an earlier attempt is in progress, this waits for it.
    pub fn begin(&self, client: u64, sequence: u64) -> Result<Turn, Refusal> {
        let mut deadline = Deadline::after(PATIENCE);
        let mut windows = self.windows.lock();
        loop {
            match windows.begin(client, sequence)? {
                Admission::Apply => return Ok(Turn::Apply),
                Admission::Applied => return Ok(Turn::Applied),
                Admission::UnderWay => {}
            }
            let slice = deadline.look();
            if slice.is_zero() {
                let text = format!(
                    "change {sequence} of client {client:x} has been under way for {PATIENCE:?}, for an earlier attempt; repeat it later"
                );
                return Err(Refusal::new(RefusalKind::Busy, text));
            }
            self.changed.wait_for(&mut windows, slice);
            deadline.look();
        }
    }

    /// Records the result of a change that was to be applied.
    pub fn done(&self, client: u64, sequence: u64, applied: bool) {
        self.windows.lock().done(client, sequence, applied);
        self.changed.notify_all();
    }

    /// Records the result of a change from the log.
    pub fn note(&self, client: u64, sequence: u64, applied: bool) {
        self.windows.lock().note(client, sequence, applied);
    }

    /// Returns whether a client is remembered, or may have been forgotten.
    pub fn may_know(&self, client: u64) -> bool {
        self.windows.lock().may_know(client)
    }

    /// Returns the records of all clients, for saving.
    pub fn clients(&self) -> Vec<ClientPushes> {
        self.windows.lock().clients().collect()
    }

    /// Restores the record of a client.
    pub fn restore(&self, pushes: &ClientPushes) -> Result<(), Error> {
        self.windows.lock().restore(pushes)
    }

    /// Replaces all records.
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
            for (first_is_made, then) in [(true, Turn::Applied), (false, Turn::Apply)] {
                let ledger = Arc::new(Ledger::default());
                assert_eq!(ledger.begin(1, 7).unwrap(), Turn::Apply);
                let again = ledger.clone();
                let again = std::thread::spawn(move || again.begin(1, 7).unwrap());
                assert_eq!(ledger.begin(1, 8).unwrap(), Turn::Apply);
                ledger.done(1, 7, first_is_made);
                assert_eq!(again.join().unwrap(), then);
            }
        });
    }
}
