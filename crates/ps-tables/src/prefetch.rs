//! The rows that a process requests before the step that looks them up.

// - **INV-102** A row that was requested before its step is used only if the table has not changed since the request.
//   This holds because all changes are made in lock step: a process requests rows after a change has ended on all
//   workers, and discards them when the next change begins. Tests: `ps-tables/src/prefetch.rs`,
//   `ps-client/src/prefetch.rs`, `simulation/tests/it/scenarios.rs`, `clusters/multi_worker/prefetch.rs`.

use crate::partition::{IdIndex, UniqueIds};

/// The rows of one table that a process requests before the step that looks them up.
///
/// This is a state machine without a clock or a connection. The process reports the ids of its next step
/// ([`want`](Self::want)), and the beginning and end of each change of the table. At the end of a change it requests
/// the rows that [`end_change`](Self::end_change) returns. Lookups then find these rows, until the next change begins.
///
/// ```
/// use distribute_ps_tables::Prefetch;
///
/// let mut rows = Prefetch::default();
/// rows.want(&[7, 3, 7]); // the next batch, while a step computes
/// rows.begin_change(); // the gradients of the step
/// let request = rows.end_change(|_| false);
/// assert_eq!(request.ids, [7, 3]);
/// rows.end_run();
/// let found = rows.look_up(&[3, 8], Some(request.change));
/// assert_eq!((found.places, found.late), (vec![Some(1), None], vec![8]));
///
/// rows.begin_change();
/// assert_eq!(rows.look_up(&[3], Some(request.change)).late, [3]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Prefetch {
    /// The ids of the next step; duplicates are possible.
    wanted: Vec<i64>,
    /// The number of changes that have begun.
    changes: u64,
    /// The position of each id in the last request; `None` before the first request, and from the beginning of a change
    /// until the next request.
    requested: Option<IdIndex>,
}

/// The rows to request after a change of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefetchRequest {
    /// The number of changes that had begun.
    pub change: u64,
    /// The ids of the rows, each once.
    pub ids: Vec<i64>,
}

/// The result of a lookup: the rows that were requested early, and the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrefetchLookup {
    /// The position of each id in the request; `None` for ids that were not requested.
    pub places: Vec<Option<usize>>,
    /// The ids that were not requested, in the order of the lookup.
    pub late: Vec<i64>,
}

/// The numbers of prefetched and late rows in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefetchUsage {
    /// The number of looked up rows that were requested before their step.
    pub prefetched: u64,
    /// The number of looked up rows that were not requested before, in tables of which this process has prefetched
    /// rows.
    pub late: u64,
}

impl PrefetchUsage {
    /// Counts the rows of a lookup.
    pub fn add(&mut self, lookup: &PrefetchLookup) {
        let late = lookup.late.len();
        self.late += late as u64;
        self.prefetched += (lookup.places.len() - late) as u64;
    }
}

impl Prefetch {
    /// Adds ids of the next step.
    pub fn want(&mut self, ids: &[i64]) {
        self.wanted.extend_from_slice(ids);
    }

    /// Discards all requested rows, because the table begins to change.
    pub fn begin_change(&mut self) {
        self.changes += 1;
        self.requested = None;
    }

    /// Returns the rows to request now, because a change has ended on all workers. Omits ids for which `is_cached`
    /// returns `true`. If a run makes several changes, the rows are requested after each of them.
    pub fn end_change(&mut self, is_cached: impl Fn(i64) -> bool) -> PrefetchRequest {
        let change = self.changes;
        let wanted: Vec<i64> = self.wanted.iter().copied().filter(|id| !is_cached(*id)).collect();
        let (unique, index) = UniqueIds::with_index(&wanted);
        self.requested = Some(index);
        PrefetchRequest { change, ids: unique.ids().to_vec() }
    }

    /// Ends a run. The ids that were reported are forgotten, because the next run reports its own.
    pub fn end_run(&mut self) {
        self.wanted.clear();
    }

    /// Looks up ids, each of which must occur once. `arrived` is the [`change`](PrefetchRequest::change) of the request
    /// whose rows the caller has; `None` if it has none.
    pub fn look_up(&self, ids: &[i64], arrived: Option<u64>) -> PrefetchLookup {
        let index = self.requested.as_ref().filter(|_| arrived == Some(self.changes));
        let places: Vec<_> = ids.iter().map(|id| index.and_then(|index| index.get(*id))).collect();
        let late: Vec<i64> =
            ids.iter().zip(&places).filter(|(_, place)| place.is_none()).map(|(id, _)| *id).collect();
        PrefetchLookup { places, late }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_testing::SplitMix;

    /// Runs random histories of a table whose rows contain the number of changes. Every lookup must find the rows of
    /// the last change.
    // INV-102
    #[test]
    fn a_row_of_an_earlier_change_is_never_found() {
        let (mut all, mut stale) = (PrefetchUsage::default(), 0);
        for seed in 0..500 {
            let (mut random, mut rows) = (SplitMix(seed), Prefetch::default());
            // The number of changes, and the requested rows: the change after which they were read, and their ids.
            let (mut version, mut arrived) = (0u64, None::<(u64, PrefetchRequest)>);
            for _ in 0..200 {
                let mut ids: Vec<i64> = (0..random.below(6)).map(|_| random.below(9) as i64).collect();
                match random.below(8) {
                    0..3 => rows.want(&ids),
                    3 => rows.end_run(),
                    4 => {
                        rows.begin_change();
                        version += 1;
                        if random.below(4) > 0 {
                            let request = rows.end_change(|id| id == 8);
                            assert!(!request.ids.contains(&8));
                            // The response may be lost.
                            if random.below(4) > 0 {
                                arrived = Some((version, request));
                            }
                        }
                    }
                    _ => {
                        ids.sort_unstable();
                        ids.dedup();
                        let found = rows.look_up(&ids, arrived.as_ref().map(|(_, request)| request.change));
                        assert_eq!(found.places.len(), ids.len());
                        all.add(&found);
                        for (id, place) in ids.iter().zip(&found.places) {
                            let Some(place) = place else {
                                assert!(found.late.contains(id));
                                continue;
                            };
                            let (read, request) = arrived.as_ref().unwrap();
                            assert_eq!((request.ids[*place], *read), (*id, version), "seed {seed}");
                        }
                        stale += usize::from(arrived.as_ref().is_some_and(|(read, _)| *read < version));
                    }
                }
            }
        }
        assert!(all.prefetched > 1_000 && all.late > 1_000 && stale > 1_000, "{all:?}, {stale}");
    }
}
