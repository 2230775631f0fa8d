//! A record of the changes that closures have made to a table, so that a retried closure changes nothing twice.

// - INV-59: of changes with the same job, closure and number, from any execution of the closure. The record is
//   consistent with the table in its image, and so also on a restarted server and on a follower. It is dropped when
//   the closure has ended, and later changes of the closure are refused. When a greater job has begun, no change of
//   another one is made. Changes of a table are made in the order of the log (INV-53), and those of no table after
//   all earlier ones. Tests: `ps-tables/src/closures.rs`, `service/exactly_once.rs`,
//   `ps-client/src/closure_sequence.rs`, `ps-server/src/store/tests/closures.rs`, `ps-server/tests/it/closures.rs`,
//   `clusters/parameter_servers/closures.rs`, `clusters/coordinator/kills.rs`, `clusters/coordinator/restarts.rs`.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The maximum number of entries of a record, each for up to 64 changes of one closure.
const MAX: usize = 65_536;
/// The number of changes that one entry covers.
const BITS: u64 = u64::BITS as u64;

/// The closure that makes a change, regardless of how often and on which workers it is executed.
///
/// A closure is a call that a coordinator schedules on a worker, and retries on another one if the first has failed or
/// seems to have failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Origin {
    /// The number of the coordinator's job; 0 if no job was begun. See [`Request::BeginJob`](crate::Request::BeginJob).
    pub job: u64,
    /// The sequence number of the closure in its job.
    pub closure: u64,
    /// The lowest number of a closure that may still be running. All closures with lower numbers have ended, so their
    /// changes are rejected.
    pub floor: u64,
}

/// The changes that closures have made to one table.
///
/// For each closure whose number is at least the highest [floor](Origin::floor) so far, the record has an entry for
/// every 64 changes. It has at most 65,536 entries. Store this record together with the table's values, and include it
/// in snapshots, so that the two stay consistent.
///
/// ```
/// use distribute_ps_tables::{ClosureChanges, Origin};
///
/// let mut changes = ClosureChanges::new(0);
/// let origin = Origin { job: 0, closure: 7, floor: 5 };
/// assert!(!changes.has(origin, 0)?);
/// changes.record(origin, 0);
/// assert!(changes.has(origin, 0)?); // another execution of the closure
/// assert!(changes.has(Origin { closure: 4, ..origin }, 0).is_err()); // one that has ended
/// # Ok::<(), distribute_ps_tables::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClosureChanges {
    job: u64,
    /// The highest floor so far. All closures with lower numbers have ended.
    floor: u64,
    /// The applied changes as bits. The key is the closure's number, and the change's number divided by 64.
    applied: BTreeMap<(u64, u64), u64>,
}

impl ClosureChanges {
    /// Creates an empty record for closures of job `job`.
    pub fn new(job: u64) -> Self {
        Self { job, ..Self::default() }
    }

    /// Returns the number of the current job, whose closures may change the table.
    pub fn job(&self) -> u64 {
        self.job
    }

    /// Begins job `job` if its number is greater than that of the current job, and discards the changes of earlier
    /// jobs. Otherwise does nothing.
    pub fn begin(&mut self, job: u64) {
        if job > self.job {
            *self = Self::new(job);
        }
    }

    /// Returns whether a change was applied. `number` is the index of the change among the closure's changes to this
    /// table.
    ///
    /// # Errors
    /// - [`Error::OtherJob`]: the closure belongs to a different job.
    /// - [`Error::ClosureEnded`]: the closure has ended, so its changes are no longer recorded.
    /// - [`Error::TooManyClosures`]: the change needs a new entry, but the record is full, and as far as it knows, none
    ///   of its closures has ended.
    pub fn has(&self, origin: Origin, number: u64) -> Result<bool> {
        let Origin { job, closure, floor } = origin;
        if job != self.job {
            return Err(Error::OtherJob { job, present: self.job });
        }
        let floor = floor.max(self.floor);
        if closure < floor {
            return Err(Error::ClosureEnded { closure, floor });
        }
        let (key, bit) = location(closure, number);
        match self.applied.get(&key) {
            Some(applied) => Ok(applied & bit != 0),
            None => match self.applied.first_key_value() {
                // No entry would be removed when this one is added.
                Some(((oldest, _), _)) if self.applied.len() >= MAX && *oldest >= floor => {
                    Err(Error::TooManyClosures { closure, oldest: *oldest, limit: MAX })
                }
                _ => Ok(false),
            },
        }
    }

    /// Records that a change was applied, unless its closure has ended. Removes the entries of closures below the floor
    /// of `origin`, which have ended. Does nothing if the closure belongs to a different job.
    pub fn record(&mut self, origin: Origin, number: u64) {
        let Origin { job, closure, floor } = origin;
        if job != self.job {
            return;
        }
        if floor > self.floor {
            self.floor = floor;
            while let Some(entry) = self.applied.first_entry().filter(|entry| entry.key().0 < floor) {
                entry.remove();
            }
        }
        // The closure may have ended in the meantime. A repetition of the change is then refused because of the
        // floor.
        if closure >= self.floor {
            let (key, bit) = location(closure, number);
            *self.applied.entry(key).or_default() |= bit;
        }
    }

    /// Returns the record as a list of numbers, for saving.
    pub fn to_numbers(&self) -> Vec<u64> {
        let mut numbers = Vec::with_capacity(2 + 3 * self.applied.len());
        numbers.extend([self.job, self.floor]);
        numbers
            .extend(self.applied.iter().flat_map(|((closure, word), applied)| [*closure, *word, *applied]));
        numbers
    }

    /// Restores a record from the numbers of [`to_numbers`](Self::to_numbers), or returns `None` if the numbers are
    /// invalid.
    pub fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let ([job, floor], rest) = numbers.split_first_chunk()?;
        let (entries, rest) = rest.as_chunks::<3>();
        let applied = entries.iter().map(|[closure, word, applied]| ((*closure, *word), *applied)).collect();
        rest.is_empty().then_some(Self { job: *job, floor: *floor, applied })
    }
}

fn location(closure: u64, number: u64) -> ((u64, u64), u64) {
    ((closure, number / BITS), 1 << (number % BITS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// An event of the test.
    #[derive(Clone, Debug)]
    enum Event {
        /// A change by a closure of this job or, if `old_job`, of the previous one. `behind` is the distance of the
        /// closure's number from the newest one, and `fits` is whether the table accepts the change.
        Change {
            old_job: bool,
            behind: u64,
            number: u64,
            fits: bool,
        },
        /// The first closures end.
        End(u64),
        BeginJob,
        /// The table is saved, and restored.
        Save,
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let number = prop_oneof![0u64..3, 60u64..70, Just(u64::MAX)];
        let change = (prop::bool::weighted(0.1), 0u64..8, number, prop::bool::weighted(0.8))
            .prop_map(|(old_job, behind, number, fits)| Event::Change { old_job, behind, number, fits });
        let event = prop_oneof![
            20 => change,
            3 => (0u64..4).prop_map(Event::End),
            1 => Just(Event::BeginJob),
            1 => Just(Event::Save),
        ];
        prop::collection::vec(event, 0..200)
    }

    proptest! {
        // INV-59
        #[test]
        fn each_change_of_a_closure_is_made_once_at_most(events in events()) {
            let mut changes = ClosureChanges::new(0);
            let (mut job, mut floor, mut known_floor) = (0, 0, 0);
            let mut applied: BTreeSet<(u64, u64, u64)> = BTreeSet::new();
            for event in events {
                match event {
                    Event::End(count) => floor += count,
                    Event::BeginJob => {
                        job += 1;
                        changes.begin(job);
                        (floor, known_floor) = (0, 0);
                    }
                    Event::Save => {
                        changes = ClosureChanges::from_numbers(&changes.to_numbers()).unwrap();
                    }
                    Event::Change { old_job, behind, number, fits } => {
                        let job = if old_job { job.wrapping_sub(1) } else { job };
                        let closure = (floor + 4).saturating_sub(behind);
                        // A closure that runs for long has an old floor.
                        let origin = Origin { job, closure, floor: floor.min(closure).saturating_sub(behind % 2) };
                        let change = (job, closure, number);
                        match changes.has(origin, number) {
                            Ok(true) => {
                                prop_assert!(applied.contains(&change));
                                changes.record(origin, number);
                            }
                            Ok(false) => {
                                prop_assert!(!applied.contains(&change), "{:?} is made again", change);
                                prop_assert!(!old_job && closure >= known_floor);
                                if fits {
                                    applied.insert(change);
                                    changes.record(origin, number);
                                    prop_assert!(changes.has(origin, number).unwrap());
                                }
                            }
                            Err(Error::OtherJob { .. }) => prop_assert!(old_job),
                            Err(Error::ClosureEnded { .. }) => prop_assert!(!old_job && closure < known_floor),
                            Err(other) => prop_assert!(false, "{}", other),
                        }
                        if changes.floor > known_floor {
                            prop_assert_eq!(changes.floor, origin.floor);
                            known_floor = origin.floor;
                        }
                        // Only closures that have not ended are remembered.
                        prop_assert!(changes.applied.keys().all(|(closure, _)| *closure >= known_floor));
                    }
                }
            }
        }
    }

    // INV-59
    #[test]
    fn closures_beyond_the_limit_are_refused_and_none_is_forgotten() {
        let mut changes = ClosureChanges::new(3);
        let origin = |closure, floor| Origin { job: 3, closure, floor };
        (0..MAX as u64).for_each(|closure| changes.record(origin(closure, 0), 0));
        let limit = MAX;
        let more = limit as u64;
        let full = changes.has(origin(more, 0), 0).unwrap_err();
        assert!(
            matches!(full, Error::TooManyClosures { closure, oldest: 0, limit: found } if closure == more && found == limit)
        );
        assert!(changes.has(origin(more - 1, 0), 64).is_err());
        assert!(changes.has(origin(0, 0), 0).unwrap() && !changes.has(origin(0, 0), 1).unwrap());
        // After the first one has ended, there is room for another.
        assert!(!changes.has(origin(more, 1), 0).unwrap());
        changes.record(origin(more, 1), 0);
        assert_eq!(changes.applied.len(), limit);
        assert!(matches!(changes.has(origin(0, 0), 0), Err(Error::ClosureEnded { closure: 0, floor: 1 })));
    }

    #[test]
    fn numbers_that_are_none_of_it_are_refused() {
        for (numbers, good) in
            [(0, false), (1, false), (2, true), (3, false), (4, false), (5, true), (8, true)]
        {
            assert_eq!(ClosureChanges::from_numbers(&vec![7; numbers]).is_some(), good, "{numbers}");
        }
    }
}
