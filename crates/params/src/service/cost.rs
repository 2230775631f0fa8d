//! What a request takes of memory, before anything of it is done.

use super::entry::Entry;
use super::request::{Request, State};
use super::spec::{AnyTable, Contents, TableSpec};
use super::tables::Tables;
use crate::lock::read;
use crate::{Error, Result};
use distribute_tensor::HostTensor;

/// About how many bytes a table takes beside its rows.
const TABLE: usize = 4096;

impl Tables {
    /// Sets how many bytes the tables may take; three quarters of the memory by default.
    pub fn set_memory(&self, bytes: usize) {
        self.budget.set_limit(bytes);
    }

    /// Returns how many bytes the tables may take.
    pub fn memory(&self) -> usize {
        self.budget.limit()
    }

    // INV-28
    /// Checks that there is memory for a request, and reserves it. [`handle`](Self::handle) does so itself; one who writes a log calls
    /// this before a change is in it, and [`carry_out`](Self::carry_out) after that.
    ///
    /// # Errors
    /// - [`Error::Budget`]: the tables would take more than they may.
    /// - [`Error::Rows`], [`Error::NoShard`]: a table to be made is no part of its variable.
    pub fn check(&self, request: &Request) -> Result<()> {
        let operation = request.operation();
        match request {
            Request::Once { change, .. } => self.check(change),
            // Each of its requests is handled by itself.
            Request::Batch(_) => Ok(()),
            Request::Create(spec) => match self.find(&spec.name) {
                Some(_) => Ok(()),
                None => self.require(operation, &spec.name, spec.bytes()?),
            },
            of_a_table => {
                let name = request.table().unwrap_or_default();
                let Some(entry) = self.find(name) else { return Ok(()) };
                match entry.cost(of_a_table, false) {
                    0 => Ok(()),
                    bytes => self.require(operation, name, bytes).or_else(|_| {
                        // Not all ids are new, perhaps.
                        self.require(operation, name, entry.cost(of_a_table, true))
                    }),
                }
            }
        }
    }

    fn require(&self, operation: &'static str, table: &str, bytes: usize) -> Result<()> {
        let count = || {
            let all: Vec<_> = read(&self.all).values().cloned().collect();
            all.iter().map(|entry| entry.taken()).fold(0, usize::saturating_add)
        };
        self.budget.reserve(bytes, count).map_err(|taken| Error::Budget {
            operation,
            table: table.to_owned(),
            bytes,
            taken,
            limit: self.budget.limit(),
        })
    }
}

impl TableSpec {
    /// The bytes that the table takes.
    fn bytes(&self) -> Result<usize> {
        let width = |shape: &[usize]| shape.iter().try_fold(1usize, |n, size| n.checked_mul(*size));
        let bytes = match &self.contents {
            Contents::Values(values) => Some(bytes_of(values)),
            Contents::Drawn { shape, dtype, partition, shard, .. } => {
                partition.require_shard(shape, *shard)?;
                let size = dtype.bytes().unwrap_or(size_of::<Vec<u8>>());
                let row = width(shape.get(1..).unwrap_or_default()).and_then(|width| width.checked_mul(size));
                // A row of nothing takes time, if no memory.
                row.and_then(|row| row.max(1).checked_mul(partition.len(*shard)))
            }
            Contents::Dynamic { row_shape, dtype, .. } => {
                let size = dtype.bytes().unwrap_or(size_of::<Vec<u8>>());
                // No row is there yet, but memory is taken for several at once.
                width(row_shape).and_then(|width| width.checked_mul(size)?.checked_mul(crate::dynamic::CHUNK))
            }
        };
        Ok(bytes.unwrap_or(usize::MAX).saturating_add(TABLE + self.name.len()))
    }
}

impl Entry {
    /// The bytes that a request takes beside those that are taken; at most so many, or `exact`ly.
    fn cost(&self, request: &Request, exact: bool) -> usize {
        match (request, &self.table) {
            (Request::SetRule { rule, .. }, AnyTable::Dense(table)) if table.rule().is_none() => {
                table.bytes_of_slots(rule.rule().slots().len())
            }
            (Request::SetRule { rule, .. }, AnyTable::Dynamic(table)) if table.rule().is_none() => {
                table.bytes_of_slots(rule.rule().slots().len())
            }
            (Request::PushRows { rows, .. }, AnyTable::Dynamic(table)) => table.bytes_of_new(rows, exact),
            (Request::Restore { state, .. }, AnyTable::Dynamic(table)) => match state {
                State::Ids(state) => table.bytes_of_new(&state.ids, exact),
                State::IdSlots { ids, .. } | State::IdValues { ids, .. } => table.bytes_of_new(ids, exact),
                _ => 0,
            },
            // Their answer is in memory beside the table.
            (Request::ReadRows { rows, .. }, AnyTable::Dense(table)) => table.bytes_of_rows(rows.len()),
            (Request::ReadRows { rows, .. }, AnyTable::Dynamic(table)) => table.bytes_of_rows(rows.len()),
            (Request::Write { value: values, .. } | Request::WriteRows { values, .. }, _)
                if values.dtype().bytes().is_none() =>
            {
                bytes_of(values)
            }
            _ => 0,
        }
    }

    /// The bytes that the table takes, slots included that are not there yet.
    fn taken(&self) -> usize {
        let table = match &self.table {
            AnyTable::Dense(table) => table.taken(),
            AnyTable::Dynamic(table) => table.bytes(),
        };
        table.saturating_add(TABLE)
    }
}

/// The bytes of a tensor, with what its strings hold.
fn bytes_of(values: &HostTensor) -> usize {
    match values.dtype().bytes() {
        // A row of nothing takes time, if no memory.
        Some(size) => values.len().saturating_mul(size).max(values.dims().first().copied().unwrap_or(1)),
        None => {
            let texts = values.as_slice::<Vec<u8>>().unwrap_or_default();
            texts.iter().map(|text| text.len() + size_of::<Vec<u8>>()).sum()
        }
    }
}
