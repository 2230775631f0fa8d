//! The hot rows in a step: the reports in which workers send them to each other at its end.

use super::RemoteVariable;
use super::channels::{Answer, ServerRequest};
use super::hot_rows::HotTable;
use super::lock_step::LockStep;
use super::row_cache::bytes_of;
use super::sharded::ReadParts;
use super::variable::row_of_id;
use distribute_base::Result;
use distribute_base::internal::lock;
use distribute_ps_tables::HotReport;
use distribute_tensor::HostTensor;

/// The hot rows of the variables that a step changes: copies are not used from its beginning to its end.
pub(crate) struct HotStep<'a> {
    lock_step: LockStep,
    tables: Vec<(&'a RemoteVariable, &'a HotTable)>,
}

/// The hot rows whose changes this worker sends, of each variable.
#[derive(Default)]
pub(crate) struct HotReads(Vec<OwnRows>);

/// The hot rows of one variable whose changes this worker sends.
struct OwnRows {
    ids: Vec<i64>,
    /// The rows of `ids` that the step may have changed. They are read.
    read: Vec<i64>,
    /// The parts of the read; `None` if there is none, or if it could not be prepared.
    parts: Option<ReadParts<'static>>,
}

impl<'a> HotStep<'a> {
    /// Begins a step that changes the given variables. Those without hot rows are ignored. All workers pass the same
    /// variables, in the same order.
    pub(crate) fn begin(lock_step: LockStep, variables: &[&'a RemoteVariable]) -> Self {
        let tables = variables.iter().filter_map(|variable| Some((*variable, &**variable.hot_rows()?)));
        let tables: Vec<_> = tables.collect();
        tables.iter().for_each(|(_, table)| lock(&table.copies).begin_change());
        Self { lock_step, tables }
    }

    /// Prepares the reads of the hot rows whose changes this worker sends. Returns the requests as well, which are sent
    /// after the changes. `is_changed` returns whether the step changes the tables of a variable on a server. Rows on
    /// other servers are not read.
    // INV-3: a server that the step does not need is not awaited.
    pub(crate) fn reads(
        &self,
        operation: &'static str,
        is_changed: impl Fn(&RemoteVariable, usize) -> bool,
    ) -> (HotReads, Vec<ServerRequest>) {
        let (mut reads, mut requests) = (Vec::with_capacity(self.tables.len()), Vec::new());
        for (variable, table) in &self.tables {
            let server = |id: &i64| server_of(variable, *id);
            let is_own = |id: &i64| self.lock_step.is_sender(server(id));
            let ids: Vec<i64> = lock(&table.copies).ids().iter().copied().filter(is_own).collect();
            let read: Vec<i64> = ids.iter().copied().filter(|id| is_changed(variable, server(id))).collect();
            let sent = if read.is_empty() { None } else { variable.detached_read(operation, &read).ok() };
            let parts = sent.map(|sent| {
                let (of_read, parts) = sent.into_parts();
                requests.extend(of_read);
                parts
            });
            reads.push(OwnRows { ids, read, parts });
        }
        (HotReads(reads), requests)
    }

    /// Returns this worker's reports, encoded: nothing if they are all empty. `answers` are those to the requests of
    /// [`reads`](Self::reads), in their order; rows without an answer are requested by the workers that look them up.
    pub(crate) fn report(&self, operation: &'static str, reads: HotReads, answers: Vec<Answer>) -> Vec<u8> {
        let mut answers = answers.into_iter();
        let mut reports = Vec::with_capacity(self.tables.len());
        for ((_, table), OwnRows { ids, read, parts }) in self.tables.iter().zip(reads.0) {
            let rows = match parts {
                None => read.is_empty().then(Vec::new),
                Some(parts) => {
                    // Takes all of them, also after an error.
                    let of_read: Vec<Answer> = answers.by_ref().take(parts.requests()).collect();
                    let rows = read_rows(parts, of_read).inspect_err(|reason| {
                        tracing::debug!("{operation}: hot rows are not copied: {reason}");
                    });
                    rows.ok().as_ref().map(bytes_of)
                }
            };
            reports.push((table, lock(&table.copies).report(&ids, &read, rows.as_deref())));
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
            let sender = |id| self.lock_step.sender(server_of(variable, id));
            lock(&table.copies).end_change(sender, &reports);
        }
    }
}

/// Returns the index of the server of the row with this id.
fn server_of(variable: &RemoteVariable, id: i64) -> usize {
    let is_by_ids = variable.ids().is_some();
    variable.server_of(if is_by_ids { row_of_id(id) } else { usize::try_from(id).unwrap_or_default() })
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
