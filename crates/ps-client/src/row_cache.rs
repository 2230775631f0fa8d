//! A cache of rows of a table that this process has read, with a bound on the updates that cached rows lack.

// - **INV-87** A row that is read from the cache lacks the updates of at most [`RowCacheOptions::staleness`] runs of
//   this process, and was read after its last write outside of steps. Only lookups in a run use the cache. Tests:
//   `ps-client/src/row_cache.rs`, `clusters/multi_worker/table_storage.rs`.

use distribute_base::Result;
use distribute_base::internal::lock;
use distribute_tensor::{DType, HostTensor, codec};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The settings of the cache of rows that each process keeps for each table on servers or on other workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowCacheOptions {
    /// The maximum size of the cached rows of one table in bytes, except during a step. If there are more rows after
    /// the step, those that were used least often are removed, a tenth at once.
    pub bytes: usize,
    /// The maximum number of steps whose changes a cached row may lack. Each update by this process counts as a step,
    /// and so does each run without an update. With 0, a row is only read from the cache in the run in which it was
    /// fetched, until the next update, for example by other layers, replicas and micro-batches. Writes of other
    /// processes outside steps are also seen after this number of steps.
    pub staleness: u64,
}

impl Default for RowCacheOptions {
    /// Returns the options for at most 64 MiB per table, without stale rows.
    fn default() -> Self {
        Self { bytes: 64 << 20, staleness: 0 }
    }
}

/// The use of all caches of rows in this process since they were created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowCacheUsage {
    /// The number of rows that were read from a cache.
    pub hits: u64,
    /// The number of rows that were fetched.
    pub misses: u64,
    /// The size of the rows that were read from a cache, in bytes of a message: rows in bf16 count with half of the
    /// bytes that the program computes with.
    pub saved_bytes: u64,
    /// The largest number of steps whose changes a row lacked when it was read.
    pub max_age: u64,
    /// The number of rows that are cached now.
    pub rows: u64,
}

impl RowCacheUsage {
    /// Returns the sums of the numbers of both; for `max_age`, the maximum.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            saved_bytes: self.saved_bytes + other.saved_bytes,
            max_age: self.max_age.max(other.max_age),
            rows: self.rows + other.rows,
        }
    }
}

/// A clock that counts the updates of this process, and its runs without an update. It measures the age of cached rows.
#[derive(Debug, Default)]
pub(crate) struct StepClock {
    now: AtomicU64,
    /// Whether the time has advanced since the last run began.
    has_advanced: AtomicBool,
}

impl StepClock {
    /// Counts an update. Rows that were read before it lack its changes.
    pub(crate) fn advance(&self) {
        self.now.fetch_add(1, Ordering::AcqRel);
        self.has_advanced.store(true, Ordering::Release);
    }

    /// Begins a run. If nothing was updated since the last one, time advances, because other processes may have made
    /// updates.
    pub(crate) fn begin_run(&self) {
        if !self.has_advanced.swap(false, Ordering::AcqRel) {
            self.now.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn now(&self) -> u64 {
        self.now.load(Ordering::Acquire)
    }
}

/// The cached rows of one table.
#[derive(Debug)]
pub struct RowCache {
    clock: Arc<StepClock>,
    staleness: u64,
    /// The maximum number of rows.
    capacity: usize,
    row_bytes: usize,
    /// The size of a row in a message.
    sent_bytes: usize,
    rows: Mutex<CachedRows>,
    /// The use of caches that were dropped, to which this one adds its own.
    dropped: Arc<Mutex<RowCacheUsage>>,
}

#[derive(Debug, Default)]
struct CachedRows {
    /// The index in `entries` of each id.
    index: HashMap<i64, usize>,
    entries: Vec<Entry>,
    /// The bytes of the rows, in the order of `entries`.
    bytes: Vec<u8>,
    /// The number of invalidations. Rows that were requested before the last one are not inserted.
    epoch: u64,
    /// The time of the clock at the last lookup.
    step: u64,
    usage: RowCacheUsage,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: i64,
    /// The time of the clock when the row was requested.
    fetched: u64,
    /// The number of times that the row was read after the first time, halved whenever rows are removed.
    uses: u32,
}

/// The result of a lookup: the rows that are cached, and the ids of the others, which have to be fetched.
pub(crate) struct CacheLookup {
    /// The position of the row of each id: among the cached rows or, after those, among the fetched ones.
    pub(crate) places: Vec<usize>,
    pub(crate) missing: Vec<i64>,
    /// The bytes of the cached rows.
    found: Vec<u8>,
    now: u64,
    epoch: u64,
}

/// The rows of a cache that a lookup would find now. Other threads wait until this view is dropped.
pub(crate) struct FreshRows<'a> {
    cached: MutexGuard<'a, CachedRows>,
    /// The earliest time at which they were requested.
    oldest: u64,
}

impl FreshRows<'_> {
    /// Returns `true` if a lookup would find the row of an id.
    pub(crate) fn has(&self, id: i64) -> bool {
        let at = self.cached.index.get(&id);
        at.is_some_and(|at| self.cached.entries[*at].fetched >= self.oldest)
    }
}

impl RowCache {
    /// Creates a cache for rows of `row_bytes` bytes; `None` if not a single row fits.
    pub(crate) fn new(options: RowCacheOptions, row_bytes: usize, clock: Arc<StepClock>) -> Option<Self> {
        let capacity = options.bytes.checked_div(row_bytes).filter(|rows| *rows > 0)?;
        let (rows, dropped, staleness) = (Mutex::default(), Arc::default(), options.staleness);
        Some(Self { clock, staleness, capacity, row_bytes, sent_bytes: row_bytes, rows, dropped })
    }

    /// Sets the size of a row in a message, and where this cache adds its usage when it is dropped.
    pub(crate) fn counted(mut self, sent_bytes: usize, dropped: Arc<Mutex<RowCacheUsage>>) -> Self {
        (self.sent_bytes, self.dropped) = (sent_bytes, dropped);
        self
    }

    /// Looks up ids, each of which must occur once.
    pub(crate) fn look_up(&self, ids: &[i64]) -> CacheLookup {
        let mut cached = lock(&self.rows);
        let (now, epoch) = (self.clock.now(), cached.epoch);
        // Only between steps: within a step, the order of the replicas' lookups varies.
        if std::mem::replace(&mut cached.step, now) != now && cached.entries.len() > self.capacity {
            cached.shrink(self.capacity - self.capacity / 10, self.row_bytes);
        }
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        let mut places = Vec::with_capacity(ids.len());
        for id in ids {
            let at = cached.index.get(id).copied();
            let age = at.and_then(|at| Some(now - cached.entries.get(at)?.fetched));
            match at.zip(age.filter(|age| *age <= self.staleness)) {
                Some((at, age)) => {
                    cached.entries[at].uses = cached.entries[at].uses.saturating_add(1);
                    cached.usage.max_age = cached.usage.max_age.max(age);
                    places.push(found.len() / self.row_bytes);
                    found.extend_from_slice(&cached.bytes[at * self.row_bytes..(at + 1) * self.row_bytes]);
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
        cached.usage.hits += hits as u64;
        cached.usage.misses += missing.len() as u64;
        cached.usage.saved_bytes += (hits * self.sent_bytes) as u64;
        CacheLookup { places, missing, found, now, epoch }
    }

    /// Returns a view of the rows that the next lookup would find.
    pub(crate) fn lookups(&self) -> FreshRows<'_> {
        FreshRows { cached: lock(&self.rows), oldest: self.clock.now().saturating_sub(self.staleness) }
    }

    /// Inserts fetched rows, which are in the order of [`CacheLookup::missing`]. Returns the cached rows of the lookup,
    /// followed by the fetched ones.
    ///
    /// # Errors
    /// - [`Error::Tensor`](distribute_base::Error::Tensor): the rows do not have the dtype and shape of the table.
    pub(crate) fn insert(&self, lookup: &CacheLookup, fetched: &HostTensor) -> Result<HostTensor> {
        let mut bytes = Vec::with_capacity(fetched.len() * fetched.dtype().bytes().unwrap_or(1));
        codec::append(fetched.buffer(), 0..fetched.len(), &mut bytes);
        {
            let mut cached = lock(&self.rows);
            if cached.epoch == lookup.epoch {
                for (id, row) in lookup.missing.iter().zip(bytes.chunks_exact(self.row_bytes)) {
                    cached.put(*id, lookup.now, row);
                }
            }
        }
        if lookup.found.is_empty() {
            return Ok(fetched.clone());
        }
        let found = rows_of(&lookup.found, fetched.dtype(), fetched.dims(), self.row_bytes)?;
        Ok(HostTensor::concat(&[&found, fetched], 0)?)
    }

    /// Removes all rows, because the table was written outside steps.
    pub(crate) fn invalidate(&self) {
        let mut cached = lock(&self.rows);
        let (epoch, step, usage) = (cached.epoch + 1, cached.step, cached.usage);
        *cached = CachedRows { epoch, step, usage, ..CachedRows::default() };
    }

    pub(crate) fn usage(&self) -> RowCacheUsage {
        let cached = lock(&self.rows);
        RowCacheUsage { rows: cached.entries.len() as u64, ..cached.usage }
    }
}

impl Drop for RowCache {
    fn drop(&mut self) {
        let used = RowCacheUsage { rows: 0, ..self.usage() };
        let mut dropped = lock(&self.dropped);
        *dropped = dropped.and(used);
    }
}

impl CachedRows {
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

    /// Keeps `count` rows: those that were used most often and, among equally frequent ones, those that were fetched
    /// last. Halves the uses, so that rows that were frequent long ago are removed later.
    fn shrink(&mut self, count: usize, row_bytes: usize) {
        let mut order: Vec<usize> = (0..self.entries.len()).collect();
        let rank = |at: &usize| {
            let Entry { id, fetched, uses } = self.entries[*at];
            std::cmp::Reverse((uses, fetched, id))
        };
        if count < order.len() {
            order.select_nth_unstable_by_key(count, rank);
            order.truncate(count);
        }
        let mut kept = Self { epoch: self.epoch, step: self.step, usage: self.usage, ..Self::default() };
        for at in order {
            let Entry { id, fetched, uses } = self.entries[at];
            kept.index.insert(id, kept.entries.len());
            kept.entries.push(Entry { id, fetched, uses: uses / 2 });
            kept.bytes.extend_from_slice(&self.bytes[at * row_bytes..(at + 1) * row_bytes]);
        }
        *self = kept;
    }
}

/// Returns rows from their bytes. `dims` is the shape of any number of such rows.
fn rows_of(bytes: &[u8], dtype: DType, dims: &[usize], row_bytes: usize) -> Result<HostTensor> {
    let mut dims = dims.to_vec();
    if let Some(count) = dims.first_mut() {
        *count = bytes.len() / row_bytes;
    }
    let buffer = codec::read(dtype, bytes).map_err(|position| {
        distribute_base::Error::invalid("reading cached rows", format!("byte {position} is not {dtype}"))
    })?;
    Ok(HostTensor::from_buffer(buffer, dims)?)
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
    }

    fn rows(history: &History, ids: &[i64]) -> HostTensor {
        let row = |id: &i64| [*id as f32, history.now(*id) as f32];
        HostTensor::new(ids.iter().flat_map(row).collect::<Vec<_>>(), [ids.len(), 2]).unwrap()
    }

    /// Checks every read of a random history: the row of each id, with the changes of all steps but the last few.
    /// Returns the usage.
    fn check(seed: u64) -> RowCacheUsage {
        let mut random = SplitMix(seed);
        let (staleness, capacity) = (random.below(4) as u64, 1 + random.below(19));
        let clock = Arc::new(StepClock::default());
        let options = RowCacheOptions { bytes: capacity * 8 + 7, staleness };
        let cache = RowCache::new(options, 8, clock.clone()).unwrap();
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
                    let lookup = cache.look_up(&ids);
                    let oldest = clock.now().saturating_sub(staleness).max(written);
                    let least = ids.iter().map(|id| history.at(*id, oldest)).collect();
                    in_flight.push((ids, lookup, least));
                }
                5..8 if !in_flight.is_empty() => {
                    let (ids, lookup, least) = in_flight.swap_remove(random.below(in_flight.len()));
                    let found = cache.insert(&lookup, &rows(&history, &lookup.missing)).unwrap();
                    let found = found.to_vec::<f32>().unwrap();
                    for ((id, place), least) in ids.iter().zip(&lookup.places).zip(least) {
                        let row = &found[2 * place..2 * place + 2];
                        assert_eq!(row[0], *id as f32, "seed {seed}");
                        let range = least as f32..=history.now(*id) as f32;
                        assert!(
                            range.contains(&row[1]),
                            "seed {seed}: {} changes of {id}, not in {range:?}",
                            row[1]
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
            let cached = lock(&cache.rows);
            // Up to 18 ids are looked up in a step.
            assert!(cached.entries.len() <= capacity + 18 && cached.index.len() == cached.entries.len());
            assert!(cached.index.iter().all(|(id, at)| cached.entries[*at].id == *id));
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
        let clock = Arc::new(StepClock::default());
        let cache = RowCache::new(RowCacheOptions { bytes: 80, staleness: 0 }, 8, clock.clone()).unwrap();
        for run in 0..50 {
            clock.begin_run();
            for ids in [[7, 100 + run], [7, 200 + run]] {
                let lookup = cache.look_up(&ids);
                cache.insert(&lookup, &rows(&History::default(), &lookup.missing)).unwrap();
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
        let clock = Arc::new(StepClock::default());
        let cache = RowCache::new(RowCacheOptions { bytes: 80, staleness: 99 }, 8, clock.clone()).unwrap();
        for round in 0..50 {
            clock.advance();
            let ids = [1, 2, 100 + 3 * round, 101 + 3 * round, 102 + 3 * round];
            let lookup = cache.look_up(&ids);
            let missing = rows(&History::default(), &lookup.missing);
            cache.insert(&lookup, &missing).unwrap();
        }
        assert_eq!(cache.usage().hits, 2 * 49);
        assert!(cache.usage().rows <= 10 + 3);
        assert!(RowCache::new(RowCacheOptions { bytes: 7, staleness: 0 }, 8, Arc::default()).is_none());
        assert!(RowCache::new(RowCacheOptions::default(), 0, Arc::default()).is_none());
    }
}
