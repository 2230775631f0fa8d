//! How many workers make a world. Pure: no socket, no clock.

use std::collections::BTreeSet;
use std::time::Duration;

/// How many workers make a world, where not all of the cluster have to be there.
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
    /// With fewer there is no world, however long that takes.
    pub least: usize,
    /// When these have come, by their places in the cluster, there is one at once.
    pub expected: BTreeSet<usize>,
    /// How long the leader waits for them once there are enough, counted from when the last one came.
    pub grace: Duration,
}

impl Quorum {
    /// All workers of a cluster: the world has a fixed size.
    pub fn all(workers: usize) -> Self {
        Self { least: workers, expected: (0..workers).collect(), grace: Duration::MAX }
    }

    /// Whether those that have `come`, the leader included, make a world when nobody else has for `quiet`.
    pub fn is_met(&self, come: &BTreeSet<usize>, quiet: Duration) -> bool {
        come.len() >= self.least && (self.expected.is_subset(come) || quiet >= self.grace)
    }
}
