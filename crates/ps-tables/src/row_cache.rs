//! The rows that a process caches after reading them: their age, and which are removed.

// - **INV-87** A row that is read from the cache lacks the updates of at most [`RowCacheOptions::staleness`] runs of
//   this process, and was read after its last write outside of steps. Only lookups in a run use the cache. Tests:
//   `ps-tables/src/row_cache.rs`, `simulation/tests/it/scenarios.rs`, `clusters/multi_worker/table_storage.rs`.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// The settings of the cache that each process has for each table on servers or on other workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowCacheOptions {
    /// The maximum size in bytes of the cached rows of one table between steps. If there are more rows after a step,
    /// those that were used least often are removed, a tenth at once.
    pub bytes: usize,
    /// The maximum number of steps whose changes a cached row may lack.
    ///
    /// Each update by this process counts as a step, and so does each run without an update. With 0, a row is read from
    /// the cache only in the run in which it was fetched, and only until the next update. Other layers, replicas and
    /// micro-batches of that run still share it. Writes of other processes outside steps also become visible after this
    /// number of steps.
    pub staleness: u64,
}

impl Default for RowCacheOptions {
    /// Returns the options for at most 64 MiB per table, without stale rows.
    fn default() -> Self {
        Self { bytes: 64 << 20, staleness: 0 }
    }
}

/// The usage of all row caches in this process since they were created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowCacheUsage {
    /// The number of rows that were read from a cache.
    pub hits: u64,
    /// The number of rows that were fetched.
    pub misses: u64,
    /// The size in bytes of the rows that were read from a cache, as they would be sent: rows in bf16 count half of the
    /// bytes that the program computes with.
    pub saved_bytes: u64,
    /// The largest number of steps whose changes a row lacked when it was read.
    pub max_age: u64,
    /// The number of rows that are cached now.
    pub rows: u64,
}

impl RowCacheUsage {
    /// Returns the sums of two usages; for `max_age`, the maximum.
    pub fn and(self, other: Self) -> Self {
        Self {
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            saved_bytes: self.saved_bytes + other.saved_bytes,
            max_age: self.max_age.max(other.max_age),
            rows: self.rows + other.rows,
        }
    }
}

/// A counter of a process's updates, and of its runs without an update. It measures the age of cached rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepClock {
    now: u64,
    /// Whether an update was counted since the last run began.
    has_advanced: bool,
}

impl StepClock {
    /// Counts an update. Rows that were read before it lack its changes.
    pub fn advance(&mut self) {
        self.now += 1;
        self.has_advanced = true;
    }

    /// Begins a run. If no update was counted since the last run began, the time advances, because other processes may
    /// have made updates.
    pub fn begin_run(&mut self) {
        if !std::mem::take(&mut self.has_advanced) {
            self.now += 1;
        }
    }

    /// Returns the current time: the number of updates and of runs without one.
    pub fn now(self) -> u64 {
        self.now
    }
}

/// The cached rows of one table, as a state machine without a clock or a connection. Times are those of a
/// [`StepClock`]. Rows are bytes, and all have the same length.
///
/// ```
/// use distribute_ps_tables::{CachedRows, RowCacheOptions, StepClock};
///
/// let mut clock = StepClock::default();
/// let mut rows = CachedRows::new(RowCacheOptions { bytes: 1 << 10, staleness: 1 }, 4).expect("room for a row");
/// let lookup = rows.look_up(&[7, 9], clock.now());
/// assert_eq!(lookup.missing, [7, 9]);
/// rows.insert(&lookup, b"ab..ef..");
///
/// clock.advance();
/// let lookup = rows.look_up(&[9], clock.now());
/// assert_eq!((lookup.missing.len(), &lookup.found[..]), (0, &b"ef.."[..]));
/// clock.advance();
/// assert_eq!(rows.look_up(&[9], clock.now()).missing, [9]);
/// ```
#[derive(Clone, Debug)]
pub struct CachedRows {
    staleness: u64,
    /// The maximum number of rows.
    capacity: usize,
    row_bytes: usize,
    /// The index in `entries` of each id.
    index: HashMap<i64, usize>,
    entries: Vec<Entry>,
    /// The bytes of the rows, in the order of `entries`.
    bytes: Vec<u8>,
    /// The number of invalidations. Rows that were requested before the latest one are not inserted.
    epoch: u64,
    /// The time of the last lookup.
    step: u64,
    usage: RowCacheUsage,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: i64,
    /// The time at which the row was requested.
    fetched: u64,
    /// The number of reads after the first, halved whenever rows are removed.
    uses: u32,
}

/// The result of a lookup: the rows that are cached, and the ids of the others, which must be fetched.
#[derive(Clone, Debug)]
pub struct CacheLookup {
    /// The position of the row of each id among the cached rows, followed by the fetched ones.
    pub places: Vec<usize>,
    /// The ids of the rows that must be fetched.
    pub missing: Vec<i64>,
    /// The bytes of the cached rows.
    pub found: Vec<u8>,
    now: u64,
    epoch: u64,
}

impl CachedRows {
    /// Creates a cache for rows of `row_bytes` bytes; `None` if no row fits.
    pub fn new(options: RowCacheOptions, row_bytes: usize) -> Option<Self> {
        let capacity = options.bytes.checked_div(row_bytes).filter(|rows| *rows > 0)?;
        Some(Self {
            staleness: options.staleness,
            capacity,
            row_bytes,
            index: HashMap::new(),
            entries: Vec::new(),
            bytes: Vec::new(),
            epoch: 0,
            step: 0,
            usage: RowCacheUsage::default(),
        })
    }

    /// Looks up ids, each of which must occur once, at the time `now`.
    pub fn look_up(&mut self, ids: &[i64], now: u64) -> CacheLookup {
        // Only between steps: within a step, the order of the replicas' lookups varies.
        if std::mem::replace(&mut self.step, now) != now && self.entries.len() > self.capacity {
            self.shrink(self.capacity - self.capacity / 10);
        }
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        let mut places = Vec::with_capacity(ids.len());
        for id in ids {
            let at = self.index.get(id).copied();
            let age = at.and_then(|at| Some(now - self.entries.get(at)?.fetched));
            match at.zip(age.filter(|age| *age <= self.staleness)) {
                Some((at, age)) => {
                    self.entries[at].uses = self.entries[at].uses.saturating_add(1);
                    self.usage.max_age = self.usage.max_age.max(age);
                    places.push(found.len() / self.row_bytes);
                    found.extend_from_slice(&self.bytes[at * self.row_bytes..(at + 1) * self.row_bytes]);
                }
                None => {
                    // The number of cached rows is added below.
                    places.push(usize::MAX - missing.len());
                    missing.push(*id);
                }
            }
        }
        let hits = ids.len() - missing.len();
        places
            .iter_mut()
            .filter(|place| **place > usize::MAX / 2)
            .for_each(|place| *place = hits + (usize::MAX - *place));
        self.usage.hits += hits as u64;
        self.usage.misses += missing.len() as u64;
        self.usage.saved_bytes += found.len() as u64;
        CacheLookup { places, missing, found, now, epoch: self.epoch }
    }

    /// Returns whether a lookup at the time `now` would find the row of an id, provided that no row is removed before.
    pub fn has(&self, id: i64, now: u64) -> bool {
        let at = self.index.get(&id);
        at.is_some_and(|at| now - self.entries[*at].fetched <= self.staleness)
    }

    /// Inserts fetched rows, in the order of [`CacheLookup::missing`]. Does nothing if the rows were requested before
    /// the latest invalidation.
    pub fn insert(&mut self, lookup: &CacheLookup, fetched: &[u8]) {
        if self.epoch == lookup.epoch {
            for (id, row) in lookup.missing.iter().zip(fetched.chunks_exact(self.row_bytes)) {
                self.put(*id, lookup.now, row);
            }
        }
    }

    /// Removes all rows, because the table was written outside steps.
    pub fn invalidate(&mut self) {
        self.epoch += 1;
        self.index = HashMap::new();
        (self.entries, self.bytes) = (Vec::new(), Vec::new());
    }

    /// Returns the usage of this cache.
    pub fn usage(&self) -> RowCacheUsage {
        RowCacheUsage { rows: self.entries.len() as u64, ..self.usage }
    }

    /// Inserts or replaces a row.
    fn put(&mut self, id: i64, fetched: u64, row: &[u8]) {
        let next = self.entries.len();
        let at = *self.index.entry(id).or_insert(next);
        match self.entries.get_mut(at) {
            None => {
                self.entries.push(Entry { id, fetched, uses: 0 });
                self.bytes.extend_from_slice(row);
            }
            // Another replica has fetched it since the lookup.
            Some(entry) if entry.fetched >= fetched => entry.uses = entry.uses.saturating_add(1),
            Some(entry) => {
                entry.fetched = fetched;
                entry.uses = entry.uses.saturating_add(1);
                self.bytes[at * row.len()..(at + 1) * row.len()].copy_from_slice(row);
            }
        }
    }

    /// Removes all but `count` rows. Keeps those that were used most often and, among equal ones, those that were
    /// fetched last. Halves the uses, so that rows that were frequent long ago are removed later.
    fn shrink(&mut self, count: usize) {
        let mut order: Vec<usize> = (0..self.entries.len()).collect();
        let rank = |at: &usize| {
            let Entry { id, fetched, uses } = self.entries[*at];
            std::cmp::Reverse((uses, fetched, id))
        };
        if count < order.len() {
            order.select_nth_unstable_by_key(count, rank);
            order.truncate(count);
        }
        let (mut index, mut entries, mut bytes) = (HashMap::new(), Vec::new(), Vec::new());
        for at in order {
            let Entry { id, fetched, uses } = self.entries[at];
            index.insert(id, entries.len());
            entries.push(Entry { id, fetched, uses: uses / 2 });
            bytes.extend_from_slice(&self.bytes[at * self.row_bytes..(at + 1) * self.row_bytes]);
        }
        (self.index, self.entries, self.bytes) = (index, entries, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_testing::SplitMix;

    /// A table whose rows contain their id and the number of their changes, with all past values.
    #[derive(Default)]
    struct History {
        /// The number of changes of each id after each step.
        changes: HashMap<i64, Vec<(u64, u32)>>,
    }

    impl History {
        fn now(&self, id: i64) -> u32 {
            self.changes.get(&id).and_then(|all| all.last()).map_or(0, |(_, count)| *count)
        }

        fn change(&mut self, id: i64, step: u64) {
            let count = self.now(id) + 1;
            self.changes.entry(id).or_default().push((step, count));
        }

        /// Returns the number of changes after step `step`.
        fn at(&self, id: i64, step: u64) -> u32 {
            let all = self.changes.get(&id).into_iter().flatten();
            all.take_while(|(of, _)| *of <= step).last().map_or(0, |(_, count)| *count)
        }

        fn rows(&self, ids: &[i64]) -> Vec<u8> {
            let row = |id: &i64| [(*id as i32).to_le_bytes(), self.now(*id).to_le_bytes()].concat();
            ids.iter().flat_map(row).collect()
        }
    }

    fn cache(bytes: usize, staleness: u64) -> CachedRows {
        CachedRows::new(RowCacheOptions { bytes, staleness }, 8).unwrap()
    }

    /// Checks every read of a random history: the row of each id, with the changes of all steps but the last few.
    /// Returns the usage.
    fn check(seed: u64) -> RowCacheUsage {
        let mut random = SplitMix(seed);
        let (staleness, capacity) = (random.below(4) as u64, 1 + random.below(19));
        let (mut clock, mut cache) = (StepClock::default(), cache(capacity * 8 + 7, staleness));
        let (mut history, mut written) = (History::default(), 0);
        // Lookups whose rows have not been fetched yet, with the number of changes that each row must have.
        let mut in_flight: Vec<(Vec<i64>, CacheLookup, Vec<u32>)> = Vec::new();
        for _ in 0..200 {
            match random.below(10) {
                0..5 => {
                    let mut ids: Vec<i64> =
                        (0..random.below(12)).map(|_| random.below(18) as i64 - 9).collect();
                    ids.sort_unstable();
                    ids.dedup();
                    let has: Vec<bool> = ids.iter().map(|id| cache.has(*id, clock.now())).collect();
                    let is_full = cache.entries.len() > capacity;
                    let lookup = cache.look_up(&ids, clock.now());
                    let is_missing = |id: &i64| lookup.missing.contains(id);
                    assert!(is_full || ids.iter().zip(has).all(|(id, has)| has != is_missing(id)));
                    let oldest = clock.now().saturating_sub(staleness).max(written);
                    let least = ids.iter().map(|id| history.at(*id, oldest)).collect();
                    in_flight.push((ids, lookup, least));
                }
                5..8 if !in_flight.is_empty() => {
                    let (ids, lookup, least) = in_flight.swap_remove(random.below(in_flight.len()));
                    let fetched = history.rows(&lookup.missing);
                    cache.insert(&lookup, &fetched);
                    let found = [&lookup.found[..], &fetched].concat();
                    for ((id, place), least) in ids.iter().zip(&lookup.places).zip(least) {
                        let (of, changes) = found[8 * place..8 * place + 8].split_at(4);
                        assert_eq!(of, (*id as i32).to_le_bytes(), "seed {seed}");
                        let (changes, range) =
                            (u32::from_le_bytes(changes.try_into().unwrap()), least..=history.now(*id));
                        assert!(
                            range.contains(&changes),
                            "seed {seed}: {changes} changes of {id}, not in {range:?}"
                        );
                    }
                }
                8 => {
                    clock.advance();
                    (0..random.below(6))
                        .for_each(|_| history.change(random.below(18) as i64 - 9, clock.now()));
                }
                9 if random.below(4) == 0 => {
                    (-9..9).for_each(|id| history.change(id, clock.now()));
                    cache.invalidate();
                    written = clock.now();
                }
                _ => {}
            }
            // Up to 18 ids are looked up in a step.
            assert!(cache.entries.len() <= capacity + 18 && cache.index.len() == cache.entries.len());
            assert!(cache.index.iter().all(|(id, at)| cache.entries[*at].id == *id));
        }
        let usage = cache.usage();
        assert!(usage.max_age <= staleness && usage.saved_bytes == 8 * usage.hits);
        usage
    }

    // INV-87
    #[test]
    fn no_read_lacks_more_steps_than_the_bound() {
        let seeds = std::env::var("DISTRIBUTE_TEST_SEEDS").map_or(500, |seeds| seeds.parse().unwrap());
        let usage = (0..seeds).map(check).fold(RowCacheUsage::default(), RowCacheUsage::and);
        assert!(usage.hits > 1_000 && usage.misses > 1_000 && usage.max_age == 3, "{usage:?}");
    }

    /// An evaluation makes no update. Rows expire and are removed nevertheless.
    #[test]
    fn runs_without_updates_count_as_steps() {
        let (mut clock, mut cache) = (StepClock::default(), cache(80, 0));
        for run in 0..50 {
            clock.begin_run();
            for ids in [[7, 100 + run], [7, 200 + run]] {
                let lookup = cache.look_up(&ids, clock.now());
                cache.insert(&lookup, &History::default().rows(&lookup.missing));
            }
        }
        assert_eq!((cache.usage().hits, cache.usage().max_age), (50, 0));
        assert!(cache.usage().rows <= 10 + 3);
        // An update and the run after it are one step.
        let before = clock.now();
        clock.advance();
        clock.begin_run();
        assert_eq!(clock.now(), before + 1);
    }

    #[test]
    fn frequent_rows_stay() {
        let (mut clock, mut cache) = (StepClock::default(), cache(80, 99));
        for round in 0..50 {
            clock.advance();
            let ids = [1, 2, 100 + 3 * round, 101 + 3 * round, 102 + 3 * round];
            let lookup = cache.look_up(&ids, clock.now());
            cache.insert(&lookup, &History::default().rows(&lookup.missing));
        }
        assert_eq!(cache.usage().hits, 2 * 49);
        assert!(cache.usage().rows <= 10 + 3);
        assert!(CachedRows::new(RowCacheOptions { bytes: 7, staleness: 0 }, 8).is_none());
        assert!(CachedRows::new(RowCacheOptions::default(), 0).is_none());
    }
}
