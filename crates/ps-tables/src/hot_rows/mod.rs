//! The hottest rows of a table, of which each worker has a copy.
//!
//! Workers that make all changes of a table in lock step do not request these rows. The worker that sends the changes
//! of a row reads the row after the change, and sends it to all others with its result of the step.

// - **INV-110** A copy of a hot row is used only if it has the changes of all workers up to the last one: the worker
//   that changes the row has either sent its value after the last change, or reported that the bits are the same as
//   before, and the copy was usable then. A worker that lacks a report, or has other hot rows than its sender, requests
//   the rows. Tests: `ps-tables/src/hot_rows/tests.rs`, `simulation/tests/it/scenarios.rs`,
//   `clusters/multi_worker/hot_rows.rs`.

mod copies;
mod counts;
mod options;
mod report;

pub use options::{HotRowUsage, HotRows};
pub use report::{HotReport, RowLayout};

use copies::Copies;
use counts::{RowCounts, WINDOW, hottest};
use distribute_tensor::random::mix;
use report::ReportedRows;

/// The copies that one process has of the hot rows of a table.
///
/// This is a state machine without a clock or a connection. All processes make the same calls with the same reports,
/// so all have the same [`ids`](Self::ids).
///
/// ```
/// use distribute_ps_tables::{HotCopies, RowLayout};
///
/// // Worker 0 sends the changes of row 7, and worker 1 has a copy. A row is one byte.
/// let layout = RowLayout { bytes: 1, is_f32: false };
/// let mut workers = [0, 1].map(|_| HotCopies::named("words", &[7], layout));
/// for value in 0..2 {
///     workers.iter_mut().for_each(HotCopies::begin_change);
///     assert!(workers[1].look_up(&[7]).found.is_empty());
///     let reports = [workers[0].report(&[7], &[7], Some(&[value])), workers[1].report(&[], &[], Some(&[]))];
///     workers.iter_mut().for_each(|worker| worker.end_change(|_| 0, &reports));
///     let lookup = workers[1].look_up(&[7, 8]);
///     assert_eq!((lookup.found, lookup.missing), (vec![value], vec![8]));
/// }
/// ```
#[derive(Clone, Debug)]
pub struct HotCopies {
    choice: Choice,
    layout: RowLayout,
    /// A hash of the name of the table.
    table: u64,
    /// The ids of the hot rows, in ascending order.
    ids: Vec<i64>,
    /// A hash of the ids and the table.
    digest: u64,
    /// The copies, in the order of `ids`.
    copies: Copies,
    /// The number of changes that have begun.
    changes: u64,
}

#[derive(Clone, Debug)]
enum Choice {
    Named,
    Measured {
        /// The maximum number of rows.
        limit: usize,
        /// The number of changes between two choices.
        window: u64,
        /// The counts of the rows whose changes this process sends.
        counts: RowCounts,
    },
}

/// The result of a lookup: the rows of which there is a copy, and the ids of the others, which must be requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotLookup {
    /// The position in `found` of the row of each id; `None` if there is no copy of it.
    pub places: Vec<Option<usize>>,
    /// The ids of the rows that must be requested.
    pub missing: Vec<i64>,
    /// The bytes of the copies.
    pub found: Vec<u8>,
}

impl HotCopies {
    /// Creates copies of the rows of a table that are looked up most, at most `limit`.
    pub fn measured(table: &str, limit: usize, layout: RowLayout) -> Self {
        let choice = Choice::Measured { limit, window: WINDOW, counts: RowCounts::default() };
        Self::new(table, choice, Vec::new(), layout)
    }

    /// Creates copies of the given rows of a table.
    pub fn named(table: &str, ids: &[i64], layout: RowLayout) -> Self {
        Self::new(table, Choice::Named, ids.to_vec(), layout)
    }

    fn new(table: &str, choice: Choice, ids: Vec<i64>, layout: RowLayout) -> Self {
        let layout = RowLayout { bytes: layout.bytes.max(1), ..layout };
        let table = table.bytes().fold(table.len() as u64, |hash, byte| mix(hash ^ u64::from(byte)));
        let (digest, copies) = (0, Copies::default());
        let mut hot = Self { choice, layout, table, ids: Vec::new(), digest, copies, changes: 0 };
        hot.set_ids(ids);
        hot
    }

    /// Sets the number of changes between two choices.
    pub fn with_window(mut self, changes: u64) -> Self {
        if let Choice::Measured { window, .. } = &mut self.choice {
            *window = changes;
        }
        self
    }

    fn set_ids(&mut self, mut ids: Vec<i64>) {
        ids.sort_unstable();
        ids.dedup();
        let mut copies = Copies::new(self.layout.bytes, ids.len());
        for (at, id) in ids.iter().enumerate() {
            if let Some(row) = self.get(*id) {
                copies.replace(at, self.changes, row);
            }
        }
        self.digest = ids.iter().fold(self.table, |hash, id| mix(hash ^ id.cast_unsigned()));
        (self.ids, self.copies) = (ids, copies);
    }

    /// Returns the ids of the hot rows, in ascending order.
    pub fn ids(&self) -> &[i64] {
        &self.ids
    }

    /// Returns `true` if lookups must be [counted](Self::count).
    pub fn is_measured(&self) -> bool {
        matches!(self.choice, Choice::Measured { .. })
    }

    /// Counts the lookups of one worker in a step: the rows of each request whose changes this process sends. Call this
    /// once for each worker and step.
    pub fn count<I: IntoIterator<Item = i64>>(&mut self, lookups: impl IntoIterator<Item = I>) {
        if let Choice::Measured { counts, .. } = &mut self.choice {
            counts.count(lookups);
        }
    }

    /// Begins a change of the table. No copy is used before the change has ended.
    pub fn begin_change(&mut self) {
        self.changes += 1;
        if let Choice::Measured { counts, .. } = &mut self.choice {
            counts.begin_change();
        }
    }

    /// Returns the report of this process about the current change. `own` contains the hot rows whose changes this
    /// process sends, in ascending order. `read` contains those of them that the change may have changed, in the same
    /// order, and `rows` their values after the change; `None` if they could not be read.
    pub fn report(&self, own: &[i64], read: &[i64], rows: Option<&[u8]>) -> HotReport {
        let candidates = match &self.choice {
            Choice::Measured { limit, window, counts } if counts.changes() >= *window => {
                Some(counts.candidates(*limit, self.layout.bytes))
            }
            _ => None,
        };
        let rows = rows.filter(|rows| !own.is_empty() && rows.len() == read.len() * self.layout.bytes);
        HotReport { rows: rows.and_then(|rows| self.reported(own, read, rows)), candidates }
    }

    fn reported(&self, own: &[i64], read: &[i64], rows: &[u8]) -> Option<ReportedRows> {
        let mut read = read.iter().zip(rows.chunks_exact(self.layout.bytes)).peekable();
        let mut bytes = Vec::new();
        let before = self.changes.saturating_sub(1);
        let mut is_changed = |id: &i64| {
            let Some((_, row)) = read.next_if(|(read, _)| *read == id) else { return false };
            let position = self.ids.binary_search(id).ok();
            let is_changed = position.and_then(|at| self.copies.get(at, before)) != Some(row);
            if is_changed {
                bytes.extend_from_slice(row);
            }
            is_changed
        };
        let changed = own.iter().map(&mut is_changed).collect();
        read.next().is_none().then_some(ReportedRows { digest: self.digest, changed, bytes })
    }

    /// Ends the current change, which all workers have made. `reports` contains the reports of all workers, in the
    /// order of ranks. `worker` returns the rank of the worker that sends the changes of a row.
    pub fn end_change(&mut self, worker: impl Fn(i64) -> usize, reports: &[HotReport]) {
        let mut own: Vec<Vec<usize>> = vec![Vec::new(); reports.len()];
        for (at, id) in self.ids.iter().enumerate() {
            own.get_mut(worker(*id)).into_iter().for_each(|own| own.push(at));
        }
        for (own, report) in own.iter().zip(reports) {
            self.apply(own, report);
        }
        // A worker that lacks counts delays the choice of all.
        let candidates: Option<Vec<_>> = reports.iter().map(|report| report.candidates.as_deref()).collect();
        if let (Choice::Measured { limit, counts, .. }, Some(candidates)) = (&mut self.choice, candidates) {
            counts.halve();
            let chosen = hottest(candidates.concat(), *limit).into_iter().map(|(id, _)| id).collect();
            self.set_ids(chosen);
        }
    }

    /// Updates the copies at the positions `own`, which `report` is about.
    fn apply(&mut self, own: &[usize], report: &HotReport) {
        let Some(ReportedRows { digest, changed, bytes }) = &report.rows else { return };
        if *digest != self.digest || changed.len() != own.len() {
            return;
        }
        let mut rows = bytes.chunks_exact(self.layout.bytes);
        for (at, changed) in own.iter().zip(changed) {
            if *changed {
                let Some(row) = rows.next() else { return };
                self.copies.replace(*at, self.changes, row);
            } else {
                self.copies.renew(*at, self.changes);
            }
        }
    }

    fn get(&self, id: i64) -> Option<&[u8]> {
        self.copies.get(self.ids.binary_search(&id).ok()?, self.changes)
    }

    /// Returns `true` if there is a usable copy of a row.
    pub fn has(&self, id: i64) -> bool {
        self.get(id).is_some()
    }

    /// Returns `true` if there is a usable copy of any row.
    pub fn has_any(&self) -> bool {
        self.copies.any(self.changes)
    }

    /// Looks up ids, each of which must occur once.
    pub fn look_up(&self, ids: &[i64]) -> HotLookup {
        let (mut missing, mut found) = (Vec::new(), Vec::new());
        let mut place = |id: &i64| match self.get(*id) {
            Some(row) => {
                found.extend_from_slice(row);
                Some(found.len() / self.layout.bytes - 1)
            }
            None => {
                missing.push(*id);
                None
            }
        };
        let places = ids.iter().map(&mut place).collect();
        HotLookup { places, missing, found }
    }

    /// Discards all copies, because the table was written outside of steps. The rows stay hot.
    pub fn invalidate(&mut self) {
        self.copies.clear();
    }

    /// Returns the number of usable copies.
    pub fn copies(&self) -> u64 {
        self.copies.count(self.changes) as u64
    }
}

#[cfg(test)]
mod tests;
