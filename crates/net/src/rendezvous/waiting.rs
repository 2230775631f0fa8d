//! The processes that have connected since the world was made, and wait for the next one. Pure: no socket, no
//! clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The time after which a process that has not knocked again is removed. Waiting processes knock at least
/// every half second.
const GONE: Duration = Duration::from_secs(3);

/// The processes that wait for the next world, by position in the cluster. Times are relative to a fixed
/// start.
#[derive(Debug, Default)]
pub struct Knocks {
    all: BTreeMap<usize, Knock>,
}

#[derive(Debug)]
struct Knock {
    /// The generation of the world that the process was last a member of.
    generation: u64,
    at: Duration,
}

impl Knocks {
    /// Records that the process of this position has connected.
    pub fn knock(&mut self, place: usize, generation: u64, now: Duration) {
        self.all.insert(place, Knock { generation, at: now });
    }

    /// Removes the processes that have not connected again.
    pub fn look(&mut self, now: Duration) {
        self.all.retain(|_, knock| now.saturating_sub(knock.at) < GONE);
    }

    /// Returns the number of waiting processes.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Returns their positions.
    pub fn places(&self) -> BTreeSet<usize> {
        self.all.keys().copied().collect()
    }

    /// Whether one of them was a member of another world of this generation or a later one. This world's
    /// leader did not know of it, because it had just started.
    pub fn supplant(&self, generation: u64) -> bool {
        self.all.values().any(|knock| knock.generation >= generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // INV-43
    #[test]
    fn who_knocks_counts_once_and_who_stops_knocking_is_gone() {
        let (mut knocks, second) = (Knocks::default(), Duration::from_secs(1));
        for (place, generation, now) in [(3, 0, 0), (1, 4, 1), (3, 0, 2)] {
            knocks.knock(place, generation, now * second);
        }
        knocks.look(3 * second);
        assert_eq!((knocks.count(), knocks.places()), (2, BTreeSet::from([1, 3])));
        assert!(knocks.supplant(4) && !knocks.supplant(5));
        knocks.look(4 * second);
        assert_eq!(knocks.places(), BTreeSet::from([3]));
        assert!(!knocks.supplant(1));
        knocks.look(5 * second);
        assert_eq!(knocks.count(), 0);
    }
}
