//! Who has come since the world was made, and waits for the next one.

use distribute_cluster::Stopwatch;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Who has not knocked for so long is gone: those that wait do so at least every half a second.
const GONE: Duration = Duration::from_secs(3);

/// The processes that wait for the next world, by their places in the cluster.
#[derive(Debug, Default)]
pub(crate) struct WaitingRoom {
    knocks: Mutex<BTreeMap<usize, Knock>>,
    count: AtomicUsize,
}

#[derive(Debug)]
struct Knock {
    /// That of the world of which the process was a member last.
    generation: u64,
    since: Stopwatch,
}

impl WaitingRoom {
    /// The process of this place has come, or come again.
    pub fn knock(&self, place: usize, generation: u64) {
        let mut knocks = self.knocks();
        knocks.insert(place, Knock { generation, since: Stopwatch::start() });
        self.count.store(knocks.len(), Ordering::Release);
    }

    /// Forgets those that have not come again.
    pub fn look(&self) {
        self.forget(GONE);
    }

    fn forget(&self, gone: Duration) {
        if self.count() == 0 {
            return;
        }
        let mut knocks = self.knocks();
        knocks.retain(|_, knock| knock.since.elapsed() < gone);
        self.count.store(knocks.len(), Ordering::Release);
    }

    /// How many wait.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Their places.
    pub fn places(&self) -> BTreeSet<usize> {
        self.knocks().keys().copied().collect()
    }

    /// The latest generation that one of them was a member of.
    pub fn latest(&self) -> u64 {
        self.knocks().values().map(|knock| knock.generation).max().unwrap_or(0)
    }

    fn knocks(&self) -> MutexGuard<'_, BTreeMap<usize, Knock>> {
        self.knocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // INV-43
    #[test]
    fn who_knocks_counts_once_and_who_stops_knocking_is_gone() {
        let room = WaitingRoom::default();
        for (place, generation) in [(3, 0), (1, 4), (3, 0)] {
            room.knock(place, generation);
        }
        room.look();
        assert_eq!((room.count(), room.places(), room.latest()), (2, BTreeSet::from([1, 3]), 4));
        room.forget(Duration::ZERO);
        assert_eq!((room.count(), room.latest()), (0, 0));
    }
}
