//! Who has made which change already.

use distribute_cluster::Deadline;
use distribute_params::{Admission, ClientPushes, Error, PushWindows, Refusal, RefusalKind};
use parking_lot::{Condvar, Mutex};
use std::time::Duration;

/// So many clients are remembered, of some 300 bytes each; for one more, that is forgotten which has not been heard of for longest.
const CLIENTS: usize = 65_536;

/// How long a repeated change waits for the first one, which is still being made.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is to be done about a change that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It is new.
    Apply,
    /// It was made for an earlier attempt.
    Applied,
}

/// Which changes were made, for all clients: [`PushWindows`] for threads.
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
    /// Decides about a change. Where it is being made for an earlier attempt, it waits for that one.
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

    /// Says how a change ended that was to be applied.
    pub fn done(&self, client: u64, sequence: u64, applied: bool) {
        self.windows.lock().done(client, sequence, applied);
        self.changed.notify_all();
    }

    /// Notes a change that the log says was made, or not after all.
    pub fn note(&self, client: u64, sequence: u64, applied: bool) {
        self.windows.lock().note(client, sequence, applied);
    }

    /// Whether a client is remembered, or may have been forgotten for others.
    pub fn may_know(&self, client: u64) -> bool {
        self.windows.lock().may_know(client)
    }

    /// What is known of all clients, to be saved.
    pub fn clients(&self) -> Vec<ClientPushes> {
        self.windows.lock().clients().collect()
    }

    /// Puts back what was known of a client.
    pub fn restore(&self, pushes: &ClientPushes) -> Result<(), Error> {
        self.windows.lock().restore(pushes)
    }

    /// Forgets all, and puts back what is known of some.
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
