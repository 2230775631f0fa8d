//! The memory that a request needs, computed before the request is executed.

use super::entry::Entry;
use super::request::{Request, State};
use super::spec::{AnyTable, Contents, TableSpec};
use super::tables::Tables;
use crate::table::{slot_width, stored_bytes};
use crate::{Error, Result};
use distribute_optim::SlotSpec;
use distribute_tensor::{DType, HostTensor};

/// The approximate memory in bytes that a table occupies in addition to its rows.
const TABLE: usize = 4096;

impl Tables {
    /// Sets the maximum size of the tables in bytes. The default is three quarters of the memory.
    pub fn set_memory(&self, bytes: usize) {
        self.budget.set_limit(bytes);
    }

    /// Returns the maximum size of the tables in bytes.
    pub fn memory(&self) -> usize {
        self.budget.limit()
    }

    // INV-28
    /// Checks that there is enough memory for a request, and reserves it. Requests of a batch are checked only when
    /// each of them is executed.
    ///
    /// [`handle`](Self::handle) calls this. A server with a log calls it before writing a change to the log, and calls
    /// [`execute`](Self::execute) afterwards.
    ///
    /// # Errors
    /// - [`Error::Budget`]: the tables would exceed the memory limit.
    /// - [`Error::PartitionRows`]: the partition of a table to be created does not have the variable's number of rows.
    /// - [`Error::NoShard`]: the variable of a table to be created has no shard with this index.
    pub fn check(&self, request: &Request) -> Result<()> {
        let operation = request.operation();
        match request {
            Request::Once { change, .. } => self.check(change),
            // Each of its requests is checked separately.
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
                        // The estimate assumes that all ids are new, so the exact number is smaller.
                        self.require(operation, name, entry.cost(of_a_table, true))
                    }),
                }
            }
        }
    }

    fn require(&self, operation: &'static str, table: &str, bytes: usize) -> Result<()> {
        let count = || {
            let all: Vec<_> = self.all.read().values().cloned().collect();
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
    /// Returns the size in bytes of the table to be created, including the slots of its rule.
    fn bytes(&self) -> Result<usize> {
        let row = |shape: &[usize], dtype: DType| {
            let width = shape.iter().try_fold(1usize, |n, size| n.checked_mul(*size))?;
            width.checked_mul(stored_bytes(dtype, self.rounding.is_some()))
        };
        let bytes = match &self.contents {
            Contents::Values(values) if self.rounding.is_some() => Some(bytes_of(values) / 2),
            Contents::Values(values) => Some(bytes_of(values)),
            Contents::Initialized { shape, dtype, partition, shard, .. } => {
                partition.require_shard(shape, *shard)?;
                let row = row(shape.get(1..).unwrap_or_default(), *dtype);
                // A row without elements takes time, although no memory.
                row.and_then(|row| row.max(1).checked_mul(partition.len(*shard)))
            }
            Contents::Dynamic { row_shape, dtype, .. } => {
                // There is no row yet, but memory is allocated for several rows at once.
                row(row_shape, *dtype).and_then(|row| row.checked_mul(crate::dynamic::CHUNK))
            }
        };
        let bytes = bytes.unwrap_or(usize::MAX);
        let width = self.contents.row_shape().iter().product::<usize>().max(1);
        // Slots are not stored in bf16.
        let of_slots = if self.rounding.is_some() { bytes.saturating_mul(2) } else { bytes };
        let of_slot = |slot: &SlotSpec| (of_slots / width).saturating_mul(slot_width(slot, width));
        let slots = self.rule.as_ref().map_or(Vec::new(), |rule| rule.rule().slots());
        let slots = slots.iter().map(of_slot).fold(0, usize::saturating_add);
        Ok(bytes.saturating_add(slots).saturating_add(TABLE + self.name.len()))
    }
}

impl Entry {
    /// Returns the number of bytes that a request needs in addition to [`taken`](Self::taken). If `exact` is `false`,
    /// the result is an upper bound that is fast to compute.
    fn cost(&self, request: &Request, exact: bool) -> usize {
        match (request, &self.table) {
            (Request::SetRule { rule, .. }, AnyTable::Dense(table)) if table.rule().is_none() => {
                table.bytes_of_slots(&rule.rule().slots())
            }
            (Request::SetRule { rule, .. }, AnyTable::Dynamic(table)) if table.rule().is_none() => {
                table.bytes_of_slots(&rule.rule().slots())
            }
            (Request::PushRows { rows, .. }, AnyTable::Dynamic(table)) => table.bytes_of_new(rows, exact),
            (Request::Restore { state, .. }, AnyTable::Dynamic(table)) => match state {
                State::Ids(state) => table.bytes_of_new(&state.ids, exact),
                State::IdSlots { ids, .. } | State::IdValues { ids, .. } => table.bytes_of_new(ids, exact),
                _ => 0,
            },
            // The response takes memory in addition to the table.
            (Request::ReadRows { rows, .. }, AnyTable::Dense(table)) => table.bytes_of_rows(rows.len()),
            (Request::ReadRows { rows, .. }, AnyTable::Dynamic(table)) => table.bytes_of_rows(rows.len()),
            (
                Request::Write { value: values, .. }
                | Request::WriteRows { values, .. }
                | Request::Restore { state: State::Rows { values, .. }, .. },
                _,
            ) if values.dtype().bytes().is_none() => bytes_of(values),
            _ => 0,
        }
    }

    /// Returns the number of bytes that the table occupies or will occupy, including slots that are not created yet.
    fn taken(&self) -> usize {
        let table = match &self.table {
            AnyTable::Dense(table) => table.taken(),
            AnyTable::Dynamic(table) => table.bytes(),
        };
        table.saturating_add(TABLE)
    }
}

/// Returns the size of a tensor in bytes, including the contents of strings, but at least one byte for each row.
fn bytes_of(values: &HostTensor) -> usize {
    // A row without elements takes time, although no memory.
    values.memory().max(values.dims().first().copied().unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_optim::{Adam, Momentum, RowAdagrad, RuleSpec};

    // INV-28
    #[test]
    fn slots_are_counted_before_they_are_made() {
        let tables = Tables::new();
        tables.set_memory(1 << 20);
        let spec = || TableSpec::values("w", HostTensor::vector(vec![0f32; 100_000]));
        let adam = RuleSpec::Adam(Adam::lazy());
        let is_refused = |request| matches!(tables.handle(&request), Err(Error::Budget { .. }));
        assert!(is_refused(Request::Create(spec().rule(adam.clone()))));
        tables.handle(&Request::Create(spec())).unwrap();
        assert!(is_refused(Request::SetRule { table: "w".into(), rule: adam }));
        let rule = RuleSpec::Momentum(Momentum::new(0.5));
        tables.handle(&Request::SetRule { table: "w".into(), rule }).unwrap();
    }

    /// 100,000 rows of two take 800,000 bytes, and one number each 400,000.
    // INV-28
    #[test]
    fn a_slot_with_a_number_for_each_row_counts_as_such() {
        let rule = || RuleSpec::RowAdagrad(RowAdagrad::default());
        for (memory, fits) in [(1_210_000, true), (1_190_000, false)] {
            let values = || HostTensor::zeros(DType::F32, [100_000, 2]).unwrap();
            let tables = Tables::new();
            tables.set_memory(memory);
            let made = tables.handle(&Request::Create(TableSpec::values("w", values()).rule(rule())));
            assert_eq!(made.is_ok(), fits, "{made:?}");
            let tables = Tables::new();
            tables.set_memory(memory);
            tables.handle(&Request::Create(TableSpec::values("w", values()))).unwrap();
            let set = tables.handle(&Request::SetRule { table: "w".into(), rule: rule() });
            assert_eq!(set.is_ok(), fits, "{set:?}");
        }
    }

    // INV-28
    #[test]
    fn strings_are_counted_with_their_content() {
        let tables = Tables::new();
        tables.set_memory(1 << 20);
        let is_refused = |request: &Request| matches!(tables.handle(request), Err(Error::Budget { .. }));
        let nothing = HostTensor::new(Vec::<Vec<u8>>::new(), [1 << 60, 0]).unwrap();
        assert!(is_refused(&Request::Create(TableSpec::values("names", nothing))));
        tables
            .handle(&Request::Create(TableSpec::values("names", HostTensor::vector(vec![vec![0u8]]))))
            .unwrap();
        let restore = |bytes| {
            let values = HostTensor::vector(vec![vec![0u8; bytes]]);
            Request::Restore {
                table: "names".into(),
                state: State::Rows { first: 0, values, slots: Vec::new() },
            }
        };
        assert!(is_refused(&restore(1 << 20)));
        tables.handle(&restore(1 << 10)).unwrap();
    }
}
