//! Reading and writing consecutive rows of a variable on parameter servers, and their slots. Workers in lock step save
//! and restore one range after another, so that a variable that is larger than memory is never completely in memory.

use super::super::channels::{ServerRequest, unexpected};
use super::{REQUEST_BYTES, Sharded, as_ids};
use distribute_base::{Error, Result};
use distribute_ps_tables::{PartitionStrategy, Request, Response, State};
use distribute_tensor::{HostTensor, Write};
use std::ops::Range;

impl Sharded {
    /// Returns `true` if the variable can be read and written by ranges of rows: it has rows, and its shards have the
    /// numbers of rows that follow from the partition.
    pub fn has_ranges(&self) -> bool {
        !self.dims.is_empty() && self.is_regular()
    }

    /// Returns the number of rows; 1 for a scalar.
    pub fn rows(&self) -> usize {
        self.dims.first().copied().unwrap_or(1)
    }

    /// Reads the values of a range of rows.
    ///
    /// # Errors
    /// - [`Error::Server`]: a server did not answer.
    pub fn read_range(&self, operation: &'static str, rows: Range<usize>) -> Result<HostTensor> {
        let values = self.range(operation, rows, 1, |values, _| Ok(vec![values]))?;
        values.into_iter().next().map_or_else(|| self.no_rows(), Ok)
    }

    /// Reads the slots `names` of a range of rows.
    ///
    /// # Errors
    /// - [`Error::Server`]: a server did not answer.
    /// - [`Error::InvalidArgument`]: a table has no slot of one of the names.
    pub fn read_slots(
        &self,
        operation: &'static str,
        names: &[&str],
        rows: Range<usize>,
    ) -> Result<Vec<HostTensor>> {
        self.range(operation, rows, names.len(), |_, slots| {
            let of =
                |name: &&str| slots.iter().find(|(found, _)| found == name).map(|(_, slot)| slot.clone());
            names.iter().map(of).collect::<Option<_>>().ok_or_else(|| {
                let found: Vec<_> = slots.iter().map(|(name, _)| name).collect();
                Error::invalid(
                    operation,
                    format!(
                        "the slots of variable {} on its servers are {found:?}, not {names:?}",
                        self.name
                    ),
                )
            })
        })
    }

    /// Reads `columns` tensors of a range of rows, in parts that fit into requests. `select` selects them from the
    /// values and slots in each response.
    fn range(
        &self,
        operation: &'static str,
        rows: Range<usize>,
        columns: usize,
        select: impl Fn(HostTensor, Vec<(String, HostTensor)>) -> Result<Vec<HostTensor>>,
    ) -> Result<Vec<HostTensor>> {
        let parts = self.parts(rows).map(|rows| self.part(operation, rows, columns, &select));
        self.joined_columns(columns, parts.collect::<Result<_>>()?)
    }

    /// Splits a range of rows into parts that fit into requests with up to three slots. Returns at least one part.
    fn parts(&self, rows: Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let step = (REQUEST_BYTES / self.bytes(4).max(1)).max(1);
        let none = rows.is_empty().then(|| rows.clone());
        let end = rows.end;
        none.into_iter().chain(rows.step_by(step).map(move |start| start..end.min(start + step)))
    }

    fn part(
        &self,
        operation: &'static str,
        rows: Range<usize>,
        columns: usize,
        select: impl Fn(HostTensor, Vec<(String, HostTensor)>) -> Result<Vec<HostTensor>>,
    ) -> Result<Vec<HostTensor>> {
        let on_shards = if rows.is_empty() { vec![(0, 0..0)] } else { self.on_shards(&rows) };
        let ask = |(number, rows): &(usize, Range<usize>)| {
            let shard = &self.shards[*number];
            let request = Request::StateRows { table: shard.table.clone(), rows: rows.clone() };
            ServerRequest { server: shard.server, request, bytes: self.bytes(rows.len()) }
        };
        let answers = self.channels.ask(operation, on_shards.iter().map(ask).collect())?;
        let of_shard = |((number, _), answer): (&(usize, Range<usize>), Response)| match answer {
            Response::State(State::Rows { values, slots, .. }) => select(values, slots),
            other => Err(unexpected(operation, self.shards[*number].server, &other)),
        };
        let parts = on_shards.iter().zip(answers).map(of_shard).collect::<Result<_>>()?;
        let joined = self.joined_columns(columns, parts)?;
        match self.order(&rows, &on_shards) {
            Some(order) => {
                Ok(joined.iter().map(|column| column.take_rows(&order)).collect::<Result<_, _>>()?)
            }
            None => Ok(joined),
        }
    }

    /// Concatenates the tensors at the same position of all parts.
    fn joined_columns(&self, columns: usize, parts: Vec<Vec<HostTensor>>) -> Result<Vec<HostTensor>> {
        let mut of_columns = vec![Vec::with_capacity(parts.len()); columns];
        for part in parts {
            of_columns.iter_mut().zip(part).for_each(|(column, tensor)| column.push(tensor));
        }
        of_columns.into_iter().map(|column| super::joined(column, || self.no_rows())).collect()
    }

    /// Returns the indices of the shards whose changes this worker sends. In lock step, each shard is one of exactly
    /// one worker.
    pub fn own_shards(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.shards.len()).filter(|number| self.channels.sends_changes(self.shards[*number].server))
    }

    /// Returns the first row of the variable on a shard, and the distance between two of its rows.
    pub fn rows_of(&self, shard: usize) -> (usize, usize) {
        let step = match self.partition.strategy() {
            PartitionStrategy::Mod => self.partition.shards(),
            PartitionStrategy::Div => 1,
        };
        (self.row(shard, 0), step)
    }

    /// Reads a range of the rows of a shard: the slots `slot`, or the values.
    ///
    /// # Errors
    /// Returns the errors of [`read_slots`](Self::read_slots).
    pub fn read_shard(
        &self,
        operation: &'static str,
        number: usize,
        rows: Range<usize>,
        slot: Option<&str>,
    ) -> Result<HostTensor> {
        let shard = &self.shards[number];
        let part = |rows: Range<usize>| {
            let bytes = self.bytes(rows.len());
            let request = Request::StateRows { table: shard.table.clone(), rows };
            let ask = ServerRequest { server: shard.server, request, bytes };
            match self.channels.ask(operation, vec![ask])?.pop() {
                Some(Response::State(State::Rows { values, slots, .. })) => match slot {
                    None => Ok(values),
                    Some(name) => {
                        let slot = slots.into_iter().find(|(found, _)| found == name);
                        slot.map(|(_, slot)| slot).ok_or_else(|| self.no_slot(operation, name))
                    }
                },
                other => Err(unexpected(operation, shard.server, &other.unwrap_or(Response::Done))),
            }
        };
        super::joined(self.parts(rows).map(part).collect::<Result<_>>()?, || self.no_rows())
    }

    fn no_slot(&self, operation: &'static str, name: &str) -> Error {
        let reason = format!("a server of variable {} has no slot {name}", self.name);
        Error::invalid(operation, reason)
    }

    /// Writes `values` to the rows of the variable from `first` on. In lock step, this worker sends only the rows on
    /// servers that are assigned to it. Every worker that [sends some](Self::sends_some) of the rows must therefore
    /// make this call with the same arguments.
    ///
    /// # Errors
    /// - [`Error::Server`]: a server did not answer.
    pub fn write_range(&self, operation: &'static str, first: usize, values: &HostTensor) -> Result<()> {
        self.send_range(operation, first, std::slice::from_ref(values), |table, rows, values| {
            let rows = as_ids(&rows.collect::<Vec<_>>());
            values.into_iter().next().map(|values| Request::WriteRows {
                table,
                how: Write::Assign,
                rows,
                values,
            })
        })
    }

    /// Writes the slots `names` of the rows from `first` on, without changing values. `slots` contains a tensor for
    /// each name, with one row for each row to write. In lock step, the same workers must make this call as for
    /// [`write_range`](Self::write_range).
    ///
    /// # Errors
    /// - [`Error::Server`]: a server did not answer, or the table has other slots.
    pub fn write_slot_range(
        &self,
        operation: &'static str,
        first: usize,
        names: &[String],
        slots: &[HostTensor],
    ) -> Result<()> {
        self.send_range(operation, first, slots, |table, rows, slots| {
            let slots = names.iter().cloned().zip(slots).collect();
            Some(Request::Restore { table, state: State::Slots { first: rows.start, slots } })
        })
    }

    /// Writes slots of all rows, without changing values. `slots` are in the order of `names`.
    ///
    /// # Errors
    /// Returns the errors of [`write_slot_range`](Self::write_slot_range).
    pub fn write_slots(&self, operation: &'static str, names: &[String], slots: &[HostTensor]) -> Result<()> {
        for rows in self.parts(0..self.rows()) {
            let is_scalar = self.dims.is_empty();
            let some = |slot: &HostTensor| {
                if is_scalar { Ok(slot.clone()) } else { slot.narrow(0, rows.start, rows.len()) }
            };
            let some = slots.iter().map(some).collect::<Result<Vec<_>, _>>()?;
            self.write_slot_range(operation, rows.start, names, &some)?;
        }
        Ok(())
    }

    /// Splits `tensors`, whose rows are those of the variable from `first` on, by shard. For each shard, sends the
    /// request that `request` creates from the shard's table, its rows and their values.
    fn send_range(
        &self,
        operation: &'static str,
        first: usize,
        tensors: &[HostTensor],
        request: impl Fn(String, Range<usize>, Vec<HostTensor>) -> Option<Request>,
    ) -> Result<()> {
        // A scalar is one row.
        let count = tensors.first().map_or(0, |tensor| tensor.dims().first().copied().unwrap_or(1));
        let mut requests = Vec::new();
        for (number, rows) in self.on_shards(&(first..first + count)) {
            let shard = &self.shards[number];
            if !self.channels.sends_changes(shard.server) {
                continue;
            }
            let of_shard = if self.shards.len() == 1 {
                tensors.to_vec()
            } else {
                let positions: Vec<usize> = rows.clone().map(|row| self.row(number, row) - first).collect();
                tensors.iter().map(|tensor| tensor.take_rows(&positions)).collect::<Result<_, _>>()?
            };
            let bytes = self.bytes(rows.len()).saturating_mul(tensors.len());
            if let Some(request) = request(shard.table.clone(), rows, of_shard) {
                requests.push(ServerRequest { server: shard.server, request, bytes });
            }
        }
        self.channels.ask(operation, requests).map(drop)
    }

    /// Returns `true` if this worker sends changes of at least one of the given rows. In lock step, each worker sends
    /// those of the servers that are assigned to it. Otherwise each worker sends all of its changes.
    pub fn sends_some(&self, rows: &Range<usize>) -> bool {
        self.on_shards(rows)
            .iter()
            .any(|(number, _)| self.channels.sends_changes(self.shards[*number].server))
    }

    /// Returns the shards that contain any of the given rows, and the indices of these rows on each shard.
    fn on_shards(&self, rows: &Range<usize>) -> Vec<(usize, Range<usize>)> {
        let on = |number| (number, self.partition.rows_on(number, rows.clone()));
        (0..self.shards.len()).map(on).filter(|(_, rows)| !rows.is_empty()).collect()
    }

    /// Returns the row of the variable that a shard stores at index `row`.
    fn row(&self, shard: usize, row: usize) -> usize {
        self.partition.row(distribute_ps_tables::RowLocation { shard, row })
    }

    /// Returns, for each row of a range, its position among the rows of all shards, one shard after another. Returns
    /// `None` if these are already in order.
    fn order(&self, rows: &Range<usize>, on_shards: &[(usize, Range<usize>)]) -> Option<Vec<usize>> {
        let mut order = vec![0; rows.len()];
        let stored = on_shards
            .iter()
            .flat_map(|(number, of_shard)| of_shard.clone().map(|row| self.row(*number, row)));
        stored.enumerate().for_each(|(position, row)| order[row - rows.start] = position);
        (!order.is_sorted()).then_some(order)
    }
}
