//! The end of a rendezvous of which nothing comes.

use crate::link::Link;
use distribute_cluster::Deadline;
use std::collections::BTreeSet;
use std::time::Duration;

/// The time for which the leader stays to tell those that come a moment later: after that they find nobody at its address.
const STAY: Duration = Duration::from_secs(2);

/// The workers that are still to be told that there will be no world.
#[derive(Debug)]
pub(super) struct Parting {
    untold: BTreeSet<usize>,
    until: Deadline,
}

impl Parting {
    /// All workers but the leader and the one that was refused have to be told.
    pub fn new(workers: usize, refused: usize) -> Self {
        let untold = (1..workers).filter(|worker| *worker != refused).collect();
        Self { untold, until: Deadline::after(STAY) }
    }

    /// Whether this worker has to be told now. It is told once.
    pub fn tells(&mut self, worker: usize) -> bool {
        self.untold.remove(&worker)
    }

    /// This worker was refused as well, and knows.
    pub fn leave_out(&mut self, worker: usize) {
        self.untold.remove(&worker);
    }

    /// The time to wait at most.
    pub fn patience(&mut self) -> Duration {
        self.until.look()
    }

    /// Whether all have heard it and have gone, or have not come in time.
    pub fn is_over(&self, links: &[Link], is_refusing: bool) -> bool {
        (self.untold.is_empty() && links.is_empty() && !is_refusing) || self.until.has_passed()
    }
}
