//! The number of workers that form a world. This module contains only pure values and functions.

// - INV-43: a worker that joins later, or did not receive the decision, is in none of the world's sessions and
//   waits until the group is re-formed. Workers are numbered again, without gaps, in the order of their positions
//   in the cluster. Tests: `net/src/rendezvous/membership/tests.rs`, `late_join_replies.rs`, `net/tests/it/elastic.rs`,
//   `clusters/recovery/elastic.rs`, `simulation/tests/it/scenarios.rs`.
// - **INV-100** A world has at most its maximum number of workers. Members of an earlier world take precedence over
//   spares, members of the latest world over others, and spares over processes that have just started. A leader that
//   has just started waits for the members of the latest world of which a spare knows, for half of its patience. If it
//   then begins a world without them, it is of generation 2, so that members of that one or a later one supplant it.
//   Tests: `net/src/rendezvous/quorum.rs`, `membership/tests.rs`, `state/tests.rs`, `late_join_replies.rs`,
//   `net/tests/it/spares.rs`, `simulation/tests/it/scenarios.rs`, `clusters/recovery/spares.rs`.

use std::collections::BTreeSet;
use std::time::Duration;

/// The time for which a leader with enough workers still waits for an expected worker that may be running, before a
/// spare takes that worker's position.
pub(super) const PRESENT_GRACE: Duration = Duration::from_secs(5);

/// The time for which the leader waits likewise for a worker of the last world that is lost.
const LOST_GRACE: Duration = Duration::from_millis(500);

/// The number of workers that form a world that does not need all workers of the cluster.
///
/// ```
/// use distribute_net::Quorum;
/// use std::time::Duration;
///
/// let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
/// let (expected, present) = ([0, 1, 3].into(), [0, 1].into());
/// let quorum = Quorum { minimum: 2, maximum: 4, expected, present, grace: minute };
/// let is_met = |connected: &[usize], idle| {
///     quorum.is_met(&connected.iter().copied().collect(), &[].into(), idle, false)
/// };
/// assert!(is_met(&[0, 1, 3], Duration::ZERO));
/// assert!(!is_met(&[0, 1, 2], second), "another one is there, and worker 3 may connect yet");
/// assert!(is_met(&[0, 2], minute) && !is_met(&[0], minute));
/// assert!(is_met(&[0, 1, 2, 4], second), "it is full, and worker 3, which was lost, has not come");
/// assert!(!is_met(&[0, 2, 3, 4], second), "it is full, and worker 1 is running");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quorum {
    /// The minimum number of workers. No world is formed with fewer workers, however long the leader waits.
    pub minimum: usize,
    /// The maximum number of workers. Other workers that have connected are spares: they wait until a worker is lost.
    pub maximum: usize,
    /// The positions in the cluster whose workers form a world as soon as all of them have connected.
    pub expected: BTreeSet<usize>,
    /// The positions of the workers that are not known to be lost. A spare takes one of these positions only if its
    /// worker does not connect for some seconds.
    pub present: BTreeSet<usize>,
    /// The time for which the leader waits for the expected workers after the minimum number is reached, measured from
    /// the last connection.
    pub grace: Duration,
}

impl Quorum {
    /// Returns a quorum of all workers of a cluster, for a world of fixed size.
    pub fn all(workers: usize) -> Self {
        Self {
            minimum: workers,
            maximum: workers,
            expected: (0..workers).collect(),
            present: BTreeSet::new(),
            grace: Duration::MAX,
        }
    }

    /// Returns whether the leader forms a world now. `connected` contains all connected workers and the leader, and
    /// `spares` those of them that are spares, which are not the expected workers. No other worker has connected for
    /// the time `idle`.
    ///
    /// `is_first` is `true` if the leader was in no world before, so that it knows of no lost worker. If more than the
    /// maximum have connected, only some of them are in the world.
    pub fn is_met(
        &self,
        connected: &BTreeSet<usize>,
        spares: &BTreeSet<usize>,
        idle: Duration,
        is_first: bool,
    ) -> bool {
        let may_connect = is_first || !self.present.is_subset(connected);
        let full_grace = if may_connect { PRESENT_GRACE } else { LOST_GRACE };
        let is_full = connected.len() >= self.maximum && idle >= full_grace.min(self.grace);
        let is_there = |place: &usize| connected.contains(place) && !spares.contains(place);
        connected.len() >= self.minimum
            && (self.expected.iter().all(is_there) || idle >= self.grace || is_full)
    }
}

/// The workers that the leader of a world knows of when the group re-forms, as positions in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownWorkers {
    /// The members of the world that are still there.
    pub present: BTreeSet<usize>,
    /// The members that are lost and may be replaced.
    pub lost: BTreeSet<usize>,
    /// The processes that wait for the next world.
    pub waiting: BTreeSet<usize>,
    /// Whether a waiting process was a member of another world that is at least as late.
    pub supplanted: bool,
}

impl KnownWorkers {
    /// Returns the positions to [expect](Quorum::expected) in the next world, which has at most `maximum` workers. Lost
    /// workers are left out if the waiting processes fill the world without them and [`supplanted`](Self::supplanted)
    /// is `false`. Otherwise all known workers are expected, even if they are more than `maximum`.
    pub fn expected(self, maximum: usize) -> BTreeSet<usize> {
        let Self { present, lost, waiting, supplanted } = self;
        let room = maximum.saturating_sub(present.len());
        if !supplanted && waiting.len() >= room {
            return present.into_iter().chain(waiting.into_iter().take(room)).collect();
        }
        present.into_iter().chain(lost).chain(waiting).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // INV-100
    #[test]
    fn a_spare_is_used_if_an_expected_worker_does_not_come() {
        let minute = Duration::from_secs(60);
        let (expected, present) = ([0, 1, 2].into(), [0, 1].into());
        let quorum = Quorum { minimum: 3, maximum: 3, expected, present, grace: minute };
        let met = |connected: &[usize], spares: &[usize], idle, is_first| {
            let set = |places: &[usize]| places.iter().copied().collect();
            quorum.is_met(&set(connected), &set(spares), idle, is_first)
        };
        let now = Duration::ZERO;
        for is_first in [false, true] {
            assert!(met(&[0, 1, 2], &[], now, is_first) && met(&[0, 1, 2, 3], &[], now, is_first));
            assert!(!met(&[0, 1, 3], &[], now, is_first) && !met(&[0, 3], &[], minute, is_first));
            assert!(!met(&[0, 1, 2], &[2], now, is_first), "that one is not worker 2 of the last world");
        }
        // Worker 2 is lost, worker 1 is busy, and a leader that has just started knows neither.
        for (connected, is_first, grace) in [
            (&[0, 1, 3], false, LOST_GRACE),
            (&[0, 2, 3], false, PRESENT_GRACE),
            (&[0, 1, 3], true, PRESENT_GRACE),
        ] {
            assert!(met(connected, &[], grace, is_first), "{connected:?}");
            assert!(!met(connected, &[], grace - Duration::from_millis(1), is_first), "{connected:?}");
        }
    }

    // INV-111. Links at a leader may be stale for the silence: no world is begun before they are noticed if a worker
    // that is not known to be lost has not connected.
    #[test]
    fn a_leader_waits_longer_for_present_workers_than_a_lost_link_is_unnoticed() {
        let settings = crate::Settings::default();
        assert!(PRESENT_GRACE > settings.silence + settings.heartbeat);
    }

    // INV-43, INV-100
    #[test]
    fn waiting_processes_replace_lost_workers_if_there_are_enough() {
        let set = |positions: &[usize]| positions.iter().copied().collect::<BTreeSet<_>>();
        for (present, lost, waiting, supplanted, maximum, expected) in [
            // With a spare, and without one.
            (&[0, 2][..], &[1][..], &[3][..], false, 3, &[0, 2, 3][..]),
            (&[0, 2], &[1], &[], false, 3, &[0, 1, 2]),
            (&[0, 2], &[1], &[3, 4], false, 3, &[0, 2, 3]),
            (&[0], &[1, 2], &[3], false, 3, &[0, 1, 2, 3]),
            // No worker is lost: a link is broken.
            (&[0, 1, 2], &[], &[3], false, 3, &[0, 1, 2]),
            // The members of another world have the state.
            (&[0, 1], &[], &[2], true, 2, &[0, 1, 2]),
            // A world that grows and shrinks.
            (&[0, 1], &[], &[3], false, 4, &[0, 1, 3]),
            (&[0, 1], &[2], &[3], false, 4, &[0, 1, 2, 3]),
            (&[0, 1], &[], &[2, 3], false, 4, &[0, 1, 2, 3]),
        ] {
            let known =
                KnownWorkers { present: set(present), lost: set(lost), waiting: set(waiting), supplanted };
            assert_eq!(known.clone().expected(maximum), set(expected), "{known:?}");
        }
    }
}
