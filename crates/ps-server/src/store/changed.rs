//! A record of the rows that have changed, and of the number of each row's last change.
//!
//! The first request for changed rows makes a server record them. It also marks its folder, so that recording continues
//! after a restart. The numbers of changes are those of the log. A restarted server replays its log and thus records
//! the same numbers again. Numbers that the log no longer contains are in the snapshot.

// - **INV-89** A response about changed rows contains exactly the changes before its position: it is made under the
//   lock that orders the changes of its table. If the process was killed, each row has the same number afterwards. If
//   the machine was restarted, or the log was repaired, the history is another one, and all rows are sent.
//   Tests: `ps-server/src/store/tests/changed.rs`, `cli/tests/it/export.rs`.

use super::Core;
use crate::OpenError;
use crate::log::boot_id;
use distribute_cluster::fnv1a;
use distribute_files::WholeFile;
use distribute_optim::RuleSpec;
use distribute_ps_tables::{
    ChangedRows, Error, LogPosition, Refusal, RefusalKind, Request, Response, State, Tables,
};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The minimum of [`TableChanges::limit`]. Searching a smaller record for ids without a row is not worth the time.
const MIN_LIMIT: usize = 1 << 16;

/// The recorded changes of one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableChanges {
    /// The number from which on changes are recorded. Before it, any row may have changed.
    pub begun: u64,
    /// The number of the last recorded change of each row.
    pub rows: HashMap<i64, u64>,
    /// Whether a gradient of some rows changes all rows of the table.
    moves_absent_rows: bool,
    /// The number of recorded ids above which those without a row are removed.
    limit: usize,
}

impl TableChanges {
    /// Creates the record of a table's changes from number `begun` on. `rows` contains the number of the last change of
    /// each row that has changed since.
    pub fn new(begun: u64, rows: HashMap<i64, u64>, rule: Option<&RuleSpec>) -> Self {
        let limit = MIN_LIMIT.max(2 * rows.len());
        Self { begun, rows, moves_absent_rows: moves(rule), limit }
    }

    /// Records the rows that a change has changed.
    fn record(&mut self, number: u64, change: &Request) {
        let of =
            |rows: &[i64], changes: &mut Self| changes.rows.extend(rows.iter().map(|row| (*row, number)));
        match change {
            Request::Once { change, .. } => self.record(number, change),
            Request::SetRule { rule, .. } => self.moves_absent_rows = moves(Some(rule)),
            Request::Write { .. } | Request::Push { .. } => self.set_all(number),
            Request::PushRows { .. } if self.moves_absent_rows => self.set_all(number),
            Request::PushRows { rows, .. } | Request::WriteRows { rows, .. } => of(rows, self),
            Request::Restore { state, .. } => match state {
                State::Rows { first, values, .. } => {
                    let count = values.dims().first().copied().unwrap_or(1);
                    self.rows.extend((*first..*first + count).map(|row| (row as i64, number)));
                }
                State::Ids(state) => of(&state.ids, self),
                State::IdSlots { ids, .. } | State::IdValues { ids, .. } => of(ids, self),
                // Slots alone are no values.
                _ => {}
            },
            // Rows that are evicted are not exported.
            _ => {}
        }
    }

    /// Removes ids without a row, if many ids are recorded: pushed ids that were not admitted, did not fit, or were
    /// evicted. These are never sent, and a change that gives one of them a row records it again.
    // INV-28
    fn forget_absent(&mut self, existing: impl FnOnce(Vec<i64>) -> Vec<i64>) {
        if self.rows.len() <= self.limit {
            return;
        }
        let recorded = std::mem::take(&mut self.rows);
        let rows = existing(recorded.keys().copied().collect());
        self.rows = rows.into_iter().filter_map(|row| Some((row, *recorded.get(&row)?))).collect();
        self.limit = MIN_LIMIT.max(2 * self.rows.len());
    }

    fn set_all(&mut self, number: u64) {
        (self.begun, self.rows) = (number + 1, HashMap::new());
    }

    /// Returns the rows that changes from number `next` on have changed; `None` means all rows.
    fn since(&self, next: u64) -> Option<Vec<i64>> {
        let is_later = |(row, number): (&i64, &u64)| (*number >= next).then_some(*row);
        (next >= self.begun).then(|| self.rows.iter().filter_map(is_later).collect())
    }

    /// Returns the number of the last change of a row, or the latest possible one if that was not recorded.
    fn number(&self, row: i64) -> u64 {
        self.rows.get(&row).copied().unwrap_or(self.begun.saturating_sub(1))
    }
}

fn moves(rule: Option<&RuleSpec>) -> bool {
    rule.is_some_and(|rule| rule.rule().moves_absent_rows())
}

/// The recorded changes of all tables.
#[derive(Debug)]
pub(crate) struct Changes {
    history: u64,
    tables: RwLock<BTreeMap<String, Arc<Mutex<TableChanges>>>>,
}

impl Changes {
    fn new(history: u64) -> Self {
        Self { history, tables: RwLock::default() }
    }

    /// Continues the record `found` of a table, which was in a snapshot. Without one, begins to record at `first`, the
    /// number of the first change that is not in the snapshot.
    pub fn load(&self, table: &str, found: Option<TableChanges>, first: u64, rule: Option<&RuleSpec>) {
        let changes = match found {
            Some(found) => found,
            None => TableChanges::new(first, HashMap::new(), rule),
        };
        self.tables.write().insert(table.to_owned(), Arc::new(Mutex::new(changes)));
    }

    /// Records a change that was applied to `tables`, and whose response is `response`.
    pub fn record(&self, number: u64, change: &Request, response: &Response, tables: &Tables) {
        match (change, response) {
            (Request::Create(spec), Response::Created { new: true }) => {
                self.load(&spec.name, None, number + 1, spec.rule.as_ref());
            }
            (Request::Remove { table }, _) => drop(self.tables.write().remove(table)),
            _ => {
                let Some(table) = change.table() else { return };
                if let Some(changes) = self.of(table) {
                    let mut changes = changes.lock();
                    changes.record(number, change);
                    changes.forget_absent(|rows| tables.existing_rows(table, rows));
                }
            }
        }
    }

    pub fn of(&self, table: &str) -> Option<Arc<Mutex<TableChanges>>> {
        self.tables.read().get(table).cloned()
    }

    /// Begins new records for all tables, because their contents were replaced. `number` is that of the next change.
    pub fn begin_all(&self, number: u64, tables: &Tables) {
        let names = tables.names();
        self.tables.write().clear();
        names.iter().for_each(|name| self.load(name, None, number, tables.rule(name).as_ref()));
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join("recorded")
}

/// Returns an empty record of changes if the server of this folder records them, and otherwise `None`.
///
/// # Errors
/// - [`OpenError::Io`]: the mark in the folder cannot be read.
pub(crate) fn open(folder: &Path) -> Result<Option<Changes>, OpenError> {
    let path = path(folder);
    match std::fs::read_to_string(&path) {
        Ok(mark) => Ok(Some(Changes::new(history(&mark)))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(OpenError::io("reading", path)(error)),
    }
}

/// Removes the mark of a folder, so that the next mark begins a different history.
pub(crate) fn forget(folder: &Path) -> io::Result<()> {
    match std::fs::remove_file(path(folder)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Returns the number of the history of a folder with this mark. The number changes if the machine restarts, because
/// changes may have been lost.
fn history(mark: &str) -> u64 {
    let boot = boot_id();
    // Without an id of the boot, each process has its own history.
    let process = if boot.is_empty() { RandomState::new().build_hasher().finish() } else { 0 };
    fnv1a(mark.bytes().chain(boot.iter().copied()).chain(process.to_le_bytes()))
}

impl Core {
    /// Returns the rows of a table that have changed since a position, or all rows.
    pub(super) fn changed(&self, table: &str, since: Option<LogPosition>) -> Result<Response, Refusal> {
        let Some(log) = &self.log else { return Err(Error::NotRecorded { table: table.to_owned() }.into()) };
        if self.changes.get().is_none() {
            // No table changes until all are recorded.
            let _all = self.orders();
            self.begin_changes(log.journal.folder(), log.journal.next()).map_err(|error| {
                let text = format!("changed: the folder of this server cannot be marked: {error}");
                Refusal::new(RefusalKind::Storage, text)
            })?;
        }
        let Some(changes) = self.changes.get() else {
            return Err(Error::NotRecorded { table: table.to_owned() }.into());
        };
        // INV-89
        let _order = self.order_of(table);
        let position = LogPosition { history: changes.history, next: log.journal.next() };
        // A table that does not exist has no record.
        let of_table = changes.of(table).unwrap_or_default();
        let of_table = of_table.lock();
        let since = since.filter(|since| since.history == changes.history && since.next <= position.next);
        let rows = since.and_then(|since| of_table.since(since.next));
        let complete = rows.is_none();
        let (rows, values) = self.tables.existing(table, rows)?;
        let numbers = rows.iter().map(|row| of_table.number(*row)).collect();
        Ok(Response::Changed(ChangedRows { position, complete, rows, numbers, values }))
    }

    fn begin_changes(&self, folder: &Path, next: u64) -> io::Result<()> {
        if self.changes.get().is_some() {
            return Ok(());
        }
        let mark = format!("{:016x}\n", RandomState::new().build_hasher().finish());
        WholeFile::write(path(folder), mark.as_bytes())?;
        let changes = Changes::new(history(&mark));
        changes.begin_all(next, &self.tables);
        let _ = self.changes.set(changes);
        Ok(())
    }
}
