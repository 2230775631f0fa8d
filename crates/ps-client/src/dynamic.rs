//! A variable on parameter servers whose rows are ids of 64 bits.

use super::links::{Ask, unexpected};
use super::sharded::{self, EachOnce, Initial, Sharded};
use super::{ParameterServers, Where};
use distribute_base::Result;
use distribute_log::heard;
use distribute_ps_tables::{
    DynamicOptions, DynamicState, HashPartition, Initializer, Push, Request, Response, RowPartition, State,
    TableInfo, UniqueIds,
};
use distribute_tensor::{DType, HostTensor};
use std::cmp::Reverse;

/// The approximate number of bytes of values and slots that one message sends.
const PIECE: usize = 8 << 20;

/// The largest number of ids in a message that lists the rows to keep.
const IDS: usize = 1 << 20;

/// A table of ids on each server. A hash of the id and the number of servers decide which server holds an id.
#[derive(Clone, Debug)]
pub struct Dynamic {
    /// The tables, as the shards of one variable in which each table counts as one row.
    tables: Sharded,
    partition: HashPartition,
    options: DynamicOptions,
}

impl Dynamic {
    /// Creates a variable, or finds one that another process has created in the same way. It has a table on each
    /// server, or one table next to another variable.
    pub fn create(
        servers: &ParameterServers,
        (name, row, dtype): (&str, &[usize], DType),
        (initializer, options): (Initializer, DynamicOptions),
        to: Where,
    ) -> Result<Self> {
        let (count, to) = match to {
            Where::Beside(server) => (1, Where::Beside(server)),
            Where::Anywhere | Where::CutAs(_) => {
                let count = servers.count();
                (count, Where::CutAs(RowPartition::div(count, count)))
            }
        };
        let dims: Vec<usize> = std::iter::once(&count).chain(row).copied().collect();
        let initial = Initial::Ids(initializer, options);
        let tables = Sharded::create(servers, (name, &dims, dtype), &initial, to)?;
        Ok(Self { tables, partition: HashPartition::new(count), options })
    }

    /// Returns the tables on the servers.
    pub fn tables(&self) -> &Sharded {
        &self.tables
    }

    /// Returns the options of the table.
    pub fn options(&self) -> DynamicOptions {
        self.options
    }

    /// Reads the rows of these ids, each once.
    pub fn read_each(&self, operation: &'static str, ids: &[i64]) -> Result<EachOnce> {
        let unique = UniqueIds::new(ids);
        let split = self.partition.split(unique.ids());
        let asked: Vec<usize> = (0..split.shards()).filter(|shard| !split.of(*shard).is_empty()).collect();
        let ask = |shard: &usize| {
            let ids = split.of(*shard).to_vec();
            self.ask(*shard, ids.len(), |table| Request::ReadRows { table, rows: ids })
        };
        let answers = self.tables.links().ask(operation, asked.iter().map(ask).collect())?;
        let mut parts = Vec::with_capacity(asked.len());
        let mut places = vec![0; unique.ids().len()];
        let mut next = 0;
        for (shard, answer) in asked.iter().zip(answers) {
            match answer {
                Response::Rows(rows) => {
                    parts.push(self.fits(operation, *shard, split.of(*shard).len(), rows)?)
                }
                other => return Err(self.unexpected(operation, *shard, &other)),
            }
            for position in split.positions(*shard) {
                places[*position] = next;
                next += 1;
            }
        }
        let none = || Ok(HostTensor::zeros(self.tables.dtype(), self.rows_shape(0))?);
        Ok(EachOnce { rows: sharded::joined(parts, none)?, places: unique.spread(&places, 1) })
    }

    /// Returns the requests that apply a gradient of ids, each of which occurs once. `gradient` returns the gradient
    /// of the ids at some positions.
    pub fn push(
        &self,
        push: Push,
        ids: &[i64],
        gradient: impl Fn(&[usize]) -> Result<HostTensor>,
    ) -> Result<Vec<Ask>> {
        let split = self.partition.split(ids);
        let mut asks = Vec::new();
        for shard in (0..split.shards()).filter(|shard| !split.of(*shard).is_empty()) {
            let gradient = gradient(split.positions(shard))?;
            let rows = split.of(shard).to_vec();
            asks.push(self.ask(shard, rows.len(), |table| Request::PushRows { table, push, rows, gradient }));
        }
        Ok(asks)
    }

    /// Reads all ids that have a row, in ascending order, with values and slots.
    pub fn rows(&self, operation: &'static str) -> Result<DynamicState> {
        let mut parts = vec![DynamicState {
            ids: Vec::new(),
            used: Vec::new(),
            values: HostTensor::zeros(self.tables.dtype(), self.rows_shape(0))?,
            slots: Vec::new(),
        }];
        for (shard, info) in self.infos(operation)?.into_iter().enumerate() {
            for part in 0..info.parts {
                let ask = self.ask(shard, info.rows / info.parts, |table| Request::StatePart { table, part });
                match self.tables.links().ask(operation, vec![ask])?.pop() {
                    Some(Response::State(State::Ids(state))) => parts.push(state),
                    other => return Err(self.unexpected(operation, shard, &other.unwrap_or(Response::Done))),
                }
            }
        }
        joined(parts)
    }

    /// Returns the description of the table on each server.
    fn infos(&self, operation: &'static str) -> Result<Vec<TableInfo>> {
        let shards = self.tables.shards();
        let asks = shards.iter().map(|shard| Ask { server: shard.server, request: Request::List, bytes: 0 });
        let answers = self.tables.links().ask(operation, asks.collect())?;
        let info = |(number, answer): (usize, Response)| match answer {
            Response::Tables(all) => {
                let found = all.into_iter().find(|info| info.name == shards[number].table);
                found.ok_or_else(|| {
                    let reason = format!("{} has no table {}", self.place(number), shards[number].table);
                    distribute_base::Error::invalid(operation, reason)
                })
            }
            other => Err(self.unexpected(operation, number, &other)),
        };
        answers.into_iter().enumerate().map(info).collect()
    }

    /// Sets the values of these ids, and removes all other rows. Rows that exist keep their slots. New rows get new
    /// slots.
    pub fn set_values(
        &self,
        operation: &'static str,
        ids: &[i64],
        used: &[u64],
        values: &HostTensor,
    ) -> Result<()> {
        let split = self.partition.split(ids);
        let mut left_out = 0;
        for shard in 0..split.shards() {
            self.keep(operation, shard, split.of(shard).to_vec())?;
            // The most recently used ids come first, so that they are there if not all of them fit.
            let mut positions = split.positions(shard).to_vec();
            positions.sort_unstable_by_key(|at| (Reverse(used[*at]), Reverse(ids[*at])));
            for some in positions.chunks(self.piece(1)) {
                let values = values.take_rows(some)?;
                let (ids, used) = some.iter().map(|at| (ids[*at], used[*at])).unzip();
                left_out += self.restore(operation, shard, State::IdValues { ids, used, values })?;
            }
        }
        self.tell(left_out);
        Ok(())
    }

    /// Sets the slots of some ids. Ids without a row get one.
    pub fn set_slots(
        &self,
        operation: &'static str,
        ids: &[i64],
        slots: &[(String, HostTensor)],
    ) -> Result<()> {
        let split = self.partition.split(ids);
        let mut left_out = 0;
        for shard in 0..split.shards() {
            for some in split.positions(shard).chunks(self.piece(slots.len())) {
                let slots = slots.iter().map(|(name, slot)| Ok((name.clone(), slot.take_rows(some)?)));
                let slots = slots.collect::<Result<_>>()?;
                let ids = some.iter().map(|at| ids[*at]).collect();
                left_out += self.restore(operation, shard, State::IdSlots { ids, slots })?;
            }
        }
        self.tell(left_out);
        Ok(())
    }

    fn tell(&self, left_out: usize) {
        if left_out > 0 {
            heard(|| {
                tracing::warn!(
                    "variable {}: {left_out} rows were not restored, since a server may have no more (max_rows)",
                    self.tables.name()
                );
            });
        }
    }

    /// Removes all rows of a server except those of some ids.
    fn keep(&self, operation: &'static str, shard: usize, mut ids: Vec<i64>) -> Result<()> {
        ids.sort_unstable();
        let mut first = i64::MIN;
        let mut rest = ids.as_slice();
        loop {
            let (some, others) = rest.split_at(rest.len().min(IDS));
            // Up to the first id of the next message.
            let last = others.first().map_or(i64::MAX, |next| next - 1);
            let keep = |table| Request::Keep { table, between: (first, last), ids: some.to_vec() };
            self.tables.links().ask(operation, vec![self.ask(shard, some.len(), keep)])?;
            let Some(next) = others.first() else { return Ok(()) };
            (first, rest) = (*next, others);
        }
    }

    fn restore(&self, operation: &'static str, shard: usize, state: State) -> Result<usize> {
        let request = |table| Request::Restore { table, state };
        match self.tables.links().ask(operation, vec![self.ask(shard, self.piece(1), request)])?.pop() {
            Some(Response::Restored { left_out }) => Ok(left_out),
            other => Err(self.unexpected(operation, shard, &other.unwrap_or(Response::Done))),
        }
    }

    /// Returns a request to a server that sends or reads this number of rows.
    fn ask(&self, shard: usize, rows: usize, request: impl FnOnce(String) -> Request) -> Ask {
        let shard = &self.tables.shards()[shard];
        Ask { server: shard.server, request: request(shard.table.clone()), bytes: self.tables.bytes(rows) }
    }

    /// Returns the number of rows per message if each row has this number of tensors.
    fn piece(&self, tensors: usize) -> usize {
        (PIECE / self.tables.bytes(tensors.max(1)).max(1)).max(1)
    }

    fn fits(
        &self,
        operation: &'static str,
        shard: usize,
        count: usize,
        rows: HostTensor,
    ) -> Result<HostTensor> {
        if rows.dims() == self.rows_shape(count) && rows.dtype() == self.tables.dtype() {
            return Ok(rows);
        }
        let reason = format!("{} sent {} for {count} ids", self.place(shard), rows.describe());
        Err(distribute_base::Error::invalid(operation, reason))
    }

    fn place(&self, shard: usize) -> String {
        format!("ps {}", self.tables.shards()[shard].server)
    }

    fn unexpected(&self, operation: &'static str, shard: usize, found: &Response) -> distribute_base::Error {
        unexpected(operation, self.tables.shards()[shard].server, found)
    }

    fn rows_shape(&self, rows: usize) -> Vec<usize> {
        let row = self.tables.dims().get(1..).unwrap_or_default();
        std::iter::once(&rows).chain(row).copied().collect()
    }
}

/// Merges parts of a table in the order of their ids.
fn joined(parts: Vec<DynamicState>) -> Result<DynamicState> {
    // Parts without rows may have been read before there were slots.
    let names: Vec<String> = parts
        .iter()
        .find(|part| !part.slots.is_empty())
        .map(|part| part.slots.iter().map(|(name, _)| name.clone()).collect())
        .unwrap_or_default();
    let some: Vec<&DynamicState> = parts
        .iter()
        .enumerate()
        .filter(|(i, part)| *i == 0 || !part.ids.is_empty())
        .map(|(_, part)| part)
        .collect();
    let values = HostTensor::concat(&some.iter().map(|part| &part.values).collect::<Vec<_>>(), 0)?;
    let slot = |number: usize| {
        let of = |part: &&DynamicState| {
            part.slots.get(number).map_or_else(|| part.values.clone(), |(_, slot)| slot.clone())
        };
        let all: Vec<HostTensor> = some.iter().map(of).collect();
        HostTensor::concat(&all.iter().collect::<Vec<_>>(), 0)
    };
    let slots = names.into_iter().enumerate().map(|(i, name)| Ok((name, slot(i)?))).collect::<Result<_>>()?;
    let ids: Vec<i64> = some.iter().flat_map(|part| part.ids.iter().copied()).collect();
    let used: Vec<u64> = some.iter().flat_map(|part| part.used.iter().copied()).collect();
    let mut order: Vec<usize> = (0..ids.len()).collect();
    order.sort_unstable_by_key(|at| ids[*at]);
    Ok(DynamicState { ids, used, values, slots }.take(&order)?)
}
