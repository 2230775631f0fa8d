//! The workers to notify when a rendezvous ends without a world.

use crate::link::Link;
use distribute_cluster::Deadline;
use std::collections::BTreeSet;
use std::time::Duration;

/// The time for which the leader still notifies workers that connect. Workers that connect later find no process at the
/// leader's address.
const STAY: Duration = Duration::from_secs(2);

/// The workers to notify that there will be no world.
#[derive(Debug)]
pub(super) struct RefusalBroadcast {
    unnotified: BTreeSet<usize>,
    until: Deadline,
}

impl RefusalBroadcast {
    /// Creates the list of all workers except the leader and the worker that was rejected.
    pub fn new(workers: usize, refused: usize) -> Self {
        let unnotified = (1..workers).filter(|worker| *worker != refused).collect();
        Self { unnotified, until: Deadline::after(STAY) }
    }

    /// Returns whether `worker` must be notified now. Returns `true` only once for each worker.
    pub fn must_notify(&mut self, worker: usize) -> bool {
        self.unnotified.remove(&worker)
    }

    /// Removes a worker that was also rejected, because the rejection notifies it.
    pub fn remove(&mut self, worker: usize) {
        self.unnotified.remove(&worker);
    }

    /// Returns the time for which the leader still waits.
    pub fn patience(&mut self) -> Duration {
        self.until.look()
    }

    /// Returns whether the leader may exit: all workers were notified and have disconnected, or the time has passed.
    /// `is_refusing` is whether a refusal is still being sent.
    pub fn is_over(&self, links: &[Link], is_refusing: bool) -> bool {
        (self.unnotified.is_empty() && links.is_empty() && !is_refusing) || self.until.has_passed()
    }
}
