//! The hot rows of a variable, of which this process has copies, and the reports in which workers send them to each
//! other at the end of a step. [`HotCopies`] of `ps-tables` decides which copies are used.

// - INV-110: decided by `HotCopies` of `ps-tables`.

use super::channels::{Answer, ServerRequest};
use super::lock_step::LockStep;
use super::row_cache::{bytes_of, rows_of};
use super::sharded::{ReadParts, UniqueRows};
use super::variable::{id_of_row, row_of_id};
use super::{ParameterServers, RemoteVariable, Sharded};
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_ps_tables::{CacheLookup, HotCopies, HotReport, HotRowUsage, HotRows, RowLayout};
use distribute_tensor::{DType, HostTensor};
use std::sync::{Arc, Mutex};

/// The hot rows of one variable. They are dropped with it.
#[derive(Debug)]
pub struct HotTable {
    copies: Mutex<HotCopies>,
    layout: RowLayout,
    dtype: DType,
    /// The shape of a tensor with any number of rows.
    dims: Vec<usize>,
    /// The usage of all copies, without the number of rows. It outlives this variable.
    usage: Arc<Mutex<HotRowUsage>>,
}

impl ParameterServers {
    /// Sets the rows of which each worker has a copy; `None` disables copies.
    #[doc(hidden)]
    pub fn with_hot_rows(self, rows: Option<HotRows>) -> Self {
        Self { hot_rows: rows, ..self }
    }

    /// Creates the copies of the hot rows of a variable. Returns `None` if no row is copied, or if there are no other
    /// workers. `name` is the name that the program uses. `is_by_ids` is whether the rows have ids.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the program has named a row that the variable does not have.
    #[doc(hidden)]
    pub fn hot_table(&self, name: &str, tables: &Sharded, is_by_ids: bool) -> Result<Option<Arc<HotTable>>> {
        let options =
            self.hot_rows.as_ref().filter(|_| self.session.lock_step().is_some() && self.workers > 1);
        let (Some(options), Some(bytes)) = (options, tables.row_bytes().filter(|bytes| *bytes > 0)) else {
            return Ok(None);
        };
        let rows = tables.dims().first().copied().unwrap_or(1) as i64;
        let missing = options.ids(name).iter().find(|id| !is_by_ids && !(0..rows).contains(*id));
        if let Some(id) = missing {
            let reason = format!("hot_rows names row {id} of {name}, which has {rows} rows");
            return Err(Error::invalid("replicate", reason));
        }
        let layout = RowLayout { bytes, is_f32: tables.dtype() == DType::F32 };
        let Some(copies) = options.copies(name, layout) else { return Ok(None) };
        let (dtype, dims, usage) = (tables.dtype(), tables.dims().to_vec(), self.hot_row_usage.clone());
        let table = Arc::new(HotTable { copies: Mutex::new(copies), layout, dtype, dims, usage });
        let mut all = lock(&self.hot_tables);
        all.retain(|table| table.strong_count() > 0);
        all.push(Arc::downgrade(&table));
        Ok(Some(table))
    }

    /// Returns the usage of this process's copies of hot rows. All numbers are 0 if no rows are copied. Dropped
    /// variables count, except in the number of rows.
    pub fn hot_row_usage(&self) -> HotRowUsage {
        let tables: Vec<_> = lock(&self.hot_tables).iter().filter_map(std::sync::Weak::upgrade).collect();
        let mut usage = *lock(&self.hot_row_usage);
        usage.rows = tables.iter().map(|table| lock(&table.copies).copies()).sum();
        usage
    }
}

impl HotTable {
    /// Looks up distinct ids. Returns `None` if there is no copy of any of them.
    pub(crate) fn look_up(&self, ids: &[i64]) -> Option<CacheLookup> {
        let lookup = lock(&self.copies).look_up(ids);
        let misses = lookup.missing.len() as u64;
        let mut usage = lock(&self.usage);
        usage.hits += ids.len() as u64 - misses;
        usage.misses += misses;
        (!lookup.found.is_empty()).then_some(lookup)
    }

    /// Returns the rows of a lookup. `fetched` contains those that were missing, in their order; `None` if none was.
    ///
    /// # Errors
    /// - [`Error::Tensor`]: the fetched rows do not have the dtype and shape of the variable.
    pub(crate) fn join(&self, lookup: CacheLookup, fetched: Option<&HostTensor>) -> Result<UniqueRows> {
        let found = rows_of(&lookup.found, self.dtype, &self.dims, self.layout.bytes)?;
        let rows = match fetched {
            Some(fetched) => HostTensor::concat(&[&found, fetched], 0)?,
            None => found,
        };
        Ok(UniqueRows { rows, places: lookup.places })
    }

    /// Returns a function that returns whether there is a copy of a row. The copies are locked until the function is
    /// dropped.
    pub(crate) fn copied_rows(&self) -> impl Fn(i64) -> bool {
        let copies = lock(&self.copies);
        move |id| copies.has(id)
    }

    /// Discards all copies, because the variable was written outside of steps.
    pub(crate) fn invalidate(&self) {
        lock(&self.copies).invalidate();
    }
}

impl RemoteVariable {
    /// Counts the rows in the gradient of one worker whose changes this worker sends, so that the hottest rows are
    /// known. Call this once for each worker and step.
    pub fn count_rows<'r>(&self, rows: impl IntoIterator<Item = &'r usize>) {
        let Some(hot) = self.hot_rows() else { return };
        let mut copies = lock(&hot.copies);
        if copies.is_measured() {
            let is_by_ids = self.ids().is_some();
            let id = |row: &usize| if is_by_ids { id_of_row(*row) } else { *row as i64 };
            copies.count(rows.into_iter().map(id));
        }
    }

    /// Returns the worker that sends the changes of the row with this id.
    fn sender(&self, lock_step: LockStep, id: i64) -> usize {
        let row = if self.ids().is_some() { row_of_id(id) } else { usize::try_from(id).unwrap_or_default() };
        lock_step.sender(self.server_of(row))
    }
}

/// The hot rows of the variables that a step changes: copies are not used from its beginning to its end.
pub(crate) struct HotStep<'a> {
    step: u64,
    lock_step: LockStep,
    tables: Vec<(&'a RemoteVariable, &'a HotTable)>,
}

/// The reads of the hot rows whose changes this worker sends. They are sent after the changes.
#[derive(Default)]
pub(crate) struct HotReads {
    /// The rows of each variable, and the parts of their read; `None` if the read could not be prepared.
    reads: Vec<(Vec<i64>, Option<ReadParts<'static>>)>,
}

impl<'a> HotStep<'a> {
    /// Begins the step with this number, which changes the given variables. Those without hot rows are ignored. All
    /// workers pass the same variables, in the same order.
    pub(crate) fn begin(step: u64, lock_step: LockStep, variables: &[&'a RemoteVariable]) -> Self {
        let tables = variables.iter().filter_map(|variable| Some((*variable, &**variable.hot_rows()?)));
        let tables: Vec<_> = tables.collect();
        tables.iter().for_each(|(_, table)| lock(&table.copies).begin_change());
        Self { step, lock_step, tables }
    }

    /// Prepares the reads of the hot rows whose changes this worker sends. Returns the requests as well.
    pub(crate) fn reads(&self, operation: &'static str) -> (HotReads, Vec<ServerRequest>) {
        let (mut reads, mut requests) = (HotReads::default(), Vec::new());
        for (variable, table) in &self.tables {
            let is_own = |id: &i64| self.lock_step.is_worker(variable.sender(self.lock_step, *id));
            let own: Vec<i64> = lock(&table.copies).ids().iter().copied().filter(is_own).collect();
            let read = if own.is_empty() { None } else { variable.detached_read(operation, &own).ok() };
            let parts = read.map(|read| {
                let (sent, parts) = read.into_parts();
                requests.extend(sent);
                parts
            });
            reads.reads.push((own, parts));
        }
        (reads, requests)
    }

    /// Returns this worker's reports, encoded: nothing if they are all empty. `answers` are those to the requests of
    /// [`reads`](Self::reads), in their order; rows without an answer are requested by the workers that look them up.
    pub(crate) fn report(&self, operation: &'static str, reads: HotReads, answers: Vec<Answer>) -> Vec<u8> {
        let mut answers = answers.into_iter();
        let mut reports = Vec::with_capacity(self.tables.len());
        for ((_, table), (own, parts)) in self.tables.iter().zip(reads.reads) {
            let rows = parts.and_then(|parts| {
                // Takes all of them, also after an error.
                let of_read: Vec<Answer> = answers.by_ref().take(parts.requests()).collect();
                read_rows(parts, of_read)
                    .inspect_err(|reason| {
                        tracing::debug!("{operation}: hot rows are not copied: {reason}");
                    })
                    .ok()
            });
            let rows = rows.as_ref().map(bytes_of);
            reports.push((table, lock(&table.copies).report(self.step, &own, rows.as_deref())));
        }
        let mut encoded = Vec::new();
        if reports.iter().any(|(_, report)| !report.is_empty()) {
            reports.iter().for_each(|(table, report)| report.encode(table.layout, &mut encoded));
        }
        let others = self.lock_step.workers().saturating_sub(1) as u64;
        if let Some((table, _)) = reports.first() {
            let mut usage = lock(&table.usage);
            usage.sent_rows +=
                others * reports.iter().map(|(_, report)| report.changed() as u64).sum::<u64>();
            usage.sent_bytes += others * encoded.len() as u64;
        }
        encoded
    }

    /// Ends the step, which all workers have made. `reports` are those of all workers. A report that cannot be decoded
    /// counts as one without rows.
    pub(crate) fn end(self, reports: &[impl AsRef<[u8]>]) {
        let mut rest: Vec<&[u8]> = reports.iter().map(AsRef::as_ref).collect();
        for (variable, table) in &self.tables {
            let decode = |rest: &mut &[u8]| {
                let report = HotReport::decode(table.layout, rest);
                if report.is_none() {
                    *rest = &[];
                }
                report.unwrap_or_default()
            };
            let reports: Vec<_> = rest.iter_mut().map(decode).collect();
            let sender = |id| variable.sender(self.lock_step, id);
            lock(&table.copies).end_change(self.step, sender, &reports);
        }
    }
}

/// Returns the rows in the answers to a read, in the order of their ids.
///
/// # Errors
/// Returns the reason why there are none: a request without an answer or with an error, or rows that do not match.
fn read_rows(parts: ReadParts<'_>, answers: Vec<Answer>) -> Result<HostTensor, String> {
    let (requests, count) = (parts.requests(), answers.len());
    if count < requests {
        return Err(format!("{count} of {requests} requests have an answer"));
    }
    let answers: Result<Vec<_>, _> = answers.into_iter().collect();
    let answers = answers.map_err(|error| error.to_string())?;
    parts.finish(answers).and_then(|rows| rows.in_order()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
