//! The end of a rendezvous that makes no world.

use crate::link::Link;
use distribute_cluster::Deadline;
use std::collections::BTreeSet;
use std::time::Duration;

/// The time for which the leader stays to notify workers that connect a little later. After that they find no
/// process at its address.
const STAY: Duration = Duration::from_secs(2);

/// The workers that are still to be notified that there will be no world.
#[derive(Debug)]
pub(super) struct Parting {
    untold: BTreeSet<usize>,
    until: Deadline,
}

impl Parting {
    /// Creates the list of all workers except the leader and the one that was refused.
    pub fn new(workers: usize, refused: usize) -> Self {
        let untold = (1..workers).filter(|worker| *worker != refused).collect();
        Self { untold, until: Deadline::after(STAY) }
    }

    /// Whether this worker must be notified now. Returns `true` once for each.
    pub fn tells(&mut self, worker: usize) -> bool {
        self.untold.remove(&worker)
    }

    /// Removes a worker that was refused as well, and was thus notified.
    pub fn leave_out(&mut self, worker: usize) {
        self.untold.remove(&worker);
    }

    /// Returns the maximum time to wait.
    pub fn patience(&mut self) -> Duration {
        self.until.look()
    }

    /// Whether all were notified and have disconnected, or the time is over.
    pub fn is_over(&self, links: &[Link], is_refusing: bool) -> bool {
        (self.untold.is_empty() && links.is_empty() && !is_refusing) || self.until.has_passed()
    }
}
