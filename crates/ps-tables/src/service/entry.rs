//! One table of a server, and the execution of its requests.

use super::exactly_once::ExactlyOnce;
use super::image::TableImage;
use super::request::{Request, State};
use super::response::{Response, TableInfo, TableKind, Version, VersionedValue};
use super::spec::{AnyTable, TableSpec};
use super::usage::ReadCounters;
use crate::{DynamicTable, Error, PushResult, Result, Table};
use distribute_tensor::HostTensor;

/// The remedy in the error for ids that are used with a dense table.
const ROWS: &str = "give it rows";

#[derive(Debug)]
pub(super) struct Entry {
    pub table: AnyTable,
    /// The number that distinguishes the table from others of the same name: see [`Version::created`].
    pub created: u64,
    /// The hash of the specification: see [`TableSpec::fingerprint`].
    pub fingerprint: u64,
    pub described: String,
    /// The changes that closures have made, so that none is applied twice.
    pub exactly_once: ExactlyOnce,
    /// The rows that were read individually.
    pub reads: ReadCounters,
}

impl Entry {
    /// Executes a request for this table.
    ///
    /// # Errors
    /// - [`Error::WrongKind`]: the operation is not defined for this kind of table.
    /// - [`Error::Id`]: an id is negative, but the table is dense.
    /// - [`Error::NoPart`]: the table has no part with this index.
    /// - [`Error::NotOnce`]: the request is not about the contents of one table.
    /// - The errors of the table's operation.
    pub fn handle(&self, request: &Request) -> Result<Response> {
        let operation = request.operation();
        match request {
            Request::SetRule { rule, .. } => {
                self.table.set_rule(rule)?;
                Ok(Response::Done)
            }
            Request::Read { known, .. } => {
                let table = self.dense(operation, "read its rows by their ids")?;
                let known = known.filter(|known| known.created == self.created).map(|known| known.writes);
                let read = match known {
                    Some(known) => table.read_if_changed(known)?,
                    None => Some(table.read()?),
                };
                Ok(read.map_or(Response::Unchanged, |read| {
                    let version = Version { created: self.created, writes: read.version };
                    Response::Value(VersionedValue { version, value: read.value })
                }))
            }
            Request::ReadRows { rows, .. } => {
                let values = match &self.table {
                    AnyTable::Dense(table) => table.read_rows(&rows_of(operation, table, rows)?)?,
                    AnyTable::Dynamic(table) => table.read_rows(rows)?,
                };
                self.reads.add(rows.len(), self.table.stored_row_bytes());
                Ok(Response::Rows(values))
            }
            Request::Write { how, value, .. } => {
                self.dense(operation, "its rows are only changed by gradients")?.write(*how, value)?;
                Ok(Response::Done)
            }
            Request::WriteRows { how, rows, values, .. } => {
                let table = self.dense(operation, "its rows are only changed by gradients")?;
                table.write_rows(*how, &rows_of(operation, table, rows)?, values)?;
                Ok(Response::Done)
            }
            Request::Push { push, gradient, .. } => {
                self.dense(operation, "push the gradient of ids")?.push(*push, gradient)?;
                Ok(Response::Done)
            }
            Request::PushRows { push, rows, gradient, .. } => Ok(Response::Pushed(match &self.table {
                AnyTable::Dense(table) => {
                    table.push_rows(*push, &rows_of(operation, table, rows)?, gradient)?;
                    PushResult::default()
                }
                AnyTable::Dynamic(table) => table.push_rows(*push, rows, gradient)?,
            })),
            Request::StateRows { rows, .. } => {
                let state = self.dense(operation, "ask for its parts")?.state_rows(rows.clone())?;
                let (values, slots) = (state.values, state.slots);
                Ok(Response::State(State::Rows { first: rows.start, values, slots }))
            }
            Request::StatePart { part, .. } => {
                let table = self.part(operation, *part)?;
                Ok(Response::State(State::Ids(table.state(*part)?)))
            }
            Request::StateColumn { part, column, .. } => {
                let table = self.part(operation, *part)?;
                Ok(Response::State(State::Ids(table.column(*part, column)?)))
            }
            Request::Restore { state, .. } => {
                let left_out = match state {
                    State::Rows { first, values, slots } => {
                        self.dense(operation, "give it ids")?.restore_rows(*first, values, slots)?;
                        0
                    }
                    State::Slots { first, slots } => {
                        self.dense(operation, "give it ids")?.restore_slots(*first, slots)?;
                        0
                    }
                    State::Ids(state) => self.dynamic(operation, ROWS)?.restore(state)?,
                    State::IdSlots { ids, slots } => {
                        self.dynamic(operation, ROWS)?.restore_slots(ids, slots)?
                    }
                    State::IdValues { ids, used, values } => {
                        self.dynamic(operation, ROWS)?.restore_values(ids, used, values)?
                    }
                };
                Ok(Response::Restored { left_out })
            }
            Request::Evict { now, .. } => {
                Ok(Response::Evicted(self.dynamic(operation, "its rows stay")?.evict(*now)))
            }
            Request::Keep { between, ids, .. } => {
                Ok(Response::Evicted(self.dynamic(operation, "its rows stay")?.keep(*between, ids)))
            }
            Request::Changed { table, .. } => Err(Error::NotRecorded { table: table.clone() }),
            // These do not change the contents of one table.
            Request::Create(_)
            | Request::Remove { .. }
            | Request::List
            | Request::Usage
            | Request::Once { .. }
            | Request::BeginJob { .. }
            | Request::Batch(_) => Err(Error::NotOnce { operation }),
        }
    }

    /// Returns the rows of the table in ascending order: all of them, or those among `rows`. For a dense table, does
    /// not check that `rows` exist.
    pub fn existing_rows(&self, rows: Option<Vec<i64>>) -> Vec<i64> {
        let mut rows = match (&self.table, rows) {
            (AnyTable::Dense(table), None) => (0..table.rows() as i64).collect(),
            (AnyTable::Dense(_), Some(rows)) => rows,
            (AnyTable::Dynamic(table), rows) => table.existing(rows),
        };
        rows.sort_unstable();
        rows
    }

    /// Returns rows of the table and their values, in ascending order: all rows, or those among `rows`.
    pub fn existing(&self, rows: Option<Vec<i64>>) -> Result<(Vec<i64>, HostTensor)> {
        let rows = self.existing_rows(rows);
        let values = match &self.table {
            AnyTable::Dense(table) => table.read_rows(&rows_of("changed", table, &rows)?)?,
            AnyTable::Dynamic(table) => table.read_rows(&rows)?,
        };
        Ok((rows, values))
    }

    /// Returns an image of the table.
    pub fn image(&self) -> Result<TableImage> {
        TableImage::of(&self.table, (self.fingerprint, self.described.clone()), self.exactly_once.changes())
    }

    /// Returns the response to a request that creates the table again. This is an error if `spec` differs from the
    /// table's own specification.
    pub fn same(&self, spec: &TableSpec, fingerprint: u64) -> Result<Response> {
        if self.fingerprint == fingerprint {
            return Ok(Response::Created { new: false });
        }
        let (table, present, found) = (spec.name.clone(), self.described.clone(), spec.describe());
        Err(Error::Exists { table, present, found })
    }

    fn dense(&self, operation: &'static str, instead: &'static str) -> Result<&Table> {
        match &self.table {
            AnyTable::Dense(table) => Ok(table),
            AnyTable::Dynamic(table) => {
                let (table, kind) = (table.name().to_owned(), "dynamic");
                Err(Error::WrongKind { operation, table, kind, instead })
            }
        }
    }

    fn dynamic(&self, operation: &'static str, instead: &'static str) -> Result<&DynamicTable> {
        match &self.table {
            AnyTable::Dynamic(table) => Ok(table),
            AnyTable::Dense(table) => {
                let (table, kind) = (table.name().to_owned(), "dense");
                Err(Error::WrongKind { operation, table, kind, instead })
            }
        }
    }

    /// Returns the table if it is dynamic and has this part.
    fn part(&self, operation: &'static str, part: usize) -> Result<&DynamicTable> {
        let table = self.dynamic(operation, "ask for its rows")?;
        if part < table.parts() {
            return Ok(table);
        }
        let (table, parts) = (table.name().to_owned(), table.parts());
        Err(Error::NoPart { operation, table, parts, part })
    }

    pub fn info(&self) -> TableInfo {
        match &self.table {
            AnyTable::Dense(table) => TableInfo {
                name: table.name().to_owned(),
                kind: TableKind::Dense,
                shape: table.dims().to_vec(),
                dtype: table.dtype(),
                rows: table.rows(),
                parts: 0,
                bytes: table.bytes(),
                rule: table.rule().and_then(|rule| rule.spec()),
                reads: self.reads.get(),
            },
            AnyTable::Dynamic(table) => TableInfo {
                name: table.name().to_owned(),
                kind: TableKind::Dynamic,
                shape: table.row_dims().to_vec(),
                dtype: table.dtype(),
                rows: table.len(),
                parts: table.parts(),
                bytes: table.bytes(),
                rule: table.rule().and_then(|rule| rule.spec()),
                reads: self.reads.get(),
            },
        }
    }
}

/// Converts ids to rows of a dense table. Returns an error if an id is negative, but does not check that the rows
/// exist.
fn rows_of(operation: &'static str, table: &Table, rows: &[i64]) -> Result<Vec<usize>> {
    let row = |(position, id): (usize, &i64)| {
        usize::try_from(*id).map_err(|_| Error::Id { operation, id: *id, position, rows: table.rows() })
    };
    rows.iter().enumerate().map(row).collect()
}
