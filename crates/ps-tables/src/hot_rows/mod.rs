//! The hottest rows of a table, of which each worker has a copy.
//!
//! Workers that make all changes of a table in lock step do not request these rows. The worker that sends the changes
//! of a row reads the row after the change, and sends it to all others with its result of the step.

// - **INV-110** A copy of a hot row is used only if it has the changes of all workers up to the last one: the worker
//   that changes the row has either sent its value after the last change, or reported that the bits are the same as
//   before, and the copy was usable then. A worker that lacks a report, or has other hot rows than its sender, requests
//   the rows. Tests: `ps-tables/src/hot_rows/tests.rs`, `simulation/tests/it/scenarios.rs`,
//   `clusters/multi_worker/hot_rows.rs`.

mod counts;
mod options;
mod report;

pub use options::{HotRowUsage, HotRows};
pub use report::{HotReport, RowLayout};

use crate::{CacheLookup, CachedRows};
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
/// // Worker 0 stores row 7, and worker 1 has a copy. A row is one byte.
/// let layout = RowLayout { bytes: 1, is_f32: false };
/// let mut workers = [0, 1].map(|_| HotCopies::named(&[7], layout));
/// for value in 0..2 {
///     workers.iter_mut().for_each(HotCopies::begin_change);
///     assert!(workers[1].look_up(&[7]).found.is_empty());
///     let reports = [workers[0].report(1, &[7], Some(&[value])), workers[1].report(1, &[], Some(&[]))];
///     workers.iter_mut().for_each(|worker| worker.end_change(1, |_| 0, &reports));
///     assert_eq!(workers[1].look_up(&[7, 8]).found, [value]);
///     assert_eq!(workers[1].look_up(&[7, 8]).missing, [8]);
/// }
/// ```
#[derive(Clone, Debug)]
pub struct HotCopies {
    choice: Choice,
    layout: RowLayout,
    /// The ids of the hot rows, in ascending order.
    ids: Vec<i64>,
    digest: u64,
    /// The copies. Their time is the number of changes that have begun.
    copies: CachedRows,
    changes: u64,
}

#[derive(Clone, Debug)]
enum Choice {
    Named,
    /// The maximum number of rows, and the counts of the rows whose changes this process sends.
    Measured(usize, RowCounts),
}

impl HotCopies {
    /// Creates copies of the rows that are in most gradients, at most `limit` of the table.
    pub fn measured(limit: usize, layout: RowLayout) -> Self {
        Self::new(Choice::Measured(limit, RowCounts::default()), limit, layout)
    }

    /// Creates copies of the given rows.
    pub fn named(ids: &[i64], layout: RowLayout) -> Self {
        let mut hot = Self::new(Choice::Named, ids.len(), layout);
        hot.set_ids(ids.to_vec());
        hot
    }

    fn new(choice: Choice, limit: usize, layout: RowLayout) -> Self {
        let layout = RowLayout { bytes: layout.bytes.max(1), ..layout };
        let copies = CachedRows::exact(limit, layout.bytes);
        let mut hot = Self { choice, layout, ids: Vec::new(), digest: 0, copies, changes: 0 };
        hot.set_ids(Vec::new());
        hot
    }

    fn set_ids(&mut self, mut ids: Vec<i64>) {
        ids.sort_unstable();
        ids.dedup();
        self.digest = ids.iter().fold(ids.len() as u64, |hash, id| mix(hash ^ id.cast_unsigned()));
        self.copies.retain(|id| ids.binary_search(&id).is_ok());
        self.ids = ids;
    }

    /// Returns the ids of the hot rows, in ascending order.
    pub fn ids(&self) -> &[i64] {
        &self.ids
    }

    /// Returns `true` if the rows of gradients must be [counted](Self::count).
    pub fn is_measured(&self) -> bool {
        matches!(self.choice, Choice::Measured(..))
    }

    /// Counts the rows in the gradient of one worker whose changes this process sends. Call this once for each worker
    /// and step.
    pub fn count(&mut self, ids: impl IntoIterator<Item = i64>) {
        if let Choice::Measured(_, counts) = &mut self.choice {
            counts.begin_gradient();
            counts.count(ids);
        }
    }

    /// Begins a change of the table. No copy is used before the change has ended.
    pub fn begin_change(&mut self) {
        self.changes += 1;
    }

    /// Returns the report of this process about the change number `step`. `own` contains the hot rows whose changes this
    /// process sends, in ascending order. `rows` contains their values after the change; `None` if they could not be
    /// read.
    pub fn report(&mut self, step: u64, own: &[i64], rows: Option<&[u8]>) -> HotReport {
        let candidates = match &mut self.choice {
            Choice::Measured(limit, counts) if is_boundary(step) => counts.choose(*limit, self.layout.bytes),
            _ => Vec::new(),
        };
        let rows = rows.filter(|rows| !own.is_empty() && rows.len() == own.len() * self.layout.bytes);
        let before = self.changes.saturating_sub(1);
        let rows = rows.map(|rows| {
            let row = |at: usize| &rows[at * self.layout.bytes..(at + 1) * self.layout.bytes];
            let is_changed = |(at, id): (usize, &i64)| self.copies.get(*id, before) != Some(row(at));
            let changed: Vec<bool> = own.iter().enumerate().map(is_changed).collect();
            let sent = changed.iter().enumerate().filter(|(_, changed)| **changed);
            let bytes = sent.flat_map(|(at, _)| row(at)).copied().collect();
            ReportedRows { digest: self.digest, changed, bytes }
        });
        HotReport { rows, candidates }
    }

    /// Ends the change number `step`, which all workers have made. `reports` contains the reports of all workers, in the
    /// order of ranks. `worker` returns the rank of the worker that sends the changes of a row.
    pub fn end_change(&mut self, step: u64, worker: impl Fn(i64) -> usize, reports: &[HotReport]) {
        let mut own: Vec<Vec<i64>> = vec![Vec::new(); reports.len()];
        for id in &self.ids {
            own.get_mut(worker(*id)).into_iter().for_each(|own| own.push(*id));
        }
        for (ids, report) in own.iter().zip(reports) {
            self.apply(ids, report);
        }
        if let Choice::Measured(limit, _) = &self.choice
            && is_boundary(step)
        {
            let all = reports.iter().flat_map(|report| report.candidates.iter().copied()).collect();
            let chosen = hottest(all, *limit).into_iter().map(|(id, _)| id).collect();
            self.set_ids(chosen);
        }
    }

    fn apply(&mut self, ids: &[i64], report: &HotReport) {
        let Some(ReportedRows { digest, changed, bytes }) = &report.rows else { return };
        if *digest != self.digest || changed.len() != ids.len() {
            return;
        }
        let width = self.layout.bytes;
        let mut rows = (0..).map(|at: usize| bytes.get(at * width..(at + 1) * width));
        for (id, changed) in ids.iter().zip(changed) {
            if *changed {
                let Some(Some(row)) = rows.next() else { return };
                self.copies.replace(*id, self.changes, row);
            } else {
                self.copies.renew(*id, self.changes);
            }
        }
    }

    /// Returns `true` if there is a usable copy of a row.
    pub fn has(&self, id: i64) -> bool {
        self.copies.has(id, self.changes)
    }

    /// Looks up ids, each of which must occur once.
    pub fn look_up(&mut self, ids: &[i64]) -> CacheLookup {
        self.copies.look_up(ids, self.changes)
    }

    /// Discards all copies, because the table was written outside of steps. The rows stay hot.
    pub fn invalidate(&mut self) {
        self.copies.invalidate();
    }

    /// Returns the number of copies.
    pub fn copies(&self) -> u64 {
        self.copies.usage().rows
    }
}

/// Returns `true` if hot rows are chosen after this step.
fn is_boundary(step: u64) -> bool {
    step.is_multiple_of(WINDOW)
}

#[cfg(test)]
mod tests;
