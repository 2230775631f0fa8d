//! Who has come since the world was made, and waits for the next one. Pure: no socket, no clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Who has not knocked for so long is gone: those that wait do so at least every half a second.
const GONE: Duration = Duration::from_secs(3);

/// The processes that wait for the next world, by their places in the cluster. Times are those since some beginning.
#[derive(Debug, Default)]
pub struct Knocks {
    all: BTreeMap<usize, Knock>,
}

#[derive(Debug)]
struct Knock {
    /// That of the world of which the process was a member last.
    generation: u64,
    at: Duration,
}

impl Knocks {
    /// The process of this place has come, or come again.
    pub fn knock(&mut self, place: usize, generation: u64, now: Duration) {
        self.all.insert(place, Knock { generation, at: now });
    }

    /// Forgets those that have not come again.
    pub fn look(&mut self, now: Duration) {
        self.all.retain(|_, knock| now.saturating_sub(knock.at) < GONE);
    }

    /// How many wait.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Their places.
    pub fn places(&self) -> BTreeSet<usize> {
        self.all.keys().copied().collect()
    }

    /// Whether one of them was a member of a world as late as the one of this generation, and not of that: its leader knew nothing of
    /// the other, because it had just started.
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
