//! The number of workers that make a world. Pure: no socket, no clock.

use std::collections::BTreeSet;
use std::time::Duration;

/// The number of workers that make a world, if it does not need all workers of the cluster.
///
/// ```
/// use distribute_net::Quorum;
/// use std::time::Duration;
///
/// let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
/// let quorum = Quorum { least: 2, expected: [0, 1, 3].into(), grace: minute };
/// assert!(quorum.is_met(&[0, 1, 3].into(), Duration::ZERO));
/// assert!(!quorum.is_met(&[0, 1, 2].into(), second), "another one is there, and worker 3 may come yet");
/// assert!(quorum.is_met(&[0, 2].into(), minute) && !quorum.is_met(&[0].into(), minute));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quorum {
    /// The minimum number of workers. There is no world with fewer, regardless of the time.
    pub least: usize,
    /// The positions in the cluster that make a world at once when all of them have connected.
    pub expected: BTreeSet<usize>,
    /// The time for which the leader waits for the expected workers once there are enough, since the last one
    /// connected.
    pub grace: Duration,
}

impl Quorum {
    /// Requires all workers of a cluster: the world has a fixed size.
    pub fn all(workers: usize) -> Self {
        Self { least: workers, expected: (0..workers).collect(), grace: Duration::MAX }
    }

    /// Whether the workers that have `come`, including the leader, make a world if no other has connected for
    /// `quiet`.
    pub fn is_met(&self, come: &BTreeSet<usize>, quiet: Duration) -> bool {
        come.len() >= self.least && (self.expected.is_subset(come) || quiet >= self.grace)
    }
}
