//! The number of workers that form a world, as pure values and functions.

// - INV-43: a worker that joins later, or did not receive the decision, is in none of the world's sessions and
//   waits until the group is re-formed. Workers are numbered again, without gaps, in the order of their positions
//   in the cluster. Tests: `net/src/rendezvous/membership.rs`, `late_join_replies.rs`, `net/tests/it/elastic.rs`,
//   `clusters/recovery/elastic.rs`, `simulation/tests/it/scenarios.rs`.

use std::collections::BTreeSet;
use std::time::Duration;

/// The number of workers that form a world, if it does not need all workers of the cluster.
///
/// ```
/// use distribute_net::Quorum;
/// use std::time::Duration;
///
/// let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
/// let quorum = Quorum { minimum: 2, expected: [0, 1, 3].into(), grace: minute };
/// assert!(quorum.is_met(&[0, 1, 3].into(), Duration::ZERO));
/// assert!(!quorum.is_met(&[0, 1, 2].into(), second), "another one is there, and worker 3 may connect yet");
/// assert!(quorum.is_met(&[0, 2].into(), minute) && !quorum.is_met(&[0].into(), minute));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quorum {
    /// The minimum number of workers. No world is formed with fewer workers, however long the leader waits.
    pub minimum: usize,
    /// The positions in the cluster whose workers form a world as soon as all of them have connected.
    pub expected: BTreeSet<usize>,
    /// The time for which the leader waits for the expected workers after the minimum number is reached, measured from
    /// the last connection.
    pub grace: Duration,
}

impl Quorum {
    /// Returns a quorum of all workers of a cluster, for a world of fixed size.
    pub fn all(workers: usize) -> Self {
        Self { minimum: workers, expected: (0..workers).collect(), grace: Duration::MAX }
    }

    /// Returns whether the workers in `connected`, including the leader, form a world if no other worker has connected
    /// for the time `idle`.
    pub fn is_met(&self, connected: &BTreeSet<usize>, idle: Duration) -> bool {
        connected.len() >= self.minimum && (self.expected.is_subset(connected) || idle >= self.grace)
    }
}
