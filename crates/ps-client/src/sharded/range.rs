//! Ranges of rows of a variable on parameter servers, with their slots. A checkpoint reads and writes one range after
//! another, so that a variable that is larger than memory is never in memory as a whole.

use super::super::channels::{ServerRequest, unexpected};
use super::{REQUEST_BYTES, Sharded, as_ids};
use distribute_base::Result;
use distribute_ps_tables::{Request, Response, State};
use distribute_tensor::{HostTensor, Write};
use std::ops::Range;

impl Sharded {
    /// Returns `true` if the variable can be read and written by ranges of rows: it has rows, and shards with the
    /// numbers of rows that the partition specifies.
    pub fn has_ranges(&self) -> bool {
        !self.dims.is_empty() && self.is_regular()
    }

    /// Reads the values of a range of rows.
    ///
    /// # Errors
    /// - [`Error::Server`](distribute_base::Error::Server): a server did not answer.
    pub fn read_range(&self, operation: &'static str, rows: Range<usize>) -> Result<HostTensor> {
        self.range(operation, rows, |values, _| Some(values))
    }

    /// Reads one slot of a range of rows.
    ///
    /// # Errors
    /// - [`Error::Server`](distribute_base::Error::Server): a server did not answer.
    /// - [`Error::InvalidArgument`](distribute_base::Error::InvalidArgument): there is no slot with this name.
    pub fn read_slot_range(
        &self,
        operation: &'static str,
        slot: &str,
        rows: Range<usize>,
    ) -> Result<HostTensor> {
        self.range(operation, rows, |_, slots| {
            slots.into_iter().find(|(name, _)| name == slot).map(|(_, slot)| slot)
        })
    }

    /// Reads a range of rows in parts that fit into requests with up to three slots, and returns what `select` takes
    /// from each response.
    fn range(
        &self,
        operation: &'static str,
        rows: Range<usize>,
        select: impl Fn(HostTensor, Vec<(String, HostTensor)>) -> Option<HostTensor>,
    ) -> Result<HostTensor> {
        let step = (REQUEST_BYTES / self.bytes(4).max(1)).max(1);
        let part = |start: usize| self.part(operation, start..rows.end.min(start + step), &select);
        let parts = rows.clone().step_by(step).map(part).collect::<Result<Vec<_>>>()?;
        super::joined(parts, || self.no_rows())
    }

    /// Reads a range of rows with their slots, and returns the tensor that `select` takes from each response.
    fn part(
        &self,
        operation: &'static str,
        rows: Range<usize>,
        select: impl Fn(HostTensor, Vec<(String, HostTensor)>) -> Option<HostTensor>,
    ) -> Result<HostTensor> {
        let on_shards = self.on_shards(&rows);
        let ask = |(number, rows): &(usize, Range<usize>)| {
            let shard = &self.shards[*number];
            let request = Request::StateRows { table: shard.table.clone(), rows: rows.clone() };
            ServerRequest { server: shard.server, request, bytes: self.bytes(rows.len()) }
        };
        let answers = self.channels.ask(operation, on_shards.iter().map(ask).collect())?;
        let mut parts = Vec::with_capacity(on_shards.len());
        for ((number, _), answer) in on_shards.iter().zip(answers) {
            let part = match answer {
                Response::State(State::Rows { values, slots, .. }) => {
                    select(values, slots).ok_or(Response::Done)
                }
                other => Err(other),
            };
            parts.push(part.map_err(|other| unexpected(operation, self.shards[*number].server, &other))?);
        }
        let joined = super::joined(parts, || self.no_rows())?;
        match self.order(&rows, &on_shards) {
            Some(order) => Ok(joined.take_rows(&order)?),
            None => Ok(joined),
        }
    }

    /// Writes the rows of `values` to the rows of the variable from `first` on. In lock step, sends only rows on
    /// servers that are assigned to this worker. Every worker that [sends some](Self::sends_some) of the rows must
    /// therefore make this call with the same arguments.
    ///
    /// # Errors
    /// - [`Error::Server`](distribute_base::Error::Server): a server did not answer.
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

    /// Writes the slots `names` of the rows from `first` on, without changing values. `slots` has a tensor for each
    /// name, with one row for each row to be written. In lock step, workers must make this call as they call
    /// [`write_range`](Self::write_range).
    ///
    /// # Errors
    /// - [`Error::Server`](distribute_base::Error::Server): a server did not answer, or the table has other slots.
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

    /// Splits `tensors` by shard. Their rows are those of the variable from `first` on. For each shard, sends the
    /// request that `request` creates from the shard's table, its rows and their values.
    fn send_range(
        &self,
        operation: &'static str,
        first: usize,
        tensors: &[HostTensor],
        request: impl Fn(String, Range<usize>, Vec<HostTensor>) -> Option<Request>,
    ) -> Result<()> {
        let count = tensors.first().and_then(|tensor| tensor.dims().first()).copied().unwrap_or_default();
        let mut requests = Vec::new();
        for (number, rows) in self.on_shards(&(first..first + count)) {
            let shard = &self.shards[number];
            let positions: Vec<usize> = rows.clone().map(|row| self.row(number, row) - first).collect();
            let of_shard =
                tensors.iter().map(|tensor| tensor.take_rows(&positions)).collect::<Result<Vec<_>, _>>()?;
            let bytes = self.bytes(rows.len()).saturating_mul(tensors.len());
            if let Some(request) = request(shard.table.clone(), rows, of_shard) {
                requests.push(ServerRequest { server: shard.server, request, bytes });
            }
        }
        self.channels.ask(operation, requests).map(drop)
    }

    /// Returns `true` if this worker sends the changes of at least one of the given rows. In lock step, each worker
    /// sends those of the servers that are assigned to it; otherwise, each worker sends all of its changes.
    pub fn sends_some(&self, rows: &Range<usize>) -> bool {
        self.on_shards(rows)
            .iter()
            .any(|(number, _)| self.channels.sends_changes(self.shards[*number].server))
    }

    /// Returns the shards that have some of the given rows, each with the indices of these rows on the shard.
    fn on_shards(&self, rows: &Range<usize>) -> Vec<(usize, Range<usize>)> {
        let on = |number| (number, self.partition.rows_on(number, rows.clone()));
        (0..self.shards.len()).map(on).filter(|(_, rows)| !rows.is_empty()).collect()
    }

    /// Returns the row of the variable that a shard stores as its row `row`.
    fn row(&self, shard: usize, row: usize) -> usize {
        self.partition.row(distribute_ps_tables::RowLocation { shard, row })
    }

    /// Returns, for each row of a range, its position among the rows of all shards. Returns `None` if the rows are
    /// already in order.
    fn order(&self, rows: &Range<usize>, on_shards: &[(usize, Range<usize>)]) -> Option<Vec<usize>> {
        let mut order = vec![0; rows.len()];
        let stored = on_shards
            .iter()
            .flat_map(|(number, of_shard)| of_shard.clone().map(|row| self.row(*number, row)));
        stored.enumerate().for_each(|(position, row)| order[row - rows.start] = position);
        (!order.is_sorted()).then_some(order)
    }
}
